//! `brickmoon man` and `brickmoon completion`: man pages and completions for shells, made from the command line's definition.
//!
//! Packages are made with what these commands print, so neither is kept in the tree nor can differ from the program.

use std::io::Write as _;
use std::path::Path;

use bm_cli::Failure;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

/// Section of the manual for commands of administrators.
const SECTION: &str = "8";

/// Writes a man page for each command into a folder, which is created if it does not exist.
pub fn man(folder: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut command = Cli::command();
    // Until then subcommands do not know the options of their parents.
    command.build();
    write_pages(folder, &command, "brickmoon").map_err(failed)
}

/// The page of a command and those of its subcommands: `brickmoon-show-ports.8`.
fn write_pages(folder: &Path, command: &clap::Command, name: &str) -> std::io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(folder, subcommand, &format!("{name}-{}", subcommand.get_name()))?;
    }
    let mut page = Vec::new();
    let named = command.clone().name(name.to_string()).display_name(name.to_string());
    let man = clap_mangen::Man::new(named).section(SECTION).manual("brickmoon");
    man.render(&mut page)?;
    std::fs::write(folder.join(format!("{name}.{SECTION}")), page)
}

/// Prints completions for a shell.
pub fn completion(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "brickmoon", &mut script);
    match std::io::stdout().write_all(&script) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::failed(error)),
        _ => Ok(()),
    }
}
