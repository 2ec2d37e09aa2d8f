//! Cases about tenants: two tenants with the same ids, keys and cells do not see each other.

use std::collections::BTreeMap;

use serde_json::json;

use super::Shared;
use super::ask::{self, apply, claim, load, refuse_as, taken};
use super::dump::{Dump, Names, dump};
use super::make::{
    Make, NAMESPACE, answer_link, at, audit, delete_handle, due_run, edge, end, flow, increment, key,
    link_id, process, put, put_handle, put_handle_on, run, set, set_shadow, set_until, step, stored, tenant,
    to, unlink, unrelated_state, upsert, wait,
};
use crate::cell::{CellWrite, Precondition};
use crate::commit::{Commit, KeyLifetime, KeyWrite, NewRun, Refused, RunUpdate};
use crate::handle::HandleRow;
use crate::run::Head;
use crate::scope::TenantScope;
use crate::store::{Claim, Cleanup, CleanupKind};

const ONE: TenantScope = tenant(1);
const TWO: TenantScope = tenant(2);

async fn seen(store: &Shared, scope: TenantScope) -> Dump {
    dump(store, scope, &Names::default(), at(0)).await
}

/// Builds a commit that writes something of every kind. `mark` identifies the tenant.
fn everything(make: &Make, mark: u8) -> Commit {
    let open = vec![wait(u64::from(mark))];
    let shadows = vec![set_shadow("mark", i32::from(mark))];
    Commit {
        create: vec![
            NewRun { open, shadows, ..due_run(run(1), i64::from(mark)) },
            due_run(run(2), i64::from(mark)),
        ],
        send: vec![to(run(1), &format!("for {mark}"))],
        handles: vec![
            put_handle(answer_link(1, run(1))),
            put_handle(HandleRow {
                created_by: Some(format!("of {mark}")),
                expires_at: Some(at(30)),
                ..flow(5)
            }),
        ],
        cells: vec![set("k", mark), set_until("old", mark, 30)],
        links: vec![upsert(u32::from(mark), edge("a/1", "r", "b/1"))],
        actor: Some(format!("of {mark}")),
        documents: vec![put(run(1), "k", &format!("of {mark}")), put(run(2), "k", "")],
        keys: vec![key("a", mark), KeyWrite { lifetime: KeyLifetime::WithRun(run(1)), ..key("b", mark) }],
        definitions: vec![stored("orders"), stored(&format!("for {mark}"))],
        audit: vec![audit(&format!("by {mark}"))],
        ..make.commit()
    }
}

async fn populated(store: &Shared, make: &Make) -> BTreeMap<TenantScope, Head> {
    let mut heads = BTreeMap::new();
    for (scope, mark) in [(ONE, 1), (TWO, 2)] {
        let committed = store.commit(scope, everything(make, mark)).await.expect("the store is empty");
        heads.insert(scope, committed.created[0].clone());
    }
    heads
}

