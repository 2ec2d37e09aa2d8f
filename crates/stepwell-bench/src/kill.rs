//! The `kill` workload: a process commits and is killed repeatedly without warning. Every commit that was acknowledged
//! to it must be in the database.
//!
//! The victim writes a line to a pipe for every acknowledged commit; the pipe survives the victim. The state at each
//! version follows from the run's number, so the content is checked as well as the presence.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use stepwell_core::{RunId, Timestamp};
use stepwell_postgres::cluster::Cluster;
use stepwell_sqlite::{Options, SqliteStore};
use stepwell_store::{CommitError, Head, HistoryQuery, Refused, Store, TenantScope};
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::script::{Random, Script, State};
use crate::site::{Place, Site};

/// Number of runs that the victim works on concurrently.
const WRITERS: u64 = 16;
/// Number of kills before a new database is created, so that reading it back stays quick.
const KILLS_PER_DATABASE: u64 = 50;

/// Every fifth kill also kills the database server, on PostgreSQL.
const SERVER_KILLS: u64 = 5;

/// Options of the `kill` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Kill {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of times that the process is killed.
    #[arg(long, default_value_t = 1_000)]
    cycles: u64,
    /// Seed of the times at which the victim is killed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plants a bug: the victim acknowledges before it commits. The workload must find lost commits.
    #[arg(long)]
    answer_early: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// Arguments of the process that `kill` kills.
#[derive(Debug, clap::Args)]
pub(crate) struct Victim {
    /// Database to work on.
    #[arg(long)]
    database: Place,
    /// Name that the process prints on its first line, so that the parent kills the right one.
    #[arg(long)]
    name: String,
    /// Number of the first run it works on.
    #[arg(long)]
    first_run: u64,
    /// Acknowledges before it commits (planted bug).
    #[arg(long)]
    answer_early: bool,
}

/// Counts of checkpoints and of damage, over all kills.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: u64,
    found: u64,
    lost: u64,
    gaps: u64,
    duplicates: u64,
    wrong_states: u64,
}

pub(crate) fn run(options: &Kill) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let mut random = Random::new(options.seed);
    let mut tally = Tally::default();
    let begin = Instant::now();
    let mut site = Site::new(options.store)?;
    let mut place = site.place(&runtime, "runs-0")?;
    for cycle in 0..options.cycles {
        if cycle > 0 && cycle % KILLS_PER_DATABASE == 0 {
            place = site.place(&runtime, &format!("runs-{cycle}"))?;
        }
        // Half of the runs continue from the previous cycle, half are new.
        let first_run = cycle * (WRITERS / 2);
        // Every third kill may come before the first commit. The others come after the first acknowledgement, so that
        // they hit commits even on a slow machine.
        let when =
            When { after_first: cycle % 3 != 0, then: Duration::from_micros(500 + random.next() % 60_000) };
        let name = format!("victim-{cycle}-{}", random.next());
        // Every fifth cycle kills the database server first.
        let server = site.cluster().filter(|_| cycle % SERVER_KILLS == SERVER_KILLS - 1);
        let (count, acknowledged) = one_cycle(&place, first_run, &name, when, options.answer_early, server)?;
        tally.acknowledged += count;
        runtime.block_on(verify(&place, &acknowledged, &mut tally))?;
        if !options.json && cycle % 50 == 49 {
            eprintln!(
                "{} kills, {} commits acknowledged, {} lost",
                cycle + 1,
                tally.acknowledged,
                tally.lost
            );
        }
    }
    println!(
        "{}",
        json!({
            "workload": "kill",
            "store": options.store.name(),
            "cycles": options.cycles,
            "acknowledged": tally.acknowledged,
            "checkpoints_checked": tally.found,
            "lost": tally.lost,
            "gaps": tally.gaps,
            "duplicates": tally.duplicates,
            "wrong_states": tally.wrong_states,
            "planted": options.answer_early.then_some("answer-early"),
            "seconds": begin.elapsed().as_secs(),
        })
    );
    let clean = tally.lost + tally.gaps + tally.duplicates + tally.wrong_states == 0;
    if clean { Ok(()) } else { Err("acknowledged commits were lost or damaged".to_owned()) }
}

/// The time of a kill.
#[derive(Clone, Copy)]
struct When {
    /// Waits for the first acknowledged commit before `then` starts.
    after_first: bool,
    then: Duration,
}

/// Timeout for the first acknowledgement.
const FIRST: Duration = Duration::from_secs(60);

/// The number of acknowledged commits, and the newest acknowledged version of each run.
type Acknowledged = (u64, BTreeMap<u64, u64>);

