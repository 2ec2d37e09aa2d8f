//! The status of a database: server, size and estimated number of rows.

use stepwell_store::suite::{ask, make};

use crate::raw::{client, number, texts};

#[tokio::test]
async fn status_reports_the_server_and_estimated_rows() {
    let test_schema = crate::test_schema().await;
    let (store, make) = (test_schema.open().await.unwrap(), make::Make::new());
    let status = store.status().await.unwrap();
    assert!(status.rows.values().all(Option::is_none), "there are no statistics yet: {status:?}");
    for run in 1..=30 {
        ask::started(&store, make.create(make::new_run(make::run(run)))).await;
    }
    let owner = client(&test_schema, test_schema.owner()).await;
    owner.batch_execute("analyze runs; analyze cells").await.unwrap();
    let status = store.status().await.unwrap();
    assert_eq!((status.rows["runs"], status.rows["cells"]), (Some(30), Some(0)));
    assert_eq!(status.schema.0, 1);
    assert!(!status.has_citus);
    assert_eq!(texts(&owner, "show server_version").await, [&*status.server]);
    assert!(status.database_bytes > 1 << 20, "{status:?}");
    let tables = "select count(*) from pg_class where relkind = 'r' and relname <> 'stepwell_migrations'
                     and relnamespace = current_schema()::regnamespace";
    assert_eq!(number(&owner, tables).await, status.rows.len() as i64, "none is forgotten");
}
