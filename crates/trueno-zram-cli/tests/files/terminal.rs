//! The progress line on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{command, finish, folder, image, run};

/// A terminal with the given number of columns: its two ends.
fn terminal(columns: u16) -> (File, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let peer = ioctl_tiocgptpeer(&master, flags).unwrap();
    tcsetwinsize(&peer, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (master.into(), peer)
}

/// The characters of a line, without the sequences that control the terminal.
fn visible(line: &str) -> usize {
    let mut count = 0;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            // Up to the letter that ends it.
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else if !c.is_control() {
            count += 1;
        }
    }
    count
}

#[test]
fn the_progress_line_fits_a_narrow_terminal() {
    for (columns, name) in [(40, "image"), (40, "a-name-that-is-longer-than-the-terminal-is-wide"), (80, "image")] {
        let folder = folder();
        let (mut master, peer) = terminal(columns);
        // A pipe that is fed slowly, under the name of a file.
        let fifo = folder.path().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut command = command(folder.path(), &["compress", "-o", "/dev/null", name]);
        let mut child = command.env("TERM", "xterm").stderr(Stdio::from(peer)).spawn().unwrap();
        drop(command);
        // Fed until a speed is shown, however long that takes on a busy machine. Without one, this ends all the same.
        let is_shown = Arc::new(AtomicBool::new(false));
        let feeder = std::thread::spawn({
            let is_shown = Arc::clone(&is_shown);
            move || {
                let mut pipe = File::options().write(true).open(fifo).unwrap();
                for _ in 0..5000 {
                    if is_shown.load(Ordering::Relaxed) {
                        break;
                    }
                    pipe.write_all(&image(64)).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        let mut shown = Vec::new();
        let mut buffer = [0; 4096];
        // The last of its writers closes it: an error on Linux.
        while let Ok(len @ 1..) = master.read(&mut buffer) {
            shown.extend_from_slice(&buffer[..len]);
            is_shown.fetch_or(shown.windows(3).any(|text| text == b"B/s"), Ordering::Relaxed);
        }
        feeder.join().unwrap();
        assert!(child.wait().unwrap().success());
        let shown = String::from_utf8_lossy(&shown).into_owned();
        let lines: Vec<&str> = shown.split(['\r', '\n']).filter(|line| line.contains("/s")).collect();
        // The last line is the report, which may wrap.
        let progress: Vec<_> = lines.iter().filter(|line| !line.contains("==>")).collect();
        assert!(!progress.is_empty(), "{shown:?}");
        for line in progress {
            assert!(visible(line) <= usize::from(columns), "{columns} columns: {line:?}");
            assert!(line.contains("B/s") && line.contains(&name[..5]), "{columns} columns: {line:?}");
        }
    }
}

#[test]
fn binary_data_goes_to_a_terminal_only_with_force() {
    let folder = folder();
    // Text, so that the terminal shows it as it is.
    std::fs::write(folder.path().join("text"), "some text").unwrap();
    run(folder.path(), &["compress", "text"]).ok();
    let run_on_terminal = |args: &[&str]| {
        let (master, peer) = terminal(80);
        let out = finish(command(folder.path(), args).stdout(Stdio::from(peer)), &[]);
        (out, master)
    };
    let extract = ["extract", "text.lz4", "--bytes", "5..9"];
    for args in [&extract[..], &["compress", "-c", "text"]] {
        run_on_terminal(args).0.refuses(&["-o", "-f"]);
    }
    let (out, mut master) = run_on_terminal(&[&extract[..], &["-f"]].concat());
    out.ok();
    let mut shown = [0; 4];
    master.read_exact(&mut shown).unwrap();
    assert_eq!(&shown, b"text");
}
