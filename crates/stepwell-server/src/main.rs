//! The stepwell binary: `stepwell <noun> <verb>`.

mod bench;
mod cli;
mod config;
mod db;
mod dev;
mod examples;
mod exit;
mod expr;
mod facts;
mod log;
mod manual;
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
    /// Measures what the disk and the engine do here, in a file of its own that it takes away again.
    Bench(bench::Options),
    /// Prints a script that lets a shell complete commands.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
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
    /// Writes the reference documentation, as it is kept in `docs/reference`.
    #[command(hide = true)]
    Docs {
        /// The folder to write to.
        folder: std::path::PathBuf,
    },
    /// Starts a server to try things out with: SQLite in a folder, the examples, a key, and what to do next.
    Dev(dev::Options),
    /// Tries out expressions.
    Expr {
        #[command(subcommand)]
        verb: expr::Verb,
    },
    /// Prints the manual page, or writes a page for every command.
    Man {
        /// The folder to write a page for every command to.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<std::path::PathBuf>,
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

/// Every command, as it is built.
fn whole(contract: &serde_json::Value) -> clap::Command {
    let mut command = cli::with_verbs(Cli::command(), contract);
    command.build();
    command
}

fn run(command: Command, contract: &serde_json::Value) -> Result<(), Failure> {
    match command {
        Command::Bench(options) => bench::run(&options),
        Command::Completions { shell } => manual::completions(whole(contract), shell),
        Command::Docs { folder } => manual::reference(&whole(contract), contract, &folder),
        Command::Man { dir } => manual::man(&whole(contract), dir.as_deref()),
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
