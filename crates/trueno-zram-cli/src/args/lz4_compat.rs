//! Command lines as lz4 and zstd take them: `trueno-zram FILE`, `-d FILE`, `-t FILE`, and pipes without any argument.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::CommandFactory;

use crate::args::{
    Cli,
    parse_errors::{LineForm, nearest},
};
use crate::failure::Failure;
use crate::files;

/// Long options that take their value from the next argument, and the letters of short ones.
const WITH_VALUE: [&str; 12] = [
    "--threads",
    "--backend",
    "--output",
    "--output-dir",
    "--output-dir-flat",
    "--level",
    "--algorithm",
    "--format",
    "--base",
    // Of zstd: they are refused, by their own names.
    "--output-dir-mirror",
    "--filelist",
    "--patch-from",
];
const LETTERS_WITH_VALUE: &[u8] = b"ToD";

/// Stands for `inspect --list`.
const LIST: &str = "list";

/// Returns the command that a short option stands for.
fn command_of_letter(letter: u8) -> Option<&'static str> {
    match letter {
        b'z' => Some("compress"),
        b'd' => Some("decompress"),
        b't' => Some("test"),
        b'l' => Some(LIST),
        _ => None,
    }
}

/// Returns the command that a long option stands for.
fn command_of_long(option: &[u8]) -> Option<&'static str> {
    match option {
        b"--compress" => Some("compress"),
        b"--decompress" | b"--uncompress" => Some("decompress"),
        b"--test" => Some("test"),
        b"--list" => Some(LIST),
        _ => None,
    }
}

/// Returns the arguments with the command that they stand for, if they name none.
pub(crate) fn with_command(args: Vec<OsString>) -> Result<(Vec<OsString>, LineForm), Failure> {
    let commands = Cli::command();
    let names = || commands.get_subcommands().map(clap::Command::get_name).chain(["help"]);
    let Some(line) = CompatLine::read(&args, |name| names().any(|command| name == command)) else {
        return Ok((args, LineForm::Command));
    };
    let command = match (line.command, &line.first) {
        (Some(command), _) => command,
        (None, _) if line.asks_for_help => return Ok((args, LineForm::Command)),
        (None, Some(file)) if file == "-" => "compress",
        (None, Some(file)) if fs::symlink_metadata(file).is_ok() => {
            // As lz4 does.
            if files::has_suffix(file.as_bytes()) { "decompress" } else { "compress" }
        }
        (None, Some(file)) => {
            let way_out = match nearest(&file.to_string_lossy(), names()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "see trueno-zram --help".to_owned(),
            };
            return Err(Failure::usage(format!("{}: no such command or file; {way_out}", file.display())));
        }
        (None, None) if io::stdin().is_terminal() => return Ok((args, LineForm::Command)),
        (None, None) => "compress",
    };
    let mut rest = line.rest;
    // Options that lz4 and zstd take with any command, where they change nothing.
    let changes_nothing = |arg: &OsString| match command {
        "compress" => false,
        "decompress" => sets_compression(arg),
        _ => {
            sets_compression(arg)
                || ["-c", "-k", "-f", "--stdout", "--keep", "--force"].iter().any(|option| arg == option)
        }
    };
    let dashes = rest.iter().position(|arg| arg == "--").unwrap_or(rest.len());
    let files = rest.split_off(dashes);
    rest.retain(|arg| !changes_nothing(arg));
    rest.extend(files);
    let mut result = vec![args.into_iter().next().unwrap_or_default()];
    result.extend(if command == LIST { vec!["inspect".into(), "--list".into()] } else { vec![command.into()] });
    result.append(&mut rest);
    Ok((result, LineForm::Compat))
}

/// Returns `true` for an option that sets the format or the level and is one argument.
pub(crate) fn sets_compression(arg: &OsStr) -> bool {
    let bytes = arg.as_bytes();
    let is_level =
        bytes.strip_prefix(b"-").is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit));
    let with_value = [&b"--fast="[..], b"--level=", b"--algorithm=", b"--format="];
    is_level
        || ["--zstd", "--best", "--ultra", "--fast"].iter().any(|option| arg == *option)
        || with_value.iter().any(|option| bytes.starts_with(option))
}

/// Returns the first argument that is not an option: the command, in a line that names one.
pub(crate) fn named_command(args: &[OsString]) -> Option<String> {
    // The values of options before the command are none of its names.
    let mut words = args.iter().skip(1).filter(|arg| !arg.as_bytes().starts_with(b"-"));
    words.find_map(|arg| {
        let name = arg.to_str()?;
        Cli::command().find_subcommand(name).map(|_| name.to_owned())
    })
}

/// Returns the arguments with levels spelled out for `compress`: `-9` is `--level=9`.
pub(crate) fn with_level(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_compress = |args: &[OsString]| {
        args.iter().find(|arg| !arg.as_bytes().starts_with(b"-")).is_some_and(|arg| arg == "compress")
    };
    if !args.get(1..).is_some_and(is_compress) {
        return args;
    }
    for arg in args.iter_mut().take_while(|arg| *arg != "--") {
        if let [b'-', digits @ ..] = arg.as_bytes()
            && !digits.is_empty()
            && digits.iter().all(u8::is_ascii_digit)
        {
            let mut level = OsString::from("--level=");
            level.push(OsStr::from_bytes(digits));
            *arg = level;
        }
    }
    args
}

