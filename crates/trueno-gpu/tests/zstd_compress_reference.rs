//! The slow twin of the Zstandard kernel: every frame is libzstd's to decode, and small.

#[path = "support/libzstd.rs"]
mod support;

use support::{assert_decodes, is_same_filled, libzstd_bytes};
use trueno_gpu::kernels::zstd::Mode;
use trueno_test_kernels::zstd_compress;
use trueno_test_pages::{PAGE_SIZE, Page, corpus, edge_pages, generate::Generator};

const MODES: [Mode; 2] = [Mode::Fast, Mode::Ratio];

/// Compresses a page, has it checked, and returns the bytes that it takes.
fn compress_and_check(page: &Page, mode: Mode, name: &str) -> usize {
    match zstd_compress::compress(page, mode) {
        Some(frame) => {
            assert!(frame.len() < PAGE_SIZE, "{name}: {} bytes", frame.len());
            assert_decodes(&frame, page, name);
            frame.len()
        }
        None => PAGE_SIZE,
    }
}

/// Modes with the least ratios on every corpus, against levels of libzstd.
const LEAST: [(Mode, [(i32, f64); 2]); 2] =
    [(Mode::Fast, [(1, 1.005), (3, 0.995)]), (Mode::Ratio, [(1, 1.009), (3, 1.01)])];

#[test]
fn real_pages_shrink_as_far_as_with_libzstd() {
    for corpus in corpus::ALL {
        let pages = || corpus.pages.iter().filter(|page| !is_same_filled(page));
        for (mode, levels) in LEAST {
            let ours: usize = pages().map(|page| compress_and_check(page, mode, corpus.name)).sum();
            for (level, least) in levels {
                let ratio = libzstd_bytes(pages(), level) as f64 / ours as f64;
                assert!(ratio >= least, "{} in {mode:?}: {ratio:.4} of the ratio of level {level}", corpus.name);
            }
        }
    }
}

#[test]
fn edge_pages_come_back() {
    for edge in edge_pages::all() {
        for mode in MODES {
            compress_and_check(&edge.page, mode, &edge.name);
        }
    }
}

#[test]
fn generated_pages_come_back() {
    let mut generator = Generator::new(81);
    for n in 0..4000 {
        let page = generator.page();
        for mode in MODES {
            compress_and_check(&page, mode, &format!("generated page {n}"));
        }
    }
}

#[test]
fn same_filled_pages_are_frames_too() {
    for byte in [0, 7, 255] {
        assert!(compress_and_check(&[byte; PAGE_SIZE], Mode::Fast, "same-filled") < 32);
    }
}

/// Prints the ratios: `cargo test -p trueno-zram-kernels --test zstd_compress_reference -- --ignored --nocapture
/// [FILE...]`.
#[test]
#[ignore = "prints a table"]
fn ratios() {
    let mut sets: Vec<(String, Vec<Page>)> =
        corpus::ALL.iter().map(|corpus| (corpus.name.to_owned(), corpus.pages.to_vec())).collect();
    if let Ok(files) = std::env::var("TRUENO_PAGES") {
        for file in files.split(':') {
            let bytes = std::fs::read(file).expect("TRUENO_PAGES names files of pages");
            sets.push((file.to_owned(), bytes.as_chunks().0.to_vec()));
        }
    }
    for (name, pages) in sets {
        let pages: Vec<&Page> = pages.iter().filter(|page| !is_same_filled(page)).collect();
        let ratio = |bytes: usize| (pages.len() * PAGE_SIZE) as f64 / bytes as f64;
        let theirs = [1, 3, 9].map(|level| ratio(libzstd_bytes(pages.iter().copied(), level)));
        for mode in MODES {
            let ours: usize = pages.iter().map(|page| compress_and_check(page, mode, &name)).sum();
            let quotients = theirs.map(|theirs| ratio(ours) / theirs);
            println!(
                "{name:>40} {mode:?} {:.3}  libzstd 1, 3, 9: {theirs:.3?}  quotients {quotients:.4?}",
                ratio(ours)
            );
        }
    }
}
