//! Windows of a process's memory, read ahead of the compression.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use trueno_zram_archive::address_map::Mapping;
use trueno_zram_core::{PAGE_SIZE, Page};

use super::reader::LeftOut;
use super::{MemoryReader, Process, ProcessError, Stopped};
use crate::machine::SystemMemory;

/// Pages per window: 16 MiB, in parts that several threads read.
const WINDOW_PAGES: usize = 4096;

/// Windows that are read ahead if they cannot all be held.
const WAITING: usize = 2;

/// A process that is being read by a thread of its own.
#[derive(Debug)]
pub(crate) struct Windows<'scope> {
    windows: Receiver<Result<Arc<Vec<Page>>, ProcessError>>,
    reading: Option<ScopedJoinHandle<'scope, ReadProcess>>,
}

/// The results of reading a process.
#[derive(Debug)]
pub(crate) struct ReadProcess {
    pub(crate) mappings: Vec<Mapping>,
    /// Pages that were in swap.
    pub(crate) swapped: u64,
    pub(crate) left: LeftOut,
    /// The time for which the process was stopped.
    pub(crate) stopped_for: Option<Duration>,
}

/// Sends a window to the compression. Returns `false` if the receiver is gone.
type SendWindow = Box<dyn Fn(Result<Arc<Vec<Page>>, ProcessError>) -> bool + Send>;

impl<'scope> Windows<'scope> {
    /// Reads a process on a thread of `scope` and the threads of `reader`. A process that was stopped at `stopped` is read to its
    /// end before this returns, if there is memory for that: then nothing is compressed while it stands still. It continues
    /// as soon as its last page is read.
    pub(crate) fn read<'env>(
        scope: &'scope Scope<'scope, 'env>,
        reader: MemoryReader<'env, Process>,
        stopped: Option<(Stopped, Instant)>,
    ) -> io::Result<Self> {
        let reads_first = stopped.is_some() && may_hold(reader.most_bytes());
        let (send, windows): (SendWindow, _) = if reads_first {
            let (sender, windows) = channel();
            (Box::new(move |window| sender.send(window).is_ok()), windows)
        } else {
            let (sender, windows) = sync_channel(WAITING);
            (Box::new(move |window| sender.send(window).is_ok()), windows)
        };
        let (told, is_read) = channel();
        let read = move || {
            let read = read_all(reader, stopped, &send);
            // Nobody listens unless the process is read first.
            let _ = told.send(());
            read
        };
        let reading = thread::Builder::new().name("read".into()).spawn_scoped(scope, read)?;
        if reads_first {
            // An error is a panic of the thread, which `finish` passes on.
            let _ = is_read.recv();
        }
        Ok(Self { windows, reading: Some(reading) })
    }

    /// Returns the next window; `None` at the end.
    pub(crate) fn next(&self) -> Result<Option<Arc<Vec<Page>>>, ProcessError> {
        self.windows.recv().ok().transpose()
    }

    /// Returns the results once there are no more windows; `None` the second time.
    pub(crate) fn finish(&mut self) -> Option<ReadProcess> {
        let reading = self.reading.take()?;
        Some(reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

fn read_all(
    mut reader: MemoryReader<'_, Process>,
    stopped: Option<(Stopped, Instant)>,
    send: &SendWindow,
) -> ReadProcess {
    loop {
        let mut window = vec![[0; PAGE_SIZE]; WINDOW_PAGES];
        let filled = reader.fill(&mut window);
        let wants_more = match filled {
            Ok(0) => break,
            Ok(pages) => {
                window.truncate(pages);
                send(Ok(Arc::new(window)))
            }
            Err(error) => {
                send(Err(error));
                false
            }
        };
        if !wants_more {
            break;
        }
    }
    let stopped_for = stopped.map(|(stopped, since)| {
        drop(stopped);
        since.elapsed()
    });
    let MemoryReader { mappings, swapped, left, .. } = reader;
    ReadProcess { mappings, swapped, left, stopped_for }
}

/// Returns `true` if this many bytes fit in half of the memory that is available. A process that is killed for want of memory would
/// leave the other one stopped.
fn may_hold(bytes: u64) -> bool {
    SystemMemory::room().is_some_and(|room| bytes <= room.available_bytes / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_held_only_if_it_is_known_to_be_there() {
        assert!(may_hold(0) && !may_hold(u64::MAX));
    }
}
