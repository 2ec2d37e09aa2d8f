//! Benchmarks against the bare database, kill tests and simulations of Stepwell.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bad_row;
mod bare;
mod child;
mod commit;
mod counter;
mod db_control;
mod effects;
mod engines;
mod exact_counter;
mod fair;
mod flows;
mod handle;
mod histories;
mod http;
mod isolation;
mod jsonata;
mod kill;
mod kill_engine;
mod kill_server;
mod linearizable;
mod long_loop;
mod machine;
mod malformed;
mod mirror;
mod one_winner;
mod pages;
mod recover;
mod sample;
mod scanner;
mod script;
mod seal;
mod signal;
mod simulate;
mod site;
mod sleepers;
mod slow_sockets;
mod storm;
mod tamper;
mod ten_step;
mod tenant_keys;
mod tenants;
mod three;
mod watched;
mod web;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use stepwell_postgres::test_schema::DATABASE_URL;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks and kill tests. Prints results as JSON lines on standard output and progress on standard error.
#[derive(Debug, Parser)]
#[command(name = "stepwell-bench", version)]
struct Cli {
    /// URL of a PostgreSQL server for `--store postgres` (default: a temporary server). Its user needs the right to
    /// create roles and schemas.
    #[arg(long, global = true, env = DATABASE_URL, hide_env_values = true)]
    database_url: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures concurrent small commits, with a bare loop on the same database as baseline.
    Commit(commit::Options),
    /// Measures workflows of ten durable steps, with a bare loop on the same database as baseline.
    TenStep(ten_step::Options),
    /// Measures increments of one hot key or of many, with one increment per transaction as baseline.
    Counter(counter::Options),
    /// Measures signals to waiting runs, with a bare loop on the same database as baseline.
    Signal(signal::Options),
    /// Kills the server under load over HTTP and checks every acknowledged write.
    KillServer(kill_server::Options),
    /// Opens many slow connections and checks that other clients are still served.
    SlowSockets(slow_sockets::Options),
    /// Measures signals through the API over keep-alive connections, with the same signals in process as baseline.
    Http(http::Options),
    /// Kills a process with thousands of active runs and measures how soon the next one continues them.
    Recover(recover::Options),
    /// Runs one of the two processes of `recover`.
    #[command(hide = true)]
    RecoverPart(recover::Part),
    /// Measures the cost of sleeping runs, and how late they wake.
    Sleepers(sleepers::Options),
    /// Kills an engine repeatedly; every workflow must complete and every step be committed once.
    KillEngine(kill_engine::Options),
    /// Runs the process that `kill-engine` kills.
    #[command(hide = true)]
    KillEnginePart(kill_engine::Part),
    /// Increments one counter from many runs while their process is killed; the sum must be exact.
    ExactCounter(exact_counter::Options),
    /// Runs the process that `exact-counter` kills.
    #[command(hide = true)]
    ExactCounterPart(exact_counter::Part),
    /// Reads and writes a few keys from many clients and checks that the results are linearizable.
    Linearizable(linearizable::Options),
    /// Calls every function of one tenant with the names and ids of another.
    Isolation(isolation::Options),
    /// Runs a folder of JSONata's own test cases against the expression dialect.
    Jsonata(jsonata::Options),
    /// Compares random expressions with the package `jsonata`, the reference.
    JsonataRandom(jsonata::random::Options),
    /// Reads listings page by page while rows are inserted and deleted.
    Pages(pages::Options),
    /// Measures sealing states into tokens and opening them, with the token library alone as baseline.
    Seal(seal::Options),
    /// Measures resumes of flows behind handles, with a bare loop on the same database as baseline.
    Handle(handle::Options),
    /// Resumes one handle many times concurrently, also from processes that are killed.
    OneWinner(one_winner::Options),
    /// Runs the process that `one-winner` kills.
    #[command(hide = true)]
    OneWinnerPart(one_winner::Part),
    /// Presents altered, expired and foreign tokens and measures how long their refusals take.
    Tamper(tamper::Options),
    /// Follows every answer link repeatedly like a mail scanner; nothing may change.
    Scanner(scanner::Options),
    /// Loops over a long list while the process is killed; every item must count once.
    LongLoop(long_loop::Options),
    /// Runs the process that `long-loop` kills.
    #[command(hide = true)]
    LongLoopPart(long_loop::Part),
    /// Sends thousands of events, many of them twice, to waiting runs while the process is killed.
    Storm(storm::Options),
    /// Runs the process that `storm` kills.
    #[command(hide = true)]
    StormPart(storm::Part),
    /// Simulates events, waits and timeouts in every order.
    Race(simulate::race::Options),
    /// Runs two workflows that mirror tasks, from their workflow documents.
    Mirror(mirror::Options),
    /// Uses the same ids, keys and names in two tenants concurrently; neither may see the other.
    TenantKeys(tenant_keys::Options),
    /// Corrupts and deletes single rows with direct SQL; only their owners may be affected.
    BadRow(bad_row::Options),
    /// Runs a temporary PostgreSQL server for another program, and interrupts it on commands from standard input.
    DbControl,
    /// Checks that workflow documents with mistakes are refused with a position and a reason.
    Malformed(malformed::Options),
    /// Measures how soon a tenant's only run starts while another tenant has very many due runs.
    Fair(fair::Options),
    /// Kills and disconnects three processes that share a server, and the server, repeatedly.
    ThreeProcesses(three::Options),
    /// Simulates several engines on one store, seed by seed, with crashes, frozen processes and lost answers.
    Simulate(simulate::Options),
    /// Kills a committing process repeatedly; every acknowledged commit must exist.
    Kill(kill::Kill),
    /// Runs the process that `kill` kills.
    #[command(hide = true)]
    Victim(kill::Victim),
}

