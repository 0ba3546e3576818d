//! The running servers of a user: a private folder with a file per server, locked for as long as the server runs.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};

/// The name of the folder within the runtime folder of the user.
const FOLDER: &str = "trueno-zram";

/// The longest file of a server, and the most servers that are listed.
const MAX_RECORD_BYTES: u64 = 64 << 10;
const MAX_SERVERS: usize = 4096;

/// A running server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerRecord {
    /// The process.
    pub process: u32,
    /// The name of its export.
    pub name: String,
    /// Length of the device when the server started.
    pub size_bytes: u64,
    /// The control socket, if it has one: an absolute path.
    pub control: Option<PathBuf>,
    /// The addresses, as `unix:/run/ram.sock`, at which it serves.
    pub addresses: Vec<String>,
}

impl ServerRecord {
    /// Describes this process as the server of an export.
    ///
    /// ```
    /// use trueno_zram_serve::registry::ServerRecord;
    /// let record = ServerRecord::new("ram", 1 << 30).with_control("/run/ram.ctl".into());
    /// assert_eq!(record.process, std::process::id());
    /// ```
    #[must_use]
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self { process: std::process::id(), name: name.into(), size_bytes, ..Self::default() }
    }

    /// Sets the control socket.
    #[must_use]
    pub fn with_control(self, control: PathBuf) -> Self {
        Self { control: Some(control), ..self }
    }

    /// Sets the addresses.
    #[must_use]
    pub fn with_addresses(self, addresses: Vec<String>) -> Self {
        Self { addresses, ..self }
    }
}

/// The folder with the servers of a user.
///
/// It is private: owned by the user, and nobody else may read or write it. Any other folder is refused.
///
/// ```
/// use trueno_zram_serve::registry::{Registry, ServerRecord};
/// # let folder = tempfile::tempdir()?;
/// let registry = Registry::open(&folder.path().join("servers"))?;
/// let entry = registry.enter(&ServerRecord::new("ram", 4096))?;
/// assert_eq!(registry.servers()?[0].name, "ram");
/// drop(entry);
/// assert!(registry.servers()?.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Registry {
    folder: PathBuf,
}

/// The entry of a running server. Dropping it, or the end of the process, removes the server from the list.
#[derive(Debug)]
pub struct RegistryEntry {
    path: PathBuf,
    /// The lock ends with it.
    file: File,
}

impl Registry {
    /// Returns the folder of this user: `trueno-zram` in `$XDG_RUNTIME_DIR`. Without that variable, in `/run` for root, and for others
    /// in `/run/user/UID`, where systemd makes one. `None` if there is no such folder.
    #[must_use]
    pub fn folder_of_user() -> Option<PathBuf> {
        let uid = rustix::process::geteuid().as_raw();
        let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let default = || if uid == 0 { "/run".into() } else { PathBuf::from(format!("/run/user/{uid}")) };
        let runtime = set.unwrap_or_else(default);
        runtime.is_dir().then(|| runtime.join(FOLDER))
    }

    /// Opens a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or is not a private folder of this user.
    pub fn open(folder: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Not its target, if it is a link.
        let found = fs::symlink_metadata(folder)?;
        let is_private =
            found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
        if !is_private {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "is not a private folder of this user (mode 0700)",
            ));
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// Enters a server that runs in this process.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn enter(&self, record: &ServerRecord) -> io::Result<RegistryEntry> {
        let path = self.folder.join(record.process.to_string());
        let new_path = self.folder.join(format!("{}.new", record.process));
        // A process of the same number may have left one.
        let _ = fs::remove_file(&new_path);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new_path)?;
        // Before anyone can find it by its name: a file that is not locked is one of a server that has ended.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(&new_path, &path)?;
        Ok(RegistryEntry { path, file })
    }

    /// Returns the servers that run, in the order of their process numbers. Files of those that have ended are removed, and files that
    /// are not understood are left alone.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn servers(&self) -> io::Result<Vec<ServerRecord>> {
        let mut servers = Vec::new();
        for entry in fs::read_dir(&self.folder)?.take(MAX_SERVERS) {
            let entry = entry?;
            let process: Option<u32> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(process) = process
                && let Some(record) = read_record(&entry.path())
                && record.process == process
            {
                servers.push(record);
            }
        }
        servers.sort_by_key(|server| server.process);
        Ok(servers)
    }
}

/// Reads the file of a server that runs. That of one that has ended is removed.
fn read_record(path: &Path) -> Option<ServerRecord> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        // Another server may have got the number and the name since.
        if is_at(&file, path) {
            let _ = fs::remove_file(path);
        }
        return None;
    }
    let mut text = Vec::new();
    (&mut file).take(MAX_RECORD_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().ok().map(identity) == fs::symlink_metadata(path).ok().map(identity)
}

impl Drop for RegistryEntry {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn servers_that_have_ended_and_other_files_are_not_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("servers");
        let registry = Registry::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let record = ServerRecord::new("ram", 1 << 20).with_control("/run/ram.ctl".into());
        let entry = registry.enter(&record).unwrap();
        // One of a server that was killed, and files of others.
        fs::write(path.join("1"), serde_json::to_vec(&ServerRecord { process: 1, ..record.clone() }).unwrap()).unwrap();
        fs::write(path.join("notes"), b"kept").unwrap();
        symlink("/etc/passwd", path.join("2")).unwrap();
        fs::create_dir(path.join("3")).unwrap();
        assert_eq!(Registry::open(&path).unwrap().servers().unwrap(), std::slice::from_ref(&record));
        assert!(!path.join("1").exists() && path.join("notes").exists() && path.join("3").exists());
        // A file that says another process than its name, or nothing that is understood, though it is locked.
        for (name, text) in [("7", &serde_json::to_vec(&record).unwrap()[..]), ("8", b"{"), ("9", b"")] {
            fs::write(path.join(name), text).unwrap();
            let file = File::open(path.join(name)).unwrap();
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            assert_eq!(registry.servers().unwrap().len(), 1, "{name}");
            assert!(path.join(name).exists());
        }
        drop(entry);
        assert!(registry.servers().unwrap().is_empty());
    }

    #[test]
    fn folders_that_others_can_use_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("servers");
        Registry::open(&path).unwrap();
        symlink(&path, folder.path().join("link")).unwrap();
        assert!(Registry::open(&folder.path().join("link")).is_err());
        for mode in [0o755, 0o770, 0o701] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = Registry::open(&path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
        }
        fs::write(folder.path().join("file"), b"").unwrap();
        assert!(Registry::open(&folder.path().join("file")).is_err());
    }
}
