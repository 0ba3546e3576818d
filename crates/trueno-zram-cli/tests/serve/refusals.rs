//! Requests that are refused, and their kinds of errors.

use std::fs;

use crate::Server;
use crate::support::{folder, image, names, run};

#[test]
fn arguments_that_make_no_device_are_refused() {
    let folder = folder();
    let serve = |args: &[&str]| run(folder.path(), &[&["serve", "--json"], args].concat());
    serve(&[]).refuses(&["--size"]);
    serve(&["--size", "1M"]).refuses(&["--nbd"]);
    serve(&["--size", "1.5M", "--nbd", "unix:nbd"]).refuses(&["--size"]);
    serve(&["--size", "1X", "--nbd", "unix:nbd"]).refuses(&["--size"]);
    serve(&["--size", "1M", "--nbd", "nbd"]).refuses(&["--nbd"]);
    serve(&["--size", "1M", "--nbd", "unix:nbd", "--overlay"]).refuses(&["ARCHIVE"]);
    serve(&["--size", "1M", "--nbd", "unix:nbd", "--algorithm", "lzo"]).refuses(&["--algorithm"]);
    serve(&["a.lz4", "--limit", "1M", "--nbd", "unix:nbd"]).refuses(&["--limit", "--overlay"]);
    serve(&["a.lz4", "--control", "c", "--nbd", "unix:nbd"]).refuses(&["--control", "--overlay"]);
    serve(&["--size", "1M", "--ublk", "--swap"]).refuses(&["--limit"]);
    serve(&["a.lz4", "--limit", "1M", "--ublk", "--swap"]).refuses(&["--swap"]);
    let swap = ["--size", "1M", "--limit", "1M", "--ublk", "--swap", "--vhost-user", "vm"];
    serve(&swap).refuses(&["--swap", "--vhost-user"]);
    serve(&["--size", "999T", "--nbd", "unix:nbd"]).fails_as("other", &["16 TiB"]);
    serve(&["--size", "1M", "--limit", "1K", "--lock", "--nbd", "unix:nbd"]).fails_as("other", &[]);
    serve(&["--size", "1M", "--nbd", "unix:no/socket"]).fails_as("not_found", &["no/socket"]);
    serve(&["--size", "1M", "--load", "absent", "--nbd", "unix:nbd"]).fails_as("not_found", &["absent"]);
    serve(&["--size", "1M", "--keep-in", "absent", "--nbd", "unix:nbd"]).fails_as("not_found", &["absent"]);
    serve(&["a.lz4", "--overlay", "--keep-in", "k", "--nbd", "unix:nbd"]).refuses(&["--keep-in", "--overlay"]);
    serve(&["absent.lz4", "--overlay", "--nbd", "unix:nbd"]).fails_as("not_found", &["absent.lz4"]);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn more_memory_than_there_is_is_refused() {
    let folder = folder();
    let serve = |args: &[&str]| run(folder.path(), &[&["serve", "--nbd", "unix:nbd"], args].concat());
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")).unwrap();
    let twice = format!("{}K", 2 * total.parse::<u64>().unwrap());
    serve(&["--size", "8M", "--limit", "1000T"]).refuses(&["--limit"]);
    serve(&["--size", "8M", "--limit", &twice]).refuses(&["--limit"]);
    serve(&["--size", &twice, "--lock"]).refuses(&["--lock"]);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn files_that_are_no_archives_are_refused() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("image"), image(10)).unwrap();
    let serve = |args: &[&str]| run(folder, &[&["serve", "--nbd", "unix:nbd", "--json"], args].concat());
    serve(&["image", "--overlay"]).fails_as("other", &["image: "]);
    serve(&["image"]).fails_as("other", &["image: "]);
    serve(&["--size", "1M", "--load", "image"]).fails_as("other", &["image: "]);
}

#[test]
fn a_server_says_why_it_does_not_save_or_load() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("image"), image(300)).unwrap();
    for args in [&["stat", "control"][..], &["save", "control", "saved"], &["load", "control", "image"]] {
        run(folder, &[args, &["--json"]].concat()).fails_as("not_found", &["control: "]);
    }
    let _server = Server::start(folder, &["--size", "1M", "--control", "control"]);
    run(folder, &["save", "control", "saved"]).ok();
    run(folder, &["save", "control", "saved", "--json"]).fails_as("exists", &["saved", "-f"]);
    run(folder, &["save", "-f", "control", "saved"]).ok();
    run(folder, &["load", "control", "absent", "--json"]).fails_as("not_found", &["absent"]);
    run(folder, &["load", "control", "image"]).fails(&["image: "]);
    run(folder, &["compress", "-q", "image", "-o", "image.lz4"]).ok();
    run(folder, &["load", "control", "image.lz4"]).fails(&["image.lz4: "]);
    let busy = run(folder, &["serve", "--size", "1M", "--nbd", "unix:nbd", "--json"]);
    busy.fails_as("in_use", &["nbd"]);
}

#[test]
fn a_full_disk_is_reported_with_the_name_of_the_archive() {
    let folder = folder();
    let folder = folder.path();
    let server = Server::start(folder, &["--size", "16M", "--control", "control"]);
    server.client().write(0, &image(2000)).unwrap();
    // Every write to it fails as on a full disk.
    let full = run(folder, &["save", "control", "/dev/full", "--json"]);
    full.fails_as("no_space", &["/dev/full: "]);
    // The server goes on.
    run(folder, &["save", "-q", "control", "saved"]).ok();
}
