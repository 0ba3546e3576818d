//! Rules of the source tree that no compiler checks: sizes of files, folders and documents, and how comments begin.

use std::collections::BTreeMap;
use std::path::Path;

use crate::command::{output, root};
use crate::unsafe_files;

/// The most lines of product code in a file: neither tests nor blank lines nor comments.
const MAX_FILE_LINES: usize = 500;
/// The most Rust files in a folder.
const MAX_FOLDER_FILES: usize = 25;
/// The most words in a document.
const MAX_WORDS: [(&str, usize); 2] = [("README.md", 1_300), ("ARCHITECTURE.md", 2_600)];
/// First words of comments that ask instead of naming a thing or an action.
const QUESTIONS: [&str; 9] = ["What", "Whether", "Where", "How", "Says", "Who", "Whoever", "Whatever", "Which"];

/// Checks all rules, and lists every place that breaks one.
pub(crate) fn check() -> Result<(), String> {
    let root = root();
    let listed = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let mut faults = Vec::new();
    let mut folders = BTreeMap::<&Path, usize>::new();
    for name in listed.lines().filter(|name| name.ends_with(".rs")) {
        // A file that is removed and not yet committed is listed, too.
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        *folders.entry(Path::new(name).parent().unwrap_or(Path::new(""))).or_default() += 1;
        faults.extend(faults_of_file(name, &text));
    }
    for (folder, files) in folders {
        if files > MAX_FOLDER_FILES {
            faults.push(format!("{}: {files} files, at most {MAX_FOLDER_FILES}", folder.display()));
        }
    }
    for (name, max_words) in MAX_WORDS {
        let text = std::fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
        let words = text.split_whitespace().count();
        if words > max_words {
            faults.push(format!("{name}: {words} words, at most {max_words}"));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn faults_of_file(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let code = product_lines(text);
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
    if !is_test && code > MAX_FILE_LINES {
        faults.push(format!("{name}: {code} lines of code, at most {MAX_FILE_LINES}"));
    }
    // A module's first line says what lives there. Roots of tests and examples are programs, and say it as well.
    if !text.starts_with("//!") && !text.starts_with("#!") {
        faults.push(format!("{name}: does not open with a `//!` line"));
    }
    if unsafe_files::has_unsafe_code(text) && !unsafe_files::may_have_unsafe_code(name) {
        faults.push(format!("{name}: has unsafe code, and is not in the list of xtask/src/unsafe_files.rs"));
    }
    for (number, line) in text.lines().enumerate() {
        if asks(line) && starts_comment(text, number) {
            faults.push(format!("{name}:{}: the comment begins with a question word: {}", number + 1, line.trim()));
        }
    }
    faults
}

/// Counts lines of product code: tests in the same file, blank lines and comments are left out.
fn product_lines(text: &str) -> usize {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Returns `true` if this line is a comment whose first word is a question word.
fn asks(line: &str) -> bool {
    let Some(words) = comment(line) else { return false };
    let first = words.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or("");
    QUESTIONS.contains(&first)
}

/// Returns the text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let words = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark))?;
    Some(words.trim_start())
}

/// Returns `true` if no comment line with text precedes this one: sentences in the middle of a paragraph may begin with any word.
fn starts_comment(text: &str, number: usize) -> bool {
    let Some(before) = number.checked_sub(1).and_then(|before| text.lines().nth(before)) else { return true };
    comment(before).is_none_or(str::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_found_at_the_start_of_comments_only() {
        assert!(asks("    /// Whether the page is absent."));
        assert!(asks("//! How pages are found."));
        assert!(!asks("    /// Whatsoever."));
        assert!(!asks("let what = 1; // What"));
        let text = "/// A page that is there.\n/// Where it is, is known.\n\n// Where it is.\n";
        let found: Vec<_> = (0..4).filter(|&n| asks(text.lines().nth(n).unwrap()) && starts_comment(text, n)).collect();
        assert_eq!(found, [3]);
    }

    #[test]
    fn tests_comments_and_blank_lines_are_not_product_code() {
        assert_eq!(
            product_lines("//! Job.\n\nfn a() {}\n// Why.\nfn b() {}\n\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\n"),
            2
        );
    }

    #[test]
    fn long_files_and_missing_module_docs_are_faults() {
        let long = format!("//! Job.\n{}", "fn f() {}\n".repeat(MAX_FILE_LINES + 1));
        assert_eq!(faults_of_file("src/a.rs", &long).len(), 1);
        assert_eq!(faults_of_file("src/tests/a.rs", &long).len(), 0);
        assert_eq!(faults_of_file("src/a.rs", "fn f() {}\n").len(), 1);
    }
}
