//! `extract --verify` and `inspect --verify`: an archive in order, and one whose index lies.

use std::fs;

use trueno_test_pages::corpus;
use trueno_test_restore::forged::lying_archive;

use crate::support::{folder, image, run};

const POLICIES: [&str; 3] = ["touched", "group", "all"];

#[test]
fn every_policy_restores_the_same_pages() {
    let folder = folder();
    let folder = folder.path();
    let content = image(3000);
    fs::write(folder.join("image"), &content).unwrap();
    for archive in ["image.lz4", "image.zst"] {
        run(folder, &["compress", "-q", "image", "-o", archive]).ok();
        for policy in POLICIES {
            let args = ["extract", "-q", archive, "--pages", "1500..1600,3", "--verify", policy];
            let expected = [&content[1500 * 4096..1600 * 4096], &content[3 * 4096..4 * 4096]].concat();
            assert!(run(folder, &args).ok().stdout == expected, "{policy}");
            let args = ["inspect", archive, "--decode", "--json", "--verify", policy];
            assert_eq!(run(folder, &args).ok().json()[0]["pages"], 3000, "{policy}");
        }
    }
}

#[test]
fn what_an_index_lies_about_is_not_restored() {
    let folder = folder();
    let folder = folder.path();
    let mut pages = corpus::numbered_pages(2000);
    fs::write(folder.join("image.lz4"), lying_archive(&mut pages, 1500).0).unwrap();
    for policy in POLICIES {
        let args = ["extract", "image.lz4", "--pages", "1501", "-o", "out", "--json", "--verify", policy];
        run(folder, &args).fails_as("damaged", &["image.lz4: "]);
        assert!(!folder.join("out").exists(), "{policy}");
        // The group before it is in order.
        let args = ["extract", "-q", "image.lz4", "--pages", "1000", "--verify", policy];
        assert!(run(folder, &args).ok().stdout == pages[1000], "{policy}");
        let args = ["inspect", "image.lz4", "--decode", "--json", "--verify", policy];
        run(folder, &args).fails_as("damaged", &["image.lz4: "]);
    }
    run(folder, &["inspect", "image.lz4", "--json"]).ok();
    run(folder, &["inspect", "image.lz4", "--json", "--verify", "all"]).fails_as("damaged", &["image.lz4: "]);
}
