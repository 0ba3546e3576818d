//! Without the feature `zstd`, files in that format are rejected with an error that names it, and .lz4 files work.
#![cfg(not(feature = "zstd"))]

use std::sync::Arc;

use trueno_zram_archive::{
    Archive, ArchiveWriter, ContentBatch, Error, Format, FrameReader, SalvageReader, WriteOptions, compress,
};

const ARCHIVE: &[u8] = include_bytes!("../testdata/0.1/zst-groups.zst");
const WITHOUT_PAGES: &[u8] = include_bytes!("../testdata/foreign/zstd-1.zst");

fn assert_names_feature<T>(result: Result<T, Error>) {
    assert!(matches!(result.err(), Some(Error::MissingFeature { feature: "zstd" })));
}

#[test]
fn zstandard_files_are_rejected_in_every_way_to_read_them() {
    assert_names_feature(Archive::read_from(Arc::new(ARCHIVE.to_vec())));
    for file in [ARCHIVE, WITHOUT_PAGES] {
        assert_names_feature(FrameReader::new(file).read_batch(&mut ContentBatch::new()));
        let salvaged = SalvageReader::open(Arc::new(file.to_vec()));
        assert_names_feature(salvaged.and_then(|mut reader| reader.read_batch(&mut ContentBatch::new())));
    }
}

#[test]
fn zstandard_archives_are_not_written() {
    let options = WriteOptions::default().with_format(Format::Zstd);
    assert_names_feature(ArchiveWriter::new(Vec::new(), options));
    assert_names_feature(compress(&[7; 5000][..], Vec::new(), &options));
}

#[test]
fn lz4_archives_are_written_and_read() {
    let mut archive = Vec::new();
    compress(&[7; 5000][..], &mut archive, &WriteOptions::default()).unwrap();
    let archive = Archive::read_from(Arc::new(archive)).unwrap().unwrap();
    assert_eq!(archive.info().page_count, 2);
}
