//! Named sections of the index: what others want to keep with the pages.

use crate::error::{Error, Result};

/// All sections together, at most.
pub(crate) const MAX_LEN: usize = 1 << 30;

/// Appends a section to those that are there.
pub(crate) fn append(sections: &mut Vec<u8>, name: &str, bytes: &[u8]) -> Result<()> {
    let Ok(name_len @ 1..) = u8::try_from(name.len()) else {
        return Err(Error::Misuse(format!("a section's name has 1 to 255 bytes, not {}", name.len())));
    };
    if iter(sections).any(|section| section.is_ok_and(|(other, _)| other == name)) {
        return Err(Error::Misuse(format!("there is a section {name:?} already")));
    }
    let len = u32::try_from(bytes.len()).ok().filter(|_| sections.len() + name.len() + bytes.len() + 5 <= MAX_LEN);
    let Some(len) = len else {
        return Err(Error::Misuse(format!("section {name:?} of {} bytes is too large", bytes.len())));
    };
    sections.push(name_len);
    sections.extend_from_slice(name.as_bytes());
    sections.extend(len.to_le_bytes());
    sections.extend_from_slice(bytes);
    Ok(())
}

/// The sections' names and bytes, in order; an error ends them.
pub(crate) fn iter(sections: &[u8]) -> impl Iterator<Item = Result<(&str, &[u8])>> {
    let mut rest = sections;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let section = split(rest);
        rest = section.map_or(&[], |(_, _, after)| after);
        Some(section.map(|(name, bytes, _)| (name, bytes)).ok_or_else(|| Error::index("its sections are cut short")))
    })
}

fn split(sections: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (&name_len, rest) = sections.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
    let (len, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
    Some((std::str::from_utf8(name).ok()?, bytes, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_read_back_and_damage_is_an_error_never_a_panic() {
        let mut sections = Vec::new();
        append(&mut sections, "map", b"one two").expect("fits");
        append(&mut sections, "empty", b"").expect("fits");
        assert!(append(&mut sections, "map", b"again").is_err());
        assert!(append(&mut sections, "", b"").is_err());
        assert!(append(&mut sections, &"x".repeat(256), b"").is_err());
        let all: Vec<_> = iter(&sections).map(|section| section.expect("whole")).collect();
        assert_eq!(all, [("map", &b"one two"[..]), ("empty", b"")]);
        for len in 1..sections.len() {
            let whole = iter(&sections[..len]).all(|section| section.is_ok());
            assert_eq!(whole, len == 15, "{len} bytes are one section only if they are 15");
        }
    }
}
