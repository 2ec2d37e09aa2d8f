//! E11: SQL views of the runs of a workflow, with their shadow columns as columns, isolated by tenant like the tables.

use stepwell_core::shadow::Shadow;
use stepwell_core::{Definition, Spec};
use stepwell_postgres::{flow_view_of, view_of};
use stepwell_store::suite::make::{self, set_shadow};
use stepwell_store::{HandleChange, HandleRow, HandleWrite, NewRun, Store};

use crate::raw::{client, number, texts};

fn orders() -> Spec {
    Spec::new("orders").step("open").end("done").auto("finish", "open", "done")
}

fn shaded() -> Definition {
    let spec = orders().shadow("eMail", Shadow::string("to")).shadow("total", Shadow::number("sum"));
    spec.shadow("paid", Shadow::boolean("paid")).build().unwrap()
}

#[tokio::test]
async fn workflow_view_shows_one_tenants_runs_and_uses_the_index() {
    let test_schema = crate::test_schema().await;
    let (store, make) = (test_schema.open().await.unwrap(), make::Make::new());
    for whose in 1..=2_u128 {
        let full =
            vec![set_shadow("eMail", "ann@example.com"), set_shadow("total", 2.5), set_shadow("paid", false)];
        for (run, shadows) in [(1, full), (2, vec![])] {
            let new = NewRun { shadows, ..make::new_run(make::run(whose * 10 + run)) };
            store.commit(make::tenant(whose), make.create(new)).await.unwrap();
        }
    }
    let owner = client(&test_schema, test_schema.owner()).await;
    for definition in [orders().build().unwrap(), shaded()] {
        owner.batch_execute(&view_of(&definition)).await.unwrap();
    }
    // Even a role that sees all rows of the tables sees one tenant here, and none without a setting.
    let admin = client(&test_schema, test_schema.admin()).await;
    let shown = "select concat_ws(' ', run, status, version, created_at = updated_at, \"eMail\", total, paid)
                   from runs_of_orders order by run";
    for raw in [&owner, &admin] {
        assert_eq!(texts(raw, shown).await, Vec::<String>::new());
        let tenant = make::tenant(2).tenant().uuid();
        raw.batch_execute(&format!("set app.current_tenant = '{tenant}'")).await.unwrap();
        let full = format!("{} waiting 0 t ann@example.com 2.5 f", make::run(21));
        assert_eq!(texts(raw, shown).await, [full, format!("{} waiting 0 t", make::run(22))]);
    }
    let many = format!(
        "insert into runs select (json_populate_record(r, json_build_object('id', n::text::uuid))).*
           from runs r, (select gen_random_uuid() n from generate_series(1, 5000)) n where r.id = '{}';
         insert into shadows select r.tenant, r.id, c.name, 'orders', c.as_text, c.as_number, c.as_boolean
           from runs r, (values ('eMail', 'bob', null::float8, null::bool), ('total', null, 7, null), ('paid', null, null, true))
             as c (name, as_text, as_number, as_boolean)
          where r.id not in (select run from shadows); analyze runs; analyze shadows",
        make::run(22)
    );
    admin.batch_execute(&many).await.unwrap();
    for (filter, index) in [
        ("\"eMail\" = 'ann@example.com'", "shadows_by_text"),
        ("total = 2.5", "shadows_by_number"),
        ("not paid", "shadows_by_boolean"),
    ] {
        let found = format!("from runs_of_orders where {filter}");
        assert_eq!(number(&owner, &format!("select count(*) {found}")).await, 1, "{filter}");
        let plan = texts(&owner, &format!("explain select run, status {found}")).await.join("\n");
        // For a boolean the server decides whether an index is worth using.
        assert!(plan.contains(index) || index == "shadows_by_boolean", "{filter}: {plan}");
    }
}

/// E11: the same for flows that are kept behind handles. Answer links are not shown.
#[tokio::test]
async fn flow_view_shows_one_tenants_flows() {
    let test_schema = crate::test_schema().await;
    let (store, make) = (test_schema.open().await.unwrap(), make::Make::new());
    let put = |row: HandleRow, shadows| HandleWrite {
        handle: row.handle,
        expected: None,
        then: HandleChange::Put(Box::new(HandleRow { workflow: "orders".into(), ..row }), shadows),
    };
    for whose in 1..=2_u128 {
        let flow = put(
            make::flow(whose as u8),
            vec![set_shadow("eMail", "ann@example.com"), set_shadow("total", 2.5)],
        );
        let link = put(make::answer_link(9, make::run(9)), Vec::new());
        store.commit(make::tenant(whose), make.handle([flow, link])).await.unwrap();
    }
    let owner = client(&test_schema, test_schema.owner()).await;
    owner.batch_execute(&flow_view_of(&shaded())).await.unwrap();
    let shown = "select concat_ws(' ', flow, \"eMail\", total, paid) from flows_of_orders";
    assert_eq!(texts(&owner, shown).await, Vec::<String>::new());
    let tenant = make::tenant(2).tenant().uuid();
    owner.batch_execute(&format!("set app.current_tenant = '{tenant}'")).await.unwrap();
    assert_eq!(texts(&owner, shown).await, [format!("{} ann@example.com 2.5", make::flow(2).run)]);
}
