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
mod flows;
mod keys;
mod log;
mod manual;
mod output;
mod own_key;
mod server;
mod simulate;
mod start;
mod validate;
mod workflow;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::{Code, Failure};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable workflow engine: server, command-line client and tools.
#[derive(Debug, Parser)]
#[command(name = "stepwell", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure fsyncs and workflow steps per second on this machine, in a temporary directory next to the database.
    Bench(bench::Options),
    /// Print a shell completion script.
    Completions {
        /// Shell that the script is for.
        shell: clap_complete::Shell,
    },
    /// Show the effective configuration.
    Config {
        #[command(subcommand)]
        verb: config::Verb,
    },
    /// Manage the database: migration, status, integrity check, backup and restore.
    Db {
        #[command(subcommand)]
        verb: db::Verb,
    },
    /// Write the reference documentation that is checked in as `docs/reference`.
    #[command(hide = true)]
    Docs {
        /// Directory to write to.
        folder: std::path::PathBuf,
    },
    /// Start a development server with SQLite, example workflows and an API key, and print a short tutorial.
    Dev(dev::Options),
    /// Evaluate expressions and list the functions they can call.
    Expr {
        #[command(subcommand)]
        verb: expr::Verb,
    },
    /// Print the manual page, or write one page per command.
    Man {
        /// Directory for one manual page per command; without it, the main page is printed.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<std::path::PathBuf>,
    },
    /// Print the OpenAPI 3.1 description of the HTTP API.
    Openapi,
    /// Print the JSON Schema of workflow documents, for editors.
    Schema,
    /// Start the server.
    Server {
        #[command(subcommand)]
        verb: server::Verb,
    },
    /// Validate, test and manage workflows.
    Workflow {
        #[command(subcommand)]
        verb: workflow::Verb,
    },
    /// Print the version of the program.
    Version,
}

fn main() -> ExitCode {
    let contract = stepwell_server::api::openapi();
    let result = match cli::with_verbs(Cli::command(), &contract).try_get_matches() {
        Ok(matches) => cli::run(&matches, &contract).unwrap_or_else(|| {
            let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
            run(cli.command, &contract)
        }),
        Err(error) if error.use_stderr() && output::wants_json() => {
            let message = error.to_string();
            Err(Failure::new(Code::Usage, message.trim_start_matches("error: ").trim_end()))
        }
        Err(error) => error.exit(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match failure.message.is_empty() {
                true => {}
                false if output::wants_json() => output::print_message(&failure.as_problem().to_string()),
                false => output::print_message(&format!("stepwell: {}", failure.message)),
            }
            failure.code.into()
        }
    }
}

/// Returns the complete command tree, including the verbs made from the API contract.
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
