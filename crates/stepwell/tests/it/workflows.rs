//! The workflows of `examples/workflows`, each run through one scenario.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::{Definition, WorkflowSource};
use stepwell::data::NewLink;
use stepwell::engine::Builder;
use stepwell::host::BoxFuture;
use stepwell::store::{Entity, Status, TenantScope};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Changes, Cx, Run, Secrets, Signal, Simulation, Start};

use crate::kit::{self, error_code, places, status};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/workflows"))
}

/// Reads a workflow of the folder.
fn read(file: &str) -> Definition {
    let text = std::fs::read_to_string(folder().join(format!("{file}.yaml"))).unwrap();
    let document =
        WorkflowSource::read(&text, Some(file)).unwrap_or_else(|problems| panic!("{file}: {problems}"));
    document.definition().clone()
}

type Given = Result<Value, ActionError>;
type Does = Arc<dyn Fn(Value) -> Given + Send + Sync>;

/// A fake of every external action: it returns prepared results and records its calls.
#[derive(Clone, Default)]
struct Outside {
    does: BTreeMap<&'static str, Does>,
    asked: Arc<Mutex<Vec<(&'static str, Value)>>>,
}

impl Outside {
    fn with(mut self, name: &'static str, does: impl Fn(Value) -> Given + Send + Sync + 'static) -> Self {
        self.does.insert(name, Arc::new(does));
        self
    }

    fn asked(&self, name: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(action, _)| *action == name).map(|(_, input)| input.clone()).collect()
    }

    fn equip(&self, mut builder: Builder) -> Builder {
        for (name, does) in &self.does {
            let (name, does, asked) = (*name, does.clone(), self.asked.clone());
            builder = builder.action(name, move |_: Cx, input: Value| {
                asked.lock().unwrap().push((name, input.clone()));
                let given = does(input);
                async move { given }
            });
        }
        builder
    }
}

/// A mail action that always succeeds.
fn mail() -> Outside {
    Outside::default().with("email.send", |_| Ok(json!({"message_id": "<1@example.com>"})))
}

struct Token;

impl Secrets for Token {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let found = (name == "SOURCE_TOKEN").then(|| "bearer-of-news".to_owned());
        Box::pin(async move { Ok(found) })
    }
}

async fn engine(outside: &Outside, files: &[&str]) -> TestEngine {
    let build = |mut builder: Builder| {
        for file in files {
            builder = builder.workflow(read(file));
        }
        outside.equip(builder.secrets(Token).secret_fields("http.request", ["/headers"]))
    };
    kit::start(build).await.unwrap()
}

async fn start(engine: &TestEngine, workflow: &str, input: Value) -> Run {
    let run = engine.start(Start::new(workflow).input(&input)).await.unwrap();
    engine.settle().await;
    run
}

async fn signal(engine: &TestEngine, run: &Run, name: &str, payload: Value) {
    engine.signal(run.id(), Signal::new(name).with(&payload)).await.unwrap();
    engine.settle().await;
}

#[test]
fn every_example_is_valid_and_equal_in_yaml_and_json() {
    let mut count = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let read =
            WorkflowSource::read(&text, Some(&name)).unwrap_or_else(|problems| panic!("{name}: {problems}"));
        let again = WorkflowSource::read(&read.to_yaml(), Some(&name)).unwrap();
        assert_eq!(again.definition().hash(), read.definition().hash(), "{name}");
        let json = serde_json::to_string(read.value()).unwrap();
        let again = WorkflowSource::read(&json, Some(&name)).unwrap();
        assert_eq!(again.definition().hash(), read.definition().hash(), "{name}");
        count += 1;
    }
    assert!(count >= 12, "{count}");
}

#[tokio::test]
async fn every_example_passes_its_tests_and_covers_every_step() {
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let document = WorkflowSource::read(&text, Some(&name)).unwrap();
        assert!(!document.cases().is_empty(), "{name}");
        let report = Simulation::of(&document).test_all(document.cases()).await;
        for case in report.cases.iter().filter(|case| !case.passed) {
            wrong.push(format!("{name}: {}: {}", case.name, case.failures.join("; ")));
        }
        let uncovered = report.coverage.uncovered.iter().filter(|one| one.way.is_none());
        wrong.extend(uncovered.map(|one| format!("{name}: no case covers `{}`", one.step)));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Every document in the docs, complete or a list of steps, is valid and passes its own tests.
#[tokio::test]
async fn every_document_in_the_docs_is_valid() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text: String =
        ["workflows.md", "events.md"].map(|page| std::fs::read_to_string(docs.join(page)).unwrap()).concat();
    let blocks: Vec<_> =
        text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 5, "{}", blocks.len());
    for block in blocks {
        let text = if block.starts_with("- ") { format!("steps:\n{block}") } else { block.to_owned() };
        let shown = WorkflowSource::read(&text, Some("shown"));
        let shown = shown.unwrap_or_else(|problems| panic!("{problems}\n{block}"));
        let report = Simulation::of(&shown).test_all(shown.cases()).await;
        assert!(report.passed(), "{:#?}", report.cases);
    }
}

