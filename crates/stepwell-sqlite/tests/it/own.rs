//! A commit and the caller's own writes in one transaction: both or neither, without effects on other commits.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use stepwell_sqlite::rusqlite::{self, Connection};
use stepwell_sqlite::{SqliteStore, WithError};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Commit, CommitError, Committed, Hint, NewRun, Refused, Store, StoreError};

/// A database with a table of the caller.
struct Shop {
    _folder: tempfile::TempDir,
    path: PathBuf,
    store: Arc<SqliteStore>,
    make: make::Make,
}

type Own = Box<dyn FnMut(&Connection, &Committed) -> rusqlite::Result<i64> + Send>;
type Answer = Result<(Committed, i64), WithError>;

impl Shop {
    async fn open() -> Shop {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.sqlite");
        let (store, make) = (Arc::new(SqliteStore::open(&path).unwrap()), make::Make::new());
        let table = "create table orders (id integer primary key) strict";
        store.commit_with(make::ME, make.commit(), |own, _| own.execute_batch(table)).await.unwrap();
        Shop { _folder: folder, path, store, make }
    }

    fn start(&self, number: u128) -> Commit {
        self.make.create(make::new_run(make::run(number)))
    }

    async fn with(&self, commit: Commit, own: Own) -> Answer {
        self.store.commit_with(make::ME, commit, own).await
    }

    /// Runs all of them in one transaction, by blocking the writer until all are queued.
    async fn together(&self, works: Vec<(Commit, Option<Own>)>) -> Vec<Answer> {
        let (open, gate) = channel::<()>();
        let waits = move |_: &Connection, _: &Committed| {
            let _ = gate.recv();
            Ok(0)
        };
        let sent = Arc::new(AtomicUsize::new(0));
        let spawn = |commit: Commit, own: Option<Own>| {
            let (store, sent) = (self.store.clone(), sent.clone());
            tokio::spawn(async move {
                sent.fetch_add(1, Ordering::Relaxed);
                match own {
                    Some(own) => store.commit_with(make::ME, commit, own).await,
                    None => Ok((store.commit(make::ME, commit).await?, 0)),
                }
            })
        };
        let mut tasks = vec![spawn(self.make.commit(), Some(Box::new(waits)))];
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let all = works.len() + 1;
        tasks.extend(works.into_iter().map(|(commit, own)| spawn(commit, own)));
        // The runtime has one thread, so a task that has counted itself has also sent its commit.
        while sent.load(Ordering::Relaxed) < all {
            tokio::task::yield_now().await;
        }
        drop(open);
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        answers.remove(0).unwrap();
        answers
    }

    /// Returns the stored orders, and checks up to a number that each has its run and each run its order.
    async fn there(&self, up_to: u128) -> Vec<i64> {
        let orders = orders(&self.path);
        for number in 1..=up_to {
            let found = ask::find(&*self.store, make::run(number)).await.is_some();
            assert_eq!(found, orders.contains(&(number as i64)), "order {number}");
        }
        orders
    }
}

fn orders(path: &PathBuf) -> Vec<i64> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare("select id from orders order by id").unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

fn order(number: u128) -> Own {
    Box::new(move |own, _| {
        own.execute("insert into orders (id) values (?1)", [number as i64])?;
        own.query_row("select count(*) from orders where id = ?1", [number as i64], |row| row.get(0))
    })
}

/// Inserts an order and then runs these statements.
fn order_and(number: u128, sql: &'static str) -> Own {
    let mut order = order(number);
    Box::new(move |own, committed| {
        let found = order(own, committed)?;
        own.execute_batch(sql).map(|()| found)
    })
}

#[tokio::test]
async fn commits_of_all_kinds_are_stored_with_the_own_writes() {
    let shop = Shop::open().await;
    let mut hints = shop.store.hints();
    let new = NewRun { wake: Some(make::at(0)), ..make::new_run(make::run(1)) };
    let (committed, found) = shop.with(shop.make.create(new), order(1)).await.unwrap();
    assert_eq!(found, 1, "it reads what it has written");
    assert_eq!(hints.next().await, Some(Hint::Run(make::ME.run(make::run(1)))));
    let head = committed.created[0].clone();
    let step = shop.make.step(make::step(&head, "on"));
    let told: Own = Box::new(move |own, committed| {
        let version = committed.head.as_ref().unwrap().version as i64;
        own.execute("insert into orders (id) values (?1 + 9)", [version])?;
        Ok(version)
    });
    let (moved, version) = shop.with(step, told).await.unwrap();
    assert_eq!(version, 1, "it gets the result of the commit");
    shop.with(shop.make.send([make::to(make::run(1), "PAID")]), order(11)).await.unwrap();
    shop.with(shop.make.write([make::set("stock", 7)]), order(12)).await.unwrap();

    let Shop { _folder, path, store, .. } = shop;
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(orders(&path), [1, 10, 11, 12]);
    assert_eq!(ask::load(&store, make::run(1)).await.head.version, moved.head.unwrap().version);
    assert_eq!(ask::topics(&store, make::run(1)).await, ["PAID"]);
    assert!(ask::get(&store, "stock").await.is_some());
}

