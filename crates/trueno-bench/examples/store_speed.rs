//! The store against the bare codec, in pages per second: `store_speed [THREADS] [FILE]...`, files of whole pages.
//!
//! The codec has the same work on the same spread of memory: each thread compresses into an array of 16,384 pages and
//! decompresses from it, in the order in which the store is written and read. What the store adds is finding a place,
//! locking, and copying. The codec that stays in the cache is shown beside it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool for developers")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, PageData, PageKind};
use trueno_zram_store::{Store, StoreHandle, StoreOptions};

/// Pages of the store, per thread.
const PAGES: usize = 16_384;
const ROUND: Duration = Duration::from_millis(100);
const ROUNDS: usize = 9;

/// Compressed pages, each in a page of its own.
struct Spread {
    codec: PageCodec,
    held: Vec<Page>,
    forms: Vec<(PageKind, usize)>,
    out: Page,
}

impl Spread {
    fn new() -> Self {
        let forms = vec![(PageKind::SameFilled, 8); PAGES];
        Self { codec: PageCodec::default(), held: vec![[0; PAGE_SIZE]; PAGES], forms, out: [0; PAGE_SIZE] }
    }

    fn write(&mut self, place: usize, page: &Page) {
        let data = self.codec.compress(page, &mut self.held[place]).unwrap();
        self.forms[place] = (data.kind(), data.bytes().len());
        // A raw page is its own compressed form. The store copies it, and so does this.
        if self.forms[place].0 == PageKind::Raw {
            self.held[place] = *page;
        }
    }

    fn read(&mut self, place: usize) {
        let (kind, len) = self.forms[place];
        self.codec.decompress(PageData::new(kind, &self.held[place][..len]).unwrap(), &mut self.out).unwrap();
        black_box(&mut self.out);
    }
}

/// Runs `work` with a counter on every thread for a while. Returns the calls per second of all threads.
fn rate<T: Send>(workers: &mut [T], work: impl Fn(&mut T, u64) + Sync) -> f64 {
    let work = &work;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for worker in workers {
            threads.push(scope.spawn(move || {
                let start = Instant::now();
                let mut done = 0;
                while start.elapsed() < ROUND {
                    (done..done + 64).for_each(|number| work(&mut *worker, number));
                    done += 64;
                }
                done as f64 / start.elapsed().as_secs_f64()
            }));
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Pages per second of the store and of the codec that it is measured against.
struct Rates {
    store: Vec<f64>,
    codec: Vec<f64>,
    cached_codec: Vec<f64>,
}

impl Rates {
    fn new() -> Self {
        Self { store: Vec::new(), codec: Vec::new(), cached_codec: Vec::new() }
    }

    /// The medians. The quotient is the median of those of each round, since other work may disturb some rounds.
    fn print(&self, what: &str) {
        let quotients = self.store.iter().zip(&self.codec).map(|(store, codec)| store / codec).collect();
        println!(
            "{what:<7} store {:7.0} k/s, {:.2} of the codec's {:7.0} k/s; codec in the cache {:7.0} k/s",
            median(self.store.clone()) / 1e3,
            median(quotients),
            median(self.codec.clone()) / 1e3,
            median(self.cached_codec.clone()) / 1e3
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().map_or(Ok(1), |threads| threads.parse())?;
    let mut pages: Vec<Page> = Vec::new();
    for file in args {
        pages.extend_from_slice(std::fs::read(file)?.as_chunks::<PAGE_SIZE>().0);
    }
    if pages.is_empty() {
        return Err("name files of whole pages, such as crates/trueno-test-pages/corpus/*.bin".into());
    }
    let page_of = |number: u64| &pages[usize::try_from(number.wrapping_mul(0x9e37_79b9) % pages.len() as u64).unwrap()];
    let place_of = |number: u64| usize::try_from(number.wrapping_mul(0x85eb_ca6b) % PAGES as u64).unwrap();
    let store = Arc::new(Store::create(&StoreOptions::new((PAGES * threads * PAGE_SIZE) as u64))?);
    let mut spreads: Vec<_> = (0..threads).map(|_| Spread::new()).collect();
    let mut cached: Vec<_> = (0..threads).map(|_| Spread::new()).collect();
    let mut handles = Vec::new();
    for thread in 0..threads {
        handles.push((StoreHandle::new(&store)?, (thread * PAGES) as u64, [0; PAGE_SIZE]));
    }
    let (mut writes, mut reads) = (Rates::new(), Rates::new());
    for _ in 0..ROUNDS {
        writes.codec.push(rate(&mut spreads, |spread, number| spread.write(place_of(number), page_of(number))));
        writes.store.push(rate(&mut handles, |(handle, start, _), number| {
            handle.write_page(*start + place_of(number) as u64, page_of(number)).unwrap();
        }));
        writes.cached_codec.push(rate(&mut cached, |spread, number| spread.write(0, page_of(number))));
        reads.codec.push(rate(&mut spreads, |spread, number| spread.read(place_of(number))));
        reads.store.push(rate(&mut handles, |(handle, start, out), number| {
            handle.read_page(*start + place_of(number) as u64, out).unwrap();
            black_box(out);
        }));
        cached.iter_mut().for_each(|spread| (0..64).for_each(|number| spread.write(place_of(number), page_of(number))));
        reads.cached_codec.push(rate(&mut cached, |spread, number| spread.read(place_of(number % 64))));
    }
    println!("{threads} threads, {} MiB in the store", store.stats().mm.orig_data_size >> 20);
    writes.print("writes");
    reads.print("reads");
    store.compact()?;
    let mm = store.stats().mm;
    println!("held / compressed after compaction: {:.4}", mm.mem_used_total as f64 / mm.compr_data_size as f64);
    Ok(())
}