/// The database of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// An SQLite file in a temporary folder.
    Sqlite,
    /// A temporary PostgreSQL server, or the one that `--database-url` names.
    Postgres,
}

impl StoreKind {
    /// Returns the name used in the JSON results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            StoreKind::Sqlite => "sqlite",
            StoreKind::Postgres => "postgres",
        }
    }
}

/// Builds a runtime with one thread per core.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, std::num::NonZero::get))
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(url) = cli.database_url.filter(|url| !url.is_empty()) {
        site::use_external(url);
    }
    let result = match cli.command {
        Command::Commit(options) => commit::run(&options),
        Command::TenStep(options) => ten_step::run(&options),
        Command::Counter(options) => counter::run(&options),
        Command::KillServer(options) => kill_server::run(&options),
        Command::SlowSockets(options) => slow_sockets::run(&options),
        Command::Http(options) => http::run(&options),
        Command::Signal(options) => signal::run(&options),
        Command::Recover(options) => recover::run(&options),
        Command::RecoverPart(part) => recover::part(&part),
        Command::Sleepers(options) => sleepers::run(&options),
        Command::KillEngine(options) => kill_engine::run(&options),
        Command::KillEnginePart(part) => kill_engine::part(&part),
        Command::ExactCounter(options) => exact_counter::run(&options),
        Command::ExactCounterPart(part) => exact_counter::part(&part),
        Command::Linearizable(options) => linearizable::run(&options),
        Command::Isolation(options) => isolation::run(&options),
        Command::Jsonata(options) => jsonata::run(&options),
        Command::JsonataRandom(options) => jsonata::random::run(&options),
        Command::Pages(options) => pages::run(&options),
        Command::Seal(options) => seal::run(&options),
        Command::Handle(options) => handle::run(&options),
        Command::OneWinner(options) => one_winner::run(&options),
        Command::OneWinnerPart(part) => one_winner::part(&part),
        Command::Tamper(options) => tamper::run(&options),
        Command::Scanner(options) => scanner::run(&options),
        Command::LongLoop(options) => long_loop::run(&options),
        Command::LongLoopPart(part) => long_loop::part(&part),
        Command::Storm(options) => storm::run(&options),
        Command::StormPart(part) => storm::part(&part),
        Command::Race(options) => simulate::race::run(&options),
        Command::Mirror(options) => mirror::run(&options),
        Command::TenantKeys(options) => tenant_keys::run(&options),
        Command::BadRow(options) => bad_row::run(&options),
        Command::DbControl => db_control::run(),
        Command::Malformed(options) => malformed::run(&options),
        Command::Fair(options) => fair::run(&options),
        Command::ThreeProcesses(options) => three::run(&options),
        Command::Simulate(options) => simulate::run(&options),
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
