//! Single pages where the index says they are, without proof of their position.

use trueno_zram_core::Page;

use super::SharedReader;
use crate::error::Result;
use crate::read_at::{Positioned, ReadAt};

impl<F: ReadAt> SharedReader<F> {
    /// Reads a page where the index says it is. The other blocks of its group are not compared with the index, so it may be
    /// another page than a stream has there: the caller compares it with its hash. Takes two short reads of the file.
    pub(crate) fn read_unproven(&self, page: u64, out: &mut Page) -> Result<()> {
        let (number, within) = self.place_of(page)?;
        if self.is_located(page) {
            return self.read_page_at(page, out).map(|_| ());
        }
        let places = self.index().places(&mut Positioned::new(&self.file, self.file_len), number)?;
        self.read_located(page, self.resident(&places).locate(within, &self.layout), out).map(|_| ())
    }
}
