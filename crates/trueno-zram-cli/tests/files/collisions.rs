//! Outputs of one run never overwrite each other or an input.

use std::fs;

use crate::support::{folder, image, run};

#[test]
fn outputs_of_the_same_name_are_refused_before_anything_is_removed() {
    let folder = folder();
    let root = folder.path();
    for dir in ["a", "b", "out"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    fs::write(root.join("a/f"), image(3)).unwrap();
    fs::write(root.join("b/f"), image(5)).unwrap();
    run(root, &["compress", "--rm", "-f", "a/f", "b/f", "--output-dir", "out"]).fails(&["f.lz4", "a/f", "b/f"]);
    assert!(fs::read(root.join("a/f")).unwrap() == image(3) && fs::read(root.join("b/f")).unwrap() == image(5));
    assert_eq!(fs::read_dir(root.join("out")).unwrap().count(), 0);
    run(root, &["compress", "a/f", "b/f"]).ok();
    run(root, &["decompress", "--rm", "-f", "a/f.lz4", "b/f.lz4", "--output-dir", "out"]).fails(&["out/f"]);
    assert!(root.join("a/f.lz4").exists() && root.join("b/f.lz4").exists());
    run(root, &["compress", "-f", "a/f", "a/f"]).fails(&["a/f.lz4"]);
}

#[test]
fn an_output_that_is_another_input_is_refused() {
    let folder = folder();
    let root = folder.path();
    fs::write(root.join("x"), image(3)).unwrap();
    fs::write(root.join("x.lz4"), b"something else").unwrap();
    run(root, &["compress", "-f", "--rm", "x", "x.lz4", "--json"]).fails_as("refused", &["x.lz4"]);
    assert!(fs::read(root.join("x")).unwrap() == image(3));
    assert_eq!(fs::read(root.join("x.lz4")).unwrap(), b"something else");
}

#[test]
fn outputs_that_links_lead_to_another_file_of_the_run_are_refused() {
    use std::os::unix::fs::symlink;
    let folder = folder();
    let root = folder.path();
    let (x, y) = (image(3), image(5));
    let write = || {
        fs::write(root.join("x"), &x).unwrap();
        fs::write(root.join("y"), &y).unwrap();
    };
    let is_kept = || fs::read(root.join("x")).unwrap() == x && fs::read(root.join("y")).unwrap() == y;
    write();
    // The output of one is the other.
    symlink("y", root.join("x.lz4")).unwrap();
    run(root, &["compress", "--rm", "-f", "x", "y", "--json"]).fails_as("refused", &["x.lz4"]);
    assert!(is_kept());
    // Both outputs are one file.
    fs::remove_file(root.join("x.lz4")).unwrap();
    fs::write(root.join("target"), b"old").unwrap();
    symlink("target", root.join("x.lz4")).unwrap();
    symlink("target", root.join("y.lz4")).unwrap();
    run(root, &["compress", "--rm", "-f", "x", "y", "--json"]).fails_as("refused", &["x", "y"]);
    assert!(is_kept() && fs::read(root.join("target")).unwrap() == b"old");
    // The same the other way.
    for name in ["x.lz4", "y.lz4"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    run(root, &["compress", "-q", "x", "y"]).ok();
    fs::remove_file(root.join("x")).unwrap();
    symlink("y", root.join("x")).unwrap();
    run(root, &["decompress", "--rm", "-f", "x.lz4", "y.lz4", "--json"]).fails_as("refused", &["x.lz4", "y.lz4"]);
    assert!(root.join("x.lz4").exists() && fs::read(root.join("y")).unwrap() == y);
}

#[test]
fn a_report_does_not_replace_what_is_measured() {
    let folder = folder();
    let root = folder.path();
    fs::write(root.join("pages"), image(3)).unwrap();
    fs::hard_link(root.join("pages"), root.join("twin")).unwrap();
    for report in ["pages", "twin"] {
        run(root, &["bench", "-q", "pages", "--html", report, "--json"]).fails_as("refused", &[report]);
    }
    assert!(fs::read(root.join("pages")).unwrap() == image(3));
}
