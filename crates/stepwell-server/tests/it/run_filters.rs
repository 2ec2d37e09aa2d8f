//! Filters, order, bounded pages and counts of runs, over HTTP and on the command line.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::shadow::Shadow;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, RunId, Spec};
use stepwell::store::{Commit, CommitId, NewRun, NextState, Status, TenantId, TenantScope};
use stepwell::{ActionError, Cx};
use uuid::Uuid;

use crate::cli::json as ran;
use crate::kit::post;
use crate::said;
use crate::serving::{dev, stepwell};
use crate::site::Site;

/// A workflow that waits for `PAY`; the action of that transition fails with the code in the run's data.
fn order(version: u32) -> Definition {
    Spec::new("order")
        .version(version)
        .step("open")
        .end("paid")
        .signal("PAY")
        .transition(Transition::new("pay", "open", "paid").on_signal("PAY").action("pay"))
        .initial("open")
        .shadow("city", Shadow::string("city"))
        .shadow("amount", Shadow::number("amount"))
        .build()
        .unwrap()
}

async fn pay(cx: Cx) -> Result<(), ActionError> {
    let state: Value = cx.state()?;
    match state["fails"].as_str() {
        Some(code) => Err(ActionError::new(code, "it failed")),
        None => Ok(()),
    }
}

async fn site() -> Site {
    Site::open_with(|builder| builder.workflow(order(1)).action("pay", pay)).await
}

