//! `weft completion` and `weft man`: shell completions and manual pages, generated from the command line
//! itself.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use cli_support::failure::{EXIT_CODES, Exit, Failure};
use cli_support::output;

/// Program name.
const PROGRAM: &str = "weft";

/// Arguments of `weft completion`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft completion bash >/etc/bash_completion.d/weft

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `weft man`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft man status | man -l -
  weft man --write /usr/local/share/man/man1

{EXIT_CODES}"))]
pub(crate) struct ManArguments {
    /// Command whose page is printed (default: the page of weft itself)
    #[arg(value_name = "COMMAND", conflicts_with = "write")]
    command: Option<String>,
    /// Write the pages of all commands into this directory, instead of printing one
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

/// Runs `weft completion`.
pub(crate) fn run(arguments: &Arguments, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, PROGRAM, &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Runs `weft man`.
pub(crate) fn run_man(arguments: &ManArguments, command: Command) -> Result<(), Failure> {
    let pages = pages(command)?;
    if let Some(directory) = &arguments.write {
        return pages.iter().try_for_each(|(name, page)| write(&directory.join(format!("{name}.1")), page));
    }
    let wanted = arguments.command.as_ref().map_or(PROGRAM.to_owned(), |name| format!("{PROGRAM}-{name}"));
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => output::print(page),
        None => {
            let why = format!("{}: no such command", arguments.command.as_deref().unwrap_or_default());
            Err(Failure::new(why).exit(Exit::Usage).next("weft --help lists the commands"))
        }
    }
}

fn write(path: &Path, page: &str) -> Result<(), Failure> {
    fs::write(path, page).map_err(|cause| Failure::new(format!("write {}: {cause}", path.display())))
}

/// Returns name and page for the program and each command.
fn pages(command: Command) -> Result<Vec<(String, String)>, Failure> {
    let mut command = command.disable_help_subcommand(true);
    // Gives every command its name in pages, and the words by which it is called.
    command.build();
    let mut pages = Vec::new();
    for subcommand in command.get_subcommands() {
        let name = format!("{PROGRAM}-{}", subcommand.get_name());
        pages.push((name, render(subcommand.clone())?));
    }
    pages.push((PROGRAM.to_owned(), render(command)?));
    Ok(pages)
}

fn render(command: Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    let rendered = Man::new(command).render(&mut page);
    rendered.map_err(|cause| Failure::new(format!("manual page: {cause}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_pages_exist_for_the_program_and_each_command() {
        let command = crate::cli::command();
        let names: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
        let pages = pages(command).unwrap();
        assert_eq!(pages.len(), names.len() + 1);
        for name in names {
            let (_, page) = pages.iter().find(|(page, _)| *page == format!("weft-{name}")).unwrap();
            assert!(page.contains(".TH weft-") && page.contains("Example:"), "{name}: {page}");
        }
    }
}
