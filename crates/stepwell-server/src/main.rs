//! The stepwell binary: `stepwell <noun> <verb>`.

mod cli;
mod config;
mod db;
mod dev;
mod examples;
mod exit;
mod expr;
mod log;
mod output;
mod server;
mod simulate;
mod start;
mod workflow;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::Failure;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable workflow engine whose state can rest anywhere.
#[derive(Debug, Parser)]
#[command(name = "stepwell", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the configuration.
    Config {
        #[command(subcommand)]
        verb: config::Verb,
    },
    /// Works on the store itself.
    Db {
        #[command(subcommand)]
        verb: db::Verb,
    },
    /// Starts a server to try things out with: SQLite in a folder, the examples, a key, and what to do next.
    Dev(dev::Options),
    /// Tries out expressions.
    Expr {
        #[command(subcommand)]
        verb: expr::Verb,
    },
    /// Prints the contract of the HTTP API (OpenAPI 3.1).
    Openapi,
    /// Prints the JSON Schema of documents, for editors.
    Schema,
    /// Runs the server.
    Server {
        #[command(subcommand)]
        verb: server::Verb,
    },
    /// Works with workflows: documents and definitions.
    Workflow {
        #[command(subcommand)]
        verb: workflow::Verb,
    },
    /// Prints the version.
    Version,
}

fn main() -> ExitCode {
    let contract = stepwell_server::api::openapi();
    let matches = cli::with_verbs(Cli::command(), &contract).get_matches();
    let result = cli::run(&matches, &contract).unwrap_or_else(|| {
        let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        run(cli.command, &contract)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                output::talk(&format!("stepwell: {}", failure.message));
            }
            failure.code.into()
        }
    }
}

fn run(command: Command, contract: &serde_json::Value) -> Result<(), Failure> {
    match command {
        Command::Config { verb } => config::run(&verb),
        Command::Db { verb } => db::run(&verb),
        Command::Dev(options) => dev::run(&options),
        Command::Expr { verb } => expr::run(&verb),
        Command::Openapi => workflow::print_json(contract),
        Command::Schema => workflow::print_json(&stepwell::core::document::schema()),
        Command::Server { verb } => server::run(&verb),
        Command::Workflow { verb } => workflow::run(&verb),
        Command::Version => output::line(&format!("stepwell {}", env!("CARGO_PKG_VERSION"))),
    }
}
