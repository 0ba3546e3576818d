//! Pages of databases, from a seed: b-tree indexes and tables in the layouts of PostgreSQL and SQLite.
//!
//! Such pages are arrays of short records that differ in a few bytes each, with gaps of zeros. Encoders that look at
//! many positions at once miss matches in them that C lz4 finds.

use crate::generate::Generator;
use crate::{PAGE_SIZE, Page};

/// Pages of one table or index.
#[derive(Clone, Debug)]
pub struct Relation {
    /// The layout, and the contents of the rows.
    pub name: &'static str,
    /// The pages, in the order of the file.
    pub pages: Vec<Page>,
}

/// Returns `pages` pages of every kind of relation.
///
/// # Panics
/// If `pages` is odd: the blocks of PostgreSQL are two pages long.
#[must_use]
pub fn all(seed: u64, pages: usize) -> Vec<Relation> {
    assert!(pages.is_multiple_of(2), "blocks of two pages");
    let kinds: [(&str, FillPage, WriteRow); 7] = [
        ("PostgreSQL index of integers", Rows::postgres_block, Rows::integer_entry),
        ("PostgreSQL index of times", Rows::postgres_block, Rows::time_entry),
        ("PostgreSQL index of addresses", Rows::postgres_block, Rows::address_entry),
        ("PostgreSQL index of few values", Rows::postgres_block, Rows::posting_list),
        ("PostgreSQL table of people", Rows::postgres_block, Rows::person_tuple),
        ("SQLite table of people", Rows::sqlite_page, Rows::person_cell),
        ("SQLite index of addresses", Rows::sqlite_page, Rows::address_cell),
    ];
    let relation = |(name, layout, row): (&'static str, FillPage, WriteRow)| {
        let mut rows = Rows::new(seed);
        let mut bytes = Vec::with_capacity(pages * PAGE_SIZE);
        while bytes.len() < pages * PAGE_SIZE {
            bytes.extend(layout(&mut rows, row));
        }
        Relation { name, pages: bytes.as_chunks().0.to_vec() }
    };
    kinds.map(relation).into()
}

/// Writes the next row.
type WriteRow = fn(&mut Rows) -> Vec<u8>;
/// Fills one or two pages with rows.
type FillPage = fn(&mut Rows, WriteRow) -> Vec<u8>;

/// Rows in the order in which they were inserted, with their places in PostgreSQL's table.
struct Rows {
    random: Generator,
    id: u32,
    time: u64,
    /// Block of the table, and the row's number in it.
    block: u32,
    item: u16,
    log_position: u32,
}

const FAMILY_NAMES: [&str; 12] = [
    "Adams", "Becker", "Castillo", "Dubois", "Eriksen", "Fischer", "Garcia", "Hoffmann", "Ivanov", "Jansen",
    "Kowalski", "Lindberg",
];
const GIVEN_NAMES: [&str; 10] =
    ["Anna", "Boris", "Carla", "David", "Elena", "Frank", "Greta", "Hugo", "Irene", "Jonas"];
const CITIES: [&str; 8] = ["Berlin", "Bruxelles", "Helsinki", "Lisboa", "London", "Paris", "Praha", "Warszawa"];

impl Rows {
    fn new(seed: u64) -> Self {
        let mut random = Generator::new(seed);
        let log_position = low32(random.next_u64()) >> 4;
        Self { random, id: 40_000, time: 700_000_000_000_000, block: 400, item: 0, log_position }
    }

    /// Goes to the next row.
    fn advance(&mut self) {
        self.id += 1;
        self.item += 1;
        // A block of the table holds about this many rows.
        if usize::from(self.item) > 34 + self.random.below(4) {
            (self.block, self.item) = (self.block + 1, 1);
        }
    }