#[tokio::test]
async fn expense_is_approved_by_policy_manager_or_finance() {
    let outside = mail();
    let engine = engine(&outside, &["approval"]).await;
    let input = |cents: u32| json!({"employee": "ann", "cents": cents, "purpose": "a chair"});
    let small = start(&engine, "expense-approval", input(4_000)).await;
    assert_eq!(small.result().await.unwrap(), json!({"approved": true, "by": "policy"}));
    let asked = start(&engine, "expense-approval", input(9_000)).await;
    signal(&engine, &asked, "manager", json!({"approved": false, "note": "Sit."})).await;
    assert_eq!(asked.result().await.unwrap(), json!({"approved": false, "by": "people"}));
    assert_eq!(outside.asked("email.send")[0]["text"], json!("Sit."));
    let late = start(&engine, "expense-approval", input(9_000)).await;
    engine.advance(DAY * 2).await;
    assert_eq!(places(&late).await, ["finance"]);
    signal(&engine, &late, "finance", json!({"approved": true})).await;
    assert_eq!(late.result().await.unwrap(), json!({"approved": true, "by": "people"}));
}

#[tokio::test]
async fn order_is_shipped_or_rolled_back() {
    let reserve = |input: Value| Ok(json!({"reservation": format!("r-{}", input["sku"].as_str().unwrap())}));
    let outside = Outside::default()
        .with("stock.reserve", move |input| match input["sku"].as_str() {
            Some("sold-out") => Err(ActionError::new("outOfStock", "there is none left").non_retryable()),
            _ => reserve(input),
        })
        .with("stock.release", |_| Ok(json!({})))
        .with("payments.charge", |_| Ok(json!({"id": "c-1"})))
        .with("payments.refund", |_| Ok(json!({})))
        .with("shipping.book", |input| match input["order"].as_str() {
            Some("o-3") => Err(ActionError::new("noCourier", "no courier available").non_retryable()),
            _ => Ok(json!({"parcel": "p-1"})),
        });
    let engine = engine(&outside, &["order"]).await;
    let order = |id: &str, skus: &[&str]| {
        let lines: Vec<_> = skus.iter().map(|sku| json!({"sku": sku, "quantity": 1})).collect();
        json!({"order": id, "cents": 500, "lines": lines})
    };
    let well = start(&engine, "order", order("o-1", &["a", "b"])).await;
    assert_eq!(well.result().await.unwrap()["status"], json!("shipped"));
    let short = start(&engine, "order", order("o-2", &["a", "sold-out", "b"])).await;
    assert_eq!(short.result().await.unwrap()["reason"], json!("outOfStock"));
    assert_eq!(outside.asked("stock.release"), [json!({"reservation": "r-a"})]);
    let stuck = start(&engine, "order", order("o-3", &["a", "b"])).await;
    assert_eq!(stuck.result().await.unwrap()["reason"], json!("noCourier"));
    assert_eq!(outside.asked("payments.refund"), [json!({"charge": "c-1"})]);
    assert_eq!(outside.asked("stock.release").len(), 3);
}

#[tokio::test]
async fn customer_is_reminded_until_active_or_three_times() {
    let outside = mail();
    let engine = engine(&outside, &["onboarding"]).await;
    let input = json!({"customer": "c1", "email": "bob@example.com"});
    let soon = start(&engine, "onboarding", input.clone()).await;
    engine.advance(DAY * 3).await;
    signal(&engine, &soon, "CUSTOMER_ACTIVATED", json!({"customer": "c1"})).await;
    assert_eq!(soon.result().await.unwrap(), json!({"active": true}));
    assert_eq!(outside.asked("email.send").len(), 2);
    let never = start(&engine, "onboarding", input).await;
    for _ in 0..3 {
        engine.advance(DAY * 3).await;
    }
    assert_eq!(never.result().await.unwrap(), json!({"active": false}));
    assert_eq!(outside.asked("email.send").len(), 2 + 4);
    let count = engine.kv("tenant-onboarding").get("welcome-emails").await.unwrap().unwrap();
    assert_eq!(count.value, json!(2));
}

