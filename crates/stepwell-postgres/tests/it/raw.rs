//! What several of the tests need: connections beside the store's own, and an end to waiting.

use std::time::Duration;

use stepwell_postgres::ground::Ground;
use stepwell_postgres::tokio_postgres::error::SqlState;
use stepwell_postgres::tokio_postgres::{Client, Error, NoTls, connect};

/// A connection that looks for tables in the schema.
pub(crate) async fn client(ground: &Ground, config: &str) -> Client {
    let (client, connection) = connect(config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("set search_path = {}", ground.schema())).await.unwrap();
    client
}

/// The first column of every row, as text.
pub(crate) async fn texts(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// A number.
pub(crate) async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// What the server says to a statement that it must refuse for want of a right.
pub(crate) fn forbidden(result: Result<u64, Error>, what: &str) -> String {
    let error = result.expect_err(what);
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{what}: {error:?}");
    error.as_db_error().unwrap().message().to_owned()
}

/// Is done soon, or the test fails instead of hanging.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes too long")
}
