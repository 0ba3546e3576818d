//! The length of a device: the room in which it can grow, and the length of one that was kept.

use trueno_zram_core::PAGE_SIZE;
use trueno_zram_store::{Store, StoreOptions};

use super::{Args, store_failed};
use crate::args::Global;
use crate::failure::Failure;
use crate::print::{quantity, report};

/// The length to which a device can grow unless the user gives one, as a multiple of its own.
const DEFAULT_GROWTH: u64 = 8;

/// The longest store.
const MAX_STORE_BYTES: u64 = 16 << 40;

/// Reports the content that an earlier server left.
pub(super) fn say_kept(store: &Store, asked_bytes: u64, args: &Args, global: &Global) {
    let (held, size) = (store.stats().mm.orig_data_size, store.size_bytes());
    let kept = format!("`{}` was kept: {} with {} of data", args.name, quantity::bytes(size), quantity::bytes(held));
    if size == asked_bytes {
        report::say(global, &kept);
    } else {
        report::say(global, &format!("{kept}; it keeps its length, and `resize` changes it"));
    }
}

/// Creates a store with room to grow: as much as was asked for, or else as there are addresses for.
pub(super) fn create_store(args: &Args, options: StoreOptions) -> Result<Store, Failure> {
    if let Some(max_size) = args.max_size {
        if max_size < options.size_bytes {
            let size = options.size_bytes;
            return Err(Failure::usage(format!("--max-size {max_size} is less than the length of the device, {size}")));
        }
        let max_size = max_size.checked_next_multiple_of(PAGE_SIZE as u64).unwrap_or(max_size);
        return Store::create(&options.with_max_size_bytes(max_size)).map_err(store_failed);
    }
    let max_size = options.size_bytes.saturating_mul(DEFAULT_GROWTH).min(MAX_STORE_BYTES);
    match Store::create(&options.with_max_size_bytes(max_size)) {
        // As under a limit of addresses (`ulimit -v`).
        Err(trueno_zram_store::Error::System { .. }) => Store::create(&options).map_err(store_failed),
        created => created.map_err(store_failed),
    }
}
