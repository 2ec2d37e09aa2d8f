//! E11: SQL views of the runs of a workflow, with their shadow columns as columns. A filter on one uses its index.

use stepwell_core::shadow::Shadow;
use stepwell_core::{Definition, Spec};
use stepwell_sqlite::rusqlite::Connection;
use stepwell_sqlite::{SqliteStore, flow_view_of, view_of};
use stepwell_store::suite::make::{self, set_shadow};
use stepwell_store::{HandleChange, HandleRow, HandleWrite, NewRun, Store};

fn orders() -> Spec {
    Spec::new("orders").step("open").end("done").auto("finish", "open", "done")
}

fn shaded() -> Definition {
    let spec = orders().shadow("eMail", Shadow::string("to")).shadow("total", Shadow::number("sum"));
    spec.shadow("paid", Shadow::boolean("paid")).build().unwrap()
}

#[tokio::test]
async fn workflow_view_shows_shadow_columns_and_uses_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let (store, make) = (SqliteStore::open(&path).unwrap(), make::Make::new());
    let begin = |number, shadows| make.create(NewRun { shadows, ..make::new_run(make::run(number)) });
    let full =
        vec![set_shadow("eMail", "ann@example.com"), set_shadow("total", 2.5), set_shadow("paid", false)];
    store.commit(make::ME, begin(1, full)).await.unwrap();
    store.commit(make::ME, begin(2, vec![])).await.unwrap();
    let other = NewRun { workflow: "other".into(), ..make::new_run(make::run(3)) };
    store.commit(make::ME, make.create(other)).await.unwrap();
    for definition in [orders().build().unwrap(), shaded()] {
        let view = view_of(&definition, make::ME);
        let made = store.commit_with(make::ME, make.commit(), move |own, _| own.execute_batch(&view)).await;
        made.unwrap();
    }

    let look = Connection::open(&path).unwrap();
    let shown = "select json_array(run, status, version, substr(created_at, 1, 14), \"eMail\", total, paid)
                   from runs_of_orders order by run";
    let mut statement = look.prepare(shown).unwrap();
    let rows: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let row =
        |number, columns| format!(r#"["{}","waiting",0,"2023-11-14T22:",{columns}]"#, make::run(number));
    assert_eq!(rows, [row(1, r#""ann@example.com",2.5,0"#), row(2, "null,null,null")]);
    for (filter, index) in [
        ("email = 'ann@example.com'", "shadows_by_text"),
        ("total = 2.5", "shadows_by_number"),
        ("paid = 0", "shadows_by_boolean"),
    ] {
        let sql = format!("select run, status from runs_of_orders where {filter}");
        let found: Vec<String> = look
            .prepare(&sql)
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(found, [make::run(1).to_string()], "{filter}");
        let mut plan = look.prepare(&format!("explain query plan {sql}")).unwrap();
        let plan: Vec<String> = plan.query_map([], |row| row.get(3)).unwrap().map(Result::unwrap).collect();
        assert!(plan[0].contains(index) && !plan.iter().any(|line| line.starts_with("SCAN")), "{plan:#?}");
    }
}

/// E11: the same for flows that are kept behind handles. Answer links are not shown.
#[tokio::test]
async fn flow_view_shows_flows_kept_behind_handles() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flows.sqlite");
    let (store, make) = (SqliteStore::open(&path).unwrap(), make::Make::new());
    let flow = HandleRow { workflow: "orders".into(), ..make::flow(1) };
    let columns = vec![set_shadow("eMail", "ann@example.com"), set_shadow("total", 2.5)];
    let put = |row: HandleRow, shadows| HandleWrite {
        handle: row.handle,
        expected: None,
        then: HandleChange::Put(Box::new(row), shadows),
    };
    let link = HandleRow { workflow: "orders".into(), ..make::answer_link(2, make::run(9)) };
    store.commit(make::ME, make.handle([put(flow.clone(), columns), put(link, Vec::new())])).await.unwrap();
    let view = flow_view_of(&shaded(), make::ME);
    store.commit_with(make::ME, make.commit(), move |own, _| own.execute_batch(&view)).await.unwrap();
    let look = Connection::open(&path).unwrap();
    let all = "select json_array(flow, \"eMail\", total, paid) from flows_of_orders";
    let mut statement = look.prepare(all).unwrap();
    let rows: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows, [format!(r#"["{}","ann@example.com",2.5,null]"#, flow.run)]);
    let plan = "explain query plan select flow from flows_of_orders where email = 'ann@example.com'";
    let mut plan = look.prepare(plan).unwrap();
    let plan: Vec<String> = plan.query_map([], |row| row.get(3)).unwrap().map(Result::unwrap).collect();
    assert!(plan.iter().any(|line| line.contains("shadows_by_text")), "{plan:#?}");
    assert!(!plan.iter().any(|line| line.starts_with("SCAN")), "{plan:#?}");
}

/// Names may contain quotes, and views of different long names stay different.
#[test]
fn view_can_be_created_for_any_workflow_name() {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(include_str!("../../schema.sql")).unwrap();
    let names = ["it's", "say \"hello\"", "a b/c", "ü", &"x".repeat(120), &format!("{}y", "x".repeat(119))];
    for name in names {
        let definition = Spec { name: name.into(), ..orders() };
        connection.execute_batch(&view_of(&definition.build().unwrap(), make::ME)).unwrap();
    }
    let views: i64 = connection
        .query_row("select count(*) from sqlite_schema where type = 'view'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(views, names.len() as i64);
}
