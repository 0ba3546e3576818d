//! The memory of a store and of the machine: refuses what cannot be held, and leaves a margin while the server runs.
//!
//! It is the tool that knows the machine; the store only knows how much it may grow.

use std::sync::{Arc, Weak};
use std::time::Duration;

use trueno_zram_store::{Store, StoreOptions};

use crate::args::Global;
use crate::failure::Failure;
use crate::machine::{SystemMemory, lockable_bytes};
use crate::print::{quantity, report};

/// The interval at which the machine's memory is read. Between two looks, the store takes no more than there was at the first one.
const INTERVAL: Duration = Duration::from_millis(250);

/// Checks whether there is memory for a new store. Warns if there is less than it may take some day.
pub(super) fn check(options: &StoreOptions, global: &Global) -> Result<(), Failure> {
    let needed_bytes = options.max_memory_bytes().map_err(super::store_failed)?;
    let Some(room) = SystemMemory::room() else { return Ok(()) };
    if let Some(warning) = compare(options, needed_bytes, room, lockable_bytes())? {
        report::warn(global, "memory", &warning);
    }
    Ok(())
}

/// Returns a warning if the store may take more than there is at present, and refuses one that cannot be held.
fn compare(
    options: &StoreOptions,
    needed_bytes: u64,
    room: SystemMemory,
    lockable_bytes: Option<u64>,
) -> Result<Option<String>, Failure> {
    let [needed, total, margin] = [needed_bytes, room.total_bytes, margin_bytes(room)].map(quantity::bytes);
    let free_bytes = room.available_bytes.saturating_sub(margin_bytes(room));
    let free = quantity::bytes(free_bytes);
    if let Some(limit) = options.limit_bytes.filter(|limit| *limit > room.total_bytes) {
        let limit = quantity::bytes(limit);
        return Err(Failure::usage(format!(
            "--limit {limit} is more than the {total} that this machine, or the control group of the server, has in all; \
             {free} are free now"
        )));
    }
    if options.locked && needed_bytes > free_bytes {
        return Err(Failure::usage(format!(
            "--lock takes {needed} at once, and {free} are free, with {margin} left for the rest of the machine; \
             give a lower --limit"
        )));
    }
    if let Some(lockable) = lockable_bytes.filter(|lockable| options.locked && needed_bytes > *lockable) {
        let lockable = quantity::bytes(lockable);
        return Err(Failure::usage(format!(
            "--lock needs {needed}, and the server may lock {lockable}; raise it (`ulimit -l`, or LimitMEMLOCK= in a unit), \
             or give a lower --limit"
        )));
    }
    Ok((needed_bytes > free_bytes).then(|| {
        format!("the device may take {needed}, and {free} are free; writes that need the last {margin} get ENOSPC")
    }))
}

/// The most that is left to the rest of the machine.
const MAX_MARGIN_BYTES: u64 = 512 << 20;

/// Returns the memory that is left to the rest of the machine or of the control group, and to the server itself: a 32nd of all,
/// but enough for a `save`, which holds a batch of pages per thread, and for some replies on their way to clients.
fn margin_bytes(room: SystemMemory) -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let for_work = (32 << 20) + threads * (16 << 20);
    (room.total_bytes / 32).max(for_work).min(MAX_MARGIN_BYTES).min(room.total_bytes / 2)
}

/// Watches the memory of the machine for as long as the store lives. A store that is locked has all of its memory.
pub(super) fn watch(store: &Arc<Store>, global: &Global) -> Result<(), Failure> {
    if store.is_locked() {
        return Ok(());
    }
    // Before the first write, which may be that of --load.
    leave_margin(store, SystemMemory::room());
    let (store, global) = (Arc::downgrade(store), global.clone());
    let thread =
        std::thread::Builder::new().name("memory".to_owned()).spawn(move || watch_until_dropped(&store, &global));
    thread.map(drop).map_err(|error| Failure::io("the thread that watches memory", &error))
}

