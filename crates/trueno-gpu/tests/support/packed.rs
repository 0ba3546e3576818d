//! A packed batch, checked as a whole.

use trueno_gpu::interp::LaunchReport;
use trueno_gpu::kernels::packed::{CompressRun, PackedEntry, PageKind};

/// A packed batch.
pub(crate) struct Packed {
    pub(crate) index: Vec<PackedEntry>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) report: LaunchReport,
}

impl Packed {
    /// Takes what a compressor left; checks that exactly the packed bytes were written.
    pub(crate) fn check(run: CompressRun) -> Self {
        let (index, end) = whole_index(&run.index);
        assert!(
            run.written[..end].iter().all(|written| *written) && !run.written[end..].contains(&true),
            "exactly the packed bytes"
        );
        Self { index, bytes: run.packed[..end].to_vec(), report: run.report }
    }

    /// The bytes of a page.
    pub(crate) fn page(&self, page: usize) -> (PageKind, &[u8]) {
        let entry = self.index[page];
        let start = usize::try_from(entry.offset_bytes()).expect("small");
        (entry.kind(), &self.bytes[start..start + usize::from(entry.len_bytes())])
    }
}

/// An index as the compressor leaves it, and where the packed pages end; checks that it is whole and the pages lie in
/// order, without gaps but for the alignment.
pub(crate) fn whole_index(bytes: &[u8]) -> (Vec<PackedEntry>, usize) {
    let entries = bytes.as_chunks().0.iter().map(|bits| PackedEntry::from_bits(u64::from_le_bytes(*bits)));
    let index: Vec<_> = entries.collect();
    let mut end = 0;
    for (page, entry) in index.iter().enumerate() {
        assert!(entry.is_placed(), "page {page}");
        assert_eq!(entry.offset_bytes(), end, "page {page}");
        end += u64::from(entry.len_bytes()).next_multiple_of(16);
    }
    (index, usize::try_from(end).expect("small"))
}
