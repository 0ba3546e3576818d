//! Compresses a file into a page archive: `cargo run -p trueno-zram-archive --example compress_file -- memory.img memory.img.lz4`

use std::env;
use std::error::Error;
use std::fs::File;

use trueno_zram_archive::{WriteOptions, compress};

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = env::args().skip(1).collect();
    let [input, output] = &paths[..] else { return Err("name a file to compress and the archive to write".into()) };
    let summary = compress(File::open(input)?, File::create_new(output)?, &WriteOptions::default())?;
    println!("{} bytes of content in an archive of {} bytes", summary.content_len, summary.archive_len);
    Ok(())
}
