//! Hashes of pages: BLAKE3, cut to 16 bytes.

use blake3::IncrementCounter;
use blake3::platform::Platform;
use trueno_zram_core::{PAGE_SIZE, Page};

/// Length of a stored hash.
pub(crate) const PAGE_HASH_LEN: usize = 16;

/// Pages that are hashed side by side: one per lane of the widest vectors.
const LANES: usize = 16;
/// Fewer pages are hashed one by one: side by side, they would fill no more lanes than the four chunks of a page do.
const MIN_LANES: usize = 8;

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
    pub fn of_pages<'a>(pages: impl IntoIterator<Item = &'a Page>, hashes: &mut Vec<Self>) {
        hash_pages(Platform::detect(), pages, hashes);
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
/// A page alone has four chunks, too few for wide vectors. 16 pages side by side take 0.6 µs each, if they start at a cache
/// line, and one by one 1.4 (AVX-512). The crate `blake3` offers that to its own benchmarks only, without a promise. So its
/// version is pinned, and the tests below compare all its vector lengths with its public function.
fn hash_pages<'a>(platform: Platform, pages: impl IntoIterator<Item = &'a Page>, hashes: &mut Vec<PageHash>) {
    let (mut batch, mut count) = ([&[0; PAGE_SIZE]; LANES], 0);
    for page in pages {
        batch[count] = page;
        count += 1;
        if count == LANES {
            hash_lanes(platform, &batch, LANES, hashes);
            count = 0;
        }
    }
    let in_lanes = count / MIN_LANES * MIN_LANES;
    hash_lanes(platform, &batch, in_lanes, hashes);
    hashes.extend(batch[in_lanes..count].iter().map(|page| PageHash::of(page)));
}

/// Hashes the first `count` pages side by side.
fn hash_lanes(platform: Platform, pages: &[&Page; LANES], count: usize, hashes: &mut Vec<PageHash>) {
    let mut chunks = [[0; CV_LEN * LANES]; PAGE_SIZE / CHUNK_LEN];
    for (number, values) in chunks.iter_mut().enumerate() {
        let inputs: [&[u8; CHUNK_LEN]; LANES] = pages.map(|page| &page.as_chunks().0[number]);
        let counter = number as u64;
        platform.hash_many(&inputs[..count], &IV, counter, IncrementCounter::No, 0, CHUNK_START, CHUNK_END, values);
    }
    let [first, second, third, fourth] = &chunks;
    let mut halves = [[0; CV_LEN * LANES]; 2];
    hash_parents(platform, count, [first, second], PARENT, &mut halves[0]);
    hash_parents(platform, count, [third, fourth], PARENT, &mut halves[1]);
    let mut roots = [0; CV_LEN * LANES];
    hash_parents(platform, count, halves.each_ref(), PARENT | ROOT, &mut roots);
    hashes.extend(roots.as_chunks().0[..count].iter().map(PageHash::cut));
}

/// Computes the parents of two children, left and right, in `count` lanes.
fn hash_parents(
    platform: Platform,
    count: usize,
    [left, right]: [&[u8; CV_LEN * LANES]; 2],
    flags: u8,
    out: &mut [u8; CV_LEN * LANES],
) {
    let mut nodes = [[0; PARENT_LEN]; LANES];
    let children = left.as_chunks::<CV_LEN>().0.iter().zip(right.as_chunks::<CV_LEN>().0);
    for (node, (left, right)) in nodes.iter_mut().zip(children) {
        node[..CV_LEN].copy_from_slice(left);
        node[CV_LEN..].copy_from_slice(right);
    }
    platform.hash_many(&nodes.each_ref()[..count], &IV, 0, IncrementCounter::No, flags, 0, 0, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use trueno_test_pages::generate::Generator;

    /// The implementations that this processor can run.
    fn platforms() -> Vec<Platform> {
        let mut platforms = vec![Platform::detect(), Platform::portable()];
        #[cfg(target_arch = "x86_64")]
        platforms.extend([Platform::sse2(), Platform::sse41(), Platform::avx2()].into_iter().flatten());
        platforms
    }

    #[test]
    fn pages_side_by_side_have_the_hashes_of_single_pages() {
        let mut random = Generator::new(3);
        let pages: Vec<Page> = (0..39).map(|_| std::array::from_fn(|_| random.byte())).collect();
        let single: Vec<_> = pages.iter().map(PageHash::of).collect();
        for platform in platforms() {
            for count in 0..pages.len() {
                let mut hashes = Vec::new();
                hash_pages(platform, &pages[..count], &mut hashes);
                assert_eq!(hashes, single[..count], "{count} pages, {platform:?}");
            }
        }
    }

    #[test]
    fn every_bit_of_a_page_changes_its_hash_in_every_lane() {
        let mut random = Generator::new(5);
        let page: Page = std::array::from_fn(|_| random.byte());
        let mut pages = [page; LANES];
        // Bits of all chunks, blocks and words; another lane for each.
        for at in (0..PAGE_SIZE * 8).step_by(61) {
            let lane = at % LANES;
            pages[lane][at / 8] ^= 1 << (at % 8);
            let mut hashes = Vec::new();
            PageHash::of_pages(&pages, &mut hashes);
            for (other, hash) in hashes.iter().enumerate() {
                assert_eq!(*hash == hashes[(lane + 1) % LANES], other != lane, "bit {at}, lane {other}");
            }
            pages[lane] = page;
        }
    }

    #[test]
    fn is_the_start_of_blake3() {
        // b3sum of 4,096 zero bytes.
        assert_eq!(format!("{:?}", PageHash::of(&[0; PAGE_SIZE])), blake3::hash(&[0; 4096]).to_hex()[..32]);
    }
}
