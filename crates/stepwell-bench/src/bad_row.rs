//! The `bad-row` workload: each kind of row is garbled or deleted behind the engine's back, one at a time. Only what the row
//! belongs to may suffer: the doctor names it, it can be removed, and everything else of the tenant goes on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::data::NewLink;
use stepwell::data::kv::List;
use stepwell::data::links::Listed;
use stepwell::store::{RunQuery, SweepWhat};
use stepwell::{ActionError, Cx, Diagnose, Engine, Event, Operator, Schedule, Signal, Start};
use stepwell_core::spec::Transition;
use stepwell_core::{Definition, Document, RunId, Spec};
use stepwell_store::{
    Commit, CommitId, Entity, HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite, Sweep,
};
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::site::{Place, Site};

/// Leaves a document and waits.
const BELL: &str = "
steps:
  - { id: note, type: action.call, action: note }
  - { id: go, type: wait.signal, signal: GO }
  - { id: done, type: control.return, value: { $expr: vars.go } }
";
/// Begins with an event.
const PAID: &str = "
triggers: [{ id: paid, type: event, eventName: PAID }]
steps:
  - { id: done, type: control.return, value: { $expr: payload } }
";
/// How long the runs sleep that are due while something is wrong.
const NAP_MS: u64 = 400;
/// How long anything may take that nothing is wrong with.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where to work.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where to work.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// A planted bug: what is garbled is not told of and not removed. It must be found, or this proves nothing.
    #[arg(long)]
    plant: bool,
    /// Every third case.
    #[arg(long)]
    short: bool,
    /// JSON only.
    #[arg(long)]
    json: bool,
}

/// What a row belongs to, and how that is removed.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// A run that waits for a signal.
    Bell,
    /// A run that is due soon.
    Nap,
    /// A run that is put aside and has a signal in its inbox.
    Kept,
    /// A schedule.
    Schedule,
    Key,
    Link,
    /// The definition of a workflow that a run waits in.
    Definition,
    /// Where a flow rests.
    Handle,
    /// What goes by itself, or is never to be changed.
    Nothing,
}

/// What is done to which row. In the statement `{run}` is the run's id, and `{07}` a byte.
struct Case {
    of: Of,
    table: &'static str,
    statement: &'static str,
}

const fn case(of: Of, table: &'static str, statement: &'static str) -> Case {
    Case { of, table, statement }
}

const CASES: &[Case] = &[
    case(Of::Nap, "runs", "update runs set status = 'odd' where id = {run}"),
    case(Of::Nap, "runs", "update runs set places = '{' where id = {run}"),
    case(Of::Nap, "runs", "update runs set definition = {07} where id = {run}"),
    case(Of::Bell, "runs", "update runs set definition = {07} where id = {run}"),
    case(Of::Bell, "waits", "delete from runs where id = {run}"),
    case(Of::Nap, "checkpoints", "update checkpoints set body = {07} where run = {run}"),
    case(Of::Bell, "checkpoints", "update checkpoints set body = {07} where run = {run}"),
    case(Of::Nap, "checkpoints", "delete from checkpoints where run = {run}"),
    case(Of::Bell, "checkpoints", "delete from checkpoints where run = {run}"),
    case(Of::Bell, "checkpoints", "update checkpoints set entry = {07} where run = {run}"),
    case(Of::Schedule, "checkpoints", "update checkpoints set body = {07} where run = {run}"),
    case(Of::Schedule, "runs", "update runs set definition = {07} where id = {run}"),
    case(Of::Kept, "inbox", "update inbox set body = {07} where run = {run}"),
    case(Of::Bell, "documents", "update documents set tags = '{' where run = {run}"),
    case(Of::Bell, "waits", "update waits set detail = {07} where run = {run}"),
    case(Of::Key, "cells", "update cells set value = '{' where key = 'victim'"),
    case(Of::Key, "cells", "update cells set value_type = 'odd' where key = 'victim'"),
    case(Of::Link, "links", "update links set attributes = '{' where from_id = 'victim'"),
    case(Of::Definition, "definitions", "update definitions set body = {07} where workflow = 'rare'"),
    case(Of::Definition, "definitions", "delete from definitions where workflow = 'rare'"),
    case(Of::Handle, "handles", "update handles set kind = 'odd'"),
    case(Of::Nothing, "idempotency", "update idempotency set request = {07} where key = 'victim'"),
    case(Of::Nothing, "seals", "update seals set rows = {07}"),
];

