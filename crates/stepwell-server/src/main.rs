//! The stepwell binary: `stepwell <noun> <verb>`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod approval;
mod dev;
mod exit;
mod workflow;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A durable workflow engine whose state can rest anywhere.
#[derive(Debug, Parser)]
#[command(name = "stepwell", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a small approval workflow on an SQLite file and prints each checkpoint; continues where it was killed.
    Dev(dev::Options),
    /// Works with workflow definitions.
    Workflow {
        #[command(subcommand)]
        verb: workflow::Verb,
    },
    /// Prints the version.
    Version,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Dev(options) => dev::run(&options),
        Command::Workflow { verb } => workflow::run(&verb),
        Command::Version => {
            println!("stepwell {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("stepwell: {}", failure.message);
            }
            failure.code.into()
        }
    }
}
