//! Pages and archives from the fuzzer's bytes.

mod archives;

pub use archives::{archive_of, compress, frame_of_blocks};

use trueno_zram_core::{PAGE_SIZE, Page};

/// Makes the calling thread the only one of rayon's global pool. Handing work to another thread takes longer than the work,
/// and runs are the same each time.
pub fn use_one_thread() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
    pool.build_global().expect("nothing was run before");
}

/// A page that short inputs can fill with structure: each operation is literals, a run, or a copy from before.
pub fn page_from(data: &[u8]) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut at = 0;
    let mut input = data.iter().copied();
    while at < PAGE_SIZE
        && let Some(op) = input.next()
    {
        let len = usize::from(op >> 2) + 1;
        let len = if op & 3 == 3 { len * 16 } else { len }.min(PAGE_SIZE - at);
        let low = input.next().unwrap_or(0);
        match op & 3 {
            0 => {
                page[at] = low;
                for byte in page[at..at + len].iter_mut().skip(1) {
                    *byte = input.next().unwrap_or(0);
                }
            }
            1 => page[at..at + len].fill(low),
            _ => {
                let distance = (usize::from(low) << 4 | usize::from(input.next().unwrap_or(0))) % PAGE_SIZE;
                for i in at..at + len {
                    page[i] = i.checked_sub(distance + 1).map_or(low, |source| page[source]);
                }
            }
        }
        at += len;
    }
    page
}

/// The block with bytes changed: `changes` are places and values in turn.
pub fn damage(block: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut block = block.to_vec();
    for change in changes.chunks_exact(3).take(8) {
        let at = usize::from(change[0]) << 8 | usize::from(change[1]);
        let len = block.len();
        block[at % len] = change[2];
    }
    block
}