#[tokio::test]
async fn invoice_is_dunned_once_per_level_then_handed_over() {
    let outside = mail();
    let engine = engine(&outside, &["dunning", "collection"]).await;
    let input = json!({"invoice": "i-1", "email": "carl@example.com"});
    let paid = start(&engine, "dunning", input.clone()).await;
    engine.advance(DAY * 7).await;
    signal(&engine, &paid, "INVOICE_PAID", json!({"invoice": "i-1"})).await;
    assert_eq!(paid.result().await.unwrap(), json!({"paid": true, "level": 2}));
    assert_eq!(outside.asked("email.send").len(), 2);
    // The event comes again: reminders that were sent are not sent again.
    let again = start(&engine, "dunning", input).await;
    for days in [7, 14, 7] {
        engine.advance(DAY * days).await;
    }
    assert_eq!(again.result().await.unwrap(), json!({"paid": false}));
    assert_eq!(outside.asked("email.send").len(), 3);
    let handed = kit::runs_of(&engine, "collection").await;
    assert_eq!(handed.len(), 1);
    let collection = engine.run(handed[0].run);
    signal(&engine, &collection, "decide", json!({"decision": "write-off"})).await;
    assert_eq!(collection.result().await.unwrap(), json!("write-off"));
}

#[tokio::test]
async fn sync_continues_from_its_cursor_page_by_page() {
    let outside = Outside::default().with("http.request", |input| {
        assert_eq!(input["headers"]["authorization"], json!("bearer-of-news"));
        Ok(match input["query"]["since"].as_str() {
            Some("") => json!({"body": {"changes": [{"id": "a"}, {"id": "b"}], "next": "2", "more": true}}),
            Some("2") => json!({"body": {"changes": [{"id": "c"}], "next": "3", "more": false}}),
            _ => json!({"body": {"changes": [], "more": false}}),
        })
    });
    let engine = engine(&outside, &["cursor-sync"]).await;
    let first = start(&engine, "cursor-sync", json!({"source": "crm"})).await;
    assert_eq!(first.result().await.unwrap(), json!({"changes": 3}));
    let second = start(&engine, "cursor-sync", json!({"source": "crm"})).await;
    assert_eq!(second.result().await.unwrap(), json!({"changes": 0}));
    assert_eq!(outside.asked("http.request").len(), 3);
    assert_eq!(engine.kv("synced").get("c").await.unwrap().unwrap().value, json!({"id": "c"}));
}

#[tokio::test]
async fn task_gets_a_counterpart_that_follows_it() {
    let outside = Outside::default()
        .with("projects.create_task", |input| {
            Ok(json!({"task_id": format!("copy-of-{}", input["name"].as_str().unwrap())}))
        })
        .with("projects.update_task", |_| Ok(json!({"ok": true})));
    let engine = engine(&outside, &["link-setup", "task-mirror"]).await;
    for project in ["p1", "p2"] {
        let made = json!({"task_id": "t-1", "mirror_project_id": project, "name": format!("dig-{project}")});
        let run = start(&engine, "link-setup", made).await;
        assert_eq!(status(&run).await, Status::Completed);
    }
    start(&engine, "task-mirror", json!({"task_id": "t-1", "changes": {"name": "Dig deeper"}})).await;
    let mut updated: Vec<_> =
        outside.asked("projects.update_task").iter().map(|input| input["task_id"].to_string()).collect();
    updated.sort();
    assert_eq!(updated, ["\"copy-of-dig-p1\"", "\"copy-of-dig-p2\""]);
    let alone = start(&engine, "task-mirror", json!({"task_id": "t-9", "changes": {}})).await;
    assert_eq!(status(&alone).await, Status::Completed);
    assert_eq!(outside.asked("projects.update_task").len(), 2);
}

