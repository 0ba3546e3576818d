//! Lists the public interface of a library: `list-public-api FILE.json`, a file of rustdoc.
//!
//! Blanket implementations and those of auto traits are left out; they follow from the rest.
#![forbid(unsafe_code)]

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name a JSON file of rustdoc")?;
    let listing = public_api::Builder::from_rustdoc_json(path)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()?;
    for item in listing.items() {
        println!("{item}");
    }
    Ok(())
}
