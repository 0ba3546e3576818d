//! Damaged blocks give a page or an error, the same with every instruction set, and write nothing but the page.

use trueno_test_pages::oracle::{c_lz4_decompress, foreign_blocks};
use trueno_test_pages::{corpus, edge_pages, generate::Generator};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::{self, DecodeError, decode_simple};
use trueno_zram_core::{Algorithm, Error, PAGE_SIZE, Page, PageCodec, PageData, PageKind};

/// Returns blocks of different kinds: text, heap, nearly empty, long runs, nearly incompressible.
fn sample_blocks() -> Vec<Vec<u8>> {
    let real = corpus::ALL.iter().map(|corpus| corpus.pages[17]);
    let edges =
        [edge_pages::one_byte_different_at(2000), edge_pages::one_byte_different_at(4090)].map(|edge| *edge.page);
    let mut generator = Generator::new(3);
    let generated = std::array::from_fn::<_, 4, _>(|_| generator.page());
    let pages = real.chain(edges).chain(generated);
    pages.flat_map(|page| foreign_blocks(&page).map(|(_, block)| block)).collect()
}

struct Decoders(Vec<lz4::Codec>);

impl Decoders {
    fn all() -> Self {
        Self(InstructionSet::available().into_iter().map(|b| lz4::Codec::new(b).expect("available")).collect())
    }

    /// Decodes with the reference and every instruction set, into pages with different previous contents. All must
    /// agree with each other and with C lz4, except that only C lz4 accepts an offset of 0 and, at times, a match up to
    /// the page's end.
    fn agree(&mut self, block: &[u8]) -> Result<Box<Page>, DecodeError> {
        let mut expected = Box::new([0x11; PAGE_SIZE]);
        let verdict = decode_simple(block, &mut expected);
        for codec in &mut self.0 {
            for before in [0x00, 0xee] {
                let mut page = [before; PAGE_SIZE];
                assert_eq!(codec.decode(block, &mut page), verdict, "{} on {block:02x?}", codec.instruction_set());
                assert!(verdict.is_err() || page == *expected, "{} on {block:02x?}", codec.instruction_set());
            }
        }
        let mut page = [0x22; PAGE_SIZE];
        let c_verdict = c_lz4_decompress(block, &mut page) == Some(PAGE_SIZE);
        match &verdict {
            Ok(()) => assert!(c_verdict && page == *expected, "C lz4 rejects {block:02x?}"),
            Err(DecodeError::OffsetZero { .. } | DecodeError::MatchEndsLate { .. }) => {}
            Err(e) => assert!(!c_verdict, "C lz4 accepts what we reject with {e}: {block:02x?}"),
        }
        verdict.map(|()| expected)
    }
}

#[test]
fn rejects_every_truncation() {
    let mut decoders = Decoders::all();
    for block in sample_blocks() {
        for len in 0..block.len() {
            assert!(decoders.agree(&block[..len]).is_err(), "{len} of {} bytes", block.len());
        }
        assert!(decoders.agree(&block).is_ok());
    }
}

#[test]
fn every_changed_byte_gives_the_same_result_everywhere() {
    let mut decoders = Decoders::all();
    let mut random = Generator::new(4);
    for block in sample_blocks() {
        let few = [0x00, 0xff, 0x10, 0x01, random.byte()];
        for at in 0..block.len() {
            let mut changed = block.clone();
            // All values in short blocks. In long ones, the extremes, a changed length and a random value.
            let changes: Vec<u8> = if block.len() < 100 { (1..=255).collect() } else { few.to_vec() };
            for change in changes {
                changed[at] = block[at] ^ change;
                let _ = decoders.agree(&changed);
            }
        }
    }
}

#[test]
fn heavier_damage_gives_the_same_result_everywhere() {
    let mut decoders = Decoders::all();
    let mut random = Generator::new(5);
    let blocks = sample_blocks();
    for _ in 0..20_000 {
        let mut block = blocks[random.below(blocks.len())].clone();
        random.corrupt(&mut block);
        let _ = decoders.agree(&block);
    }
}

#[test]
fn random_bytes_give_the_same_result_everywhere() {
    let mut decoders = Decoders::all();
    let mut random = Generator::new(6);
    for _ in 0..20_000 {
        let longest = 1 + random.below(600);
        // Bytes that are small or 255 make long chains of sequences. Uniform bytes mostly fail at once.
        let block: Vec<u8> = (0..random.below(longest))
            .map(|_| match random.below(4) {
                0 => random.byte(),
                1 => 0xff,
                _ => random.byte() & 0x1f,
            })
            .collect();
        let _ = decoders.agree(&block);
    }
}

#[test]
fn damaged_zstandard_frames_give_a_page_or_an_error() {
    let mut codec = PageCodec::new(Algorithm::Zstd { level: 3 }).expect("a valid level");
    let (mut out, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let frame = codec.compress(&corpus::ALL[0].pages[17], &mut out).expect("there is enough memory").bytes().to_vec();
    let mut restore = |bytes: &[u8]| {
        let data = PageData::new(PageKind::Zstd, bytes)?;
        codec.decompress(data, &mut page)
    };
    assert_eq!(restore(&frame), Ok(()));
    for len in 0..frame.len() {
        assert!(restore(&frame[..len]).is_err(), "{len} of {} bytes", frame.len());
    }
    for bit in 0..frame.len() * 8 {
        let mut changed = frame.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // Without a checksum some changes go unnoticed. None may cause worse than that.
        let _ = restore(&changed);
    }
}

#[test]
fn rejects_zstandard_frames_of_other_sizes() {
    let mut page = [0; PAGE_SIZE];
    let mut restore = |len: usize| {
        let frame = zstd::bulk::compress(&vec![7; len], 1).expect("there is enough memory");
        PageCodec::default().decompress(PageData::new(PageKind::Zstd, &frame)?, &mut page)
    };
    assert_eq!(restore(PAGE_SIZE), Ok(()));
    assert_eq!(restore(100), Err(Error::ZstdFrameLength { len_bytes: 100 }));
    assert!(matches!(restore(2 * PAGE_SIZE), Err(Error::CorruptZstd { .. })));
}
