//! Measures Stepwell against the bare database in the same run, and kills it to see what is left.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bad_row;
mod bare;
mod child;
mod commit;
mod counter;
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
mod orders;
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
use stepwell_postgres::ground::DATABASE_URL;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks and kill tests. Figures are JSON lines on standard output, talk is on standard error.
#[derive(Debug, Parser)]
#[command(name = "stepwell-bench", version)]
struct Cli {
    /// An external PostgreSQL server for `--store postgres`, instead of a throwaway one. Its user must be allowed to
    /// create roles and schemas.
    #[arg(long, global = true, env = DATABASE_URL, hide_env_values = true)]
    database_url: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Many concurrent small commits, against a bare loop on the same database in the same run.
    Commit(commit::Options),
    /// Workflows of ten durable steps, against a bare loop on the same database in the same run.
    TenStep(ten_step::Options),
    /// Many clients add to one hot key or to many, against one increment per transaction in the same run.
    Counter(counter::Options),
    /// Runs that wait for a signal, against a bare loop on the same database in the same run.
    Signal(signal::Options),
    /// Kills the server under load through HTTP, and looks what is left.
    KillServer(kill_server::Options),
    /// Holds many slow sockets, and looks how everybody else fares.
    SlowSockets(slow_sockets::Options),
    /// Signals through the API over keep-alive connections, against the same signals in process.
    Http(http::Options),
    /// A process with thousands of runs in flight is killed; how soon the next one goes on.
    Recover(recover::Options),
    /// The two processes of `recover`.
    #[command(hide = true)]
    RecoverPart(recover::Part),
    /// Runs that sleep and wake; what they cost meanwhile, and how late they are.
    Sleepers(sleepers::Options),
    /// An engine is killed again and again; every workflow must finish, every step be committed once.
    KillEngine(kill_engine::Options),
    /// The process that `kill-engine` kills.
    #[command(hide = true)]
    KillEnginePart(kill_engine::Part),
    /// Many runs add to one counter while their process is killed; the sum is exact.
    ExactCounter(exact_counter::Options),
    /// The process that `exact-counter` kills.
    #[command(hide = true)]
    ExactCounterPart(exact_counter::Part),
    /// Many clients read and write a few keys at once, and what they saw is put into one order.
    Linearizable(linearizable::Options),
    /// One tenant calls everything with another's names and ids.
    Isolation(isolation::Options),
    /// Runs a folder of JSONata's own test cases against the expression dialect.
    Jsonata(jsonata::Options),
    /// Holds random expressions against the package `jsonata`, which is the reference.
    JsonataRandom(jsonata::random::Options),
    /// Listings are read page by page while others insert and delete.
    Pages(pages::Options),
    /// States are sealed into tokens and opened again, against the token library alone in the same run.
    Seal(seal::Options),
    /// Flows that rest behind handles are resumed, against a bare loop on the same database in the same run.
    Handle(handle::Options),
    /// Many resumes of one handle at a time, and resumes whose process is killed.
    OneWinner(one_winner::Options),
    /// The process that `one-winner` kills.
    #[command(hide = true)]
    OneWinnerPart(one_winner::Part),
    /// Tokens with a bit changed, expired, or somebody else's, and how long their refusals take.
    Tamper(tamper::Options),
    /// A mail scanner follows every link again and again, and changes nothing.
    Scanner(scanner::Options),
    /// A document loops over a long list while its process is killed; every item counts once.
    LongLoop(long_loop::Options),
    /// The process that `long-loop` kills.
    #[command(hide = true)]
    LongLoopPart(long_loop::Part),
    /// Thousands of events, many sent twice, while thousands of runs wait for them and the process is killed.
    Storm(storm::Options),
    /// The process that `storm` kills.
    #[command(hide = true)]
    StormPart(storm::Part),
    /// Events, waits for them and the end of those come in every order, in the simulation.
    Race(simulate::race::Options),
    /// Two workflows that follow tasks run from the text of their documents.
    Mirror(mirror::Options),
    /// Two tenants use the same ids, keys and names at once, and do not notice each other.
    TenantKeys(tenant_keys::Options),
    /// Rows are garbled and deleted behind the engine's back, one at a time.
    BadRow(bad_row::Options),
    /// Runs a throwaway PostgreSQL server for another program, and hurts it when that says so on standard input.
    Orders,
    /// Documents with mistakes in them are refused, each with a place and a reason.
    Malformed(malformed::Options),
    /// One tenant has very many runs due; how soon another one's only run is begun.
    Fair(fair::Options),
    /// Three processes share a server, and are killed, cut off and left without it again and again.
    ThreeProcesses(three::Options),
    /// Several engines are simulated on one store, seed by seed, with crashes, frozen processes and lost answers.
    Simulate(simulate::Options),
    /// A process that commits is killed again and again; every acknowledged commit must be there.
    Kill(kill::Kill),
    /// The process that `kill` kills.
    #[command(hide = true)]
    Victim(kill::Victim),
}

/// Where to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// An SQLite file in a temporary folder.
    Sqlite,
    /// A throwaway PostgreSQL server, or the one that `--database-url` names.
    Postgres,
}

impl StoreKind {
    /// Its name in the figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            StoreKind::Sqlite => "sqlite",
            StoreKind::Postgres => "postgres",
        }
    }
}

/// As many threads as there are cores.
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
        Command::Orders => orders::run(),
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