#[tokio::test]
async fn report_counts_regions_that_did_not_answer() {
    let outside = mail().with("http.request", |input| match input["url"].as_str() {
        Some("https://west.example.com/numbers") => {
            Err(ActionError::new("connect", "no route").non_retryable())
        }
        Some("https://north.example.com/numbers") => Ok(json!({"body": {"cents": 123_400}})),
        _ => Ok(json!({"body": {"cents": 5_000}})),
    });
    let engine = engine(&outside, &["fan-out-report"]).await;
    let input = json!({"regions": ["south", "west", "north"], "to": ["boss@example.com"]});
    let run = start(&engine, "fan-out-report", input).await;
    let expected = json!({"total": 128_400, "best": "north", "regions": "south, north", "missing": 1});
    assert_eq!(run.result().await.unwrap(), expected);
    assert_eq!(outside.asked("email.send")[0]["subject"], json!("Week total: 1,284.00"));
    // One region is a list of one item.
    let one = start(&engine, "fan-out-report", json!({"regions": ["north"], "to": ["b@example.com"]})).await;
    assert_eq!(one.result().await.unwrap()["regions"], json!("north"));
}

#[tokio::test]
async fn incident_escalates_until_acknowledged() {
    let outside = Outside::default().with("pager.call", |_| Ok(json!({})));
    let engine = engine(&outside, &["incident"]).await;
    let high = json!({"alert": "disk full", "severity": "high"});
    let run = start(&engine, "incident", high.clone()).await;
    engine.advance(Duration::from_secs(300)).await;
    signal(&engine, &run, "ACKNOWLEDGE", json!({"by": "dora"})).await;
    let called: Vec<_> = outside.asked("pager.call").iter().map(|input| input["who"].clone()).collect();
    assert_eq!(called, ["on-call", "team-lead"]);
    engine.advance(Duration::from_secs(4 * 3_600)).await;
    assert_eq!(run.result().await.unwrap(), json!({"owner": "dora", "late": true}));
    let unacknowledged = start(&engine, "incident", high).await;
    for _ in 0..3 {
        engine.advance(Duration::from_secs(300)).await;
    }
    assert_eq!(
        (status(&unacknowledged).await, error_code(&unacknowledged).await.as_deref()),
        (Status::Failed, Some("notAcknowledged"))
    );
}

#[tokio::test]
async fn draft_is_rewritten_until_its_author_accepts() {
    let outside = Outside::default().with("assistant.write", |input| {
        Ok(json!({"text": format!("On {}, {}", input["topic"].as_str().unwrap(), input["change"].as_str().unwrap())}))
    });
    let engine = engine(&outside, &["assistant-draft"]).await;
    let run = start(&engine, "assistant-draft", json!({"topic": "wells", "author": "eve"})).await;
    signal(&engine, &run, "review", json!({"accepted": false, "change": "shorter"})).await;
    signal(&engine, &run, "review", json!({"accepted": true})).await;
    assert_eq!(run.result().await.unwrap(), json!({"text": "On wells, shorter", "rounds": 2}));
}

#[tokio::test]
async fn project_is_set_up_completely_or_cleaned_up() {
    let polls = Arc::new(Mutex::new(0));
    let counted = polls.clone();
    let outside = mail()
        .with("cloud.create", |input| match (input["kind"].as_str(), input["project"].as_str()) {
            (Some("storage"), Some("broken")) => {
                Err(ActionError::new("quota", "quota exceeded").non_retryable())
            }
            (kind, _) => Ok(json!({"id": format!("{}-1", kind.unwrap())})),
        })
        .with("cloud.state", move |_| {
            let mut polls = counted.lock().unwrap();
            *polls += 1;
            Ok(json!({"ready": *polls >= 2}))
        })
        .with("cloud.delete", |_| Ok(json!({})));
    let engine = engine(&outside, &["provisioning", "invite-team"]).await;
    let member = |id: &str| NewLink::new(Entity::new("project", "wells"), Entity::new("person", id));
    let members =
        Changes::new().link("members", member("ann@example.com")).link("members", member("bob@example.com"));
    engine.write(members).await.unwrap();
    let run = start(&engine, "provisioning", json!({"project": "wells"})).await;
    for _ in 0..2 {
        engine.advance(Duration::from_secs(30)).await;
    }
    let expected = json!({"ready": true, "database": "database-1", "storage": "storage-1", "invited": 2});
    assert_eq!(run.result().await.unwrap(), expected);
    let broken = start(&engine, "provisioning", json!({"project": "broken"})).await;
    assert_eq!(broken.result().await.unwrap(), json!({"ready": false, "reason": "quota"}));
    assert_eq!(outside.asked("cloud.delete"), [json!({"project": "broken"})]);
}
