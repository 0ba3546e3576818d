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
const MORE: &str = include_str!("man/sections.roff");

/// Runs `trueno-zram man`.
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