fn watch_until_dropped(store: &Weak<Store>, global: &Global) {
    let mut was_told = false;
    while let Some(store) = store.upgrade() {
        let room = SystemMemory::room();
        let is_low = leave_margin(&store, room) == 0;
        if let Some(room) = room.filter(|_| is_low && !was_told) {
            let available = quantity::bytes(room.available_bytes);
            report::warn(global, "memory", &format!("{available} are left; writes that need more memory get ENOSPC"));
            was_told = true;
        }
        drop(store);
        std::thread::sleep(INTERVAL);
    }
}

/// Lets the store grow by what is available, less the margin. Returns by how much.
fn leave_margin(store: &Store, room: Option<SystemMemory>) -> u64 {
    // Without figures there is nothing to compare with.
    let room_bytes = room.map_or(u64::MAX, |room| room.available_bytes.saturating_sub(margin_bytes(room)));
    store.limit_growth(room_bytes);
    room_bytes
}

#[cfg(test)]
mod tests {
    use trueno_test_pages::generate::Generator;
    use trueno_zram_store::{Error, StoreHandle};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(total_bytes: u64, available_bytes: u64) -> SystemMemory {
        SystemMemory { total_bytes, available_bytes }
    }

    fn compared(limit: Option<u64>, locked: bool, lockable_bytes: Option<u64>) -> Result<Option<String>, Failure> {
        let options = StoreOptions::new(16 * GIB).with_limit_bytes(limit).with_locked(locked);
        compare(&options, options.max_memory_bytes().unwrap(), room(8 * GIB, 4 * GIB), lockable_bytes)
    }

    #[test]
    fn limits_beyond_all_memory_are_refused_and_beyond_free_memory_warned_of() {
        assert!(matches!(compared(Some(3 * GIB), false, None), Ok(None)));
        assert!(matches!(compared(Some(5 * GIB), false, None), Ok(Some(_))));
        assert!(matches!(compared(Some(8 * GIB), false, None), Ok(Some(_))));
        assert!(matches!(compared(Some(9 * GIB), false, None), Err(Failure::Usage(_))));
        // Pages may shrink to what there is.
        assert!(matches!(compared(None, false, None), Ok(Some(_))));
    }

    #[test]
    fn locked_memory_must_be_there_and_be_allowed() {
        assert!(matches!(compared(Some(3 * GIB), true, None), Ok(None)));
        assert!(matches!(compared(Some(4 * GIB), true, None), Err(Failure::Usage(_))), "the margin stays");
        assert!(matches!(compared(None, true, None), Err(Failure::Usage(_))));
        assert!(matches!(compared(Some(3 * GIB), true, Some(3 * GIB)), Err(Failure::Usage(_))), "the table counts");
        assert!(matches!(compared(Some(3 * GIB), true, Some(4 * GIB)), Ok(None)));
        assert!(matches!(compared(Some(3 * GIB), false, Some(0)), Ok(None)), "nothing is locked");
    }

    #[test]
    fn the_margin_is_kept_while_the_server_runs() {
        let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
        let mut handle = StoreHandle::new(&store).unwrap();
        let mut random = Generator::new(1);
        let noise: Vec<u8> = (0..4096).map(|_| random.byte()).collect();
        let margin = margin_bytes(room(GIB, 0));
        // The first page of a slab takes two pages of memory.
        assert_eq!(leave_margin(&store, Some(room(GIB, margin + 8192))), 8192);
        handle.write_at(0, &noise).unwrap();
        assert_eq!(leave_margin(&store, Some(room(GIB, margin))), 0);
        assert!(matches!(handle.write_at(4096, &noise), Err(Error::NoSpace { .. })));
        assert_eq!(leave_margin(&store, Some(room(GIB, margin - 1))), 0);
        handle.write_at(4096, &[7; 4096]).expect("a page that takes no slot needs no memory");
        assert_eq!(leave_margin(&store, None), u64::MAX);
        handle.write_at(8192, &noise).unwrap();
    }
}
