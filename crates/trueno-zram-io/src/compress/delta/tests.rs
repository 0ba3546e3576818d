//! Deltas against a slow twin that compares all pages with each other, on any number of lanes.

use std::sync::Arc;

use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{DeltaReader, PageArchive, PageOrigin};
use trueno_zram_core::{Algorithm, Page};

use super::*;
use crate::compress::{Compressors, compress};
use crate::input::Input;
use crate::source::FileSource;

fn source(folder: &tempfile::TempDir, pages: &[Page]) -> FileSource {
    let path = folder.path().join("image");
    std::fs::write(&path, pages.as_flattened()).unwrap();
    Input::open(&path).unwrap().into_pages()
}

/// Pages of all kinds: zeros, alone and in runs, equal ones, and any others.
fn image(random: &mut Generator) -> Vec<Page> {
    let mut pages: Vec<Page> = (0..700).map(|_| random.page()).collect();
    for _ in 0..40 {
        let at = random.below(pages.len());
        let zeros = (1 + random.below(20)).min(pages.len() - at);
        pages[at..at + zeros].fill([0; PAGE_SIZE]);
        pages[random.below(700)] = pages[random.below(700)];
    }
    pages
}

/// Changes single bits, copies pages to where others were, and adds a page that is new more than once.
fn change(pages: &mut [Page], random: &mut Generator) {
    for _ in 0..60 {
        pages[random.below(700)][random.below(PAGE_SIZE)] ^= 1 << random.below(8);
    }
    for _ in 0..20 {
        pages[random.below(700)] = pages[random.below(700)];
    }
    let new = std::array::from_fn(|_| random.byte());
    for _ in 0..5 {
        pages[random.below(700)] = new;
    }
}

/// Where the pages of a delta should come from, found without any hash.
fn expected(pages: &[Page], base: &[Page]) -> Vec<PageOrigin> {
    let mut stored: Vec<Page> = Vec::new();
    let place = |pages: &[Page], page: &Page| pages.iter().position(|other| other == page).map(|place| place as u64);
    let origin = |(number, page): (usize, &Page)| {
        if *page == [0; PAGE_SIZE] {
            PageOrigin::Zero
        } else if base[number] == *page {
            PageOrigin::Base(number as u64)
        } else if let Some(same) = place(base, page) {
            PageOrigin::Base(same)
        } else if let Some(copy) = place(&stored, page) {
            PageOrigin::Stored(copy)
        } else {
            stored.push(*page);
            PageOrigin::Stored(stored.len() as u64 - 1)
        }
    };
    pages.iter().enumerate().map(origin).collect()
}

#[test]
fn every_changed_bit_is_noticed_and_equal_pages_are_stored_once() {
    let (folder, mut random) = (tempfile::tempdir().unwrap(), Generator::new(11));
    for (lanes, has_hashes) in [(1, true), (2, false), (3, true)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(lanes).build().unwrap();
        let mut codecs: Vec<PageCodec> = (0..lanes).map(|_| PageCodec::new(Algorithm::Lz4).unwrap()).collect();
        let old = image(&mut random);
        let options = WriteOptions { page_hashes: has_hashes, ..WriteOptions::default() };
        let out = (Vec::new(), "base");
        let base = compress(source(&folder, &old), out, options, Compressors::Lanes(&mut codecs), &pool, &()).unwrap();
        let base = PageArchive::standard(Arc::new(base.out)).unwrap().unwrap();
        let hashes = PageHashes::stored(&base).unwrap();
        assert_eq!(hashes.is_some(), has_hashes);
        let hashes = hashes.map_or_else(|| PageHashes::compute(&base), Ok).unwrap();

        let mut new = old.clone();
        change(&mut new, &mut random);
        let made_from = Base { record: base.record(b"base.lz4"), hashes: &hashes };
        let out = (Vec::new(), "delta");
        let options = WriteOptions::default();
        let done = compress_delta(source(&folder, &new), out, made_from, options, &mut codecs, &pool, &()).unwrap();
        let delta = DeltaReader::open(Arc::new(done.out), |_| Ok(base)).unwrap().unwrap();
        for (number, (page, origin)) in (0..).zip(new.iter().zip(expected(&new, &old))) {
            let hash = (origin != PageOrigin::Zero).then(|| PageHash::of(page));
            assert_eq!(delta.origin(number).unwrap(), (origin, hash), "page {number}, {lanes} lanes");
        }
        let mut restored = vec![[1; PAGE_SIZE]; new.len()];
        delta.read_pages(0, &mut restored).unwrap();
        assert!(restored == new, "{lanes} lanes");
    }
}
