//! The manifest of `testdata/`: a line per file, and the files that a line asks for and that do not exist yet.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use crate::recipe;
use crate::write;

const NAME: &str = "MANIFEST";

/// Stands for a length or a hash that is not known yet.
const UNKNOWN: &str = "-";

/// A file of the folder.
#[derive(Clone, Debug)]
pub(crate) struct Golden {
    /// Its path in the folder.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    recipe: String,
    /// The length of its content in bytes.
    pub(crate) len_bytes: String,
    /// The BLAKE3 hash of its content.
    pub(crate) blake3: String,
    /// The way it was made: a call of the writer, or a command.
    pub(crate) made: String,
}

/// The ways in which a file can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A page archive.
    Archive,
    /// A delta.
    Delta,
    /// A standard file that has no index, or more in it than one archive.
    Stream,
}

/// All files of the folder. With `UPDATE_GOLDEN=1`, those that do not exist are made first. None is ever overwritten.
pub(crate) static FILES: LazyLock<Vec<Golden>> = LazyLock::new(|| {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        add_missing();
    }
    parse(&manifest()).1
});

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// Returns the names of all files in the folder, the manifest excepted.
pub(crate) fn names_in_folder() -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            let files = fs::read_dir(entry.path()).unwrap();
            names.extend(files.map(|file| format!("{name}/{}", file.unwrap().file_name().into_string().unwrap())));
        } else if name != NAME {
            names.push(name);
        }
    }
    names.sort();
    names
}

impl Golden {
    pub(crate) fn path(&self) -> PathBuf {
        folder().join(&self.name)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let path = self.path();
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1 makes it", path.display()))
    }

    /// Returns the content, made by its recipe.
    pub(crate) fn content(&self) -> Vec<u8> {
        recipe::content(&self.recipe)
    }

    /// Returns the folder of the file, which names the version that wrote it.
    pub(crate) fn writer(&self) -> &str {
        self.name.split_once('/').unwrap().0
    }

    fn line(&self) -> String {
        let Self { name, kind, recipe, len_bytes, blake3, made } = self;
        let kind = format!("{kind:?}").to_lowercase();
        format!("{name} | {kind} | {recipe} | {len_bytes} | {blake3} | {made}\n")
    }
}

fn manifest() -> String {
    fs::read_to_string(folder().join(NAME)).unwrap()
}

/// Returns the comments at the start, and the files.
fn parse(manifest: &str) -> (String, Vec<Golden>) {
    let (mut comments, mut files) = (String::new(), Vec::new());
    for line in manifest.lines() {
        if line.starts_with('#') || line.is_empty() {
            assert!(files.is_empty(), "comments stand at the start of the manifest");
            comments.push_str(line);
            comments.push('\n');
            continue;
        }
        let fields: Vec<String> = line.splitn(6, " | ").map(str::to_owned).collect();
        let [name, kind, recipe, len_bytes, blake3, made] = fields.try_into().expect("a line has six fields");
        let kind = match &kind[..] {
            "archive" => Kind::Archive,
            "delta" => Kind::Delta,
            "stream" => Kind::Stream,
            other => panic!("{other} is not a kind of file"),
        };
        files.push(Golden { name, kind, recipe, len_bytes, blake3, made });
    }
    (comments, files)
}

/// Makes the files that do not exist, in the order of the manifest, and fills in lengths and hashes that are unknown.
fn add_missing() {
    let (comments, mut files) = parse(&manifest());
    for file in &mut files {
        let content = file.content();
        if file.len_bytes == UNKNOWN {
            file.len_bytes = content.len().to_string();
        }
        if file.blake3 == UNKNOWN {
            file.blake3 = blake3::hash(&content).to_string();
        }
        if !file.path().exists() {
            let made = if file.writer() == "foreign" { run(&file.made, &content) } else { write::write(file) };
            fs::create_dir_all(file.path().parent().unwrap()).unwrap();
            fs::write(file.path(), made).unwrap();
        }
    }
    let lines: String = files.iter().map(Golden::line).collect();
    fs::write(folder().join(NAME), comments + &lines).unwrap();
}

/// Runs a command of the shell that reads the file `$IN` and writes the archive to its standard output.
fn run(command: &str, content: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("content");
    fs::write(&path, content).unwrap();
    let output = Command::new("sh").args(["-ec", command]).env("IN", &path).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
