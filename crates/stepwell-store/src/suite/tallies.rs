//! Cases about what is in use: namespaces, types and relations, and how often, page by page.

use super::Shared;
use super::ask::{apply, moved, started, tallied};
use super::make::{
    ME, Make, NAMESPACE, at, cell, delete, due_run, edge, end, ends, new_run, process, run, set, set_until,
    tenant, thing, unlink, upsert, wait,
};
use crate::cell::{CellKey, CellWrite, Space};
use crate::commit::{NewRun, Step};
use crate::link::{Edge, Ends, LinkWrite};
use crate::run::Status;
use crate::scope::TenantScope;
use crate::store::Tally;

/// Everything that can be counted, of the usual namespace.
fn all() -> [Tally; 4] {
    let namespace = NAMESPACE.to_owned();
    let types = Tally::Types { namespace: namespace.clone() };
    [Tally::Keys { now: at(0) }, Tally::Links, types, Tally::Relations { namespace }]
}

async fn tally(store: &Shared, of: &Tally) -> Vec<(String, u64)> {
    tallied(store, ME, of.clone(), 100).await
}

fn counts(counts: &[(&str, u64)]) -> Vec<(String, u64)> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn of(owner: &str, write: CellWrite) -> CellWrite {
    CellWrite { key: CellKey { owner: owner.to_owned(), ..write.key }, ..write }
}

cases! { tallies as __suite_tallies;
    /// Namespaces are counted by their keys that have a value now; shared state is none of them.
    async fn namespaces_are_counted_by_their_live_keys(store: &Shared) {
        let make = Make::new();
        let keys = |seconds| Tally::Keys { now: at(seconds) };
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
        assert_eq!(tally(store, &keys(10)).await, counts(&[("a", 1), ("b", 2), ("null", 1)]), "swept or not");
        assert_eq!(cell("k").owner, NAMESPACE);
    }

    /// D7: namespaces, types and relations of links are counted, and gone with the last link.
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
            Edge::new("other", thing("x/1"), thing("y/1"), "has"),
        ];
        apply(store, make.link((1..).zip(&edges).map(|(number, edge)| upsert(number, edge.clone())))).await;
        apply(store, make.link([upsert(9, edges[0].clone())])).await;
        assert_eq!(tally(store, &links).await, counts(&[("ns", 4), ("other", 1)]), "written again it is one");
        assert_eq!(tally(store, &types).await, counts(&[("item", 2), ("order", 5), ("person", 1)]));
        assert_eq!(tally(store, &relations).await, counts(&[("has", 2), ("owns", 1), ("related", 1)]));
        let none = "n%".to_owned();
        assert_eq!(tally(store, &Tally::Types { namespace: none.clone() }).await, []);
        assert_eq!(tally(store, &Tally::Relations { namespace: none }).await, []);
        let elsewhere = Ends { namespace: "other".to_owned(), ..ends(Some("x/1"), None, None) };
        let delete = LinkWrite::Delete { ends: elsewhere, by: None };
        apply(store, make.link([unlink(Some("order/1"), Some("has"), None), delete])).await;
        assert_eq!(tally(store, &links).await, counts(&[("ns", 2)]));
        assert_eq!(tally(store, &types).await, counts(&[("order", 3), ("person", 1)]));
        assert_eq!(tally(store, &relations).await, counts(&[("owns", 1), ("related", 1)]));
    }

    /// D6: names come in the order of their bytes, page by page, each counted whole.
    async fn counts_are_listed_in_order_page_by_page(store: &Shared) {
        let make = Make::new();
        let names = ["%", "A", "Z", "_", "a", "a b", "a'", "ä", "b", "注"];
        let mut cells = Vec::new();
        let mut links = Vec::new();
        for (number, name) in (1_u32..).zip(names) {
            for key in 0..number {
                cells.push(of(name, set(&key.to_string(), 1)));
                let (from, to) = (thing(&format!("{name}/{key}")), thing(&format!("{name}/to")));
                links.push(upsert(key, Edge::new(NAMESPACE, from.clone(), to.clone(), name)));
                links.push(upsert(key, Edge::new(name, from, to, "r")));
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

    /// Runs that have not ended are counted, each once, and no more than are asked for.
    async fn runs_that_live_are_counted_up_to_a_number(store: &Shared) {
        let make = Make::new();
        let live = async |max: u32| tally(store, &Tally::Runs { max }).await;
        assert_eq!(live(9).await, []);
        let waiting = NewRun { open: vec![wait(1), wait(2)], ..new_run(run(1)) };
        let head = started(store, make.create(waiting)).await;
        assert_eq!(live(9).await, counts(&[("live", 1)]), "however many it waits for");
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
        assert_eq!(tallied(store, tenant(2), Tally::Runs { max: 9 }, 9).await, []);
        moved(store, make.step(Step { close: vec![1, 2], ..end(&head) })).await;
        assert_eq!(live(9).await, counts(&[("live", 5)]), "one has ended");
    }

    /// D11: a tenant's counts are of its own.
    async fn a_tenants_counts_are_its_own(store: &Shared) {
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
            assert_eq!((&mine, mine.len()), (&theirs, if matches!(of, Tally::Types { .. }) { 2 } else { 1 }));
        }
    }
}
