//! Helpers for several tests: direct connections to the server, and a timeout.

use std::time::Duration;

use stepwell_postgres::test_schema::TestSchema;
use stepwell_postgres::tokio_postgres::error::SqlState;
use stepwell_postgres::tokio_postgres::{Client, Error, NoTls, connect};

/// Opens a connection whose search path is the schema.
pub(crate) async fn client(test_schema: &TestSchema, config: &str) -> Client {
    let (client, connection) = connect(config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("set search_path = {}", test_schema.schema())).await.unwrap();
    client
}

/// Returns the first column of every row as text.
pub(crate) async fn texts(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// Returns the first column of the only row as a number.
pub(crate) async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// Returns the server's message for a statement that it must refuse because a right is missing.
pub(crate) fn forbidden(result: Result<u64, Error>, what: &str) -> String {
    let error = result.expect_err(what);
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{what}: {error:?}");
    error.as_db_error().unwrap().message().to_owned()
}

/// Waits for a future for at most a minute, so that a test fails instead of hanging.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes too long")
}
