//! The command line of `cargo xtask`: everything one does with this repository.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to its caller")]

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
    /// Run the tests whose name contains a text, and build nothing else.
    T {
        /// A part of a test's path, such as `signals::` or `timeout`.
        filter: String,
        /// The store that the engine's tests run on.
        #[arg(long, value_enum, default_value_t = stores::Choice::Memory)]
        store: stores::Choice,
    },
    /// Run everything a change has to pass; the first failing step ends the run.
    Test {
        /// Leave out fmt, tidy and purity; warnings of the compiler and of clippy still fail the build.
        #[arg(long)]
        skip_lints: bool,
    },
    /// Build the server and run `stepwell dev` with the given arguments.
    Dev {
        /// Passed on to `stepwell dev` as they are.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run one proof at full size: its figures as JSON lines on stdout, success only when the bar is met.
    Prove {
        /// Which proof to run; `--list` says what each one shows.
        #[arg(required_unless_present = "list", value_parser = PossibleValuesParser::new(proofs::names()))]
        name: Option<String>,
        /// A small size that shows the proof still runs; bars on speed are not judged.
        #[arg(long)]
        short: bool,
        /// Print the proofs there are.
        #[arg(long, conflicts_with_all = ["name", "short"])]
        list: bool,
    },
    /// Check the conventions no compiler checks, over every file that is tracked or would be.
    Tidy,
    /// Check that stepwell-core can do no IO, read no clock and draw no randomness.
    Purity,
    /// Run a folder of JSONata's test cases against the expression dialect.
    Jsonata {
        /// The folder that holds `groups` and `datasets`.
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
    fn prove_wants_a_known_name_or_the_list() {
        assert!(Cli::try_parse_from(["xtask", "prove"]).is_err());
        assert!(Cli::try_parse_from(["xtask", "prove", "unheard-of"]).is_err());
        assert!(Cli::try_parse_from(["xtask", "prove", "--list"]).is_ok());
        assert!(Cli::try_parse_from(["xtask", "prove", "commit", "--short"]).is_ok());
    }
}