/// A command line without a command.
#[derive(Debug, Default)]
struct CompatLine {
    command: Option<&'static str>,
    /// The first argument that is not an option.
    first: Option<OsString>,
    asks_for_help: bool,
    /// All arguments but those that set the command, short options one by one.
    rest: Vec<OsString>,
}

impl CompatLine {
    /// Reads the arguments; `None` if they name a command.
    fn read(args: &[OsString], is_command: impl Fn(&OsStr) -> bool) -> Option<Self> {
        let mut line = Self::default();
        let mut args = args.iter().skip(1);
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            if bytes == b"--" {
                line.rest.push(arg.clone());
                line.rest.extend(args.by_ref().cloned());
                // The first file follows the dashes.
                let dashes = line.rest.iter().position(|arg| arg == "--").unwrap_or(0);
                line.first = line.first.or_else(|| line.rest.get(dashes + 1).cloned());
            } else if bytes.starts_with(b"--") {
                match command_of_long(bytes) {
                    Some(command) => line.command = Some(command),
                    None => line.rest.push(arg.clone()),
                }
                line.asks_for_help |= bytes == b"--help" || bytes == b"--version";
                if WITH_VALUE.iter().any(|option| arg == option) {
                    line.rest.extend(args.next().cloned());
                }
            } else if bytes.len() > 1 && bytes[0] == b'-' {
                if line.read_letters(&bytes[1..]) {
                    line.rest.extend(args.next().cloned());
                }
            } else {
                if line.first.is_none() && line.command.is_none() && is_command(arg) {
                    return None;
                }
                line.first.get_or_insert_with(|| arg.clone());
                line.rest.push(arg.clone());
            }
        }
        Some(line)
    }

    /// Reads short options that share a dash. Returns `true` if the next argument is the value of the last one.
    fn read_letters(&mut self, letters: &[u8]) -> bool {
        let mut place = 0;
        while let Some(letter) = letters.get(place) {
            // A level may have several digits.
            let digits = letters[place..].iter().take_while(|letter| letter.is_ascii_digit()).count();
            if digits > 0 {
                self.rest.push(OsString::from_vec([b"-", &letters[place..place + digits]].concat()));
                place += digits;
                continue;
            }
            if LETTERS_WITH_VALUE.contains(letter) {
                let option = [b"-", &letters[place..]].concat();
                self.rest.push(OsString::from_vec(option));
                return place + 1 == letters.len();
            }
            match command_of_letter(*letter) {
                Some(command) => self.command = Some(command),
                None => self.rest.push(OsString::from_vec(vec![b'-', *letter])),
            }
            self.asks_for_help |= matches!(letter, b'h' | b'V');
            place += 1;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> String {
        let args = line.split(' ').map(OsString::from).collect();
        let (result, _) = with_command(args).unwrap();
        result.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lines_of_lz4_and_zstd_get_their_command() {
        for (line, expected) in [
            ("x -d", "x decompress"),
            ("x -dc a.lz4", "x decompress -c a.lz4"),
            ("x -dkf -o out a.lz4", "x decompress -k -f -o out a.lz4"),
            ("x -dT2 a.lz4", "x decompress -T2 a.lz4"),
            ("x --decompress --threads 2 a.lz4", "x decompress --threads 2 a.lz4"),
            ("x -t a.lz4 b.lz4", "x test a.lz4 b.lz4"),
            ("x -tf test", "x test test"),
            ("x -z -9 a", "x compress -9 a"),
            ("x -z19f a", "x compress -19 -f a"),
            ("x --list a.lz4", "x inspect --list a.lz4"),
            ("x -lv a.lz4", "x inspect --list -v a.lz4"),
            ("x -r9 --zstd /dev/null", "x compress -r -9 --zstd /dev/null"),
            // As tar passes the options of `-I "trueno-zram -9 --zstd"` on.
            ("x -9 --zstd -d", "x decompress"),
            ("x -t --fast=3 --ultra -- --best", "x test -- --best"),
            ("x -q -", "x compress -q -"),
            ("x -f /dev/null", "x compress -f /dev/null"),
            ("x -d -- -c", "x decompress -- -c"),
        ] {
            assert_eq!(given(line), expected, "{line}");
        }
    }

    #[test]
    fn levels_are_spelled_out_for_compress_alone() {
        let spelled = |line: &str| {
            let args = with_level(line.split(' ').map(OsString::from).collect());
            args.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (line, expected) in [
            ("x compress -9 a", "x compress --level=9 a"),
            ("x -q compress a -19", "x -q compress a --level=19"),
            ("x compress -- -9", "x compress -- -9"),
            ("x compress - -T2 -1x", "x compress - -T2 -1x"),
            ("x decompress -9 compress", "x decompress -9 compress"),
            ("x", "x"),
        ] {
            assert_eq!(spelled(line), expected, "{line}");
        }
    }

    #[test]
    fn lines_with_a_command_stay_as_they_are() {
        for line in
            ["x compress -t", "x -T 2 test a", "x --backend cpu info", "x help test", "x --help", "x -V", "x -vh"]
        {
            assert_eq!(given(line), line);
        }
    }

    #[test]
    fn a_word_that_is_neither_command_nor_file_is_refused() {
        assert!(matches!(with_command(vec!["x".into(), "frobnicate".into()]), Err(Failure::Usage(_))));
    }
}
