//! Errors of the command line: options of lz4, zstd and gzip that there are not, suggestions, usage lines.

use std::fs;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{COMPAT_USAGE, Cli, lz4_compat};
use crate::failure::Failure;
use crate::print::messages;

/// The form of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineForm {
    /// With a command.
    Command,
    /// Without one, as for lz4.
    Compat,
}

/// Commands that users of lz4, zstd and gzip know by options.
const FILE_COMMANDS: [&str; 4] = ["compress", "decompress", "test", "inspect"];

/// Long options that stand for commands.
const COMPAT_OPTIONS: [&str; 5] = ["--compress", "--decompress", "--uncompress", "--test", "--list"];

/// Prints the problem of a command line that `command` cannot take.
pub(crate) fn report(mut error: clap::Error, command: Option<&str>, form: LineForm) -> ExitCode {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
    {
        let option = option.clone();
        if let Some(advice) = command.and_then(|command| advice(&option, command)) {
            return Failure::usage(format!("{option}: {advice}")).report();
        }
        suggest(&mut error, &option, form);
    }
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && error.get(ContextKind::SuggestedSubcommand).is_none()
    {
        let commands = Cli::command();
        let found = nearest(word, commands.get_subcommands().map(clap::Command::get_name)).map(str::to_owned);
        if let Some(found) = found {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(found));
        }
    }
    // The parser's own usage has the options that it suggests, and the command that a line without one stands for.
    let usage = match (form, command) {
        (LineForm::Compat, _) => Some(format!("Usage: {COMPAT_USAGE}")),
        (LineForm::Command, Some(command)) => usage_of(command),
        (LineForm::Command, None) => None,
    };
    if let Some(usage) = usage.filter(|_| error.get(ContextKind::Usage).is_some()) {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage.into()));
    }
    // Without colours: the text has arguments in it.
    messages::lines(error.render());
    ExitCode::from(2)
}

/// Keeps a suggestion only if it is near what was typed, and adds those that the parser does not know of.
fn suggest(error: &mut clap::Error, option: &str, form: LineForm) {
    let is_far =
        |found: Option<&ContextValue>| matches!(found, Some(ContextValue::String(found)) if !is_near(option, found));
    if is_far(error.get(ContextKind::SuggestedArg)) {
        error.remove(ContextKind::SuggestedArg);
    }
    let of_commands = nearest(option, COMPAT_OPTIONS.into_iter()).filter(|_| form == LineForm::Compat);
    if let Some(found) = of_commands.filter(|_| error.get(ContextKind::SuggestedArg).is_none()) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(found.to_owned()));
    }
    // The tip for a file of this name.
    if fs::symlink_metadata(option).is_err() {
        error.remove(ContextKind::Suggested);
    }
}

/// Returns the usage line of a command, with all its arguments.
fn usage_of(command: &str) -> Option<String> {
    let mut all = Cli::command();
    all.build();
    Some(all.find_subcommand_mut(command)?.render_usage().to_string())
}

/// Returns the name among `names` that was probably meant by `typed`.
pub(crate) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.filter(|name| is_near(typed, name)).min_by_key(|name| distance(typed, name))
}

/// Returns `true` if `typed` is `name` with a slip or two, or its start.
fn is_near(typed: &str, name: &str) -> bool {
    let (typed, name) = (typed.trim_start_matches('-'), name.trim_start_matches('-'));
    let typed = typed.split('=').next().unwrap_or(typed);
    (typed.len() > 2 && name.starts_with(typed)) || distance(typed, name) <= (name.len() / 3).min(2)
}

