//! A commit and the caller's own writes in one transaction: both or neither.

use std::sync::Arc;
use std::time::Duration;

use stepwell_postgres::PostgresStore;
use stepwell_postgres::test_schema::{ENGINE, TestSchema};
use stepwell_postgres::tokio_postgres::{Client, NoTls, Transaction, connect};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Commit, CommitError, Hint, Refused, Store};

use crate::raw::{client, soon, texts};

/// A database with a table of the caller, in a schema of the caller.
struct Shop {
    test_schema: TestSchema,
    store: Arc<PostgresStore>,
    make: make::Make,
    schema: String,
}

impl Shop {
    async fn open() -> Shop {
        let test_schema = crate::test_schema().await;
        let store = Arc::new(test_schema.open().await.unwrap());
        let schema = format!("{}_shop", test_schema.schema());
        let owner = client(&test_schema, test_schema.owner()).await;
        let table = format!(
            "create schema {schema}; create table {schema}.orders (id bigint primary key);
             grant usage on schema {schema} to {ENGINE}; grant select, insert on {schema}.orders to {ENGINE}"
        );
        owner.batch_execute(&table).await.unwrap();
        Shop { test_schema, store, make: make::Make::new(), schema }
    }

    /// Opens a connection of the caller whose search path is the shop's schema.
    async fn client(&self) -> Client {
        let (client, connection) = connect(self.test_schema.engine(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("set search_path = {}", self.schema)).await.unwrap();
        client
    }

    fn start(&self, number: u128) -> Commit {
        self.make.create(make::new_run(make::run(number)))
    }

    /// Returns the stored orders, and checks up to a number that each has its run and each run its order.
    async fn there(&self, up_to: u128) -> Vec<i64> {
        let client = self.client().await;
        let rows = client.query("select id from orders order by id", &[]).await.unwrap();
        let orders: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        for number in 1..=up_to {
            let found = ask::find(&*self.store, make::run(number)).await.is_some();
            assert_eq!(found, orders.contains(&(number as i64)), "order {number}");
        }
        orders
    }

    async fn refused(&self, transaction: &Transaction<'_>, commit: Commit) -> Refused {
        match soon(self.store.commit_in(transaction, make::ME, commit)).await {
            Err(CommitError::Refused(refused)) => refused,
            other => panic!("the commit should be refused: {other:?}"),
        }
    }
}

async fn order(transaction: &Transaction<'_>, number: i64) {
    transaction.execute("insert into orders (id) values ($1)", &[&number]).await.unwrap();
}

/// Returns the search path and the tenant of a transaction. An empty search path can be written in two ways.
async fn settings(client: &Client) -> Vec<String> {
    let sql = "select unnest(array[replace(current_setting('search_path'), '\"\"', ''),
                                   coalesce(current_setting('app.current_tenant', true), '')])";
    texts(client, sql).await
}

#[tokio::test]
async fn start_and_the_callers_row_are_both_stored_or_neither() {
    let shop = Shop::open().await;
    let mut client = shop.client().await;
    for number in 1..=2 {
        let own = client.transaction().await.unwrap();
        order(&own, number).await;
        let pending = soon(shop.store.commit_in(&own, make::ME, shop.start(number as u128))).await.unwrap();
        assert_eq!(pending.committed.created[0].run, make::run(number as u128));
        assert!(ask::find(&*shop.store, make::run(number as u128)).await.is_none(), "not yet");
        if number == 1 { own.commit().await.unwrap() } else { own.rollback().await.unwrap() }
    }
    // Drop the transaction in the middle, as if the caller panicked.
    let own = client.transaction().await.unwrap();
    order(&own, 3).await;
    let _ = soon(shop.store.commit_in(&own, make::ME, shop.start(3))).await.unwrap();
    drop(own);
    assert_eq!(shop.there(3).await, [1]);
}

