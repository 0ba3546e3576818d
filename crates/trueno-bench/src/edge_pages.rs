//! Pages on the boundaries of the LZ4 block format and of the page.

use trueno_page::{PAGE_SIZE, Page};

use crate::generate::Generator;

/// A page that tests one thing, and its name.
#[derive(Clone, Debug)]
pub struct EdgePage {
    /// The thing that the page tests.
    pub name: String,
    /// The page.
    pub page: Box<Page>,
}

fn edge(name: impl Into<String>, byte_at: impl FnMut(usize) -> u8) -> EdgePage {
    EdgePage { name: name.into(), page: Box::new(std::array::from_fn(byte_at)) }
}

/// Returns the low byte of a number, for patterns.
fn low(n: usize) -> u8 {
    n.to_le_bytes()[0]
}

/// Returns the pages of every family below, about 1,400.
#[must_use]
pub fn all() -> Vec<EdgePage> {
    let families: [fn() -> Vec<EdgePage>; 7] =
        [periods, one_byte_different, runs, distances, match_lengths, literal_lengths, incompressible];
    families.iter().flat_map(|family| family()).collect()
}

/// Repeated words of every period from 1 to 64, and alternating bytes.
#[must_use]
pub fn periods() -> Vec<EdgePage> {
    let mut pages = vec![edge("zero", |_| 0), edge("ones", |_| 0xff), edge("alternating", |i| 0x55 << (i % 2))];
    pages.extend((1..=64).map(|period| edge(format!("period {period}"), move |i| low(i % period * 37))));
    pages
}

/// A zero page with one byte different: every position near both ends, and some between.
#[must_use]
pub fn one_byte_different() -> Vec<EdgePage> {
    let near_ends = (0..64).chain(PAGE_SIZE - 64..PAGE_SIZE);
    near_ends.chain((64..PAGE_SIZE - 64).step_by(61)).map(one_byte_different_at).collect()
}

/// A zero page with the byte at `at` different.
#[must_use]
pub fn one_byte_different_at(at: usize) -> EdgePage {
    edge(format!("zero but at {at}"), move |i| u8::from(i == at))
}

/// Random bytes with one run of a repeated byte, of lengths around every boundary of the length encoding.
#[must_use]
pub fn runs() -> Vec<EdgePage> {
    let lengths = (1..=40).chain([254, 255, 256, 269, 270, 271, 272, 273, 274, 275, 510, 525, 529, 1000, 4000, 4090]);
    lengths
        .flat_map(|len| {
            [0, 1, 2000, 4096 - len].into_iter().filter(move |start| start + len <= PAGE_SIZE).map(move |start| {
                let mut random = Generator::new(len as u64 * 4096 + start as u64);
                edge(format!("run of {len} at {start}"), move |i| {
                    let noise = random.byte();
                    if (start..start + len).contains(&i) { 0xaa } else { noise }
                })
            })
        })
        .collect()
}

/// Random bytes, repeated at one distance: each that is a boundary, and a scatter of others.
#[must_use]
pub fn distances() -> Vec<EdgePage> {
    let near_limit = 4060..4092;
    (1..=130)
        .chain((131..4060).step_by(37))
        .chain(near_limit)
        .map(|distance| {
            let mut random = Generator::new(distance as u64);
            let mut page = Box::new([0; PAGE_SIZE]);
            for i in 0..PAGE_SIZE {
                page[i] = if i < distance { random.byte() } else { page[i - distance] };
            }
            EdgePage { name: format!("repeats at distance {distance}"), page }
        })
        .collect()
}

/// Random bytes with one copied piece, of every short length, and lengths around each further length byte; in the
/// middle, and ending at each of the last 20 positions.
#[must_use]
pub fn match_lengths() -> Vec<EdgePage> {
    let copied = |len: usize, from: usize, to: usize| {
        let mut random = Generator::new((len * 4096 + to) as u64);
        let mut page: Box<Page> = Box::new(std::array::from_fn(|_| random.byte()));
        page.copy_within(from..from + len, to);
        EdgePage { name: format!("{len} bytes copied from {from} to {to}"), page }
    };
    let in_the_middle =
        (3..=80).chain([254, 255, 256, 257, 258, 259, 272, 273, 274, 275, 276, 527, 528, 529, 530, 783, 784, 785]);
    let at_the_end = (4..=24).flat_map(move |len| (0..20).map(move |back| (len, PAGE_SIZE - back - len)));
    in_the_middle
        .map(|len| copied(len, 100, 2000))
        .chain(at_the_end.map(move |(len, to)| copied(len, 500, to)))
        .collect()
}

/// Matches separated by literal runs of every short length, and of lengths around each further length byte.
#[must_use]
pub fn literal_lengths() -> Vec<EdgePage> {
    (0..=40)
        .chain([254, 255, 256, 269, 270, 271, 272, 524, 525, 526, 780, 1035])
        .map(|literals| {
            let mut random = Generator::new(literals as u64);
            let word: [u8; 9] = std::array::from_fn(|_| random.byte());
            edge(format!("matches {literals} literals apart"), move |i| {
                let noise = random.byte();
                word.get(i % (literals + word.len())).copied().unwrap_or(noise)
            })
        })
        .collect()
}

/// Random bytes, and random bytes with just enough repetition to shrink by a few bytes or not at all.
#[must_use]
pub fn incompressible() -> Vec<EdgePage> {
    (0..64)
        .map(|copied| {
            let mut random = Generator::new(copied as u64 + 1000);
            let mut page: Box<Page> = Box::new(std::array::from_fn(|_| random.byte()));
            page.copy_within(64..64 + copied, 3000);
            EdgePage { name: format!("random, {copied} bytes repeated"), page }
        })
        .collect()
}