/// Starts an order and returns its id.
async fn ordered(site: &Site, input: Value) -> String {
    let started = site.post("/v1/runs", &json!({"workflow": "order", "input": input})).await.json();
    started["id"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned()
}

/// Signals an order and waits until it has ended or failed.
async fn signalled(site: &Site, run: &str) {
    site.post(&format!("/v1/runs/{run}/signals/PAY"), &json!({})).await.json();
    let run = site.get(&format!("/v1/runs/{run}?wait=20s")).await.json();
    assert!(["failed", "completed"].contains(&run["status"].as_str().unwrap()), "{run}");
}

async fn page(site: &Site, query: &str) -> Value {
    site.get(&format!("/v1/runs?{query}")).await.json()
}

/// Lists runs and returns their ids.
async fn found(site: &Site, query: &str) -> Vec<String> {
    let page = page(site, query).await;
    let rows = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// Two orders that failed with different codes, a completed one and a waiting one, in this order.
async fn four(site: &Site) -> [String; 4] {
    let timeout = ordered(site, json!({"fails": "timeout", "city": "Bonn", "amount": 50})).await;
    let http = ordered(site, json!({"fails": "http.500", "city": "Boppard", "amount": 150})).await;
    let done = ordered(site, json!({"city": "Ulm", "amount": 250})).await;
    let open = ordered(site, json!({"city": "Ulm", "amount": 100})).await;
    for run in [&timeout, &http, &done] {
        signalled(site, run).await;
    }
    [timeout, http, done, open]
}

#[tokio::test]
async fn several_statuses_select_runs() {
    let site = site().await;
    let [timeout, http, done, open] = four(&site).await;
    let failed_or_done = [done.clone(), http.clone(), timeout.clone()];
    assert_eq!(found(&site, "status=failed&status=completed").await, failed_or_done);
    assert_eq!(found(&site, "status=waiting&status=failed&workflow=order").await, [open, http, timeout]);
    assert_eq!(found(&site, "status=suspended").await, Vec::<String>::new());
    let wrong = site.get("/v1/runs?status=failed&status=sleeping").await.is(400, "badParameter");
    let detail = wrong["detail"].as_str().unwrap();
    assert!(detail.contains("`status/1`") && detail.contains("\"sleeping\""), "{detail}");
    assert!(detail.contains("\"suspended\"") && detail.contains("\"cancelled\""), "{detail}");
}

#[tokio::test]
async fn time_range_selects_runs() {
    let site = site().await;
    let first = ordered(&site, json!({})).await;
    site.engine.advance(Duration::from_secs(3_600)).await;
    let second = ordered(&site, json!({})).await;
    let rows = page(&site, "order=asc").await;
    let at = |row: usize| rows["items"][row]["createdAt"].as_str().unwrap().to_owned();
    assert_eq!(found(&site, &format!("createdAfter={}", at(1))).await, std::slice::from_ref(&second));
    assert_eq!(found(&site, &format!("createdBefore={}", at(1))).await, std::slice::from_ref(&first));
    let both = format!("createdAfter={}&createdBefore={}", at(0), at(1));
    assert_eq!(found(&site, &both).await, std::slice::from_ref(&first));
    signalled(&site, &first).await;
    assert_eq!(found(&site, &format!("updatedAfter={}", at(1))).await, [second.clone(), first.clone()]);
    assert_eq!(found(&site, &format!("updatedBefore={}", at(1))).await, Vec::<String>::new());
    let shown = page(&site, "status=completed").await["items"][0].clone();
    assert_eq!(shown["endedAt"], shown["updatedAt"]);
    let empty = format!("/v1/runs?createdAfter={}&createdBefore={}", at(1), at(0));
    let refused = site.get(&empty).await.is(422, "invalid");
    assert!(refused["detail"].as_str().unwrap().contains("later than its start"), "{refused}");
    let wrong = site.get("/v1/runs?createdAfter=yesterday").await.is(400, "badParameter");
    assert!(wrong["detail"].as_str().unwrap().contains("createdAfter"), "{wrong}");
}

#[tokio::test]
async fn workflow_version_selects_runs() {
    let site = site().await;
    let first = ordered(&site, json!({})).await;
    site.engine.register(order(2)).unwrap();
    let second = ordered(&site, json!({})).await;
    assert_eq!(found(&site, "workflow=order&version=1").await, std::slice::from_ref(&first));
    assert_eq!(found(&site, "workflow=order&version=2").await, std::slice::from_ref(&second));
    assert_eq!(found(&site, "workflow=order&version=3").await, Vec::<String>::new());
    let row = page(&site, "workflow=order&version=2").await["items"][0].clone();
    assert_eq!(row["definitionVersion"], 2);
    let hash = row["definition"].as_str().unwrap();
    assert_eq!(found(&site, &format!("definition={hash}")).await, [second]);
    let alone = site.get("/v1/runs?version=1").await.is(422, "invalid");
    assert!(alone["detail"].as_str().unwrap().contains("name the workflow"), "{alone}");
    site.get("/v1/runs?definition=12ab").await.is(400, "badParameter");
}

#[tokio::test]
async fn error_code_selects_failed_runs() {
    let site = site().await;
    let [timeout, http, ..] = four(&site).await;
    assert_eq!(found(&site, "error=timeout").await, std::slice::from_ref(&timeout));
    assert_eq!(found(&site, "error=http.*").await, std::slice::from_ref(&http));
    assert_eq!(found(&site, "error=*&status=failed").await, [http.clone(), timeout.clone()]);
    assert_eq!(found(&site, "error=http").await, Vec::<String>::new());
    let rows = page(&site, "order=asc").await;
    let codes: Vec<_> =
        rows["items"].as_array().unwrap().iter().map(|row| row["errorCode"].clone()).collect();
    assert_eq!(codes, [json!("timeout"), json!("http.500"), Value::Null, Value::Null]);
    // A dismissed failure leaves no code.
    assert!(site.post(&format!("/v1/runs/{timeout}/dismiss"), &json!({})).await.status.is_success());
    assert_eq!(found(&site, "error=timeout").await, Vec::<String>::new());
}

#[tokio::test]
async fn id_prefix_selects_runs() {
    let site = site().await;
    let run = ordered(&site, json!({})).await;
    for length in [36, 20, 8, 1] {
        assert_eq!(found(&site, &format!("idPrefix={}", &run[..length])).await, std::slice::from_ref(&run));
    }
    assert_eq!(found(&site, "idPrefix=ffff").await, Vec::<String>::new());
    let wrong = site.get("/v1/runs?idPrefix=order").await.is(400, "badParameter");
    assert!(wrong["detail"].as_str().unwrap().contains("`idPrefix`"), "{wrong}");
    let wrong = site.get("/v1/runs?idPrefix=0-1").await.is(422, "invalid");
    assert!(wrong["detail"].as_str().unwrap().contains("`0-1` is not the beginning"), "{wrong}");
}

#[tokio::test]
async fn idempotency_key_selects_its_run() {
    let site = site().await;
    ordered(&site, json!({})).await;
    let body = json!({"workflow": "order"});
    let started = site.ask(post("/v1/runs").header("idempotency-key", "order-7").json(&body)).await.json();
    let keyed = found(&site, "idempotencyKey=order-7").await;
    assert_eq!(keyed, [started["id"].as_str().unwrap().to_owned()]);
    assert_eq!(found(&site, "idempotencyKey=order").await, Vec::<String>::new());
    assert_eq!(found(&site, "idempotencyKey=order-7&status=failed").await, Vec::<String>::new());
}

#[tokio::test]
async fn column_prefix_and_column_range_select_runs() {
    let site = site().await;
    let [timeout, http, done, open] = four(&site).await;
    let of = "workflow=order&where=";
    assert_eq!(found(&site, &format!("{of}city%5E%3DBo")).await, [timeout.clone(), http.clone()]);
    assert_eq!(found(&site, &format!("{of}amount%3E100")).await, [http.clone(), done.clone()]);
    assert_eq!(found(&site, &format!("{of}amount%3E100&order=desc")).await, [done, http.clone()]);
    assert_eq!(found(&site, &format!("{of}amount%3C%3D100&error=timeout")).await, [timeout]);
    let both = format!("{of}amount%3E%3D100&where=city%3DUlm&status=waiting&columns=true");
    let rows = page(&site, &both).await;
    assert_eq!((&rows["items"][0]["id"], &rows["items"][1]), (&json!(open), &Value::Null));
    assert_eq!(rows["items"][0]["columns"], json!({"amount": 100, "city": "Ulm"}));
}

#[tokio::test]
async fn order_of_runs_is_chosen() {
    let site = site().await;
    let mut runs = four(&site).await.to_vec();
    assert_eq!(found(&site, "order=asc").await, runs);
    let first = page(&site, "order=asc&limit=3").await;
    let next = first["nextCursor"].as_str().unwrap();
    assert_eq!(found(&site, &format!("order=asc&limit=3&cursor={next}")).await, [runs[3].clone()]);
    runs.reverse();
    assert_eq!(found(&site, "order=desc").await, runs);
    assert_eq!(found(&site, "").await, runs);
    site.get("/v1/runs?order=random").await.is(400, "badParameter");
}

/// Writes so many completed runs to the store, with one cancelled run before them. Returns the id of that run.
async fn crowd(site: &Site, runs: u128) -> String {
    let store = site.engine.store();
    let scope = TenantScope::trusted(TenantId::new(Uuid::from_u128(2)));
    let id = |number: u128| RunId::new(Uuid::from_u128((1 << 100) | number));
    for chunk in (0..=runs).collect::<Vec<_>>().chunks(500) {
        let mut commit = Commit::new(CommitId(Uuid::new_v4()), site.engine.now());
        commit.create.extend(chunk.iter().map(|number| NewRun {
            run: id(*number),
            workflow: "order".into(),
            definition: order(1).hash(),
            version: 0,
            first: NextState { state: "{}".into(), entry: "{}".into(), places: vec![] },
            status: if *number == 0 { Status::Cancelled } else { Status::Completed },
            error: None,
            wake: None,
            owner: None,
            parent: None,
            root: id(*number),
            ledger: None,
            open: vec![],
            shadows: vec![],
        }));
        store.commit(scope, commit).await.unwrap();
    }
    id(0).to_string()
}

#[tokio::test]
async fn bounded_read_ends_a_page_early() {
    let site = site().await;
    let oldest = crowd(&site, 5_010).await;
    let first = page(&site, "status=cancelled").await;
    assert_eq!(first["items"], json!([]), "5,000 rows are read, and none of them matches");
    let next = first["nextCursor"].as_str().unwrap();
    let second = page(&site, &format!("status=cancelled&cursor={next}")).await;
    assert_eq!((&second["items"][0]["id"], &second["nextCursor"]), (&json!(oldest), &Value::Null));
}

#[tokio::test]
async fn capped_counts_by_status() {
    let site = site().await;
    four(&site).await;
    let counts =
        async |query: &str| site.get(&format!("/v1/runs/counts?{query}")).await.json()["items"].clone();
    let of = |counts: &Value, status: &str| {
        let rows = counts.as_array().unwrap();
        let row = rows.iter().find(|row| row["status"] == status).unwrap_or_else(|| panic!("{counts}"));
        (row["count"].as_u64().unwrap(), row["more"].as_bool().unwrap())
    };
    let all = counts("").await;
    assert_eq!(all.as_array().unwrap().len(), 7, "{all}");
    assert_eq!(of(&all, "failed"), (2, false));
    assert_eq!(of(&all, "suspended"), (0, false));
    assert_eq!(
        counts("status=failed&error=http.*").await,
        json!([{"status": "failed", "count": 1, "more": false}])
    );
    let large = counts("workflow=order&where=amount%3E%3D100").await;
    assert_eq!((of(&large, "failed"), of(&large, "waiting")), ((1, false), (1, false)));
    crowd(&site, 1_200).await;
    assert_eq!(of(&counts("").await, "completed"), (1_000, true));
    site.get("/v1/runs/counts?status=none").await.is(400, "badParameter");
    site.get("/v1/runs/counts?limit=5").await.is(400, "unknownParameter");
}

#[test]
fn run_list_since_and_other_filters_select_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let all = |arguments: &[&str]| ran(folder.path(), &[arguments, &["--server", &url]].concat());
    let ids = |arguments: &[&str]| {
        let rows = all(&[&["run", "list", "--workflow", "tour"][..], arguments].concat())["items"].clone();
        rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let start = || {
        all(&["run", "start", "tour", "--input", r#"{"visitor": "ann"}"#])["id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (start(), start());
    let cancel = ["run", "cancel", &first, "--yes", "--server", &url];
    assert_eq!(said(&stepwell(folder.path()).args(cancel).output().unwrap()).0, Some(0));
    let both = [second.clone(), first.clone()];
    assert_eq!(ids(&["--since", "2h"]), both);
    assert_eq!(ids(&["--since", "2020-01-31", "--until", "2999-01-01T00:00:00Z"]), both);
    assert_eq!(ids(&["--until", "2h"]), Vec::<String>::new());
    assert_eq!(
        ids(&["--status", "cancelled,failed", "--updated-after", "PT1H"]),
        std::slice::from_ref(&first)
    );
    assert_eq!(ids(&["--id-prefix", &second, "--version", "1"]), std::slice::from_ref(&second));
    assert_eq!(ids(&["--order", "asc"]), [first.clone(), second.clone()]);
    assert_eq!(ids(&["--error", "timeout"]), Vec::<String>::new());
    let counts = all(&["run", "count", "--workflow", "tour", "--status", "cancelled"]);
    assert_eq!(counts["items"], json!([{"status": "cancelled", "count": 1, "more": false}]));
    let failure = |arguments: &[&str]| {
        let all = [&["run", "list"][..], arguments, &["--server", &url]].concat();
        let (code, _, err) = said(&stepwell(folder.path()).args(all).output().unwrap());
        assert!(matches!(code, Some(2 | 6)), "{err}");
        err
    };
    let wrong = failure(&["--since", "soon"]);
    assert!(wrong.contains("`--since`") && wrong.contains("`soon`") && wrong.contains("2h"), "{wrong}");
    let wrong = failure(&["--status", "sleeping"]);
    assert!(wrong.contains("`sleeping`") && wrong.contains("suspended, failed"), "{wrong}");
}

#[test]
fn run_list_where_selects_runs_by_their_columns() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let all = |arguments: &[&str]| ran(folder.path(), &[arguments, &["--server", &url]].concat());
    let column = "amount: { path: payload.amount, type: number }";
    let text = format!(
        "spec:\n  shadows: {{ {column} }}\n  steps: [{{ id: wait, type: wait.signal, signal: GO }}]\n"
    );
    std::fs::write(folder.path().join("priced.yaml"), text).unwrap();
    all(&["workflow", "apply", "priced.yaml"]);
    let start = |amount: i32| {
        let input = format!("{{\"amount\": {amount}}}");
        all(&["run", "start", "priced", "--input", &input])["id"].as_str().unwrap().to_owned()
    };
    let (_, large, larger) = (start(50), start(150), start(250));
    let ids = |arguments: &[&str]| {
        let rows = all(&[&["run", "list", "--workflow", "priced"][..], arguments].concat())["items"].clone();
        rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["--where", "amount>100"]), [large.clone(), larger.clone()]);
    assert_eq!(ids(&["--where", "amount>100", "--where", "amount<200"]), std::slice::from_ref(&large));
    assert_eq!(ids(&["--where", "amount>100", "--order", "desc", "--limit", "1"]), [larger]);
    let wrong =
        [&["run", "list", "--workflow", "priced", "--where", "total>100"][..], &["--server", &url]].concat();
    let (code, _, err) = said(&stepwell(folder.path()).args(wrong).output().unwrap());
    assert_eq!(code, Some(6), "{err}");
    assert!(err.contains("no shadow column `total`") && err.contains("`amount`"), "{err}");
}
