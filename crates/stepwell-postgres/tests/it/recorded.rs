//! A tenant whose row in the table `tenants` is lost behind a running store. Inserts take the tenant from that row, so
//! they would write nothing and report no error.

use stepwell_postgres::test_schema::TestSchema;
use stepwell_postgres::tokio_postgres::Client;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{
    Commit, CommitError, NewRun, Refused, RunUpdate, Store, StoreError, WaitFilter, WaitQuery,
};

use crate::raw::{client, number, soon};

/// A store that has recorded its tenant, and a connection that can delete the record.
struct Lost {
    test_schema: TestSchema,
    store: PostgresStore,
    make: make::Make,
    admin: Client,
}

impl Lost {
    async fn open(spread: bool) -> Lost {
        let test_schema = crate::test_schema().await;
        let options = Options { spread, ..test_schema.options() };
        let store = PostgresStore::open_with(test_schema.engine(), options).await.unwrap();
        let admin = client(&test_schema, test_schema.admin()).await;
        Lost { test_schema, store, make: make::Make::new(), admin }
    }

    async fn forget(&self) {
        assert_eq!(self.admin.execute("delete from tenants", &[]).await.unwrap(), 1);
    }

    async fn recorded(&self) -> i64 {
        number(&self.admin, "select count(*) from tenants").await
    }

    /// Makes it impossible to record the tenant again.
    async fn block(&self) {
        let block = "create function nothing() returns trigger language plpgsql as 'begin return null; end';
                     create trigger nothing before insert on tenants for each row execute function nothing()";
        self.admin.batch_execute(block).await.unwrap();
    }

    /// Returns the number of rows in all tables of tenants, except for `tenants`.
    async fn rows(&self) -> i64 {
        let tables = [
            "runs",
            "checkpoints",
            "documents",
            "inbox",
            "waits",
            "shadows",
            "handles",
            "cells",
            "links",
            "idempotency",
            "definitions",
            "audit",
            "unsealed",
        ];
        let counts: Vec<_> = tables.iter().map(|table| format!("(select count(*) from {table})")).collect();
        number(&self.admin, &format!("select {}", counts.join(" + "))).await
    }

    /// Returns a commit that writes to every table, about runs with this number.
    fn everything(&self, number: u8) -> Commit {
        let name = number.to_string();
        let (open, shadows) = (vec![make::wait(1)], vec![make::set_shadow("email", "ann")]);
        let new = NewRun { open, shadows, ..make::due_run(make::run(number.into()), 0) };
        Commit {
            documents: vec![make::put(new.run, "note", "hello")],
            definitions: vec![make::stored(&name)],
            audit: vec![make::audit("orders")],
            keys: vec![make::key(&name, 1)],
            handles: vec![make::put_handle(make::answer_link(number, new.run))],
            cells: vec![make::set(&name, 7)],
            links: vec![make::upsert(number.into(), make::edge(&format!("order/{name}"), "of", "person/1"))],
            send: vec![make::to(new.run, "PAID")],
            create: vec![new],
            ..self.make.commit()
        }
    }
}

#[tokio::test]
async fn plain_commits_record_a_lost_tenant_again() {
    for spread in [false, true] {
        let lost = Lost::open(spread).await;
        let start = |number| lost.make.create(make::due_run(make::run(number), 0));
        let head = ask::started(&lost.store, start(1)).await;
        lost.forget().await;
        ask::started(&lost.store, start(2)).await;
        assert_eq!(lost.store.due(Vec::new()).await.unwrap().len(), 1, "its runs are found again");
        lost.forget().await;
        let (open, shadows) = (vec![make::wait(1)], vec![make::set_shadow("email", "ann")]);
        let step = lost.make.step(RunUpdate { open, shadows, ..make::step(&head, "on") });
        let moved = ask::moved(&lost.store, step).await;
        assert_eq!(ask::load(&lost.store, head.run).await.head, moved);
        let query = WaitQuery { of: WaitFilter::Run(head.run), limit: 10, cursor: None };
        assert_eq!(lost.store.waits(make::ME, query).await.unwrap().items.len(), 1, "the step opened a wait");
        assert_eq!(number(&lost.admin, "select count(*) from shadows").await, 1);
        // A refusal stays a refusal.
        lost.forget().await;
        let stale = lost.store.commit(make::ME, lost.make.step(make::step(&head, "late"))).await;
        assert!(matches!(stale, Err(CommitError::Refused(Refused::Moved { .. }))), "{stale:?}");
        let taken = lost.store.commit(make::ME, start(2)).await;
        assert!(matches!(taken, Err(CommitError::Refused(Refused::RunExists { .. }))), "{taken:?}");
    }
}

#[tokio::test]
async fn planned_commits_record_a_lost_tenant_again() {
    for spread in [false, true] {
        let lost = Lost::open(spread).await;
        soon(lost.store.commit(make::ME, lost.everything(1))).await.unwrap();
        let rows = lost.rows().await;
        lost.forget().await;
        soon(lost.store.commit(make::ME, lost.everything(2))).await.unwrap();
        assert_eq!((lost.recorded().await, lost.rows().await), (1, 2 * rows));
        lost.forget().await;
        ask::apply(&lost.store, lost.make.write([make::set("1", 8)])).await;
        assert_eq!(number(&lost.admin, "select count(*) from cells where value = '8'").await, 1);
    }
}

/// A commit is never acknowledged without its rows, and never stored in part.
#[tokio::test]
async fn commits_fail_completely_if_the_tenant_cannot_be_recorded() {
    for spread in [false, true] {
        let lost = Lost::open(spread).await;
        soon(lost.store.commit(make::ME, lost.everything(1))).await.unwrap();
        let head = ask::load(&lost.store, make::run(1)).await.head;
        let rows = lost.rows().await;
        lost.forget().await;
        lost.block().await;
        let used = lost.make.handle([make::delete_handle(1, 1)]);
        let both = Commit { cells: vec![make::set("bolts", 1)], ..used };
        let step = lost.make.step(make::step(&head, "on"));
        let new = lost.make.create(make::new_run(make::run(9)));
        for commit in [lost.everything(2), both, step, new] {
            let error = soon(lost.store.commit(make::ME, commit)).await.unwrap_err();
            let CommitError::Store(StoreError::Unavailable(why)) = &error else { panic!("{error:?}") };
            assert!(why.contains("`tenants`"), "{why}");
            assert_eq!(lost.rows().await, rows, "spread: {spread}");
        }
    }
}

#[tokio::test]
async fn own_transaction_continues_if_the_tenant_cannot_be_recorded() {
    let lost = Lost::open(false).await;
    soon(lost.store.commit(make::ME, lost.everything(1))).await.unwrap();
    let rows = lost.rows().await;
    lost.forget().await;
    let mut caller = client(&lost.test_schema, lost.test_schema.engine()).await;
    let transaction = caller.transaction().await.unwrap();
    let pending = soon(lost.store.commit_in(&transaction, make::ME, lost.everything(2))).await.unwrap();
    transaction.commit().await.unwrap();
    lost.store.notify(&pending);
    assert_eq!(lost.rows().await, 2 * rows);
    lost.forget().await;
    lost.block().await;
    let transaction = caller.transaction().await.unwrap();
    let error = soon(lost.store.commit_in(&transaction, make::ME, lost.everything(3))).await.unwrap_err();
    assert!(matches!(&error, CommitError::Store(StoreError::Unavailable(_))), "{error:?}");
    transaction.execute("select 1", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(lost.rows().await, 2 * rows);
}
