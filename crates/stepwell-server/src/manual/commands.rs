//! The reference of the command line: every command with its arguments.

use std::fmt::Write;

use clap::{Arg, Command};

use super::{cell, is_shown};

/// Headings of arguments that every verb has: they are told once.
const EVERYWHERE: [&str; 2] = ["Who is asked", "How it is shown"];

/// The page.
pub(super) fn page(command: &Command) -> String {
    let mut out = String::from(
        "# The command line\n\n`stepwell <noun> <verb>`. Exit codes and what goes where: [server.md](../server.md#the-command-line).\n\n",
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

/// The arguments that every verb has which asks a server.
fn everywhere(out: &mut String, command: &Command) {
    let _ = writeln!(out, "## Everywhere\n\nVerbs that ask a server, or work on a store, take these too.\n");
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
    let _ = writeln!(out, "| argument | |\n|---|---|");
    for arg in all {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<_> =
            arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        let takes = arg.get_action().takes_values();
        let values = if values.is_empty() || !takes {
            String::new()
        } else {
            format!(" One of {}.", values.join(", "))
        };
        let default: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        let default = if default.is_empty() || !takes {
            String::new()
        } else {
            format!(" Default: `{}`.", default.join(" "))
        };
        let env = arg.get_env().map(|name| format!(" Environment: `{}`.", name.to_string_lossy()));
        let help = help.trim_end_matches('.');
        let text = format!("{help}.{values}{default}{}", env.unwrap_or_default());
        let _ = writeln!(out, "| `{}` | {} |", shape(arg), cell(text.trim_start_matches('.').trim()));
    }
    let _ = writeln!(out);
}

/// How an argument is written.
fn shape(arg: &Arg) -> String {
    let names: Vec<_> = arg.get_value_names().into_iter().flatten().map(ToString::to_string).collect();
    let name = if names.is_empty() { arg.get_id().as_str().to_uppercase() } else { names.join(" ") };
    if arg.is_positional() {
        return if arg.is_required_set() { format!("<{name}>") } else { format!("[{name}]") };
    }
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let long = arg.get_long().map(|long| format!("--{long}")).unwrap_or_default();
    let value = match (arg.get_action().takes_values(), arg.is_require_equals_set()) {
        (false, _) => String::new(),
        (true, true) => format!("[=<{name}>]"),
        (true, false) => format!(" <{name}>"),
    };
    format!("{short}{long}{value}")
}
