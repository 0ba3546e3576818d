//! The store against the bare codec, in pages per second: `store_speed [THREADS] [FILE]...`, files of whole pages.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool for developers")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, PageData, PageKind};
use trueno_zram_store::{Store, StoreHandle, StoreOptions};

/// Pages of the store, per thread.
const PAGES: u64 = 16_384;
const ROUND: Duration = Duration::from_millis(700);

/// Runs `work` with a counter on every thread for a while. Returns the calls per second of all threads.
fn rate<T: Send>(workers: Vec<T>, work: impl Fn(&mut T, u64) + Sync) -> f64 {
    let work = &work;
    std::thread::scope(|scope| {
        let spawn = |mut worker: T| {
            scope.spawn(move || {
                let start = Instant::now();
                let mut done = 0;
                while start.elapsed() < ROUND {
                    (done..done + 64).for_each(|number| work(&mut worker, number));
                    done += 64;
                }
                done as f64 / start.elapsed().as_secs_f64()
            })
        };
        let threads: Vec<_> = workers.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().map_or(Ok(1), |threads| threads.parse())?;
    let mut pages: Vec<Page> = Vec::new();
    for file in args {
        pages.extend_from_slice(std::fs::read(file)?.as_chunks::<PAGE_SIZE>().0);
    }
    if pages.is_empty() {
        return Err("name files of whole pages, such as corpus/*.bin".into());
    }
    let mut codec = PageCodec::default();
    let mut out = [0; PAGE_SIZE];
    let held: Vec<(PageKind, Vec<u8>)> = pages
        .iter()
        .map(|page| codec.compress(page, &mut out).map(|data| (data.kind(), data.bytes().to_vec())))
        .collect::<Result<_, _>>()?;
    let pick = |number: u64| usize::try_from(number.wrapping_mul(0x9e37_79b9) % pages.len() as u64).unwrap();
    let store = Arc::new(Store::create(&StoreOptions::new(PAGES * threads as u64 * PAGE_SIZE as u64))?);
    let codecs = || (0..threads).map(|_| (PageCodec::default(), [0; PAGE_SIZE])).collect::<Vec<_>>();
    let handles = || -> Result<Vec<_>, trueno_zram_store::Error> {
        (0..threads as u64).map(|thread| Ok((StoreHandle::new(&store)?, thread * PAGES, [0; PAGE_SIZE]))).collect()
    };
    let place = |number: u64| number.wrapping_mul(0x85eb_ca6b) % PAGES;
    for _ in 0..3 {
        let codec_writes = rate(codecs(), |(codec, out), number| {
            black_box(codec.compress(&pages[pick(number)], out).unwrap());
        });
        let writes = rate(handles()?, |(handle, start, _), number| {
            handle.write_page(*start + place(number), &pages[pick(number)]).unwrap();
        });
        let codec_reads = rate(codecs(), |(codec, out), number| {
            let (kind, bytes) = &held[pick(number)];
            codec.decompress(PageData::new(*kind, bytes).unwrap(), out).unwrap();
            black_box(out);
        });
        let reads = rate(handles()?, |(handle, start, out), number| {
            handle.read_page(*start + place(number), out).unwrap();
            black_box(out);
        });
        println!(
            "{threads} threads: writes {:.0} k/s, {:.2} of the codec's {:.0}; reads {:.0} k/s, {:.2} of the codec's {:.0}",
            writes / 1e3,
            writes / codec_writes,
            codec_writes / 1e3,
            reads / 1e3,
            reads / codec_reads,
            codec_reads / 1e3
        );
    }
    store.compact()?;
    let mm = store.stats().mm;
    println!("held / compressed after compaction: {:.4}", mm.mem_used_total as f64 / mm.compr_data_size as f64);
    Ok(())
}
