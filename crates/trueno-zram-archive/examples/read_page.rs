//! Writes one page of an archive to standard output: `cargo run -p trueno-zram-archive --example read_page -- memory.img.lz4 200`

use std::env;
use std::error::Error;
use std::io::{Write, stdout};

use trueno_zram_archive::Archive;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [path, number] = &args[..] else { return Err("name an archive and the number of a page".into()) };
    let archive = Archive::open(path)?;
    stdout().write_all(&archive.read_page(number.parse()?)?[..])?;
    Ok(())
}
