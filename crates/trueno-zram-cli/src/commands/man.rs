//! `trueno-zram man`: the manual pages, made from the same text as `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::{Cli, Global};
use crate::failure::Failure;
use crate::print::{json, stdout};

/// Print the manual page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write trueno-zram.1 and a page for each command into this directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Sections that the command line's own text does not have.
const MORE: &str = r#".SH "EXIT STATUS"
.TP
0
Success.
.TP
1
Something failed. One line per failure on standard error says what and where.
.TP
2
The arguments are not valid.
.PP
Text or data that cannot be written to standard output is a failure, also if standard output is closed.
If the reader of standard output goes away, the process ends by SIGPIPE (141 in a shell).
.SH FILES
A page archive with the suffix
.I .lz4
is a standard LZ4 frame with one block per page of 4096 bytes (runs of zero pages share one), and an index
in a skippable frame at its end.
.BR lz4 (1)
and every other reader of LZ4 frames restores it.
One with the suffix
.I .zst
has a standard Zstandard frame per page, the index, and the seek table of Zstandard\(aqs seekable format.
.BR zstd (1)
and every other reader of Zstandard frames restores it.
A delta, made with
.BR \-\-base ,
has the suffix
.IR .tzd .
It holds the pages that another archive, its base, does not have, and only trueno-zram reads it, together with the base: looked for where
.B \-\-base
says, then where it was when the delta was made, then beside the delta.
.PP
.BR \- ,
.IR /dev/stdin ,
.I /dev/fd/0
and
.I /proc/self/fd/0
are standard input;
.BR \- ,
.IR /dev/stdout ,
.I /dev/fd/1
and
.I /proc/self/fd/1
are standard output.
.PP
A new file gets its name once it is complete, and an existing name is not taken without
.BR \-f .
On file systems with neither hard links nor
.BR renameat2 (2),
a file that another program creates at the very moment at which the output gets its name is replaced.
.SH EXAMPLES
.TP
.B tar \-I trueno\-zram \-cf backup.tar.lz4 directory
Compresses a tar archive;
.B tar \-I trueno\-zram \-xf
extracts it.
.TP
.B trueno-zram compress guest.img
Writes guest.img.lz4 and keeps guest.img.
.TP
.B trueno-zram extract guest.img.lz4 \-\-pages 1000..1010 \-o ten.bin
Restores ten pages, reading only those.
.TP
.B trueno-zram snapshot 4711 \-\-stop \-o process.lz4
Saves the anonymous memory of process 4711, which is stopped meanwhile.
.TP
.B trueno-zram inspect process.lz4
Shows what it is made of.
.SH "SEE ALSO"
.BR lz4 (1),
.BR proc (5)
"#;

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    json::refuse(global, "man")?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = &args.dir else {
        let page = render(&command).map_err(|e| Failure::io("the manual page", &e))?;
        stdout::print(|out| out.write_all(&page))?;
        return Ok(ExitCode::SUCCESS);
    };
    fs::create_dir_all(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    write_page(dir, &command)?;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_page(dir, subcommand)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_page(dir: &Path, command: &clap::Command) -> Result<(), Failure> {
    let path = dir.join(format!("{}.1", command.get_display_name().unwrap_or(command.get_name())));
    render(command).and_then(|page| fs::write(&path, page)).map_err(|e| Failure::io(path.display(), &e))
}

/// One page. That of the tool has additional sections; that of a command with commands of its own describes them all.
fn render(command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone()).manual("trueno-zram");
    if !command.has_subcommands() {
        man.render(&mut page)?;
        return Ok(page);
    }
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_name() == "trueno-zram" {
        man.render_subcommands_section(&mut page)?;
        man.render_options_section(&mut page)?;
        page.extend_from_slice(MORE.as_bytes());
        return Ok(page);
    }
    for subcommand in command.get_subcommands() {
        writeln!(page, ".SH {:?}", subcommand.get_name().to_uppercase())?;
        let man = Man::new(subcommand.clone());
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