#[tokio::test]
async fn error_rolls_back_commit_and_own_writes() {
    let shop = Shop::open().await;
    let mut hints = shop.store.hints();
    let due =
        |number| shop.make.create(NewRun { wake: Some(make::at(0)), ..make::new_run(make::run(number)) });
    let fails = order_and(1, "create table invoices (x); insert into orders (id) values (1)");
    let error = shop.with(due(1), fails).await.unwrap_err();
    let WithError::Own(rusqlite::Error::SqliteFailure(code, _)) = &error else { panic!("{error}") };
    assert_eq!(code.code, rusqlite::ErrorCode::ConstraintViolation);
    let own_words: Own = Box::new(|_, _| Err(rusqlite::Error::InvalidParameterName("no stock".to_owned())));
    let error = shop.with(due(2), own_words).await.unwrap_err();
    assert!(error.to_string().contains("no stock"), "{error}");
    assert!(shop.there(2).await.is_empty());
    shop.with(due(3), order_and(3, "create table invoices (x)")).await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Run(make::ME.run(make::run(3)))), "no hint of the others");
    assert_eq!(shop.there(3).await, [3]);
}

#[tokio::test]
async fn refused_commit_does_not_call_the_function() {
    let shop = Shop::open().await;
    let head = ask::started(&*shop.store, shop.start(1)).await;
    ask::moved(&*shop.store, shop.make.step(make::step(&head, "elsewhere"))).await;
    let stale = shop.make.step(make::step(&head, "here"));
    let error = shop.with(stale, Box::new(|_, _| panic!("called"))).await.unwrap_err();
    let WithError::Commit(CommitError::Refused(Refused::Moved { .. })) = &error else { panic!("{error}") };
    let mut bad = shop.start(2);
    bad.create[0].workflow = "nul\0".into();
    let error = shop.with(bad, Box::new(|_, _| panic!("called"))).await.unwrap_err();
    assert!(matches!(&error, WithError::Commit(CommitError::Refused(_))), "{error}");
    shop.with(shop.start(3), order(3)).await.unwrap();
    assert_eq!(orders(&shop.path), [3]);
}

