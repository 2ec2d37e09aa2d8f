//! Cases about counts: namespaces, types, relations and runs, in pages.

use super::Shared;
use super::ask::{apply, moved, started, tallied};
use super::make::{
    ME, Make, NAMESPACE, at, cell, delete, due_run, edge, end, ends, new_run, process, run, set, set_until,
    tenant, thing, unlink, upsert, wait,
};
use crate::cell::{CellKey, CellWrite, Space};
use crate::commit::{NewRun, RunUpdate};
use crate::link::{LinkEdge, LinkEnds, LinkWrite};
use crate::run::Status;
use crate::scope::TenantScope;
use crate::store::CountQuery;

/// Returns the counts of keys, links, types and relations, for the usual namespace where one is needed.
fn all() -> [CountQuery; 4] {
    let namespace = NAMESPACE.to_owned();
    let types = CountQuery::Types { namespace: namespace.clone() };
    [CountQuery::Keys { now: at(0) }, CountQuery::Links, types, CountQuery::Relations { namespace }]
}

async fn tally(store: &Shared, of: &CountQuery) -> Vec<(String, u64)> {
    tallied(store, ME, of.clone(), 100).await
}

fn counts(counts: &[(&str, u64)]) -> Vec<(String, u64)> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn of(owner: &str, write: CellWrite) -> CellWrite {
    CellWrite { key: CellKey { owner: owner.to_owned(), ..write.key }, ..write }
}