#[tokio::test]
async fn commits_in_one_transaction_see_each_other() {
    let shop = Shop::open().await;
    let mut client = shop.client().await;
    let own = client.transaction().await.unwrap();
    let run = make::run(1);
    let start = Commit { documents: vec![make::put(run, "note", "new")], ..shop.start(1) };
    let head = soon(shop.store.commit_in(&own, make::ME, start)).await.unwrap().committed.created.remove(0);
    let step = shop.make.step(make::step(&head, "on"));
    let moved = soon(shop.store.commit_in(&own, make::ME, step)).await.unwrap().committed;
    assert_eq!(moved.head.unwrap().version, 1);
    for commit in [
        shop.make.send([make::to(run, "PAID")]),
        shop.make.write([make::set("stock", 7), make::increment("stock", 1)]),
        shop.make.link([make::upsert(1, make::edge("order/1", "of", "person/1"))]),
        Commit { audit: vec![make::audit("orders")], ..shop.make.commit() },
    ] {
        let _ = soon(shop.store.commit_in(&own, make::ME, commit)).await.unwrap();
    }
    assert!(ask::get(&*shop.store, "stock").await.is_none(), "not yet");
    order(&own, 1).await;
    own.commit().await.unwrap();
    assert_eq!(shop.there(1).await, [1]);
    assert_eq!(ask::load(&*shop.store, run).await.head.version, 1);
    assert_eq!(ask::topics(&*shop.store, run).await, ["PAID"]);
    assert_eq!(ask::get(&*shop.store, "stock").await.unwrap().value, Some(8.into()));
    assert_eq!(ask::shown(&*shop.store, run, None).await.len(), 1);
    assert_eq!(
        ask::all_audit(&*shop.store, make::ME, 10).await.len(),
        4,
        "two cells, a link and one of its own"
    );
    assert_eq!(ask::all_links(&*shop.store, make::ME, ask::links()).await.len(), 1);
    assert_eq!(ask::all_unsealed(&*shop.store, make::ME, 10).await.len(), 3);
    // The store can advance the run, although it did not create it.
    let head = ask::load(&*shop.store, run).await.head;
    assert_eq!(ask::moved(&*shop.store, shop.make.step(make::step(&head, "further"))).await.version, 2);
}

#[tokio::test]
async fn refused_commit_leaves_the_transaction_unchanged() {
    let shop = Shop::open().await;
    let head = ask::started(&*shop.store, shop.start(1)).await;
    ask::moved(&*shop.store, shop.make.step(make::step(&head, "elsewhere"))).await;
    let mut client = shop.client().await;
    let own = client.transaction().await.unwrap();
    order(&own, 1).await;
    let before = settings(own.client()).await;
    let again = Commit { cells: vec![make::set("stock", 7)], ..shop.start(1) };
    assert_eq!(shop.refused(&own, again).await, Refused::RunExists { run: head.run });
    let stale = Commit { cells: vec![make::set("stock", 7)], ..shop.make.step(make::step(&head, "here")) };
    assert!(matches!(shop.refused(&own, stale).await, Refused::Moved { .. }));
    let nowhere = shop.make.send([make::to(make::run(9), "PAID")]);
    assert!(matches!(shop.refused(&own, nowhere).await, Refused::NoTarget { .. }));
    let mut nul = shop.start(9);
    nul.create[0].workflow = "nul\0".into();
    assert!(matches!(shop.refused(&own, nul).await, Refused::Nul { .. }));
    assert_eq!(settings(own.client()).await, before);
    order(&own, 2).await;
    let _ = soon(shop.store.commit_in(&own, make::ME, shop.start(2))).await.unwrap();
    own.commit().await.unwrap();
    assert_eq!(shop.there(2).await, [1, 2]);
    assert!(ask::get(&*shop.store, "stock").await.is_none());
    assert_eq!(ask::load(&*shop.store, head.run).await.head.version, 1);
}

