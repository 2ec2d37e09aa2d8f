//! Tests of the fault-injecting store: what a caller can find out after each fault.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell_store::suite::ask::{apply, claim, find, get, load, outcome, refuse, started, taken};
use stepwell_store::suite::make::{ME, Make, due_run, increment, key, new_run, process, run, step, to};
use stepwell_store::{
    Claim, Commit, CommitError, Fault, Faulty, KeyWrite, MemoryStore, Refused, Store, StoreError,
};

fn faulty(script: impl IntoIterator<Item = Fault>) -> Faulty<MemoryStore> {
    Faulty::new(MemoryStore::new(), script)
}

/// Sends a commit whose answer is lost. It may or may not have been applied.
async fn lost(store: &Faulty<MemoryStore>, commit: &Commit) {
    store.then(Fault::After);
    match store.commit(ME, commit.clone()).await {
        Err(CommitError::Unknown { reference, .. }) => assert_eq!(reference, commit.reference()),
        other => panic!("expected a lost answer, got {other:?}"),
    }
}

#[tokio::test]
async fn a_call_that_never_arrives_changes_nothing() {
    let store = faulty([Fault::Before]);
    let commit = Make::new().write([increment("k", 1)]);
    let failed = store.commit(ME, commit.clone()).await;
    assert!(matches!(failed, Err(CommitError::Store(StoreError::Unavailable(_)))), "{failed:?}");
    assert_eq!(get(&store, "k").await, None);
    assert_eq!(outcome(&store, &commit).await, None);
    apply(&store, commit).await;
    assert_eq!(get(&store, "k").await.unwrap().value, Some(json!(1)));
}

#[tokio::test]
async fn a_data_write_with_a_lost_answer_is_not_repeated() {
    let store = faulty([]);
    let commit = Make::new().write([increment("k", 1)]);
    lost(&store, &commit).await;
    let found = outcome(&store, &commit).await.expect("it was applied");
    assert_eq!(found.results[0].value, Some(json!(1)));
    assert!(matches!(refuse(&store, commit).await, Refused::Done { .. }));
    assert_eq!(get(&store, "k").await.unwrap().value, Some(json!(1)));
}

#[tokio::test]
async fn a_step_with_a_lost_answer_is_not_repeated() {
    let store = faulty([]);
    let make = Make::new();
    let head = started(&store, make.create(new_run(run(1)))).await;
    started(&store, make.create(new_run(run(2)))).await;
    let send = vec![to(run(2), "once")];
    let commit = Commit { send, cells: vec![increment("k", 1)], ..make.step(step(&head, "one")) };
    lost(&store, &commit).await;
    assert_eq!(outcome(&store, &commit).await.expect("it was applied").results.len(), 1);
    assert!(matches!(refuse(&store, commit).await, Refused::Moved { .. }));
    assert_eq!(load(&store, run(1)).await.head.version, 1);
    assert_eq!(load(&store, run(2)).await.inbox.len(), 1);
    assert_eq!(get(&store, "k").await.unwrap().revision, 1);
}

#[tokio::test]
async fn a_start_with_a_lost_answer_returns_the_same_run() {
    let store = faulty([]);
    let make = Make::new();
    let start = |number| {
        let answer = run(number).to_string().into();
        Commit { keys: vec![KeyWrite { answer, ..key("a", 1) }], ..make.create(new_run(run(number))) }
    };
    lost(&store, &start(1)).await;
    let Refused::Done { answer, .. } = refuse(&store, start(2)).await else {
        panic!("expected a repeated request")
    };
    assert_eq!(answer, run(1).to_string());
    assert_eq!(find(&store, run(2)).await, None);
}

#[tokio::test]
async fn a_lost_refusal_is_found_as_not_applied() {
    let store = faulty([]);
    let make = Make::new();
    let head = started(&store, make.create(new_run(run(1)))).await;
    apply(&store, make.step(step(&head, "one"))).await;
    let late = make.step(step(&head, "late"));
    lost(&store, &late).await;
    assert_eq!(outcome(&store, &late).await, None);
}

#[tokio::test]
async fn a_claim_with_a_lost_answer_is_taken_over_after_expiry() {
    let store = faulty([]);
    started(&store, Make::new().create(due_run(run(1), 0))).await;
    store.then(Fault::After);
    assert!(matches!(store.claim(ME, claim(process(1), 0)).await, Err(StoreError::Unavailable(_))));
    assert_eq!(load(&store, run(1)).await.head.owner, Some(process(1)), "it owns a run without knowing it");
    assert_eq!(taken(&store, claim(process(2), 0)).await, []);
    assert_eq!(taken(&store, Claim { expired: vec![process(1)], ..claim(process(2), 0) }).await, [run(1)]);
}

#[tokio::test]
async fn faults_follow_the_script() {
    let store = faulty([Fault::None, Fault::Before, Fault::After]);
    assert!(store.load(ME, run(1)).await.is_ok());
    assert!(store.load(ME, run(1)).await.is_err());
    assert!(store.load(ME, run(1)).await.is_err());
    assert!(store.load(ME, run(1)).await.is_ok());
    store.then(Fault::Before);
    assert!(store.due(Vec::new()).await.is_err());
    assert!(store.inner().due(Vec::new()).await.is_ok());
    assert!(store.due(Vec::new()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn delayed_calls_and_answers_arrive_late() {
    let hour = Duration::from_secs(3_600);
    for (fault, there_meanwhile) in [(Fault::Delay(hour), false), (Fault::DelayAnswer(hour), true)] {
        let store = Arc::new(faulty([fault]));
        let (caller, create) = (store.clone(), Make::new().create(new_run(run(1))));
        let call = tokio::spawn(async move { caller.commit(ME, create).await });
        tokio::time::sleep(hour / 2).await;
        assert!(!call.is_finished());
        assert_eq!(find(store.inner(), run(1)).await.is_some(), there_meanwhile, "{fault:?}");
        call.await.unwrap().expect("the commit is applied late");
        assert!(find(&store, run(1)).await.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_answer_times_out_and_is_looked_up() {
    let store = faulty([Fault::LoseAnswer]);
    let commit = Make::new().write([increment("k", 1)]);
    let silence = tokio::time::timeout(Duration::from_secs(60), store.commit(ME, commit.clone())).await;
    assert!(silence.is_err(), "{silence:?}");
    let found = outcome(&store, &commit).await.expect("it was applied");
    assert_eq!(found.results[0].value, Some(json!(1)));
}
