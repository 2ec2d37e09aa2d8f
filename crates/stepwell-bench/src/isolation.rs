//! The `isolation` workload: one tenant has data of every kind, and another tenant calls every function with the first
//! tenant's names and ids. The calls must find, change and count nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Mapping, Name, RunId, Spec};
use stepwell::data::{Changes, DataError, Increment, KeyList, Lookup, NewLink, Set};
use stepwell::store::{
    CellFilter, CellQuery, Direction, DocumentQuery, Entity, HistoryQuery, LinkFilter, LinkQuery,
    RecordQuery, RunFilter, RunQuery, Space, Status, TenantId, TenantScope, WaitFilter, WaitQuery,
};
use stepwell::{Command, Cx, Engine, EngineError, Operator, Schedule, Signal, Start};
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::site::Site;

/// Options of the `isolation` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Has no effect: the workload is always short.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no summary on standard error.
    #[arg(long)]
    json: bool,
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn tenant(number: u128) -> TenantScope {
    TenantScope::trusted(TenantId::new(Uuid::from_u128(number)))
}

/// The number of calls, and the names of those that found something.
#[derive(Debug, Default)]
struct Calls {
    calls: u64,
    found: Vec<String>,
}

impl Calls {
    /// Records a call that must have found nothing.
    fn nothing(&mut self, what: &str, is_nothing: bool) {
        self.calls += 1;
        if !is_nothing {
            self.found.push(what.to_owned());
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "two")?;
    let (calls, is_unchanged) = runtime.block_on(async {
        let store = engines::open(&place).await?;
        let engine = engine(store).await?;
        let result = two_tenants(&engine).await;
        engines::close(engine).await;
        result
    })?;
    let line = json!({
        "workload": "isolation",
        "store": options.store.name(),
        "calls": calls.calls,
        "found": calls.found.len(),
        "what": calls.found,
        "changed": u64::from(!is_unchanged),
    });
    if !options.json {
        eprintln!("{} calls", calls.calls);
    }
    println!("{line}");
    if calls.found.is_empty() && is_unchanged {
        Ok(())
    } else {
        Err("one tenant has seen or changed data of another".to_owned())
    }
}

async fn engine(store: std::sync::Arc<dyn stepwell::store::Store>) -> Result<Engine, String> {
    let work = |cx: Cx| async move {
        cx.put_document("report", "report", &json!({"of": "b"}), &["b"])?;
        cx.execution::<i64>("shared").increment(3)?;
        cx.workflow_scope::<i64>("seen").increment(1)?;
        cx.kv("stock").increment("by-run", 1)
    };
    let door = Spec::new("door")
        .initial("open")
        .signal("SHUT")
        .step("open")
        .step("waits")
        .end("shut")
        .transition(Transition::new("work", "open", "waits").action("work"))
        .transition(Transition::new("shut", "waits", "shut").on_signal("SHUT"));
    let builder = Engine::builder(store).workflow(door.build().map_err(failed)?).action("work", work);
    builder.start().await.map_err(failed)
}

/// Ids of the tenant that has data. The other tenant tries them.
struct Theirs {
    run: RunId,
    schedule_run: RunId,
}

async fn two_tenants(engine: &Engine) -> Result<(Calls, bool), String> {
    let (ours, theirs) = (engine.for_tenant(tenant(0xa)), engine.for_tenant(tenant(0xb)));
    let ids = furnish(&theirs).await?;
    let before = dump(&theirs).await?;
    let mut calls = Calls::default();
    reads(&ours, &ids, &mut calls).await?;
    data(&ours, &mut calls).await?;
    runs(&ours, &ids, &mut calls).await?;
    records(&ours, &mut calls).await?;
    let after = dump(&theirs).await?;
    Ok((calls, before == after))
}

async fn furnish(theirs: &Engine) -> Result<Theirs, String> {
    let run = theirs.start(Start::new("door").key("door-1")).await.map_err(failed)?;
    for _ in 0..500 {
        if run.view().await.map_err(failed)?.status == Status::Waiting {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let schedule = Schedule::new("nightly", "0 3 * * *", "door");
    let schedule_run = theirs.put_schedule(schedule).await.map_err(failed)?.run;
    let thing = |id: &str| Entity::new("task", id);
    let changes = Changes::new()
        .set("stock", "bolts", 500)
        .increment("stock", "count", Increment::by(41))
        .link("mirror", NewLink::new(thing("b-1"), thing("b-2")).relation("mirrors"))
        .once("import-1");
    theirs.write(changes).await.map_err(failed)?;
    theirs.state().workflow::<i64>("door", "slot").set(&7).await.map_err(failed)?;
    theirs.state().execution::<i64>(run.id(), "slot").set(&7).await.map_err(failed)?;
    let by = Operator::named("b");
    theirs.operate(run.id(), Command::Suspend, &by).await.map_err(failed)?;
    Ok(Theirs { run: run.id(), schedule_run })
}

/// Returns all data of a tenant as the store shows it.
async fn dump(of: &Engine) -> Result<BTreeMap<String, String>, String> {
    let (store, scope, now) = (of.store(), of.scope(), of.now());
    let mut all = BTreeMap::new();
    let runs = store.runs(scope, RunQuery { limit: 1_000, ..RunQuery::default() }).await.map_err(failed)?;
    for run in &runs.items {
        let history = HistoryQuery { run: run.run, from: 0, with_state: true, limit: 1_000 };
        let history = store.history(scope, history).await.map_err(failed)?;
        let loaded = store.load(scope, run.run).await.map_err(failed)?;
        all.insert(format!("run {}", run.run), format!("{run:?} {history:?} {loaded:?}"));
        let query = document_query(run.run);
        let documents = store.documents(scope, query).await.map_err(failed)?;
        all.insert(format!("documents {}", run.run), format!("{documents:?}"));
        let slots = cells(Space::Execution, &run.run.to_string(), now);
        all.insert(
            format!("slots {}", run.run),
            format!("{:?}", store.cells(scope, slots).await.map_err(failed)?),
        );
    }
    let waits =
        store.waits(scope, WaitQuery { limit: 1_000, ..WaitQuery::default() }).await.map_err(failed)?;
    all.insert("waits".to_owned(), format!("{waits:?}"));
    for (space, owner) in [(Space::Kv, "stock"), (Space::Workflow, "door")] {
        let found = store.cells(scope, cells(space, owner, now)).await.map_err(failed)?;
        all.insert(format!("cells {owner}"), format!("{found:?}"));
    }
    let links = store.links(scope, links()).await.map_err(failed)?;
    all.insert("links".to_owned(), format!("{links:?}"));
    let audit =
        store.records(scope, RecordQuery::Audit { limit: 1_000, cursor: None }).await.map_err(failed)?;
    all.insert("audit".to_owned(), format!("{audit:?}"));
    Ok(all)
}

fn document_query(run: RunId) -> DocumentQuery {
    DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: 1_000, cursor: None }
}

fn cells(space: Space, owner: &str, now: stepwell::core::Timestamp) -> CellQuery {
    let filter = CellFilter::Prefix(String::new());
    CellQuery {
        space,
        owner: owner.to_owned(),
        filter,
        now,
        include_deleted: true,
        limit: 1_000,
        cursor: None,
    }
}

fn links() -> LinkQuery {
    let which = LinkFilter::All { from: None, to: None };
    LinkQuery { namespace: "mirror".to_owned(), which, relation: None, limit: 1_000, cursor: None }
}

/// Calls the reading methods of the store.
async fn reads(ours: &Engine, theirs: &Theirs, calls: &mut Calls) -> Result<(), String> {
    let (store, scope, now) = (ours.store(), ours.scope(), ours.now());
    for run in [theirs.run, theirs.schedule_run] {
        calls.nothing("load", store.load(scope, run).await.map_err(failed)?.is_none());
        let history = HistoryQuery { run, from: 0, with_state: true, limit: 10 };
        calls.nothing("history", store.history(scope, history).await.map_err(failed)?.items.is_empty());
        let documents = store.documents(scope, document_query(run)).await.map_err(failed)?;
        calls.nothing("documents", documents.items.is_empty());
        let waits = WaitQuery { of: WaitFilter::Run(run), limit: 10, cursor: None };
        calls.nothing("waits of a run", store.waits(scope, waits).await.map_err(failed)?.items.is_empty());
        let children = RunQuery {
            filter: RunFilter { parent: Some(run), ..RunFilter::default() },
            limit: 10,
            ..RunQuery::default()
        };
        calls.nothing("children", store.runs(scope, children).await.map_err(failed)?.items.is_empty());
        let slots =
            store.cells(scope, cells(Space::Execution, &run.to_string(), now)).await.map_err(failed)?;
        calls.nothing("slots of a run", slots.items.is_empty());
    }
    for status in [None, Some(Status::Suspended), Some(Status::Waiting)] {
        let query = RunQuery {
            filter: RunFilter {
                workflow: Some(Name::from("door")),
                status: status.into_iter().collect(),
                ..RunFilter::default()
            },
            limit: 10,
            ..RunQuery::default()
        };
        calls.nothing("runs", store.runs(scope, query).await.map_err(failed)?.items.is_empty());
    }
    let waits = store.waits(scope, WaitQuery { limit: 10, ..WaitQuery::default() }).await.map_err(failed)?;
    calls.nothing("waits", waits.items.is_empty());
    for (space, owner) in [(Space::Kv, "stock"), (Space::Workflow, "door")] {
        let found = store.cells(scope, cells(space, owner, now)).await.map_err(failed)?;
        calls.nothing("cells", found.items.is_empty());
    }
    calls.nothing("links", store.links(scope, links()).await.map_err(failed)?.items.is_empty());
    Ok(())
}

/// Calls the functions for keys, links and slots with the names the other tenant uses.
async fn data(ours: &Engine, calls: &mut Calls) -> Result<(), String> {
    let kv = ours.kv("stock");
    calls.nothing("get", kv.get("bolts").await.map_err(failed)?.is_none());
    calls.nothing("list", kv.list(KeyList::default()).await.map_err(failed)?.items.is_empty());
    let namespaces = ours.kv_namespaces(None, None).await.map_err(failed)?;
    calls.nothing("namespaces of keys", namespaces.items.is_empty());
    calls.nothing("delete", !kv.delete("bolts").await.map_err(failed)?);
    let guess = kv.set_with("bolts", Set::new(1).if_revision(1)).await;
    calls.nothing("a guessed revision", matches!(guess, Err(DataError::Conflict { revision: 0, .. })));
    let written = kv.set_with("bolts", Set::new(1).if_revision(0)).await.map_err(failed)?;
    calls.nothing("set", written.created && written.revision == 1);
    let counted = kv.increment("count", 1).await.map_err(failed)?;
    calls.nothing("increment", counted.value.as_u64() == Some(1) && counted.revision == 1);

    let links = ours.links("mirror");
    let thing = |id: &str| Entity::new("task", id);
    for direction in [Direction::Forward, Direction::Reverse, Direction::Either] {
        for id in ["b-1", "b-2"] {
            let found = links.lookup(Lookup::of(thing(id)).direction(direction)).await.map_err(failed)?;
            calls.nothing("lookup", found.items.is_empty());
        }
    }
    let namespaces = ours.link_namespaces(None, None).await.map_err(failed)?;
    calls.nothing("namespaces of links", namespaces.items.is_empty());
    calls.nothing("types", links.types(None, None).await.map_err(failed)?.items.is_empty());
    calls.nothing("relations", links.relations(None, None).await.map_err(failed)?.items.is_empty());
    let gone = links.delete(Some(thing("b-1")), None, None).await.map_err(failed)?;
    calls.nothing("links deleted", gone == 0);
    let linked =
        links.upsert(NewLink::new(thing("b-1"), thing("b-2")).relation("mirrors")).await.map_err(failed)?;
    calls.nothing("upsert", linked.created);

    let slot = ours.state().workflow::<i64>("door", "slot");
    calls.nothing("workflow slot", slot.get().await.map_err(failed)?.is_none());
    calls.nothing("workflow slot, incremented", slot.increment(1).await.map_err(failed)? == 1);
    // Idempotency keys are per tenant: different changes under the other tenant's key are no conflict.
    let other = ours.write(Changes::new().set("stock", "other", 1).once("import-1")).await;
    calls.nothing("the key of a write", other.is_ok());
    Ok(())
}

fn is_no_run<T>(result: &Result<T, EngineError>) -> bool {
    matches!(result, Err(EngineError::NoRun(_)))
}

/// Calls the functions for runs with the other tenant's ids and idempotency keys.
async fn runs(ours: &Engine, theirs: &Theirs, calls: &mut Calls) -> Result<(), String> {
    let run = theirs.run;
    calls.nothing("view", is_no_run(&ours.run(run).view().await));
    calls.nothing("signal", is_no_run(&ours.signal(run, Signal::new("SHUT")).await));
    let slot = ours.state().execution::<i64>(run, "slot");
    calls.nothing("execution slot", slot.get().await.map_err(failed)?.is_none());
    let fields: Value = json!({"mine": true});
    let to = Name::from("shut");
    let commands = [
        Command::Retry,
        Command::Dismiss,
        Command::Cancel,
        Command::Suspend,
        Command::Resume,
        Command::Patch { fields },
        Command::Move { activation: None, to },
    ];
    let by = Operator::named("a");
    for command in commands {
        let what = format!("{command:?}");
        calls.nothing(&what, is_no_run(&ours.operate(run, command, &by).await));
    }
    calls.nothing("fork", is_no_run(&ours.fork(run, 0, &by).await));
    calls.nothing("migrate", is_no_run(&ours.migrate(run, 1, &Mapping::default(), &by, true).await));
    calls.nothing("schedule", ours.schedule("nightly").await.map_err(failed)?.is_none());
    calls.nothing("schedules", ours.schedules().await.map_err(failed)?.is_empty());
    calls.nothing("remove a schedule", ours.remove_schedule("nightly").await.is_err());
    let started = ours.start_once(Start::new("door").key("door-1")).await.map_err(failed)?;
    calls.nothing("the key of a start", started.is_new && started.run.id() != run);
    let same_id = ours.start(Start::new("door").id(run)).await.map_err(failed)?;
    calls.nothing("the id of a run", same_id.id() == run);
    Ok(())
}

/// Reads and verifies the audit trail.
async fn records(ours: &Engine, calls: &mut Calls) -> Result<(), String> {
    let page = ours.store().records(ours.scope(), RecordQuery::Audit { limit: 1_000, cursor: None });
    let is_theirs = |record: &stepwell::store::Record| matches!(record, stepwell::store::Record::Audit { row, .. } if row.actor.as_deref() == Some("b"));
    calls.nothing("audit", !page.await.map_err(failed)?.items.iter().any(is_theirs));
    let verified = ours.verify_audit().await.map_err(failed)?;
    calls.nothing("verify", verified.is_sound());
    Ok(())
}