/// Two callers use one key at the same time. The second waits for the first and then knows its outcome.
#[tokio::test]
async fn one_of_two_transactions_with_the_same_key_wins() {
    for first_commits in [true, false] {
        let shop = Shop::open().await;
        let (mut first, mut second) = (shop.client().await, shop.client().await);
        let keyed = |number| Commit { keys: vec![make::key("once", 1)], ..shop.start(number) };
        let own = first.transaction().await.unwrap();
        order(&own, 1).await;
        let _ = soon(shop.store.commit_in(&own, make::ME, keyed(1))).await.unwrap();
        let (store, commit) = (shop.store.clone(), keyed(2));
        let mut task = tokio::spawn(async move {
            let own = second.transaction().await.unwrap();
            let result = store.commit_in(&own, make::ME, commit).await;
            if result.is_ok() {
                order(&own, 2).await;
            }
            own.commit().await.unwrap();
            result.map(|pending| pending.committed.created.len())
        });
        let early = tokio::time::timeout(Duration::from_millis(200), &mut task).await;
        assert!(early.is_err(), "the outcome of the first is not known yet: {early:?}");
        if first_commits {
            own.commit().await.unwrap();
        } else {
            own.rollback().await.unwrap();
        }
        let result = soon(task).await.unwrap();
        if first_commits {
            let Err(CommitError::Refused(Refused::Done { answer, .. })) = result else {
                panic!("{result:?}")
            };
            assert_eq!(answer, make::bytes("answer 1"));
            assert_eq!(shop.there(2).await, [1]);
        } else {
            assert_eq!(result, Ok(1));
            assert_eq!(shop.there(2).await, [2]);
        }
    }
}

/// Otherwise the caller's next statement would use Stepwell's search path, or another tenant.
#[tokio::test]
async fn settings_of_the_transaction_are_restored() {
    let shop = Shop::open().await;
    let paths = [
        format!("set search_path = {}, public", shop.schema),
        "reset search_path".to_owned(),
        "select pg_catalog.set_config('search_path', '', false)".to_owned(),
        "set search_path = \"Odd name\", \"$user\"".to_owned(),
    ];
    let tenants = ["reset app.current_tenant", "set app.current_tenant = 'it''s nobody'"];
    let mut client = shop.client().await;
    let mut number = 0;
    for path in &paths {
        for tenant in tenants {
            client.batch_execute(&format!("{path}; {tenant}")).await.unwrap();
            let before = settings(&client).await;
            let own = client.transaction().await.unwrap();
            number += 1;
            let made = soon(shop.store.commit_in(&own, make::ME, shop.start(number))).await;
            assert!(made.is_ok(), "{path}: {made:?}");
            assert_eq!(settings(own.client()).await, before, "after a commit");
            shop.refused(&own, shop.start(number)).await;
            assert_eq!(settings(own.client()).await, before, "after a refusal");
            own.commit().await.unwrap();
            assert_eq!(settings(&client).await, before, "after the transaction");
            ask::load(&*shop.store, make::run(number)).await;
        }
    }
}

/// Careful callers use `set search_path = ''`. The server returns it as a name that no `set` command accepts.
#[tokio::test]
async fn commit_works_with_an_empty_search_path() {
    let shop = Shop::open().await;
    let mut client = shop.client().await;
    client.batch_execute("set search_path = ''").await.unwrap();
    let before = settings(&client).await;
    let own = client.transaction().await.unwrap();
    let made = soon(shop.store.commit_in(&own, make::ME, shop.start(1))).await;
    assert!(made.is_ok(), "{made:?}");
    assert_eq!(settings(own.client()).await, before);
    own.commit().await.unwrap();
    ask::load(&*shop.store, make::run(1)).await;
}

#[tokio::test]
async fn tell_sends_the_hints_at_once() {
    let shop = Shop::open().await;
    let mut client = shop.client().await;
    let mut hints = shop.store.hints();
    let mut told = Vec::new();
    for number in 1..=2 {
        let own = client.transaction().await.unwrap();
        let start = shop.make.create(make::due_run(make::run(number), 0));
        told.push(soon(shop.store.commit_in(&own, make::ME, start)).await.unwrap());
        own.commit().await.unwrap();
    }
    // No hint is sent for the first commit.
    shop.store.notify(&told[1]);
    let heard = soon(async {
        loop {
            match hints.next().await {
                Some(Hint::Missed) => {}
                other => return other,
            }
        }
    });
    assert_eq!(heard.await, Some(Hint::Run(make::ME.run(make::run(2)))));
    let due = shop.store.due(Vec::new()).await.unwrap();
    assert_eq!(due.len(), 1, "polling finds both: {due:?}");
    assert_eq!(ask::taken(&*shop.store, ask::claim(make::process(1), 0)).await.len(), 2);
}
