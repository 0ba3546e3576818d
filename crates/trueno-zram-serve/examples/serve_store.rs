//! Serves compressed memory over NBD: `cargo run -p trueno-zram-serve --example serve_store -- unix:/tmp/ram.sock 1073741824`
//!
//! Then, for instance: `nbdcopy disk.img 'nbd+unix:///ram?socket=/tmp/ram.sock'`. The content is lost when the program ends.

use std::env;
use std::error::Error;
use std::sync::Arc;

use trueno_zram_serve::StoreExport;
use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
use trueno_zram_store::{Store, StoreOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [endpoint, len_bytes] = &args[..] else { return Err("name an endpoint, and the size in bytes".into()) };
    let store = Arc::new(Store::create(&StoreOptions::new(len_bytes.parse()?))?);
    let exports = Exports::new().with("ram", Arc::new(StoreExport::new(Arc::clone(&store))));
    let server = NbdServer::start(&endpoint.parse()?, exports, NbdLimits::default())?;
    println!("the export \"ram\" is served on {}; Enter ends it", server.endpoint()?);
    std::io::stdin().read_line(&mut String::new())?;
    println!("{} bytes of memory were in use", store.stats().mm.mem_used_total);
    Ok(())
}
