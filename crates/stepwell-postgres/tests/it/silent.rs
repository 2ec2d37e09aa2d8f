//! Statements that span tenants and fail or do not end, as on a Citus cluster with a node that is down or silent.
//! Heartbeats do not depend on them.

use std::time::Duration;

use stepwell_core::Timestamp;
use stepwell_postgres::test_schema::TestSchema;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Claim, Heartbeat, ProcessId, Store, StoreError};

use crate::raw::{client, number, soon};

/// Fails in statements that span tenants.
const FAILS: &str = "1 / (length(current_setting('stepwell.sees', true)) - 3) = 0";
/// Does not end, in statements that span tenants.
const SLEEPS: &str = "pg_sleep(600)::text = 'over'";

/// A store without sessions: the leases alone decide which processes are alive.
async fn open(test_schema: &TestSchema, response_timeout: Duration) -> PostgresStore {
    let config = format!("{} application_name={}", test_schema.engine(), test_schema.schema());
    let options = Options { session: false, notify: false, response_timeout, ..test_schema.options() };
    PostgresStore::open_with(&config, options).await.unwrap()
}

/// Evaluates an expression in every statement that spans tenants, and in no other.
async fn in_spanning_statements(test_schema: &TestSchema, expression: &str) {
    let owner = client(test_schema, test_schema.owner()).await;
    for table in ["runs", "tenants"] {
        let spans = "current_setting('stepwell.sees', true) = 'due'";
        let using = format!("case when {spans} then {expression} else false end");
        owner.batch_execute(&format!("alter policy due on {table} using ({using})")).await.unwrap();
    }
}

fn beat(process: ProcessId, seconds: i64) -> Heartbeat {
    Heartbeat { process, now: make::at(seconds), lease_ms: 2_000 }
}

/// Lets a process own a run. Its lease ends two seconds later.
async fn owned(store: &PostgresStore, process: ProcessId) {
    ask::started(store, make::Make::new().create(make::due_run(make::run(1), 0))).await;
    store.heartbeat(beat(process, 0)).await.unwrap();
    let claim =
        Claim { by: Some(process), now: make::at(0), limit: 1, definitions: None, expired: Vec::new() };
    assert_eq!(store.claim(make::ME, claim).await.unwrap().items.len(), 1);
}

/// Returns the number of statements of the stores of this schema that are running.
async fn running(test_schema: &TestSchema) -> i64 {
    let admin = client(test_schema, test_schema.admin()).await;
    let active = "select count(*) from pg_stat_activity where state = 'active' and application_name";
    number(&admin, &format!("{active} = '{}'", test_schema.schema())).await
}

/// A heartbeat succeeds if the runs of expired processes cannot be searched. It reports those processes all the same.
#[tokio::test]
async fn heartbeat_tolerates_a_failing_search() {
    let test_schema = crate::test_schema().await;
    let store = open(&test_schema, Duration::from_secs(30)).await;
    let (gone, here) = (make::process(1), make::process(2));
    owned(&store, gone).await;
    in_spanning_statements(&test_schema, FAILS).await;
    assert!(store.due(Vec::new()).await.is_err(), "the search fails");
    let membership = soon(store.heartbeat(beat(here, 20))).await.unwrap();
    assert_eq!((membership.expired, membership.alive), (vec![gone], 1));
    let claim = Claim { by: Some(here), now: make::at(20), limit: 1, definitions: None, expired: vec![gone] };
    assert_eq!(store.claim(make::ME, claim).await.unwrap().items.len(), 1);
}

/// A past bug: a heartbeat waited for the search of all tenants, for longer than its lease.
#[tokio::test]
async fn heartbeat_does_not_wait_for_a_silent_search() {
    let test_schema = crate::test_schema().await;
    let store = open(&test_schema, Duration::from_secs(30)).await;
    let (gone, here) = (make::process(1), make::process(2));
    owned(&store, gone).await;
    in_spanning_statements(&test_schema, SLEEPS).await;
    for seconds in [20, 21] {
        let membership = soon(store.heartbeat(beat(here, seconds))).await.unwrap();
        assert_eq!((membership.expired, membership.alive), (vec![gone], 1));
        assert_eq!(running(&test_schema).await, 1, "one search still runs, and no second one was begun");
    }
}

/// A past bug: the query for due runs waited three times for a silent node.
#[tokio::test]
async fn silent_query_across_tenants_is_cancelled() {
    let test_schema = crate::test_schema().await;
    let store = open(&test_schema, Duration::from_secs(1)).await;
    owned(&store, make::process(1)).await;
    assert_eq!(store.due(vec![make::process(1)]).await.unwrap()[0].at, Timestamp::MIN);
    in_spanning_statements(&test_schema, SLEEPS).await;
    let (due, tenants) = soon(async { tokio::join!(store.due(Vec::new()), store.tenants(None, 10)) }).await;
    for error in [due.unwrap_err(), tenants.unwrap_err()] {
        let StoreError::Unavailable(why) = &error else { panic!("{error:?}") };
        assert!(why.contains("statement timeout"), "{why}");
    }
    assert_eq!(running(&test_schema).await, 0, "the server does not go on either");
}