    /// Returns the place of the current row: block and item, 6 bytes.
    fn tuple_id(&self) -> [u8; 6] {
        let [low, high] = [self.block & 0xffff, self.block >> 16].map(|half| half.to_le_bytes());
        let item = self.item.to_le_bytes();
        [high[0], high[1], low[0], low[1], item[0], item[1]]
    }

    fn given_name(&mut self) -> &'static str {
        GIVEN_NAMES[self.random.below(GIVEN_NAMES.len())]
    }

    fn family_name(&mut self) -> &'static str {
        FAMILY_NAMES[self.random.below(FAMILY_NAMES.len())]
    }

    /// Fills a block of 8 KiB from both ends: header and item pointers, a gap, and the rows from the end backwards.
    fn postgres_block(&mut self, row: WriteRow) -> Vec<u8> {
        const BLOCK: usize = 2 * PAGE_SIZE;
        let mut block = vec![0; BLOCK];
        // A tenth is left free, or more after a split.
        let fill = BLOCK - 800 * (1 + self.random.below(2));
        let (mut lower, mut upper) = (24, BLOCK - 16);
        loop {
            let row = row(self);
            // The length without padding; rows start at multiples of 8.
            let start = upper - row.len().next_multiple_of(8);
            if lower + 4 + (BLOCK - start) > fill {
                break;
            }
            upper = start;
            block[upper..upper + row.len()].copy_from_slice(&row);
            let pointer = upper | 1 << 15 | row.len() << 17;
            block[lower..lower + 4].copy_from_slice(&pointer.to_le_bytes()[..4]);
            lower += 4;
        }
        self.log_position += 8 * low32(self.random.next_u64() % 5000);
        block[4..8].copy_from_slice(&self.log_position.to_le_bytes());
        let fields = [lower, upper, BLOCK - 16, BLOCK | 4];
        for (field, at) in fields.into_iter().zip((12..).step_by(2)) {
            block[at..at + 2].copy_from_slice(&field.to_le_bytes()[..2]);
        }
        // Neighbours of an index's page, and its level.
        block[BLOCK - 16..BLOCK - 12].copy_from_slice(&(self.block / 4).to_le_bytes());
        block[BLOCK - 12..BLOCK - 8].copy_from_slice(&(self.block / 4 + 2).to_le_bytes());
        block[BLOCK - 4] = 1;
        block
    }

    /// An index entry: place, length, key.
    fn entry(&self, key: &[u8]) -> Vec<u8> {
        let len = (8 + key.len()).next_multiple_of(8);
        let mut entry = self.tuple_id().to_vec();
        entry.extend(&len.to_le_bytes()[..2]);
        entry.extend(key);
        entry.resize(len, 0);
        entry
    }

    fn integer_entry(&mut self) -> Vec<u8> {
        self.advance();
        self.entry(&self.id.to_le_bytes())
    }

    fn time_entry(&mut self) -> Vec<u8> {
        self.advance();
        self.time += 1_000_000 * (1 + self.random.next_u64() % 50);
        self.entry(&self.time.to_le_bytes())
    }

    fn address_entry(&mut self) -> Vec<u8> {
        // In the order of the keys, not of the rows.
        self.block = low32(self.random.next_u64() % 4000);
        self.item = low16(self.random.next_u64() % 70);
        let address = self.next_address();
        let mut key = vec![low8(2 * (address.len() + 1) + 1)];
        key.extend(address.as_bytes());
        self.entry(&key)
    }

    /// An address after the last one in their order.
    fn next_address(&mut self) -> String {
        self.id += 1 + low32(self.random.next_u64() % 2000);
        format!(
            "{}.{}@example.org",
            FAMILY_NAMES[(self.id / 100_000) as usize % FAMILY_NAMES.len()].to_lowercase(),
            self.id
        )
    }

    /// A key, and the places of all its rows.
    fn posting_list(&mut self) -> Vec<u8> {
        let city = CITIES[(self.id / 4000) as usize % CITIES.len()];
        let mut list = self.entry(city.as_bytes());
        for _ in 0..120 {
            for _ in 0..=self.random.below(60) {
                self.advance();
            }
            list.extend(self.tuple_id());
        }
        list
    }

    /// A row of a table: transactions, place, flags, then the columns.
    fn person_tuple(&mut self) -> Vec<u8> {
        self.advance();
        let mut tuple = (700 + self.id / 1000).to_le_bytes().to_vec();
        tuple.extend([0; 8]);
        tuple.extend(self.tuple_id());
        tuple.extend([6, 0, 2, 9, 24, 0]);
        tuple.extend(self.id.to_le_bytes());
        let (given, family) = (self.given_name(), self.family_name());
        for text in [format!("{given} {family}"), format!("{}{}@example.org", family.to_lowercase(), self.id)] {
            tuple.push(low8(2 * (text.len() + 1) + 1));
            tuple.extend(text.as_bytes());
        }
        tuple.resize(tuple.len().next_multiple_of(8), 0);
        self.time += self.random.next_u64() % 90_000_000;
        tuple.extend(self.time.to_le_bytes());
        tuple.extend((self.random.next_u64() % 100_000).to_le_bytes());
        tuple
    }

    /// Fills a page from both ends: header and cell pointers, a gap, and the cells from the end backwards.
    fn sqlite_page(&mut self, row: WriteRow) -> Vec<u8> {
        let mut page = vec![0; PAGE_SIZE];
        let (mut lower, mut upper) = (8, PAGE_SIZE);
        let fill = PAGE_SIZE - self.random.below(3) * 200;
        loop {
            let cell = row(self);
            let start = upper - cell.len();
            if lower + 2 + (PAGE_SIZE - start) > fill {
                break;
            }
            upper = start;
            page[upper..upper + cell.len()].copy_from_slice(&cell);
            page[lower..lower + 2].copy_from_slice(&low16(upper as u64).to_be_bytes());
            lower += 2;
        }
        page[0] = 13;
        page[3..5].copy_from_slice(&low16((lower - 8) as u64 / 2).to_be_bytes());
        page[5..7].copy_from_slice(&low16(upper as u64).to_be_bytes());
        page
    }

    /// A cell: payload length, row number, types of the columns, columns.
    fn person_cell(&mut self) -> Vec<u8> {
        self.advance();
        let (given, family) = (self.given_name(), self.family_name());
        let texts = [format!("{given} {family}"), format!("{}@example.org", family.to_lowercase()), city(self)];
        let mut payload = vec![5, 0];
        payload.extend(texts.iter().map(|text| low8(13 + 2 * text.len())));
        payload.extend(texts.iter().flat_map(|text| text.bytes()));
        let mut cell = varint(payload.len());
        cell.extend(varint(self.id as usize));
        cell.extend(payload);
        cell
    }

    fn address_cell(&mut self) -> Vec<u8> {
        let address = self.next_address();
        let row = low32(self.random.next_u64() % 60_000);
        let mut payload = vec![3, low8(13 + 2 * address.len()), 2];
        payload.extend(address.as_bytes());
        payload.extend(low16(u64::from(row)).to_be_bytes());
        let mut cell = varint(payload.len());
        cell.extend(payload);
        cell
    }
}

fn city(rows: &mut Rows) -> String {
    CITIES[rows.random.below(CITIES.len())].to_owned()
}

/// SQLite's integers of variable length: seven bits per byte, the highest first.
fn varint(value: usize) -> Vec<u8> {
    let mut bytes = vec![low8(value & 0x7f)];
    let mut rest = value >> 7;
    while rest > 0 {
        bytes.insert(0, low8(rest & 0x7f | 0x80));
        rest >>= 7;
    }
    bytes
}

fn low8(n: usize) -> u8 {
    n.to_le_bytes()[0]
}

fn low16(n: u64) -> u16 {
    let bytes = n.to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn low32(n: u64) -> u32 {
    let [a, b, c, d, ..] = n.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