type Tried<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let begin = Instant::now();
    let (mut cases, mut wrong) = (0, Vec::new());
    let every = if options.short { 3 } else { 1 };
    // The first rows are put right by themselves.
    let first = if options.plant { 2 } else { 0 };
    for (number, case) in CASES.iter().enumerate().skip(first).step_by(every) {
        let place = site.place(&runtime, &format!("bad-row-{number}"))?;
        let tried = runtime.block_on(one(&place, case, options.plant));
        cases += 1;
        if let Err(error) = tried {
            let case = format!("{}: {error}", case.statement);
            eprintln!("WRONG {case}");
            wrong.push(case);
        } else if !options.json {
            eprintln!("right: {}", case.statement);
        }
        if options.plant {
            break;
        }
    }
    let line = json!({
        "workload": "bad-row", "store": options.store.name(), "planted": options.plant, "cases": cases,
        "wrong": wrong.len(), "seconds": begin.elapsed().as_secs_f64(),
    });
    println!("{line}");
    match wrong.first() {
        None => Ok(()),
        Some(case) => Err(format!("{} of {cases} cases: {case}", wrong.len())),
    }
}

fn rare() -> Result<Definition, String> {
    let document = Document::read(BELL, Some("rare")).map_err(|problems| problems.to_string())?;
    Ok(document.definition().clone())
}

async fn open(place: &Place, with_rare: bool) -> Result<Engine, String> {
    let mut builder = Engine::builder(engines::open(place).await?);
    for (name, text) in [("bell", BELL), ("paid", PAID)] {
        let document = Document::read(text, Some(name)).map_err(|problems| problems.to_string())?;
        builder = builder.workflow(document.definition().clone());
    }
    if with_rare {
        builder = builder.workflow(rare()?);
    }
    let wake = Transition::new("wake", "asleep", "awake").after_ms(NAP_MS);
    let nap = Spec::new("nap").step("asleep").end("awake").transition(wake).build();
    let note = |cx: Cx, _: Value| async move {
        cx.put_document("note", "text", &"hello", &["seen"])?;
        Ok::<_, ActionError>(Value::Null)
    };
    let builder = builder.workflow(nap.map_err(|error| error.to_string())?).action("note", note);
    builder.start().await.map_err(|error| error.to_string())
}

/// One row is garbled: what suffers, what is said of it, and how it goes.
async fn one(place: &Place, case: &Case, is_planted: bool) -> Tried {
    let engine = open(place, true).await?;
    let run = victim(&engine, case).await?;
    let bystanders =
        [engine.start(Start::new("nap")).await?.id(), engine.start(Start::new("bell")).await?.id()];
    // Nobody has in memory what is garbled.
    engines::close(engine).await;
    let due = Instant::now() + Duration::from_millis(NAP_MS * 3 / 2);
    garble(place, case.statement, run).await?;
    let engine = open(place, case.of != Of::Definition).await?;
    tokio::time::sleep_until(due.into()).await;

    let [nap, bell] = bystanders.map(|run| engine.run(run));
    tokio::time::timeout(PATIENCE, nap.result()).await.map_err(|_| "a timer did not fire")??;
    bell.signal(Signal::new("GO").with(&json!({"by": "ann"}))).await?;
    let result =
        tokio::time::timeout(PATIENCE, bell.result()).await.map_err(|_| "a signal was not taken")??;
    check(result["by"] == "ann", || format!("a bystander gave {result}"))?;
    everything(&engine, "before").await?;

    engine.diagnose(&Diagnose::default()).await?;
    let deep = Diagnose { deep: true, ..Diagnose::default() };
    if !is_planted {
        named(&engine.diagnose(&deep).await?, case, run)?;
        remove(&engine, case, run).await?;
    }
    let left = engine.diagnose(&deep).await?;
    // Nobody but the owner of the tables may change a definition or the audit trail.
    let stays = case.of == Of::Nothing || case.statement.starts_with("update definitions");
    let gone = !says(&left, case.table) || stays;
    check(gone, || format!("it is still there: {:?}", left.findings))?;
    everything(&engine, "after").await?;
    drop((nap, bell));
    engines::close(engine).await;
    Ok(())
}

fn check(is_right: bool, what: impl FnOnce() -> String) -> Tried {
    if is_right { Ok(()) } else { Err(what().into()) }
}

