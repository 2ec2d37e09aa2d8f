//! What is made from the commands and the contract for people to read: completions, manual pages, reference documentation.

mod commands;
mod routes;
mod settings;

use std::path::Path;

use clap::Command;
use serde_json::Value;

use crate::exit::Failure;
use crate::output;

/// What every page of the reference begins with.
const MADE: &str = "<!-- Made by `stepwell docs docs/reference`; do not edit. -->\n\n";

/// A script that lets a shell complete commands.
pub(crate) fn completions(mut command: Command, shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "stepwell", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// The manual page, or one for every command in a folder.
pub(crate) fn man(command: &Command, folder: Option<&Path>) -> Result<(), Failure> {
    let page = |command: &Command, name: String| {
        let mut page = Vec::new();
        let made = clap_mangen::Man::new(command.clone().name(name)).render(&mut page);
        made.map(|()| page).map_err(Failure::unexpected)
    };
    let Some(folder) = folder else {
        return output::print(&String::from_utf8_lossy(&page(command, "stepwell".to_owned())?));
    };
    let mut found = vec![("stepwell".to_owned(), command)];
    while let Some((name, command)) = found.pop() {
        write(folder, &format!("{name}.1"), &page(command, name.clone())?)?;
        let below = command.get_subcommands().filter(|below| is_shown(below));
        found.extend(below.map(|below| (format!("{name}-{}", below.get_name()), below)));
    }
    Ok(())
}

/// A command that people are told of.
fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// The reference: the HTTP API from the contract, the command line from the commands, the settings from their defaults.
pub(crate) fn reference(command: &Command, contract: &Value, folder: &Path) -> Result<(), Failure> {
    for (name, text) in [
        ("http.md", routes::page(contract)),
        ("cli.md", commands::page(command)),
        ("config.md", settings::page()?),
    ] {
        write(folder, name, format!("{MADE}{text}").as_bytes())?;
    }
    Ok(())
}

fn write(folder: &Path, name: &str, text: &[u8]) -> Result<(), Failure> {
    let path = folder.join(name);
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
    written.map_err(|error| Failure::unexpected(format!("{}: {error}", path.display())))
}

/// A text as a cell of a table takes it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
