//! Restores VMs lazily from an archive of their memory:
//! `cargo run -p trueno-zram-restore --example restore_vm -- guest.mem.lz4 uffd.sock`
//!
//! A VMM that speaks Firecracker's protocol connects to the socket when it loads the snapshot. Its page faults are served from the
//! archive until all memory is restored.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::os::unix::net::UnixListener;
    use trueno_zram_archive::Archive;
    use trueno_zram_restore::{LazyRestore, RestoreOptions};

    let args: Vec<String> = std::env::args().skip(1).collect();
    let [archive, socket] = &args[..] else { return Err("name an archive and the socket to listen on".into()) };
    let restore = LazyRestore::new(Archive::open(archive)?, RestoreOptions::default());
    let listener = UnixListener::bind(socket)?;
    println!("waiting for VMMs on {socket}");
    restore.serve_all(&listener, None, |ended| println!("{ended:?}"))?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
