//! The stepwell binary: `stepwell <noun> <verb>`.

mod config;
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

use clap::{Parser, Subcommand};

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
    let result = match Cli::parse().command {
        Command::Dev(options) => dev::run(&options),
        Command::Expr { verb } => expr::run(&verb),
        Command::Openapi => workflow::print_json(&stepwell_server::api::openapi()),
        Command::Schema => workflow::print_json(&stepwell::core::document::schema()),
        Command::Server { verb } => server::run(&verb),
        Command::Workflow { verb } => workflow::run(&verb),
        Command::Version => output::line(&format!("stepwell {}", env!("CARGO_PKG_VERSION"))),
    };
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