cases! { tallies as __suite_tallies;
    /// The keys of a namespace that have a value now are counted. Shared state is not.
    async fn namespaces_are_counted_by_their_live_keys(store: &Shared) {
        let make = Make::new();
        let keys = |seconds| CountQuery::Keys { now: at(seconds) };
        assert_eq!(tally(store, &keys(0)).await, []);
        let shared = CellKey { space: Space::Execution, owner: run(1).to_string(), key: "k".to_owned() };
        let mut writes = vec![
            of("b", set("1", 1)),
            of("b", set("2", 1)),
            of("b", set("gone", 1)),
            of("b", delete("gone")),
            of("a", set_until("1", 1, 10)),
            of("a", set("2", 1)),
            of("empty", set("1", 1)),
            of("empty", delete("1")),
            of("short", set_until("1", 1, 10)),
            of("null", set("1", serde_json::Value::Null)),
        ];
        writes.push(CellWrite { key: shared.clone(), ..set("", 1) });
        writes.push(CellWrite { key: CellKey { space: Space::Workflow, ..shared }, ..set("", 1) });
        apply(store, make.write(writes)).await;
        assert_eq!(tally(store, &keys(9)).await, counts(&[("a", 2), ("b", 2), ("null", 1), ("short", 1)]));
        assert_eq!(tally(store, &keys(10)).await, counts(&[("a", 1), ("b", 2), ("null", 1)]), "converted to a tombstone or not");
        assert_eq!(cell("k").owner, NAMESPACE);
    }

    /// D7: namespaces, types and relations of links are counted. They disappear with the last link.
    async fn namespaces_types_and_relations_of_links_are_counted(store: &Shared) {
        let make = Make::new();
        let [_, links, types, relations] = all();
        for of in [&links, &types, &relations] {
            assert_eq!(tally(store, of).await, []);
        }
        let edges = [
            edge("order/1", "has", "item/1"),
            edge("order/1", "has", "item/2"),
            edge("order/1", "related", "order/1"),
            edge("person/1", "owns", "order/1"),
            LinkEdge::new("other", thing("x/1"), thing("y/1"), "has"),
        ];
        apply(store, make.link((1..).zip(&edges).map(|(number, edge)| upsert(number, edge.clone())))).await;
        apply(store, make.link([upsert(9, edges[0].clone())])).await;
        assert_eq!(tally(store, &links).await, counts(&[("ns", 4), ("other", 1)]), "a link that is written again counts once");
        assert_eq!(tally(store, &types).await, counts(&[("item", 2), ("order", 5), ("person", 1)]));
        assert_eq!(tally(store, &relations).await, counts(&[("has", 2), ("owns", 1), ("related", 1)]));
        let none = "n%".to_owned();
        assert_eq!(tally(store, &CountQuery::Types { namespace: none.clone() }).await, []);
        assert_eq!(tally(store, &CountQuery::Relations { namespace: none }).await, []);
        let elsewhere = LinkEnds { namespace: "other".to_owned(), ..ends(Some("x/1"), None, None) };
        let delete = LinkWrite::Delete { ends: elsewhere, by: None };
        apply(store, make.link([unlink(Some("order/1"), Some("has"), None), delete])).await;
        assert_eq!(tally(store, &links).await, counts(&[("ns", 2)]));
        assert_eq!(tally(store, &types).await, counts(&[("order", 3), ("person", 1)]));
        assert_eq!(tally(store, &relations).await, counts(&[("owns", 1), ("related", 1)]));
    }

    /// D6: names are listed in the order of their bytes, in pages. Each count is complete, whatever the page size.
    async fn counts_are_listed_in_order(store: &Shared) {
        let make = Make::new();
        let names = ["%", "A", "Z", "_", "a", "a b", "a'", "ä", "b", "注"];
        let mut cells = Vec::new();
        let mut links = Vec::new();
        for (number, name) in (1_u32..).zip(names) {
            for key in 0..number {
                cells.push(of(name, set(&key.to_string(), 1)));
                let (from, to) = (thing(&format!("{name}/{key}")), thing(&format!("{name}/to")));
                links.push(upsert(key, LinkEdge::new(NAMESPACE, from.clone(), to.clone(), name)));
                links.push(upsert(key, LinkEdge::new(name, from, to, "r")));
            }
        }
        apply(store, crate::Commit { links, ..make.write(cells) }).await;
        let wanted = |times: u64| {
            let named = names.iter().map(|name| (*name).to_owned());
            let mut wanted: Vec<_> = named.zip((1..).map(|number| number * times)).collect();
            wanted.sort();
            wanted
        };
        let mut spaces = wanted(1);
        spaces.push((NAMESPACE.to_owned(), 55));
        spaces.sort();
        let [keys, of_links, types, relations] = all();
        let questions = [(keys, wanted(1)), (of_links, spaces), (types, wanted(2)), (relations, wanted(1))];
        for (of, wanted) in questions {
            for limit in [1, 3, 10, 11, 1_000] {
                assert_eq!(tallied(store, ME, of.clone(), limit).await, wanted, "{of:?}, pages of {limit}");
            }
        }
    }

    /// Live runs are counted, each once, up to the given maximum.
    async fn live_runs_are_counted_up_to_a_maximum(store: &Shared) {
        let make = Make::new();
        let live = async |max: u32| tally(store, &CountQuery::Runs { max }).await;
        assert_eq!(live(9).await, []);
        let waiting = NewRun { open: vec![wait(1), wait(2)], ..new_run(run(1)) };
        let head = started(store, make.create(waiting)).await;
        assert_eq!(live(9).await, counts(&[("live", 1)]), "several waits count once");
        started(store, make.create(due_run(run(2), 5))).await;
        let owned = NewRun { owner: Some(process(1)), open: vec![wait(1)], ..due_run(run(3), 5) };
        started(store, make.create(owned)).await;
        for (number, status) in (4..).zip([Status::Pending, Status::Suspended, Status::Failed]) {
            started(store, make.create(NewRun { status, ..new_run(run(number)) })).await;
        }
        assert_eq!(live(9).await, counts(&[("live", 6)]));
        for max in 1..=6 {
            assert_eq!(live(max).await, counts(&[("live", max.into())]));
        }
        assert_eq!(live(0).await, []);
        assert_eq!(tallied(store, tenant(2), CountQuery::Runs { max: 9 }, 9).await, []);
        moved(store, make.step(RunUpdate { close: vec![1, 2], ..end(&head) })).await;
        assert_eq!(live(9).await, counts(&[("live", 5)]), "one has ended");
    }

    /// D11: a tenant's counts include only its own rows.
    async fn counts_include_only_the_tenants_rows(store: &Shared) {
        const TWO: TenantScope = tenant(2);
        let make = Make::new();
        let links = || vec![upsert(1, edge("a/1", "r", "b/1"))];
        let commit = || crate::Commit { links: links(), ..make.write([set("k", 1)]) };
        apply(store, commit()).await;
        for of in all() {
            assert_eq!(tallied(store, TWO, of, 9).await, []);
        }
        store.commit(TWO, commit()).await.unwrap();
        for of in all() {
            let (mine, theirs) = (tally(store, &of).await, tallied(store, TWO, of.clone(), 9).await);
            assert_eq!((&mine, mine.len()), (&theirs, if matches!(of, CountQuery::Types { .. }) { 2 } else { 1 }));
        }
    }
}
