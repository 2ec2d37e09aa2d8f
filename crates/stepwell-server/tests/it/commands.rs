//! Signals and operators' commands over HTTP, each executed once under its key, and the event stream of a run.

use serde_json::{Value, json};
use stepwell::core::{Definition, Spec};

use crate::kit::{Reply, get, post};
use crate::site::Site;

/// A workflow in which `GO` leads from `here` back to `here`, and `END` leads to the end.
fn going() -> Definition {
    Spec::new("going")
        .step("here")
        .end("done")
        .signal("GO")
        .signal("END")
        .on_signal("go", "here", "GO", "here")
        .on_signal("end", "here", "END", "done")
        .initial("here")
        .build()
        .unwrap()
}

/// Opens a site and starts a run. Returns the site and the path of the run.
async fn with_run() -> (Site, String) {
    let site = Site::open_with(|builder| builder.workflow(going())).await;
    let started = site.post("/v1/runs", &json!({"workflow": "going"})).await;
    let path = started.header("location").to_owned();
    (site, path)
}

async fn version(site: &Site, path: &str) -> u64 {
    site.get(path).await.json()["version"].as_u64().unwrap()
}

fn is_replay(reply: &Reply) -> bool {
    assert!(reply.status.is_success(), "{reply:?}");
    reply.header("idempotency-replayed") == "true"
}

/// B10: signals with the same id are one signal.
#[tokio::test]
async fn a_signal_is_sent_once_under_its_key() {
    let (site, path) = with_run().await;
    let send = async |name: &str, payload: Value| {
        let ask = post(&format!("{path}/signals/{name}")).header("idempotency-key", "s-1");
        site.ask(ask.json(&payload)).await
    };
    let (first, again) = (send("GO", json!(1)).await, send("GO", json!(1)).await);
    assert_eq!((is_replay(&first), is_replay(&again), &first.body), (false, true, &again.body));
    assert_eq!(version(&site, &path).await, 1);
    send("GO", json!(2)).await.is(422, "keyReused");
    site.post(&format!("{path}/signals/END"), &json!(null)).await;
    assert!(is_replay(&send("GO", json!(1)).await), "also when the run has ended");
    let late = post(&format!("{path}/signals/GO")).header("idempotency-key", "s-2");
    site.ask(late).await.is(409, "ended");
}

/// B17: a command whose answer was lost can be repeated, even if the run has moved on or has ended.
#[tokio::test]
async fn a_command_is_executed_once_under_its_key() {
    let (site, path) = with_run().await;
    let command = async |word: &str, key: &str, body: Value| {
        let ask = post(&format!("{path}/{word}")).header("idempotency-key", key).header("if-match", "\"0\"");
        site.ask(ask.json(&body)).await
    };
    let patch = |n: i64| json!({"fields": {"n": n}});
    assert!(!is_replay(&command("patch", "k", patch(1)).await));
    let again = command("patch", "k", patch(1)).await;
    assert_eq!((again.status.as_u16(), is_replay(&again)), (204, true));
    command("patch", "k", patch(2)).await.is(422, "keyReused");
    command("patch", "other", patch(1)).await.is(412, "revisionConflict");
    assert_eq!(version(&site, &path).await, 1);

    let cancel = || post(&format!("{path}/cancel")).header("idempotency-key", "k");
    let fork = |version: u64| {
        let ask = post(&format!("{path}/fork")).header("idempotency-key", "f");
        ask.json(&json!({"version": version}))
    };
    let forked = site.ask(fork(0)).await;
    assert!(!is_replay(&site.ask(cancel()).await));
    assert!(is_replay(&site.ask(cancel()).await));
    site.ask(post(&format!("{path}/cancel"))).await.is(409, "wrongStatus");
    let again = site.ask(fork(0)).await;
    assert_eq!((again.status.as_u16(), &forked.body, is_replay(&again)), (201, &again.body, true));
    site.ask(fork(1)).await.is(422, "keyReused");
    site.as_other_tenant(cancel()).await.is(404, "noRun");
}

#[tokio::test]
async fn a_run_is_followed_from_a_version_until_it_ends() {
    let (site, path) = with_run().await;
    let follow = || get(&format!("{path}/events")).by(&site.ours);
    let mut events = follow().events(&site.router).await;
    let (id, name, data) = events.next().await.unwrap();
    assert_eq!((id, name.as_str(), &data["version"]), (Some(0), "checkpoint", &json!(0)));
    let (id, name, data) = events.next().await.unwrap();
    assert_eq!((id, name.as_str(), &data["status"]), (None, "status", &json!("waiting")));
    site.post(&format!("{path}/signals/GO"), &json!(7)).await;
    let (id, _, data) = events.next().await.unwrap();
    assert_eq!((id, &data["entry"]["payload"]), (Some(1), &json!(7)));
    let mut later = follow().header("last-event-id", "1").events(&site.router).await;
    site.post(&format!("{path}/signals/END"), &json!(null)).await;
    for events in [&mut events, &mut later] {
        let mut seen = Vec::new();
        while let Some((id, name, data)) = events.next().await {
            seen.push((id, name, data["status"].as_str().map(str::to_owned)));
        }
        let status = |seen: &(Option<u64>, String, Option<String>)| seen.2.as_deref() == Some("completed");
        assert!(
            seen.iter().any(|seen| seen.0 == Some(2)) && seen.iter().all(|seen| seen.0 != Some(1)),
            "{seen:?}"
        );
        assert!(status(seen.last().unwrap()), "{seen:?}");
    }
    follow().header("last-event-id", "x").to(&site.router).await.is(400, "malformedId");
    site.as_other_tenant(get(&format!("{path}/events"))).await.is(404, "noRun");
}
