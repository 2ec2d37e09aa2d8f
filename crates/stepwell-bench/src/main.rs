//! Measures Stepwell against the bare database in the same run, and kills it to see what is left.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bare;
mod commit;
mod kill;
mod sample;
mod script;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// Benchmarks and kill tests. Figures are JSON lines on standard output, talk is on standard error.
#[derive(Debug, Parser)]
#[command(name = "stepwell-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Many concurrent small commits, against a bare loop on the same database in the same run.
    Commit(commit::Options),
    /// A process that commits is killed again and again; every acknowledged commit must be there.
    Kill(kill::Kill),
    /// The process that `kill` kills.
    #[command(hide = true)]
    Victim(kill::Victim),
}

/// Where to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    /// An SQLite file in a temporary folder.
    Sqlite,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Commit(options) => commit::run(&options),
        Command::Kill(options) => kill::run(&options),
        Command::Victim(victim) => kill::victim(&victim),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("stepwell-bench: {message}");
            ExitCode::FAILURE
        }
    }
}
