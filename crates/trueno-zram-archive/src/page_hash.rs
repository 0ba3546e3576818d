//! Hashes of pages: BLAKE3, cut to 16 bytes.

use blake3::IncrementCounter;
use blake3::platform::Platform;
use trueno_zram_core::{PAGE_SIZE, Page};

/// Length of a stored hash.
pub(crate) const PAGE_HASH_LEN: usize = 16;

/// Pages that are hashed side by side: one per lane of the widest vectors.
const LANES: usize = 16;

/// A chunk of BLAKE3, section 2.1 of its specification. A page has four.
const CHUNK_LEN: usize = 1024;
/// A chaining value.
const CV_LEN: usize = 32;
/// A parent node: the chaining values of its children.
const PARENT_LEN: usize = 2 * CV_LEN;

/// The initial chaining value, table 1 of the specification.
const IV: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Domain flags, table 3 of the specification.
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 2;
const PARENT: u8 = 4;
const ROOT: u8 = 8;

/// The first 16 bytes of a page's BLAKE3 hash.
///
/// Two pages with the same hash are taken for the same page, and memory may hold what an attacker has put there. Finding two such
/// pages takes about 2^64 hashes; with the fast hashes of hash tables, it takes none.
///
/// ```
/// use trueno_zram_archive::PageHash;
/// assert_eq!(PageHash::of(&[7; 4096]), PageHash::of(&[7; 4096]));
/// assert_ne!(PageHash::of(&[7; 4096]), PageHash::of(&[8; 4096]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageHash([u8; PAGE_HASH_LEN]);

impl PageHash {
    /// Hashes a page.
    ///
    /// ```
    /// let hash = trueno_zram_archive::PageHash::of(&[0; 4096]);
    /// assert!(hash.as_bytes().starts_with(&blake3::hash(&[0; 4096]).as_bytes()[..4]));
    /// ```
    #[must_use]
    pub fn of(page: &Page) -> Self {
        Self::cut(blake3::hash(page).as_bytes())
    }

    /// Appends the hashes of many pages, which takes half the time of hashing them one by one, or less.
    ///
    /// ```
    /// use trueno_zram_archive::PageHash;
    /// let (pages, mut hashes) = ([[7; 4096]; 20], Vec::new());
    /// PageHash::of_pages(&pages, &mut hashes);
    /// assert_eq!(hashes, [PageHash::of(&pages[0]); 20]);
    /// ```
    pub fn of_pages(pages: &[Page], hashes: &mut Vec<Self>) {
        hash_pages(pages, hashes);
    }

    /// Returns the bytes of the hash.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageHash::of(&[1; 4096]).as_bytes().len(), 16);
    /// ```
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; PAGE_HASH_LEN] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; PAGE_HASH_LEN]) -> Self {
        Self(bytes)
    }

    fn cut(hash: &[u8; CV_LEN]) -> Self {
        Self(*hash.first_chunk().expect("a hash has 32 bytes"))
    }
}

impl std::fmt::Debug for PageHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Appends the hashes of pages.
///
/// A page alone has four chunks, too few for wide vectors: 16 pages side by side take 0.8 µs each, one by one 1.8 (AVX-512).
/// The crate `blake3` offers that to its own benchmarks only, without a promise; the test below compares both.
pub(crate) fn hash_pages(pages: &[Page], hashes: &mut Vec<PageHash>) {
    let (batches, rest) = pages.as_chunks::<LANES>();
    let platform = Platform::detect();
    for batch in batches {
        hash_lanes(platform, batch, hashes);
    }
    hashes.extend(rest.iter().map(PageHash::of));
}

fn hash_lanes(platform: Platform, pages: &[Page; LANES], hashes: &mut Vec<PageHash>) {
    let mut chunks = [[0; CV_LEN * LANES]; PAGE_SIZE / CHUNK_LEN];
    for (number, values) in chunks.iter_mut().enumerate() {
        let inputs: [&[u8; CHUNK_LEN]; LANES] = std::array::from_fn(|lane| &pages[lane].as_chunks().0[number]);
        let counter = number as u64;
        platform.hash_many(&inputs, &IV, counter, IncrementCounter::No, 0, CHUNK_START, CHUNK_END, values);
    }
    let [first, second, third, fourth] = &chunks;
    let mut halves = [[0; CV_LEN * LANES]; 2];
    parents(platform, first, second, PARENT, &mut halves[0]);
    parents(platform, third, fourth, PARENT, &mut halves[1]);
    let mut roots = [0; CV_LEN * LANES];
    parents(platform, &halves[0], &halves[1], PARENT | ROOT, &mut roots);
    hashes.extend(roots.as_chunks().0.iter().map(PageHash::cut));
}

/// Computes the parents of two children in every lane.
fn parents(
    platform: Platform,
    left: &[u8; CV_LEN * LANES],
    right: &[u8; CV_LEN * LANES],
    flags: u8,
    out: &mut [u8; CV_LEN * LANES],
) {
    let mut nodes = [[0; PARENT_LEN]; LANES];
    let children = left.as_chunks::<CV_LEN>().0.iter().zip(right.as_chunks::<CV_LEN>().0);
    for (node, (left, right)) in nodes.iter_mut().zip(children) {
        node[..CV_LEN].copy_from_slice(left);
        node[CV_LEN..].copy_from_slice(right);
    }
    platform.hash_many(&nodes.each_ref(), &IV, 0, IncrementCounter::No, flags, 0, 0, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use trueno_test_pages::generate::Generator;

    #[test]
    fn pages_side_by_side_have_the_hashes_of_single_pages() {
        let mut random = Generator::new(3);
        let pages: Vec<Page> = (0..39).map(|_| std::array::from_fn(|_| random.byte())).collect();
        for count in [0, 1, 15, 16, 17, 32, 39] {
            let mut hashes = Vec::new();
            hash_pages(&pages[..count], &mut hashes);
            let single: Vec<_> = pages[..count].iter().map(PageHash::of).collect();
            assert_eq!(hashes, single, "{count} pages");
        }
    }

    #[test]
    fn is_the_start_of_blake3() {
        // b3sum of 4,096 zero bytes.
        assert_eq!(format!("{:?}", PageHash::of(&[0; PAGE_SIZE])), blake3::hash(&[0; 4096]).to_hex()[..32]);
    }
}
