//! Reads the state of a process beside its memory, for core files.

use trueno_zram_archive::process_state::{FileMapping, ProcessState, ThreadState};

use crate::process::{MapsLine, Process, registers_of};

/// Returns `e_machine` of the programs of this machine; 0 for one that core files are not written for.
pub(crate) fn machine() -> u16 {
    match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        _ => 0,
    }
}

/// Reads the state of a process that is stopped. Threads whose registers cannot be read are left out.
pub(crate) fn of_stopped(process: &Process, maps: &[MapsLine]) -> ProcessState {
    let threads = process.threads().unwrap_or_default().into_iter();
    let threads = threads.filter_map(|number| Some(ThreadState { number, registers: registers_of(number).ok()? }));
    let files = maps.iter().filter(|line| line.name.starts_with('/')).map(|line| FileMapping {
        start: line.start,
        end: line.end,
        offset: line.offset,
        name: line.name.clone(),
    });
    ProcessState {
        machine: machine(),
        auxiliary_vector: process.auxiliary_vector().unwrap_or_default(),
        threads: threads.collect(),
        files: files.collect(),
    }
}