/// Starts a victim, lets it work, kills it, and returns the commits that were acknowledged to it.
fn one_cycle(
    database: &Place,
    first_run: u64,
    name: &str,
    when: When,
    answer_early: bool,
    server: Option<&mut Cluster>,
) -> Result<Acknowledged, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(["victim", "--name", name, "--first-run", &first_run.to_string(), "--database"])
        .arg(database.to_string())
        .args(answer_early.then_some("--answer-early"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start the victim: {error}"))?;
    let result = watch(&mut child, name, when, server);
    // The victim must not outlive its cycle, even after an error.
    let _ = child.kill();
    child.wait().map_err(|error| error.to_string())?;
    result
}

fn watch(
    child: &mut Child,
    name: &str,
    when: When,
    server: Option<&mut Cluster>,
) -> Result<Acknowledged, String> {
    let output = child.stdout.take().ok_or("the victim has no output")?;
    let mut lines = BufReader::new(output).lines();
    let hello = lines
        .next()
        .ok_or("the victim ended without printing its name")?
        .map_err(|error| error.to_string())?;
    if hello != format!("{name} {}", child.id()) {
        return Err(format!(
            "the process under test printed `{hello}` instead of its name and id: not killed"
        ));
    }
    let (first, began) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let told = lines.map_while(Result::ok).inspect(|_| {
            let _ = first.send(());
        });
        told.collect::<Vec<_>>()
    });
    if when.after_first {
        began.recv_timeout(FIRST).map_err(|_| "the victim committed nothing within 60 s")?;
    }
    std::thread::sleep(when.then);
    if let Some(server) = server {
        server.kill()?;
        server.restart()?;
    }
    child.kill().map_err(|error| format!("cannot kill the victim: {error}"))?;
    let lines = reader.join().map_err(|_| "reading the victim's lines failed")?;
    let (mut count, mut acknowledged) = (0, BTreeMap::new());
    for line in &lines {
        // The kill may have truncated the last line; a number without the final `.` is not an acknowledgement.
        let Some((run, version)) = line.strip_suffix('.').and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let (Ok(run), Ok(version)) = (run.parse::<u64>(), version.parse::<u64>()) else { continue };
        let newest = acknowledged.entry(run).or_insert(version);
        *newest = version.max(*newest);
        count += 1;
    }
    Ok((count, acknowledged))
}

/// Opens the database as the next process would and checks every acknowledged run.
async fn verify(place: &Place, acknowledged: &BTreeMap<u64, u64>, tally: &mut Tally) -> Result<(), String> {
    let store = engines::open(place).await?;
    for (&number, &version) in acknowledged {
        verify_run(&*store, number, version, tally).await?;
    }
    Ok(())
}

async fn verify_run(
    store: &dyn Store,
    number: u64,
    acknowledged: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let scope = TenantScope::single();
    let run = run_id(number);
    let loaded = store.load(scope, run).await.map_err(|error| error.to_string())?;
    let Some(loaded) = loaded else {
        tally.lost += acknowledged + 1;
        return Ok(());
    };
    tally.lost += (acknowledged + 1).saturating_sub(loaded.head.version + 1);
    let mut expected = State::new(number);
    let mut from = 0;
    loop {
        let query = HistoryQuery { run, from, with_state: true, limit: 500 };
        let page = store.history(scope, query).await.map_err(|error| error.to_string())?;
        for row in &page.items {
            tally.found += 1;
            tally.gaps += u64::from(row.version > expected.version);
            tally.duplicates += u64::from(row.version < expected.version);
            tally.wrong_states += u64::from(row.state.as_ref() != Some(&expected.bytes()));
            expected.step();
        }
        match page.next.and_then(|next| next.parse().ok()) {
            Some(next) => from = next,
            None => break,
        }
    }
    tally.gaps += u64::from(expected.version != loaded.head.version + 1);
    Ok(())
}

fn run_id(number: u64) -> RunId {
    RunId::new(Uuid::from_u128(u128::from(number + 1) << 64))
}

/// Runs the victim: commits as fast as it can and prints every acknowledged commit, until it is killed.
pub(crate) fn victim(options: &Victim) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let store: Arc<dyn Store> = match &options.database {
        Place::Sqlite(path) => {
            // A short write-ahead log, so that some kills hit a checkpoint of the log into the database.
            let short_log = Options { wal_pages: 100, ..Options::default() };
            Arc::new(SqliteStore::open_with(path, short_log).map_err(|error| error.to_string())?)
        }
        place => runtime.block_on(engines::open(place))?,
    };
    say(&format!("{} {}\n", options.name, std::process::id()))?;
    let runs = options.first_run..options.first_run + WRITERS;
    let tasks: Vec<_> =
        runs.map(|number| runtime.spawn(work(store.clone(), number, options.answer_early))).collect();
    for task in tasks {
        runtime.block_on(task).map_err(|error| error.to_string())??;
    }
    Ok(())
}

async fn work(store: Arc<dyn Store>, number: u64, answer_early: bool) -> Result<(), String> {
    let scope = TenantScope::single();
    let now = Timestamp::from_millis(1_700_000_000_000);
    let (mut head, mut state) = where_it_is(&*store, number).await?;
    let mut script = Script::new(number << 20 | state.version);
    loop {
        let commit = match head.take() {
            None => script.create(run_id(number), &state, now),
            Some(head) => script.step(head, &state, now),
        };
        let answer = format!("{number} {}.\n", state.version);
        if answer_early {
            say(&answer)?;
        }
        let committed = match store.commit(scope, commit).await {
            Ok(committed) => committed,
            // The server died, or a commit that the previous victim had sent was applied only now: reload.
            Err(
                CommitError::Unknown { .. }
                | CommitError::Store(_)
                | CommitError::Refused(Refused::Moved { .. }),
            ) => {
                (head, state) = where_it_is(&*store, number).await?;
                continue;
            }
            Err(error) => return Err(error.to_string()),
        };
        if !answer_early {
            say(&answer)?;
        }
        head = committed.head.or_else(|| committed.created.into_iter().next());
        state.step();
    }
}

/// Returns the head of a run and the state of its next version.
async fn where_it_is(store: &dyn Store, number: u64) -> Result<(Option<Head>, State), String> {
    let loaded =
        store.load(TenantScope::single(), run_id(number)).await.map_err(|error| error.to_string())?;
    let head = loaded.map(|loaded| loaded.head);
    let mut state = State::new(number);
    let behind = head.as_ref().map_or(0, |head| head.version + 1);
    (0..behind).for_each(|_| state.step());
    Ok((head, state))
}

/// Prints one line in one write. A line shorter than a pipe's atomic size arrives complete or not at all.
fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}
