//! New files, files that exist, and outputs that are refused.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::*;
use crate::output::spool::Spool;

fn target(folder: &TempDir, name: &str) -> OutputTarget {
    OutputTarget::Path(folder.path().join(name))
}

fn create(folder: &TempDir, name: &str, options: OutputOptions) -> Result<Output> {
    Output::create(&target(folder, name), None, options)
}

fn refusal(created: Result<Output>) -> Refusal {
    match created.unwrap_err() {
        Error::Refused { refusal, .. } => refusal,
        error => panic!("{error}"),
    }
}

#[test]
fn a_new_file_has_its_name_once_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let mut output = create(&folder, "new", OutputOptions::default()).unwrap();
    assert!(!output.can_block());
    output.write_data(b"some ").unwrap();
    output.write_zeros(3).unwrap();
    drop(create(&folder, "dropped", OutputOptions::default()).unwrap());
    assert!(!folder.path().join("new").exists());
    let mut back = output.new_file().unwrap().expect("a new file");
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut back, &mut bytes).unwrap();
    assert_eq!(bytes, b"some \0\0\0");
    assert_eq!(output.finish(None).unwrap(), 8);
    assert_eq!(fs::read(folder.path().join("new")).unwrap(), b"some \0\0\0");
    assert!(!folder.path().join("dropped").exists());
}

#[test]
fn an_existing_file_is_replaced_only_by_force_and_keeps_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, b"old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(refusal(create(&folder, "file", OutputOptions::default())), Refusal::Exists);
    let replace = |options: OutputOptions| {
        let mut output = create(&folder, "file", options.with_force(true)).unwrap();
        output.write_all(b"new").unwrap();
        output.finish(None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::metadata(&path).unwrap().mode() & 0o777
    };
    assert_eq!(replace(OutputOptions::default()), 0o640);
    assert_eq!(replace(OutputOptions::default().with_durable(true).with_private(true)), 0o600);
    let late = create(&folder, "late", OutputOptions::default()).unwrap();
    fs::write(folder.path().join("late"), b"of somebody else").unwrap();
    assert!(matches!(late.finish(None), Err(Error::Refused { refusal: Refusal::Exists, .. })));
    assert_eq!(fs::read(folder.path().join("late")).unwrap(), b"of somebody else");
}

#[test]
fn mode_and_times_are_those_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::write(&source, b"content").unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o604)).unwrap();
    let then = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(&source).unwrap().set_modified(then).unwrap();
    let metadata = fs::metadata(&source).unwrap();
    let output = Output::create(&target(&folder, "copy"), Some(&metadata), OutputOptions::default()).unwrap();
    output.finish_with(Some(&metadata), &mut |warning| panic!("{warning}")).unwrap();
    let copy = fs::metadata(folder.path().join("copy")).unwrap();
    assert_eq!((copy.mode() & 0o777, copy.modified().unwrap()), (0o604, then));
    let same = Output::create(&OutputTarget::Path(source), Some(&metadata), OutputOptions::default().with_force(true));
    assert_eq!(refusal(same), Refusal::Input);
}

#[test]
fn directories_links_and_devices_are_refused_where_they_must_be() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (plain, private) = (OutputOptions::default(), OutputOptions::default().with_private(true));
    let null = |options| Output::create(&OutputTarget::Path("/dev/null".into()), None, options);
    symlink(at("absent"), at("dangling")).unwrap();
    assert_eq!(refusal(create(&folder, "dangling", plain)), Refusal::Dangling);
    fs::create_dir(at("folder")).unwrap();
    assert_eq!(refusal(create(&folder, "folder", plain.with_force(true))), Refusal::Directory);
    fs::write(at("file"), b"old").unwrap();
    symlink(at("file"), at("link")).unwrap();
    assert_eq!(refusal(create(&folder, "link", private.with_force(true))), Refusal::Link);
    let mut through = create(&folder, "link", plain.with_force(true)).unwrap();
    through.write_all(b"new").unwrap();
    through.finish(None).unwrap();
    assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink(), "its target is written");
    assert_eq!(fs::read(at("file")).unwrap(), b"new");
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(refusal(create(&folder, "pipe", private)), Refusal::NotPrivate);
    assert_eq!(refusal(null(plain.with_durable(true))), Refusal::DiscardsData);
    let output = null(private).unwrap();
    assert!(output.can_block() && output.new_file().unwrap().is_none());
    assert!(matches!(output.write_mode(4), WriteMode::Discard));
}

#[test]
fn zeros_are_holes_only_in_a_sparse_output() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = vec![1; PAGE_SIZE];
    bytes.resize(4 << 20, 0);
    for sparse in [false, true] {
        let name = format!("sparse-{sparse}");
        let mut output = create(&folder, &name, OutputOptions::default().with_sparse(sparse)).unwrap();
        output.write_data(&bytes).unwrap();
        output.write_zeros(4 << 20).unwrap();
        assert_eq!(output.finish(None).unwrap(), 8 << 20);
        let file = fs::metadata(folder.path().join(&name)).unwrap();
        assert_eq!(file.len(), 8 << 20);
        assert_eq!(file.blocks() * 512 >= 8 << 20, !sparse);
    }
    let mut output = create(&folder, "huge", OutputOptions::default().with_sparse(true)).unwrap();
    assert_eq!(output.write_zeros(u64::MAX).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}

#[test]
fn a_spool_is_copied_to_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let (mut spool, mut output) = (Spool::new().unwrap(), create(&folder, "file", OutputOptions::default()).unwrap());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_le_bytes()[1]).collect();
    spool.write_all(&bytes).unwrap();
    assert_eq!(spool.file().unwrap().metadata().unwrap().len(), bytes.len() as u64);
    spool.copy_to(&mut output).unwrap();
    output.finish(None).unwrap();
    assert!(fs::read(folder.path().join("file")).unwrap() == bytes);
}

#[test]
fn runs_of_data_leave_out_pages_of_zeros() {
    let mut bytes = vec![0; 5 * PAGE_SIZE + 10];
    assert_eq!(data_runs(&bytes).count(), 0);
    assert_eq!(data_runs(&[]).count(), 0);
    for at in [PAGE_SIZE, 2 * PAGE_SIZE + 7, 5 * PAGE_SIZE + 9] {
        bytes[at] = 1;
    }
    let runs: Vec<_> = data_runs(&bytes).map(|(at, data)| at..at + data.len()).collect();
    assert_eq!(runs, [PAGE_SIZE..3 * PAGE_SIZE, 5 * PAGE_SIZE..bytes.len()]);
}

#[test]
fn zeros_are_as_long_as_asked_for() {
    for len_bytes in [0, 1, 1 << 20, (5 << 20) + 3] {
        assert_eq!(zeros(len_bytes).map(|piece| piece.len() as u64).sum::<u64>(), len_bytes);
    }
}
