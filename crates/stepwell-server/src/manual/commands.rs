//! Generates `docs/reference/cli.md`: every command with its arguments.

use std::fmt::Write;

use clap::{Arg, Command};

use super::{cell, is_shown, split_default};
use crate::cli::json_argument;

/// Help headings of the options that every verb has. They are listed once, at the start of the page.
const EVERYWHERE: [&str; 2] = ["Connection options", "Output options"];

/// Returns the page as Markdown.
pub(super) fn page(command: &Command) -> String {
    let mut out = String::from(
        "# Command line\n\nUsage: `stepwell <noun> <verb>`. Exit codes and output streams: [server.md](../server.md#the-command-line).\n\n",
    );
    everywhere(&mut out, command);
    for noun in command.get_subcommands().filter(|noun| is_shown(noun)) {
        let _ = writeln!(out, "## {}\n", noun.get_name());
        if noun.has_subcommands() {
            let _ = writeln!(out, "{}.\n", about(noun));
            for verb in noun.get_subcommands().filter(|verb| is_shown(verb)) {
                let _ = writeln!(out, "### {} {}\n", noun.get_name(), verb.get_name());
                described(&mut out, verb, &format!("stepwell {} {}", noun.get_name(), verb.get_name()));
            }
        } else {
            described(&mut out, noun, &format!("stepwell {}", noun.get_name()));
        }
    }
    format!("{}\n", out.trim_end())
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Writes the options of all verbs that use a server or a database.
fn everywhere(out: &mut String, command: &Command) {
    let _ = writeln!(
        out,
        "## Common options\n\nEvery verb that uses a server or a database takes these options.\n"
    );
    let list = command.find_subcommand("run").and_then(|run| run.find_subcommand("list"));
    let all = list.into_iter().flat_map(Command::get_arguments);
    table(out, all.filter(|arg| is_everywhere(arg)));
}

fn is_everywhere(arg: &Arg) -> bool {
    arg.get_help_heading().is_some_and(|heading| EVERYWHERE.contains(&heading))
}

fn described(out: &mut String, verb: &Command, name: &str) {
    let _ = writeln!(out, "{}.\n", about(verb));
    let own: Vec<_> = verb
        .get_arguments()
        .filter(|arg| !is_everywhere(arg) && !arg.is_hide_set() && arg.get_id() != "help")
        .collect();
    let places: Vec<_> = own.iter().filter(|arg| arg.is_positional()).map(|arg| shape(arg)).collect();
    let options = if own.iter().any(|arg| !arg.is_positional()) { " [OPTIONS]" } else { "" };
    let places = if places.is_empty() { String::new() } else { format!(" {}", places.join(" ")) };
    let _ = writeln!(out, "```text\n{name}{places}{options}\n```\n");
    if !own.is_empty() {
        table(out, own.into_iter());
    }
    if let Some(after) = verb.get_after_help() {
        let _ = writeln!(out, "```text\n{}\n```\n", after.to_string().trim());
    }
}

fn table<'a>(out: &mut String, all: impl Iterator<Item = &'a Arg>) {
    let _ = writeln!(out, "| name | type | default | description |\n|---|---|---|---|");
    for arg in all {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (about, said) = split_default(&help);
        let env = arg.get_env().map(|name| format!(" Environment: `{}`.", name.to_string_lossy()));
        let text = format!("{about}.{}", env.unwrap_or_default());
        let (kind, default) = (type_of(arg), default_of(arg, said));
        let row = [kind, default, text.trim_start_matches('.').trim().to_owned()].map(|text| cell(&text));
        let _ = writeln!(out, "| `{}` | {} |", name_of(arg), row.join(" | "));
    }
    let _ = writeln!(out);
}

/// Returns the possible values of an argument, or the name of its value; `flag` if it takes none.
fn type_of(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return "flag".to_owned();
    }
    if arg.get_help().is_some_and(|help| help.to_string().ends_with(json_argument::HELP)) {
        return "json".to_owned();
    }
    let values: Vec<_> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    match values.is_empty() {
        true => value_name(arg).to_lowercase(),
        false => values.join(", "),
    }
}

/// Returns the default of an argument: the one it declares, or else the one that its help names.
fn default_of(arg: &Arg, said: Option<&str>) -> String {
    let declared: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    match (arg.get_action().takes_values() && !declared.is_empty(), said) {
        (true, _) => format!("`{}`", declared.join(" ")),
        (false, Some(said)) => said.to_owned(),
        (false, None) if arg.is_required_set() => "required".to_owned(),
        (false, None) => String::new(),
    }
}

/// Returns the name of an argument in a table, such as `RUN` or `-o, --output`.
fn name_of(arg: &Arg) -> String {
    if arg.is_positional() {
        return value_name(arg);
    }
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    format!("{short}--{}", arg.get_long().unwrap_or_default())
}

fn value_name(arg: &Arg) -> String {
    let names: Vec<_> = arg.get_value_names().into_iter().flatten().map(ToString::to_string).collect();
    if names.is_empty() { arg.get_id().as_str().to_uppercase() } else { names.join(" ") }
}

/// Returns the syntax of a positional argument, such as `<RUN>` or `[RUN]`.
fn shape(arg: &Arg) -> String {
    let name = value_name(arg);
    if arg.is_required_set() { format!("<{name}>") } else { format!("[{name}]") }
}