#[tokio::test]
async fn failing_function_affects_only_its_own_commit() {
    let shop = Shop::open().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let works = (1..=60_u128).map(|number| {
        let (mut order, calls) = (order(number), calls.clone());
        let own: Own = Box::new(move |own, committed| {
            calls.fetch_add(1, Ordering::Relaxed);
            let found = order(own, committed)?;
            if number % 2 == 0 { Err(rusqlite::Error::InvalidQuery) } else { Ok(found) }
        });
        (shop.start(number), Some(own))
    });
    let plain = (61..=80).map(|number| (shop.start(number), None));
    let works = works.chain(plain).collect();
    for (number, answer) in (1..).zip(shop.together(works).await) {
        match answer {
            Ok(_) => assert!(number % 2 == 1 || number > 60, "{number}"),
            Err(WithError::Own(rusqlite::Error::InvalidQuery)) => assert!(number % 2 == 0, "{number}"),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(calls.load(Ordering::Relaxed), 60, "no batch had to be tried again");
    assert_eq!(shop.there(60).await, (1..=60).step_by(2).collect::<Vec<_>>());
    for number in 61..=80 {
        ask::load(&*shop.store, make::run(number)).await;
    }
}

/// Otherwise a function could commit the transaction itself, with half of the batch in it.
#[tokio::test]
async fn forbidden_statement_affects_only_its_own_commit() {
    let shop = Shop::open().await;
    let tries = [
        ("commit", "transaction"),
        ("rollback", "transaction"),
        ("begin", "transaction"),
        ("savepoint stepwell_own", "transaction"),
        ("release stepwell_own", "transaction"),
        ("attach ':memory:' as other", "attach"),
        ("pragma synchronous = off", "pragma synchronous"),
        ("update runs set fence = fence + 1", "`runs`"),
        ("delete from stepwell_migrations", "`stepwell_migrations`"),
        ("create temp table runs (x)", "temporary"),
    ];
    let mut works = Vec::new();
    for (number, (sql, _)) in (1_u128..).zip(tries) {
        works.push((shop.start(2 * number - 1), Some(order(2 * number - 1))));
        works.push((shop.start(2 * number), Some(order_and(2 * number, sql))));
    }
    let answers = shop.together(works).await;
    for (pair, (sql, named)) in answers.chunks(2).zip(tries) {
        assert!(pair[0].is_ok(), "{sql}");
        let Err(WithError::Forbidden { what }) = &pair[1] else { panic!("{sql}: {:?}", pair[1]) };
        assert!(what.contains(named), "{sql}: {what}");
        assert!(pair[1].as_ref().unwrap_err().to_string().contains("the caller's own tables"));
    }
    let odd: Vec<i64> = (1..=20).step_by(2).collect();
    assert_eq!(shop.there(20).await, odd);
    // The same if the function ignores the error and continues.
    let mut careless = order(21);
    let careless: Own = Box::new(move |own, committed| {
        let _ = own.execute_batch("commit");
        careless(own, committed)
    });
    let error = shop.with(shop.start(21), careless).await.unwrap_err();
    assert!(matches!(error, WithError::Forbidden { .. }), "{error}");
    assert_eq!(shop.there(21).await, odd);
}

/// `or rollback` ends the transaction without calling the hooks.
#[tokio::test]
async fn rollback_by_a_function_retries_the_rest_of_the_batch() {
    let shop = Shop::open().await;
    shop.with(shop.start(1), order(1)).await.unwrap();
    let careless: Own = Box::new(|own, _| {
        let _ = own.execute("insert or rollback into orders (id) values (1)", []);
        let _ = own.execute("insert into orders (id) values (3)", []);
        Ok(0)
    });
    let honest = order_and(4, "insert or rollback into orders (id) values (1)");
    let works = vec![
        (shop.start(2), Some(order(2))),
        (shop.start(3), Some(careless)),
        (shop.start(4), Some(honest)),
        (shop.start(5), Some(order(5))),
    ];
    let answers = shop.together(works).await;
    assert!(answers[0].is_ok() && answers[3].is_ok(), "{answers:?}");
    assert!(matches!(answers[1], Err(WithError::Ended)), "{:?}", answers[1]);
    assert!(matches!(answers[2], Err(WithError::Own(_))), "{:?}", answers[2]);
    assert_eq!(shop.there(5).await, [1, 2, 5]);
}

/// A deferred foreign key is checked when the whole batch is committed.
#[tokio::test]
async fn deferred_constraint_fails_only_its_own_commit() {
    let shop = Shop::open().await;
    let table = "create table lines (of integer references orders (id) deferrable initially deferred) strict";
    shop.with(shop.start(1), order_and(1, table)).await.unwrap();
    let works = vec![
        (shop.start(2), Some(order_and(2, "insert into lines values (2)"))),
        (shop.start(3), Some(order_and(3, "insert into lines values (99)"))),
        (shop.start(4), Some(order(4))),
    ];
    let answers = shop.together(works).await;
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    let late = &answers[1];
    assert!(matches!(late, Err(WithError::Commit(CommitError::Store(StoreError::Invalid(_))))), "{late:?}");
    assert_eq!(shop.there(4).await, [1, 2, 4]);
}

#[tokio::test]
async fn panic_rolls_back_only_its_own_commit() {
    let shop = Shop::open().await;
    let panics = |number: u128| -> Own {
        let mut order = order(number);
        Box::new(move |own, committed| {
            order(own, committed)?;
            let mut orders = own.prepare("select id from orders")?;
            let mut rows = orders.query([])?;
            rows.next()?;
            panic!("no order {number}")
        })
    };
    let works = vec![
        (shop.start(1), Some(order(1))),
        (shop.start(2), Some(panics(2))),
        (shop.start(3), Some(order(3))),
    ];
    let answers = shop.together(works).await;
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    let Err(WithError::Panicked(said)) = &answers[1] else { panic!("{:?}", answers[1]) };
    assert_eq!(said, "no order 2");
    shop.with(shop.start(4), order(4)).await.unwrap();
    assert_eq!(shop.there(4).await, [1, 3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_future_stores_both_or_neither() {
    let shop = Shop::open().await;
    for number in 1..=60_u128 {
        let (store, commit) = (shop.store.clone(), shop.start(number));
        let task = tokio::spawn(async move { store.commit_with(make::ME, commit, order(number)).await });
        if number % 3 > 0 {
            tokio::time::sleep(Duration::from_micros(40 * (number as u64 % 7))).await;
        }
        task.abort();
        let _ = task.await;
    }
    // When this commit is answered, all earlier ones are decided too.
    shop.with(shop.start(61), order(61)).await.unwrap();
    assert!(shop.there(61).await.contains(&61));
}
