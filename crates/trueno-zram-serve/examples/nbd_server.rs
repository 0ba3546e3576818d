//! Serves a new store over NBD until the process ends: `nbd_server unix:PATH [SIZE_MIB] [ALGORITHM]`
use std::sync::Arc;

use trueno_zram_serve::nbd::{Exports, NbdServer, ServerLimits};
use trueno_zram_serve::{Endpoint, StoreExport};
use trueno_zram_store::{Maintenance, MaintenanceOptions, Store, StoreOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let endpoint: Endpoint = args.next().ok_or("usage: nbd_server unix:PATH [SIZE_MIB] [ALGORITHM]")?.parse()?;
    let size_mib: u64 = args.next().map_or(Ok(1024), |size| size.parse())?;
    let algorithm = args.next().map_or(Ok(trueno_zram_core::Algorithm::Lz4), |name| name.parse())?;
    let store = Arc::new(Store::create(&StoreOptions { algorithm, ..StoreOptions::new(size_mib << 20) })?);
    let _maintenance = Maintenance::start(&store, MaintenanceOptions::default(), None)?;
    let exports = Exports::new().with("ram", Arc::new(StoreExport::new(Arc::clone(&store))));
    let _server = NbdServer::start(&endpoint, exports, ServerLimits::default())?;
    loop {
        std::thread::park();
    }
}
