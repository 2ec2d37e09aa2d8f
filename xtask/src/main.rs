//! The command line of `cargo xtask`: the developer tasks of this repository.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints its results")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};

mod artifacts;
mod dev;
mod load;
mod needs;
mod process;
mod proofs;
mod purity;
mod selected;
mod steps;
mod stores;
mod tidy;
mod tree;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the tests whose path contains a text, and build nothing else.
    T {
        /// Part of a test's path, such as `signals::` or `timeout`.
        filter: String,
        /// Store on which the engine's tests run.
        #[arg(long, value_enum, default_value_t = stores::Choice::Memory)]
        store: stores::Choice,
    },
    /// Run all checks that a change must pass; the first failing step ends the run.
    Test {
        /// Skip fmt, tidy and purity; warnings of the compiler and of clippy still fail the build.
        #[arg(long)]
        skip_lints: bool,
    },
    /// Build the server and run `stepwell dev` with the given arguments.
    Dev {
        /// Arguments passed to `stepwell dev` unchanged.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run one proof at full size. Prints its figures as JSON lines on stdout and succeeds only when all bars are met.
    Prove {
        /// Name of the proof; `--list` describes all of them.
        #[arg(required_unless_present = "list", value_parser = PossibleValuesParser::new(proofs::names()))]
        name: Option<String>,
        /// Run at a small size, to show that the proof works; bars on speed are not judged.
        #[arg(long)]
        short: bool,
        /// Print the names and descriptions of all proofs.
        #[arg(long, conflicts_with_all = ["name", "short"])]
        list: bool,
    },
    /// Check conventions that no compiler checks, over every file that is tracked or not ignored.
    Tidy,
    /// Check that stepwell-core has no access to IO, clocks or randomness.
    Purity,
    /// Run a folder of JSONata's test cases against the expression dialect.
    Jsonata {
        /// Folder that contains `groups` and `datasets`.
        folder: PathBuf,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode, String> {
    match task {
        Task::T { filter, store } => selected::run(&filter, store)?,
        Task::Test { skip_lints } => steps::test(skip_lints)?,
        Task::Dev { args } => return dev::dev(&args),
        Task::Prove { name: Some(name), short, .. } => proofs::prove(&name, proofs::Size::of(short))?,
        Task::Prove { name: None, .. } => proofs::list(),
        Task::Tidy => tidy::tidy()?,
        Task::Purity => purity::purity()?,
        Task::Jsonata { folder, json } => proofs::jsonata(&folder, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn dev_passes_flags_on_untouched() {
        let cli = Cli::try_parse_from(["xtask", "dev", "--port", "0", "--help"]).unwrap();
        let Task::Dev { args } = cli.task else { panic!("not dev") };
        assert_eq!(args, ["--port", "0", "--help"]);
    }

    #[test]
    fn prove_requires_a_known_name_or_list() {
        assert!(Cli::try_parse_from(["xtask", "prove"]).is_err());
        assert!(Cli::try_parse_from(["xtask", "prove", "unheard-of"]).is_err());
        assert!(Cli::try_parse_from(["xtask", "prove", "--list"]).is_ok());
        assert!(Cli::try_parse_from(["xtask", "prove", "commit", "--short"]).is_ok());
    }
}