cases! { tenants as __suite_tenants;
    /// D11: the same ids, keys and cells in two tenants are separate rows.
    async fn tenants_do_not_see_each_other(store: &Shared) {
        let make = Make::new();
        let untouched = seen(store, TWO).await;
        apply(store, everything(&make, 1)).await;
        assert_eq!(seen(store, TWO).await, untouched, "writes of one tenant are invisible to the other");
        let first = seen(store, ONE).await;
        store.commit(TWO, everything(&make, 2)).await.expect("the ids are free in this tenant");
        assert_eq!(seen(store, ONE).await, first);
        let second = seen(store, TWO).await;
        assert_eq!(second.loaded[1].inbox[0].topic, "for 2");
        assert_eq!(second.cells[0].value, Some(json!(2)));
        assert_eq!((second.runs.len(), second.waits.len(), second.audit.len()), (2, 1, 4));
        assert_eq!(second.links.iter().map(|link| link.id).collect::<Vec<_>>(), [link_id(2)]);
        assert_eq!((second.unsealed.len(), second.seals.len(), second.tallies.len()), (1, 0, 6));
        assert_eq!(second.waits[0].wait.activation, 2);
        assert_eq!(second.shadows.iter().map(|row| &row.value).collect::<Vec<_>>(), [&2.into()]);
        assert_eq!(second.documents[1].1[0].documents[0].body, r#"{"text":"of 2"}"#);
        let begun: Vec<_> = second.handles.iter().filter_map(|row| row.created_by.as_deref()).collect();
        assert_eq!((second.handles.len(), begun), (2, vec!["of 2"]));
        let other = ask::all_definitions(store, TWO, Some("for 1".into()), 9).await;
        assert_eq!((second.listed.len(), other.len()), (2, 0));
    }

    /// Tenants are listed without access to their data.
    async fn tenants_with_data_are_listed_in_pages(store: &Shared) {
        assert_eq!(store.tenants(None, 10).await, Ok(Vec::new()), "the store is empty");
        populated(store, &Make::default()).await;
        let (one, two) = (ONE.tenant(), TWO.tenant());
        assert_eq!(store.tenants(None, 10).await, Ok(vec![one, two]));
        assert_eq!(store.tenants(None, 1).await, Ok(vec![one]));
        assert_eq!(store.tenants(Some(one), 10).await, Ok(vec![two]));
        assert_eq!(store.tenants(Some(two), 10).await, Ok(Vec::new()));
    }

    /// D11: no write of one tenant changes a row of the other.
    async fn writes_do_not_reach_another_tenant(store: &Shared) {
        let make = Make::new();
        let heads = populated(store, &make).await;
        let before = seen(store, TWO).await;
        let change = RunUpdate { take: vec![1], close: vec![1, 2], ..end(&heads[&ONE]) };
        let cells = vec![CellWrite { expect: Precondition::Live(1), ..increment("k", 10) }];
        let links = vec![upsert(9, edge("a/1", "r", "b/1")), unlink(None, None, Some("b/1"))];
        let documents = vec![put(run(1), "k", "changed"), put(run(1), "new", "")];
        let send = vec![to(run(2), "x")];
        let handles = vec![delete_handle(1, 1), put_handle_on(1, flow(5), vec![set_shadow("mark", 9)])];
        apply(store, Commit { cells, links, documents, send, handles, ..make.step(change) }).await;
        assert_eq!(seen(store, TWO).await, before);
        assert_eq!(load(store, run(1)).await.head.version, 1);
        store.commit(TWO, make.step(step(&heads[&TWO], "mine"))).await.expect("its head is current");
    }

    /// D11: rows of another tenant do not exist: they cannot be changed, messaged or looked up.
    async fn rows_of_another_tenant_do_not_exist(store: &Shared) {
        let make = Make::new();
        let create = everything(&make, 1);
        let head = apply(store, create.clone()).await.created.remove(0);
        let refused = refuse_as(store, TWO, make.step(step(&head, "x"))).await;
        assert_eq!(refused, Refused::NoRun { run: run(1) });
        let refused = refuse_as(store, TWO, make.send([to(run(1), "x")])).await;
        assert_eq!(refused, Refused::NoTarget { run: run(1) });
        let expecting = make.write([CellWrite { expect: Precondition::Live(1), ..set("k", 1) }]);
        assert!(matches!(refuse_as(store, TWO, expecting).await, Refused::Cell { .. }));
        assert_eq!(store.load(TWO, run(1)).await, Ok(None));
        assert_eq!(store.outcome(TWO, create.reference()).await, Ok(None));
        assert!(store.outcome(ONE, create.reference()).await.unwrap().is_some());
        let other_request = Commit { keys: vec![key("a", 9)], ..make.commit() };
        store.commit(TWO, other_request).await.expect("the key is free in this tenant");
    }

    /// D11: a claim takes runs of one tenant.
    async fn a_claim_takes_runs_of_its_tenant(store: &Shared) {
        let make = Make::new();
        populated(store, &make).await;
        let before = seen(store, TWO).await;
        assert_eq!(taken(store, claim(process(1), 10)).await, [run(1), run(2)]);
        assert_eq!(taken(store, claim(process(1), 10)).await, []);
        assert_eq!(seen(store, TWO).await, before);
        let heirs = Claim { expired: vec![process(1)], ..claim(process(2), -1) };
        assert_eq!(
            store.claim(TWO, heirs.clone()).await.unwrap().items,
            [],
            "they are neither due nor owned"
        );
        assert_eq!(taken(store, heirs).await.len(), 2);
        assert_eq!(store.claim(TWO, claim(process(1), 10)).await.unwrap().items.len(), 2);
    }

    /// D11: maintenance changes only its own tenant.
    async fn maintenance_changes_only_its_tenant(store: &Shared) {
        let make = Make::new();
        let heads = populated(store, &make).await;
        for (scope, head) in &heads {
            let long = RunUpdate { next: vec![unrelated_state(1)], ..end(head) };
            let documents = vec![put(run(1), "k", "changed")];
            store.commit(*scope, Commit { documents, ..make.step(long) }).await.unwrap();
        }
        let before = seen(store, TWO).await;
        let history = CleanupKind::History { run: run(1), keep: 1 };
        let runs = CleanupKind::Runs(crate::EndedBefore::all(at(1)));
        let old = CleanupKind::Tombstones { namespace: NAMESPACE.to_owned(), before: at(1) };
        let over = CleanupKind::Handles { expired_by: at(30) };
        let data = [(CleanupKind::Cells, 1), (old, 1), (CleanupKind::Seal, 4), (over, 1)];
        for (what, count) in data.into_iter().chain([(CleanupKind::Keys, 1), (history, 2), (runs, 1)]) {
            let cleaned = store.cleanup(ONE, Cleanup { now: at(1_000), limit: 100, what: what.clone() }).await.unwrap();
            assert_eq!(cleaned.count, count, "{what:?}");
        }
        assert_eq!(seen(store, TWO).await, before);
        assert_eq!(seen(store, ONE).await.runs.len(), 1);
    }
}