/// Makes what the row belongs to, and whatever else has rows.
async fn victim(engine: &Engine, case: &Case) -> Tried<Option<RunId>> {
    everything(engine, "first").await?;
    engine.kv("stock").set("victim", 1).await?;
    let (from, to) = (Entity::new("order", "victim"), Entity::new("person", "ann"));
    engine.links("crm").upsert(NewLink::new(from, to)).await?;
    engine.start(Start::new("bell").key("victim")).await?;
    let seal = Sweep { now: engine.now(), limit: 1_000, what: SweepWhat::Seal };
    engine.store().sweep(engine.scope(), seal).await?;
    handle(engine).await?;
    let rare = engine.start(Start::new("rare")).await?;
    let waiting = || async {
        let run = engine.start(Start::new("bell")).await?;
        while run.view().await?.status != stepwell::store::Status::Waiting {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, stepwell::EngineError>(run)
    };
    Ok(match case.of {
        Of::Nap => Some(engine.start(Start::new("nap")).await?.id()),
        Of::Bell => Some(waiting().await?.id()),
        Of::Kept => {
            let run = waiting().await?;
            engine.operate(run.id(), stepwell::Command::Suspend, &Operator::default()).await?;
            run.signal(Signal::new("GO").with(&json!({"by": "joe"}))).await?;
            Some(run.id())
        }
        Of::Schedule => Some(engine.put_schedule(Schedule::new("victim", "0 3 * * *", "bell")).await?.run),
        Of::Definition => Some(rare.id()),
        Of::Handle => Some(RunId::new(Uuid::from_u128(9))),
        Of::Key | Of::Link | Of::Nothing => None,
    })
}

/// A handle, as a flow would leave it.
async fn handle(engine: &Engine) -> Tried {
    let (handle, now) = (HandleHash([9; 32]), engine.now());
    let id = CommitId(Uuid::from_u128(9));
    let row = HandleRow {
        handle,
        kind: HandleKind::Flow,
        run: RunId::new(Uuid::from_u128(9)),
        workflow: "bell".into(),
        definition: rare()?.hash(),
        state: "{}".into(),
        expires_at: None,
        owner: None,
        fence: 0,
        deliver_at: None,
        delivery: None,
        created_at: now,
        created_by: None,
        updated_at: now,
        updated_by: None,
        commit: id,
    };
    let mut commit = Commit::new(id, now);
    let then = HandleChange::Put(Box::new(row), Vec::new());
    commit.handles.push(HandleWrite { handle, expected: None, then });
    engine.store().commit(engine.scope(), commit).await?;
    Ok(())
}

/// Behind everybody's back.
async fn garble(place: &Place, statement: &str, run: Option<RunId>) -> Result<(), String> {
    let id = run.map(RunId::uuid).unwrap_or_default();
    match place {
        Place::Sqlite(path) => {
            let statement =
                statement.replace("{run}", &format!("x'{}'", id.simple())).replace("{07}", "x'07'");
            let connection = rusqlite::Connection::open(path).map_err(|error| error.to_string())?;
            let count = connection.execute(&statement, []).map_err(|error| error.to_string())?;
            if count > 0 { Ok(()) } else { Err("no row was garbled".to_owned()) }
        }
        Place::Postgres(ground) => {
            let statement = statement.replace("{run}", &format!("'{id}'")).replace("{07}", r"'\x07'::bytea");
            let failed = |error: tokio_postgres::Error| format!("{error:?}");
            let (client, driver) = tokio_postgres::connect(ground.admin(), NoTls).await.map_err(failed)?;
            tokio::spawn(driver);
            let path = format!("set search_path to {}", ground.schema());
            client.batch_execute(&path).await.map_err(failed)?;
            let count = client.execute(&statement, &[]).await.map_err(failed)?;
            if count > 0 { Ok(()) } else { Err("no row was garbled".to_owned()) }
        }
    }
}

/// Everything else of the tenant works: lists answer, and what is written can be read.
async fn everything(engine: &Engine, name: &str) -> Tried {
    let kv = engine.kv("stock");
    kv.set(name, 2).await?;
    let listed = kv.list(List::default()).await?;
    check(listed.items.iter().any(|entry| entry.key == name), || "a key is not listed".to_owned())?;
    let (from, to) = (Entity::new("order", name), Entity::new("person", "ann"));
    engine.links("crm").upsert(NewLink::new(from, to)).await?;
    let links = engine.links("crm").list(Listed::default(), None, None).await?;
    check(links.items.iter().any(|link| link.edge.from().id() == name), || {
        "a link is not listed".to_owned()
    })?;
    engine.put_schedule(Schedule::new(name, "0 3 * * *", "bell")).await?;
    let schedules = engine.schedules_page(100, None).await?;
    let is_there = schedules.items.iter().any(|known| known.schedule.name == name);
    check(is_there, || "a schedule is not listed".to_owned())?;
    let began = engine.emit(Event::new("PAID").source("shop").id(name).with(&json!({"n": name}))).await?;
    let paid = RunQuery { workflow: Some("paid".into()), limit: 100, ..RunQuery::default() };
    let until = Instant::now() + PATIENCE;
    while !engine.event(began.event).await?.is_some_and(|event| event.is_delivered) {
        check(Instant::now() < until, || "an event was not delivered".to_owned())?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let runs = engine.store().runs(engine.scope(), paid).await?;
    check(!runs.items.is_empty(), || "an event began nothing".to_owned())?;
    let all = RunQuery { limit: 200, ..RunQuery::default() };
    engine.store().runs(engine.scope(), all).await?;
    let run = engine.start(Start::new("bell")).await?;
    run.signal(Signal::new("GO").with(&json!({"by": name}))).await?;
    let result = tokio::time::timeout(PATIENCE, run.result()).await.map_err(|_| "a run did not end")??;
    check(result["by"] == name, || format!("a run gave {result}"))
}

fn says(found: &stepwell::Diagnosis, table: &str) -> bool {
    let what = format!("table `{table}`");
    found
        .findings
        .iter()
        .any(|finding| finding.kind.word() == "rowsUnreadable" && finding.what.contains(&what))
}

/// The doctor says which row it is, and nothing of another table but what cannot be read without it.
fn named(found: &stepwell::Diagnosis, case: &Case, run: Option<RunId>) -> Tried {
    // What the row says of the run's status and places is put right, with the run put aside.
    let is_mended = case.table == "runs" && found.findings.iter().any(|one| one.kind.word() == "runsFailed");
    let is_said = says(found, case.table) || is_mended;
    check(is_said, || format!("the doctor does not say so: {:?}", found.findings))?;
    let kinds = ["rowsUnreadable", "runsFailed"];
    let unread = found.findings.iter().filter(|finding| kinds.contains(&finding.kind.word()));
    let examples: Vec<_> = unread.flat_map(|finding| &finding.examples).collect();
    let others: Vec<_> = examples.iter().filter(|one| one.run.is_some() && one.run != run).collect();
    check(others.is_empty(), || format!("others are named too: {others:?}"))?;
    if let Some(run) = run.filter(|_| case.of != Of::Definition) {
        check(examples.iter().any(|one| one.run == Some(run)), || format!("run {run} is not named"))?;
    }
    check(examples.iter().all(|one| !one.remedies.is_empty()), || "nobody says what to do".to_owned())
}

/// Takes it away as the doctor advises.
async fn remove(engine: &Engine, case: &Case, run: Option<RunId>) -> Tried {
    match (case.of, run) {
        (Of::Bell | Of::Nap | Of::Kept | Of::Schedule, Some(run)) => {
            // Whatever of the row can be read, it can be cancelled first.
            let cancelled = engine.cancel(run).await;
            let is_row = matches!(case.table, "runs") || case.statement.starts_with("delete from runs");
            let is_refused = is_row || case.of == Of::Schedule;
            check(cancelled.is_ok() || is_refused, || format!("it cannot be cancelled: {cancelled:?}"))?;
            engine.delete_run(run, &Operator::named("joe")).await?;
            check(engine.run(run).view().await.is_err(), || "it is still there".to_owned())?;
            if case.of == Of::Schedule {
                engine.put_schedule(Schedule::new("victim", "0 3 * * *", "bell")).await?;
            }
        }
        (Of::Handle, Some(run)) => engine.delete_run(run, &Operator::named("joe")).await?,
        (Of::Key, _) => check(engine.kv("stock").delete("victim").await?, || "not deleted".to_owned())?,
        (Of::Link, _) => {
            let gone = engine.links("crm").delete(Some(Entity::new("order", "victim")), None, None).await?;
            check(gone == 1, || format!("{gone} links were deleted"))?;
        }
        (Of::Definition, Some(run)) => {
            engine.register(rare()?)?;
            engine.start(Start::new("rare")).await?;
            engine.run(run).signal(Signal::new("GO").with(&json!({"by": "ann"}))).await?;
            let result = tokio::time::timeout(PATIENCE, engine.run(run).result()).await;
            result.map_err(|_| "a run of the definition that is there again does not go on")??;
        }
        _ => {}
    }
    Ok(())
}