/// Returns the number of letters that are added, left out, replaced or swapped with their neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, other) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(letter != other);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == b[j - 1] && a[i - 1] == *other {
                let row_before: &Vec<usize> = &before;
                least = least.min(row_before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Returns the advice on an option of lz4, zstd, gzip or tar that `command` does not have.
fn advice(option: &str, command: &str) -> Option<&'static str> {
    if !FILE_COMMANDS.contains(&command) {
        return None;
    }
    if command != "compress" && lz4_compat::sets_compression(option.as_ref()) {
        return Some("is an option of compress; the format of a compressed file is recognized; leave it out");
    }
    let name = option.split('=').next().unwrap_or(option);
    Some(match name {
        "-D" | "--train" | "--train-cover" | "--train-fastcover" | "--train-legacy" => {
            "there are no dictionaries; what images share is left out by --base ARCHIVE"
        }
        "--patch-from" => "give the reference as --base ARCHIVE: the result is a delta of it",
        "-b" | "-e" | "-i" | "-S" => "to measure is a command: trueno-zram bench",
        "-B" | "-BD" | "-BI" | "-BX" => {
            "each block is a page of 4 KiB, independent of others, with a checksum; leave it out"
        }
        "--long"
        | "--adapt"
        | "--rsyncable"
        | "--favor-decSpeed"
        | "--target-compressed-block-size"
        | "--stream-size"
        | "--size-hint"
        | "--row-match-finder"
        | "--no-row-match-finder"
        | "--compress-literals"
        | "--no-compress-literals" => "pages are compressed one by one, so there is nothing to set; leave it out",
        "--frame-crc" => "the checksum of the whole content is --content-checksum",
        "--no-frame-crc" => "the checksum of the whole content is left out by --no-content-checksum",
        "--no-crc" => "checksums are left out by --no-block-checksums and --no-content-checksum",
        "--check" => "each page has a checksum anyway; leave it out",
        "--no-check" => "the checksums of pages are left out by --no-block-checksums",
        "--content-size" => "the size is stored if it is known; leave it out",
        "--no-content-size" => "the size is always stored if it is known",
        "--sparse" => "zeros become holes anyway; leave it out",
        "--no-dictID" => "there are no dictionaries; leave it out",
        "--filelist" => "name the files: trueno-zram compress $(cat LIST)",
        "--output-dir-mirror" => "outputs lie beside their inputs, or all in one directory: --output-dir DIR",
        "--exclude-compressed" => "with -r, files that end in .lz4, .zst or .tzd are left out anyway; leave it out",
        "--pass-through" => "files that are not compressed are refused; cat copies them",
        "--progress" => "progress is shown on a terminal; leave it out",
        "--no-progress" => "the option is -q",
        "--single-thread" => "the option is -T1",
        "--auto-threads" => "-T sets the number of threads; there is one per core without it",
        "-M" | "--memory" | "--memlimit" => "memory is bounded whatever the file holds; leave it out",
        "-S.lz4" | "--suffix" => "the output is named by -o OUT",
        "-n" | "-N" | "--name" | "--no-name" => {
            "times are those of the input, and names are never stored; leave it out"
        }
        "-a" | "--ascii" => "files are never converted; leave it out",
        "--gzip" | "--xz" | "--lzma" | "--bzip2" => {
            "only .lz4 and .zst files are written; the tools of that name write others"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_slips() {
        for (a, b, slips) in [
            ("compres", "compress", 1),
            ("comrpess", "compress", 1),
            ("compress", "compress", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("zstd", "stdout", 4),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), slips, "{a} {b}");
            assert_eq!(distance(b, a), slips, "{b} {a}");
        }
    }

    #[test]
    fn only_slips_and_starts_are_near() {
        assert!(is_near("compres", "compress") && is_near("--levle", "--level") && is_near("--recurs", "--recursive"));
        assert!(is_near("--algoritm=lz4", "--algorithm"));
        assert!(!is_near("--zstd", "--stdout") && !is_near("frobnicate", "compress") && !is_near("man", "stat"));
        assert_eq!(nearest("decompres", ["compress", "decompress"].into_iter()), Some("decompress"));
        assert_eq!(nearest("frob", ["compress", "decompress"].into_iter()), None);
    }
}
