//! An archive whose index lies, as a device: what was not proven before it was read is not read again.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use trueno_test_pages::corpus;
use trueno_test_restore::forged::lying_archive;

use crate::Server;
use crate::support::{BINARY, folder};

/// The page that the index lies about.
const LIE: usize = 1501;
const EIO: Result<Vec<u8>, u32> = Err(5);

#[test]
fn pages_that_fail_their_proof_are_errors_and_told_of_once() {
    let mut pages = corpus::numbered_pages(2000);
    let (archive, lie) = lying_archive(&mut pages, LIE - 1);
    for overlay in [false, true] {
        let folder = folder();
        let folder = folder.path();
        fs::write(folder.join("image.lz4"), &archive).unwrap();
        for policy in ["touched", "group", "all"] {
            let mut shell = Command::new("sh");
            shell.current_dir(folder).args(["-c", "exec \"$0\" \"$@\" 2>stderr", BINARY]);
            shell.args(["serve", "-q", "--json", "--nbd", "unix:nbd", "image.lz4", "--verify", policy]);
            shell.args(overlay.then_some("--overlay"));
            let mut server = Server::spawn(folder, shell);
            let mut client = server.client();
            let mut read = |page: usize| client.read(page as u64 * 4096, 4096);
            assert!(read(1000).unwrap() == pages[1000]);
            if policy == "touched" {
                assert!(read(LIE).unwrap() == lie, "the page alone is in order");
                // The proof comes when it comes.
                while read(LIE) != EIO {}
            }
            for page in [LIE, 1100, 1999] {
                assert_eq!(read(page), EIO, "{policy}: page {page} of the group");
            }
            assert!(read(1000).unwrap() == pages[1000]);
            drop(client);
            server.end(Signal::TERM);
            let told = fs::read_to_string(folder.join("stderr")).unwrap();
            let times = told.matches("image.lz4: pages 1024 to 2048 failed their proof").count();
            assert_eq!(times, usize::from(policy == "touched"), "{told}");
        }
    }
}
