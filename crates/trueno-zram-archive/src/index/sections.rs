//! Named sections of the index: data that callers keep with the pages.

use crate::error::{Error, Result};
use crate::hashes::content_hash::ContentHash;
use crate::read_at::{ReadAt, read_at};

/// The most bytes of all sections together.
pub(crate) const MAX_LEN: usize = 1 << 30;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Appends a section.
pub(crate) fn append(sections: &mut Vec<u8>, name: &str, bytes: &[u8]) -> Result<()> {
    append_within(MAX_LEN, sections, name, bytes)
}

/// Appends a section, if all of them have at most `max_len` bytes then.
fn append_within(max_len: usize, sections: &mut Vec<u8>, name: &str, bytes: &[u8]) -> Result<()> {
    let Ok(name_len @ 1..) = u8::try_from(name.len()) else {
        return Err(Error::Misuse(format!("a section name has 1 to 255 bytes, not {}", name.len())));
    };
    let mut others = Sections { file: sections, at: 0, end: sections.len() as u64 };
    if others.any(|other| other.is_ok_and(|other| other.name == name)) {
        return Err(Error::Misuse(format!("the archive already has a section {name:?}")));
    }
    let len = u32::try_from(bytes.len()).ok().filter(|_| sections.len() + name.len() + bytes.len() + 5 <= max_len);
    let Some(len) = len else {
        return Err(Error::Misuse(format!("section {name:?} of {} bytes is too large", bytes.len())));
    };
    sections.push(name_len);
    sections.extend_from_slice(name.as_bytes());
    sections.extend(len.to_le_bytes());
    sections.extend_from_slice(bytes);
    Ok(())
}

/// A section of an archive's index.
///
/// ```
/// # use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
/// # let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
/// # writer.add_section("note", b"kept with the pages")?;
/// # let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
/// for section in archive.sections()? {
///     let section = section?;
///     println!("{}: {} bytes", section.name, section.len_bytes);
/// }
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Position of its bytes in the file.
    pub(crate) offset: u64,
}

/// The sections of an archive, in order, read one by one: memory does not grow with their number or length.
///
/// ```
/// use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
/// let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
/// writer.add_section("note", b"kept with the pages")?;
/// let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
/// let section = archive.sections()?.next().expect("it has one")?;
/// assert_eq!((section.name.as_str(), section.len_bytes), ("note", 19));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct Sections<'a> {
    file: &'a dyn ReadAt,
    at: u64,
    end: u64,
}

impl<'a> Sections<'a> {
    /// Checks the sections at `at..end` of the file against their checksum.
    pub(crate) fn verified(file: &'a dyn ReadAt, at: u64, end: u64, checksum: u32) -> Result<Self> {
        let (mut hash, mut buffer, mut next) = (ContentHash::new(), vec![0; CHUNK_BYTES], at);
        while next < end {
            let len = usize::try_from(end - next).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            read_at(file, next, &mut buffer[..len])?;
            hash.update(&buffer[..len]);
            next += len as u64;
        }
        if hash.digest() != checksum {
            return Err(Error::index("the checksum of its sections is wrong"));
        }
        Ok(Self { file, at, end })
    }

    /// Reads the next section's name and length.
    fn read_next(&mut self) -> Result<Section> {
        let cut = || Error::index("its sections are cut short");
        let (at, left) = (self.at, self.end - self.at);
        // A damaged section ends the iteration.
        self.at = self.end;
        let mut head = [0; 1 + 255 + 4];
        let head_len = usize::try_from(left).unwrap_or(usize::MAX).min(head.len());
        read_at(self.file, at, &mut head[..head_len])?;
        let (&name_len, after) = head[..head_len].split_first().ok_or_else(cut)?;
        if name_len == 0 {
            return Err(Error::index("a section has no name"));
        }
        let (name, after) = after.split_at_checked(usize::from(name_len)).ok_or_else(cut)?;
        let (len, _) = after.split_first_chunk().ok_or_else(cut)?;
        let name = std::str::from_utf8(name).map_err(|_| Error::index("a section name is not UTF-8"))?;
        let (len_bytes, offset) = (u64::from(u32::from_le_bytes(*len)), at + 5 + u64::from(name_len));
        let end = offset + len_bytes;
        if end > at + left {
            return Err(cut());
        }
        self.at = end;
        Ok(Section { name: name.to_owned(), len_bytes, offset })
    }

    /// Reads the bytes of a section.
    pub(crate) fn read(&self, section: &Section) -> Result<Vec<u8>> {
        let len = usize::try_from(section.len_bytes).map_err(|_| Error::index("a section is too long"))?;
        let mut bytes = vec![0; len];
        read_at(self.file, section.offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl std::fmt::Debug for Sections<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sections({} bytes left)", self.end - self.at)
    }
}

impl Iterator for Sections<'_> {
    type Item = Result<Section>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.end).then(|| self.read_next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashes::content_hash::xxh32;

    #[test]
    fn sections_read_back_and_damage_is_an_error_never_a_panic() {
        let mut sections = Vec::new();
        append(&mut sections, "map", b"one two").expect("fits");
        append(&mut sections, "empty", b"").expect("fits");
        assert!(append(&mut sections, "map", b"again").is_err());
        assert!(append(&mut sections, "", b"").is_err());
        assert!(append(&mut sections, &"x".repeat(256), b"").is_err());
        let read = |len: usize| {
            let mut reader = Sections::verified(&sections, 0, len as u64, xxh32(&sections[..len]))?;
            let mut all = Vec::new();
            while let Some(section) = reader.next() {
                let section = section?;
                let bytes = reader.read(&section)?;
                all.push((section.name, bytes));
            }
            Ok::<_, Error>(all)
        };
        let all = read(sections.len()).expect("whole");
        assert_eq!(all, [("map".to_owned(), b"one two".to_vec()), ("empty".to_owned(), Vec::new())]);
        for len in 1..sections.len() {
            assert_eq!(read(len).is_ok(), len == 15, "{len} bytes are one section only if they are 15");
        }
        assert!(Sections::verified(&sections, 0, 5, 0).is_err(), "a wrong checksum");
    }

    #[test]
    fn sections_are_as_long_as_the_limit_or_shorter() {
        let mut sections = Vec::new();
        for (name, bytes, len) in [("map", &b"one"[..], 11), ("empty", b"", 21), ("last", b"byte", 34)] {
            assert!(matches!(append_within(len - 1, &mut sections, name, bytes), Err(Error::Misuse(_))), "{name}");
            append_within(len, &mut sections, name, bytes).expect("fits");
            assert_eq!(sections.len(), len, "{name}");
        }
    }

    #[test]
    fn sections_without_a_name_end_the_reading() {
        let zeros = vec![0; 1000];
        let mut reader = Sections::verified(&zeros, 0, 1000, xxh32(&zeros)).expect("the checksum is right");
        assert!(reader.next().is_some_and(|section| section.is_err()));
        assert!(reader.next().is_none());
    }
}
