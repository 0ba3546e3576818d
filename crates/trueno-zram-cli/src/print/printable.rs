//! Text from elsewhere (names of files and processes, sections, errors of other programs) as it may be shown: characters
//! that would control the terminal, reorder the text or hide parts of it are escaped. It passes
//! through here before it is printed: lines as [`printable`], JSON by [`PrintableFormatter`].

use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::ser::Formatter;

/// Returns `true` for the characters that are escaped.
///
/// Those that only join or separate letters (U+200C, U+200D) and variation selectors stay: names in Persian and emoji have
/// them.
fn is_escaped(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Soft hyphen, Arabic letter mark, Mongolian vowel separator, zero-width space, the marks of both directions.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            // Fillers of Hangul, which are blank.
            | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
            // Separators of lines and paragraphs, embeddings and overrides of direction.
            | '\u{2028}'..='\u{202e}'
            // Invisible operators, isolates of direction, deprecated format characters.
            | '\u{2060}'..='\u{206f}'
            // Byte order mark, interlinear annotations.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            // Format characters of shorthands and musical notes, tags.
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns text for a line: `\n`, `\u{1b}` and the like in place of what cannot be shown. A backslash stays as it is, so
/// that text may pass through here more than once.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            // Writing to a string does not fail.
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns text of several lines, each as [`printable`] shows it.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Writes compact JSON whose strings escape the same characters. They parse back to what they were.
pub(crate) struct PrintableFormatter;

impl Formatter for PrintableFormatter {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_escaped) {
            let (plain, escaped) = rest.split_at(at);
            out.write_all(plain.as_bytes())?;
            let c = escaped.chars().next().expect("it was found");
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = &escaped[c.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;
    use trueno_test_pages::generate::Generator;

    /// The characters that must not reach a terminal, by their ranges in Unicode.
    const DANGEROUS: [(u32, u32); 8] = [
        (0, 0x1f),
        (0x7f, 0x9f),
        (0x61c, 0x61c),
        (0x200e, 0x200f),
        (0x2028, 0x202e),
        (0x2066, 0x2069),
        (0xfeff, 0xfeff),
        (0xe0001, 0xe007f),
    ];

    #[track_caller]
    fn is_safe(shown: &str) {
        let found =
            shown.chars().find(|c| DANGEROUS.iter().any(|(first, last)| (*first..=*last).contains(&(*c).into())));
        assert_eq!(found, None, "in {shown:?}");
    }

    fn json(value: &impl Serialize) -> String {
        let mut line = Vec::new();
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut line, PrintableFormatter)).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[track_caller]
    fn check(text: &str) {
        let shown = printable(text);
        is_safe(&shown);
        assert_eq!(printable(&shown), shown);
        is_safe(&printable_lines(text).replace('\n', ""));
        let line = json(&text);
        is_safe(&line);
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn ordinary_text_stays() {
        for text in ["/lib/é [heap]", "\\u{1b}", "C:\\x", "e\u{301} \u{3000} 語 🏳\u{fe0f}\u{200d}🌈 می\u{200c}خواهم"]
        {
            assert_eq!(printable(text), text);
            assert_eq!(json(&text), serde_json::to_string(text).unwrap());
        }
    }

    #[test]
    fn escapes_are_visible() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{9b}d\u{202e}e"), "a\\u{1b}[2Jb\\nc\\u{9b}d\\u{202e}e");
        assert_eq!(printable_lines("a\rb\nc\n"), "a\\rb\nc\n");
        assert_eq!(json(&"\u{7f}\u{9b}\u{e0041}\"\n"), r#""\u007f\u009b\udb40\udc41\"\n""#);
        // Keys as well.
        assert_eq!(json(&std::collections::BTreeMap::from([("\u{202e}", 1)])), r#"{"\u202e":1}"#);
    }

    #[test]
    fn no_character_passes_that_a_terminal_would_act_on() {
        let all: String = ('\0'..=char::MAX).collect();
        check(&all);
        let mut random = Generator::new(12);
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.next_u64().to_le_bytes()[0]).collect();
            check(&String::from_utf8_lossy(&bytes));
            let chars = (0..random.below(20)).map(|_| {
                let (first, last) = DANGEROUS[random.below(DANGEROUS.len())];
                let at = first + u32::try_from(random.below(usize::try_from(last - first).unwrap() + 9)).unwrap();
                char::from_u32(at).unwrap_or('x')
            });
            check(&chars.collect::<String>());
        }
    }
}
