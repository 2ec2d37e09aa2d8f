//! Cases about entity links: one link per edge, found from both ends, deleted by their ends.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{
    all_audit, all_links, apply, apply_one, get, links, links_of, load, outcome, refuse, started,
};
use super::dump::{Dump, Names, dump};
use super::make::{
    ME, Make, NAMESPACE, at, bytes, edge, ends, increment, link_id, new_run, run, set, step, tenant, thing,
    unlink, upsert,
};
use crate::cell::OpResult;
use crate::commit::{AuditRow, Commit, CommitError, Committed, Refused, ResultBinding, ResultPart};
use crate::link::{Direction, Entity, Link, LinkEdge, LinkEnds, LinkError, LinkFilter, LinkQuery, LinkWrite};
use crate::scope::TenantScope;
use crate::store::{MAX_PAGE, Record, StoreError};

const DIRECTIONS: [Direction; 3] = [Direction::Forward, Direction::Reverse, Direction::Either];

/// Edges of `order/1`, and some that are only similar.
const AROUND: [(&str, &str, &str); 15] = [
    ("order/1", "has", "item/1"),
    ("order/1", "has", "item/10"),
    ("order/1", "has", "item/2"),
    ("order/1", "paid-by", "person/1"),
    ("order/1", "related", "person/1"),
    ("order/1", "related", "order/2"),
    ("order/2", "related", "order/1"),
    ("order/1", "related", "order/1"),
    ("order/1", "has", "order/1"),
    ("person/1", "likes", "order/1"),
    ("person/1", "paid-by", "order/1"),
    ("item/1", "has", "order/1"),
    ("order/10", "has", "item/1"),
    ("orders/1", "has", "item/1"),
    ("person/1", "likes", "person/2"),
];

fn around() -> Vec<LinkEdge> {
    AROUND.iter().map(|(from, relation, to)| edge(from, relation, to)).collect()
}

async fn write_all(store: &Shared, make: &Make, edges: &[LinkEdge]) {
    apply(store, make.link((1..).zip(edges).map(|(number, edge)| upsert(number, edge.clone())))).await;
}

/// Returns the edges of all pages of a listing.
async fn edges(store: &Shared, query: LinkQuery) -> Vec<LinkEdge> {
    all_links(store, ME, query).await.into_iter().map(|link| link.edge).collect()
}

/// Returns the link with this edge.
async fn link(store: &Shared, edge: &LinkEdge) -> Option<Link> {
    let all = LinkQuery { namespace: edge.namespace().to_owned(), ..links() };
    let mut found = all_links(store, ME, all).await;
    found.retain(|link| link.edge == *edge);
    assert!(found.len() <= 1, "an edge is stored once: {found:?}");
    found.pop()
}

/// Computes the expected links of an entity from all edges.
fn expected(edges: &[LinkEdge], query: &LinkQuery) -> Vec<LinkEdge> {
    let LinkFilter::Of { end, direction, far: kind } = &query.which else {
        panic!("not a query for one entity")
    };
    let mut found = Vec::new();
    for edge in edges {
        let there = (Direction::Forward, edge.from(), edge.to());
        let back = (Direction::Reverse, edge.to(), edge.from());
        for (order, (way, near, far)) in [there, back].into_iter().enumerate() {
            let both = *direction == Direction::Either;
            let is_gone = *direction == way || (both && !(order == 1 && near == far));
            let is_wanted = kind.as_ref().is_none_or(|kind| kind == far.kind())
                && query.relation.as_ref().is_none_or(|relation| relation == edge.relation());
            if is_gone && is_wanted && near == end {
                found.push(((far.kind(), far.id(), edge.relation(), order), edge.clone()));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.into_iter().map(|(_, edge)| edge).collect()
}

/// Returns queries for the links of `order/1` with every combination of filters.
fn questions() -> Vec<LinkQuery> {
    let texts = |words: &[&str]| -> Vec<Option<String>> {
        words.iter().map(|word| Some((*word).to_owned())).chain([None]).collect()
    };
    let mut questions = Vec::new();
    for direction in DIRECTIONS {
        for far in texts(&["item", "order", "person", "orde", "none"]) {
            for relation in texts(&["has", "related", "paid-by", "ha", "none"]) {
                let which = LinkFilter::Of { end: thing("order/1"), direction, far: far.clone() };
                questions.push(LinkQuery { which, relation, ..links() });
            }
        }
    }
    questions
}

/// Commits, expects an operation on links to be refused, and returns its index and error.
async fn refuse_link(store: &Shared, commit: Commit) -> (usize, LinkError) {
    match refuse(store, commit).await {
        Refused::Link { operation, error } => (operation, error),
        other => panic!("expected a refused link, got {other:?}"),
    }
}

async fn seen(store: &Shared) -> Dump {
    dump(store, ME, &Names::default(), at(0)).await
}

fn deleted(count: u64) -> OpResult {
    OpResult { revision: 0, created: false, existed: count > 0, value: Some(json!(count)) }
}

fn upserted(number: u128, created: bool) -> OpResult {
    let value = Some(json!(link_id(number).to_string()));
    OpResult { revision: 0, created, existed: !created, value }
}

fn binding(operation: usize, part: ResultPart, pointer: &str) -> ResultBinding {
    ResultBinding { operation, part, pointer: pointer.to_owned() }
}

/// Builds an edge whose parts are all the same text.
fn made_of(text: &str) -> LinkEdge {
    LinkEdge::new(text, Entity::new(text, text), Entity::new(text, text), text)
}

/// Builds an edge to an entity with this id.
type Named = fn(&str) -> LinkEdge;

/// Texts that a database could mistake for a pattern, a quote, an escape or a separator.
const ODD: [&str; 18] = [
    "%",
    "_",
    "a%",
    "a_",
    "'",
    "''; drop table links; --",
    "\"",
    "\\",
    "a\nb",
    "a\tb",
    "1:a",
    ":",
    "/",
    "ä",
    "Ä",
    "注文",
    "\u{1F600}",
    "{\"a\":1}",
];

/// Builds an edge between two entities with odd types and ids.
fn cross((from, to): (&&str, &&str)) -> LinkEdge {
    LinkEdge::new(NAMESPACE, Entity::new(from, to), Entity::new(to, from), from)
}

/// Returns a text of this length that does not compress.
fn long(seed: u64, characters: usize, letters: &[char]) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        letters[(state >> 33) as usize % letters.len()]
    };
    (0..characters).map(|_| next()).collect()
}

/// Returns a few edges that concurrent writers compete for.
fn contested() -> Vec<LinkEdge> {
    let things = ["a/1", "a/2", "b/1"];
    let pairs = things.iter().flat_map(|from| things.iter().map(move |to| (*from, *to)));
    pairs.flat_map(|(from, to)| ["r", "s"].map(|relation| edge(from, relation, to))).collect()
}

/// Commits until it is applied. Locks of other writers may make the store unavailable for a while.
async fn insist(store: &Shared, commit: Commit) -> Committed {
    loop {
        match store.commit(ME, commit.clone()).await {
            Err(CommitError::Store(StoreError::Unavailable(_))) => tokio::task::yield_now().await,
            answer => return answer.expect("the commit is applied"),
        }
    }
}

/// Writes links in competition with others. Returns the number of created and deleted links.
async fn contend(store: Shared, make: std::sync::Arc<Make>, writer: u32) -> (u64, u64) {
    let all = contested();
    let (mut created, mut gone) = (0, 0);
    for round in 0..12_u32 {
        let number = writer * 100 + round;
        let pick = |offset: u32| all[(number * 7 + offset * 5) as usize % all.len()].clone();
        let (from, to) = (pick(1).from().clone(), pick(2).to().clone());
        let delete = |ends| LinkWrite::Delete { ends, by: None };
        let writes = match (writer + round) % 4 {
            0 => vec![upsert(number, pick(0)), upsert(number, pick(3)), upsert(number, pick(4))],
            1 => vec![delete(LinkEnds { from: Some(from), ..ends(None, None, None) })],
            2 => vec![
                upsert(number, pick(0)),
                delete(LinkEnds { to: Some(to), ..ends(None, Some("r"), None) }),
            ],
            _ => vec![
                delete(LinkEnds { from: Some(from), to: Some(to), ..ends(None, None, None) }),
                upsert(number, pick(2)),
            ],
        };
        let results = insist(&store, make.link(writes)).await.results;
        created += results.iter().filter(|result| result.created).count() as u64;
        let counts = results.iter().filter_map(|result| result.value.as_ref().and_then(Value::as_u64));
        gone += counts.sum::<u64>();
    }
    (created, gone)
}

/// Sixteen writers upsert and delete the same few edges, through any number of stores on the same database. The
/// remaining links and the audit trail must match the results that the writers got.
pub async fn contended(stores: &[Shared]) {
    let make = std::sync::Arc::new(Make::new());
    let mut tasks = JoinSet::new();
    for (writer, store) in (0..16).zip(stores.iter().cycle()) {
        tasks.spawn(contend(store.clone(), make.clone(), writer));
    }
    let told = tasks.join_all().await;
    let store = &stores[0];
    let created: u64 = told.iter().map(|(created, _)| created).sum();
    let gone: u64 = told.iter().map(|(_, gone)| gone).sum();
    assert!(created > 50 && gone > 50, "too little contention: {created} created, {gone} deleted");
    let left = all_links(store, ME, links()).await;
    assert_eq!(left.len() as u64, created - gone);
    let mut on_record: BTreeMap<String, u64> = BTreeMap::new();
    for record in all_audit(store, ME, 1_000).await {
        let Record::Audit { row, .. } = record else { panic!("not a row of the audit trail: {record:?}") };
        let counts = row.operation == "links.delete" || row.detail == r#"{"created":true}"#;
        *on_record.entry(row.operation).or_default() += u64::from(counts);
    }
    assert_eq!(
        (on_record["links.upsert"], on_record["links.delete"]),
        (created, gone),
        "the audit trail matches"
    );
    let all: Vec<LinkEdge> = left.into_iter().map(|link| link.edge).collect();
    for thing in ["a/1", "a/2", "b/1"] {
        for direction in DIRECTIONS {
            let query = links_of(thing, direction);
            assert_eq!(edges(store, query.clone()).await, expected(&all, &query), "{thing} {direction:?}");
        }
    }
}

cases! { links as __suite_links;
    /// D7: an edge is stored once. Written again, it keeps its id and gets new attributes.
    async fn an_edge_is_stored_once(store: &Shared) {
        let make = Make::new();
        let owns = edge("person/1", "owns", "order/1");
        let by = |number, by| match upsert(number, owns.clone()) {
            LinkWrite::Upsert { edge, id, attributes, .. } => LinkWrite::Upsert { edge, id, attributes, by },
            other => other,
        };
        let first = Commit { links: vec![by(1, Some(run(1)))], ..make.commit_at(at(5)) };
        assert_eq!(apply_one(store, first).await, upserted(1, true));
        let mut kept = Link {
            edge: owns.clone(),
            id: link_id(1),
            attributes: json!({"n": 1}),
            created_at: at(5),
            updated_at: at(5),
            created_by: Some(run(1)),
        };
        assert_eq!(link(store, &owns).await, Some(kept.clone()));
        for (number, again) in [(2, Some(run(2))), (3, None)] {
            let late = make.commit_at(at(6 + i64::from(number)));
            let commit = Commit { links: vec![by(number, again)], ..late };
            assert_eq!(apply_one(store, commit).await, upserted(1, false), "the result has the id of the existing link");
            (kept.attributes, kept.updated_at) = (json!({ "n": number }), at(6 + i64::from(number)));
            let found = all_links(store, ME, links()).await;
            assert_eq!(found, [kept.clone()], "attributes are replaced, not merged");
        }
        apply(store, make.link([unlink(Some("person/1"), None, None)])).await;
        let anew = Commit { links: vec![by(4, None)], ..make.commit_at(at(20)) };
        assert_eq!(apply_one(store, anew).await, upserted(4, true), "after a deletion it is a new link");
        let anew = link(store, &owns).await.unwrap();
        assert_eq!((anew.id, anew.created_at, anew.created_by), (link_id(4), at(20), None));
    }

    /// D7: edges that differ in any part are different links.
    async fn each_part_of_an_edge_distinguishes_links(store: &Shared) {
        let make = Make::new();
        let mut all = vec![
            edge("a/1", "r", "b/1"),
            edge("a/1", "s", "b/1"),
            edge("b/1", "r", "a/1"),
            edge("a/1", "r", "b/2"),
            edge("a/1", "r", "c/1"),
            edge("a/2", "r", "b/1"),
            edge("c/1", "r", "b/1"),
        ];
        let elsewhere = LinkEdge::new("elsewhere", thing("a/1"), thing("b/1"), "r");
        for (number, edge) in (1..).zip(all.iter().chain([&elsewhere])) {
            let result = apply_one(store, make.link([upsert(number, edge.clone())])).await;
            assert_eq!(result, upserted(number.into(), true), "{edge:?}");
        }
        all.sort();
        assert_eq!(edges(store, links()).await, all);
        let other = LinkQuery { namespace: "elsewhere".to_owned(), ..links() };
        assert_eq!(edges(store, other).await, [elsewhere]);
        let pair = LinkQuery { limit: 1, ..links_of("a/1", Direction::Either) };
        assert_eq!(edges(store, pair).await.len(), 5, "both directions, and both relations of the pair");
    }

    /// D7: links are found from either end, filtered by relation and by the type at the other end, in order, in pages.
    async fn links_are_found_from_both_ends(store: &Shared) {
        let all = around();
        write_all(store, &Make::new(), &all).await;
        for question in questions() {
            let wanted = expected(&all, &question);
            for limit in [1, 2, 5, 200] {
                let found = edges(store, LinkQuery { limit, ..question.clone() }).await;
                assert_eq!(found, wanted, "pages of {limit} of {question:?}");
            }
        }
        let count = |direction| expected(&all, &links_of("order/1", direction)).len();
        assert_eq!(DIRECTIONS.map(count), [8, 6, 12], "the queries have results");
        for absent in ["order/3", "orde/1", "order/", "Order/1", "order/1%"] {
            for direction in DIRECTIONS {
                assert_eq!(edges(store, links_of(absent, direction)).await, [], "{absent}");
            }
        }
    }

    /// D7: links of a namespace are listed in the order of their edges, filtered by the types at their ends.
    async fn a_namespaces_links_are_listed_in_order(store: &Shared) {
        let mut all = around();
        write_all(store, &Make::new(), &all).await;
        all.sort();
        for from in [None, Some("order"), Some("person"), Some("none")] {
            for to in [None, Some("order"), Some("item")] {
                for relation in [None, Some("has"), Some("likes")] {
                    let mut wanted = all.clone();
                    wanted.retain(|edge| {
                        from.is_none_or(|kind| edge.from().kind() == kind)
                            && to.is_none_or(|kind| edge.to().kind() == kind)
                            && relation.is_none_or(|relation| edge.relation() == relation)
                    });
                    let text = |text: Option<&str>| text.map(str::to_owned);
                    let which = LinkFilter::All { from: text(from), to: text(to) };
                    for limit in [1, 4, 15, 200] {
                        let (which, relation) = (which.clone(), text(relation));
                        let query = LinkQuery { which, relation, limit, ..links() };
                        assert_eq!(edges(store, query.clone()).await, wanted, "{query:?}");
                    }
                }
            }
        }
    }

    /// D7: a link from an entity to itself is found once, also if both directions are followed.
    async fn a_link_from_an_entity_to_itself_is_found_once(store: &Shared) {
        let make = Make::new();
        let own = [edge("a/1", "r", "a/1"), edge("a/1", "s", "a/1")];
        write_all(store, &make, &own).await;
        for direction in DIRECTIONS {
            for limit in [1, 2, 3] {
                let query = LinkQuery { limit, ..links_of("a/1", direction) };
                assert_eq!(edges(store, query).await, own, "{direction:?}, pages of {limit}");
            }
        }
        let gone = apply_one(store, make.link([unlink(Some("a/1"), None, Some("a/1"))])).await;
        assert_eq!(gone, deleted(2));
    }

    /// D6, D7: a page begins after the last link of the previous one, whatever is written in between.
    async fn pages_of_links_are_stable_under_writes(store: &Shared) {
        let make = Make::new();
        let kinds: [(Named, LinkQuery); 4] = [
            (|far| edge("f/1", "r", &format!("x/{far}")), links_of("f/1", Direction::Forward)),
            (|far| edge(&format!("x/{far}"), "r", "b/1"), links_of("b/1", Direction::Reverse)),
            (
                |far| match far.parse::<u32>().is_ok_and(|number| number % 4 == 0) {
                    true => edge(&format!("x/{far}"), "r", "e/1"),
                    false => edge("e/1", "r", &format!("x/{far}")),
                },
                links_of("e/1", Direction::Either),
            ),
            (|far| edge(&format!("z/{far}"), "r", "z/1"), LinkQuery {
                which: LinkFilter::All { from: Some("z".to_owned()), to: None },
                ..links()
            }),
        ];
        let far = |number: u32| format!("{number:02}");
        for (make_edge, query) in kinds {
            let edge = |number: u32| make_edge(&far(number));
            write_all(store, &make, &(10..30).step_by(2).map(edge).collect::<Vec<_>>()).await;
            let page = async |cursor| {
                store.links(ME, LinkQuery { limit: 4, cursor, ..query.clone() }).await.unwrap()
            };
            let first = page(None).await;
            let edges_of = |links: Vec<Link>| links.into_iter().map(|link| link.edge).collect::<Vec<_>>();
            assert_eq!(edges_of(first.items), [10, 12, 14, 16].map(edge));
            let drop = |number: u32| {
                let (from, to) = (Some(edge(number).from().clone()), Some(edge(number).to().clone()));
                LinkWrite::Delete { ends: LinkEnds { from, to, ..ends(None, None, None) }, by: None }
            };
            let come = [11, 13, 17, 21].map(|number| upsert(number, edge(number)));
            apply(store, make.link([16, 10, 20].map(drop).into_iter().chain(come))).await;
            let second = page(first.next).await;
            assert_eq!(edges_of(second.items), [17, 18, 21, 22].map(edge), "the link at the cursor was deleted");
            let third = page(second.next).await;
            assert_eq!((edges_of(third.items), third.next), ([24, 26, 28].map(edge).to_vec(), None));
        }
    }

    /// A page has 1 to 1,000 links, also for both directions together.
    async fn a_page_of_links_has_1_to_1000_links(store: &Shared) {
        let make = Make::new();
        let there = (0..600_u32).map(|number| edge("hub/1", "r", &format!("x/{number:03}")));
        let back = (0..600_u32).map(|number| edge(&format!("x/{number:03}"), "r", "hub/1"));
        write_all(store, &make, &there.chain(back).collect::<Vec<_>>()).await;
        let both = links_of("hub/1", Direction::Either);
        let page = async |limit| store.links(ME, LinkQuery { limit, ..both.clone() }).await.unwrap();
        assert_eq!(page(0).await.items.len(), 1);
        let largest = page(u32::MAX).await;
        assert_eq!((largest.items.len(), largest.next.is_some()), (MAX_PAGE as usize, true));
        assert_eq!(edges(store, LinkQuery { limit: 500, ..both }).await.len(), 1_200);
        let gone = apply_one(store, make.link([unlink(None, None, Some("hub/1"))])).await;
        assert_eq!(gone, deleted(600));
        let left = LinkQuery { limit: 600, ..links_of("hub/1", Direction::Either) };
        let left = store.links(ME, left).await.unwrap();
        assert_eq!((left.items.len(), left.next), (600, None), "no page follows a full last one");
    }

    /// D7: links are deleted by their beginning, their end or both, and optionally by relation. The result is their
    /// number.
    async fn links_are_deleted_by_their_ends_and_relation(store: &Shared) {
        let make = Make::new();
        let all = around();
        let one = "order/1";
        let wanted = [
            ends(Some(one), None, None),
            ends(None, None, Some(one)),
            ends(Some(one), None, Some("person/1")),
            ends(Some(one), Some("has"), None),
            ends(None, Some("related"), Some(one)),
            ends(Some(one), Some("paid-by"), Some("person/1")),
            ends(Some(one), None, Some(one)),
            ends(Some("order/3"), None, None),
            ends(Some(one), Some("ha"), None),
            LinkEnds { namespace: "elsewhere".to_owned(), ..ends(Some(one), None, None) },
        ];
        for ends in wanted {
            write_all(store, &make, &all).await;
            let (gone, mut left): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|edge| ends.has(edge));
            let delete = LinkWrite::Delete { ends: ends.clone(), by: None };
            let result = apply_one(store, make.link([delete.clone()])).await;
            assert_eq!(result, deleted(gone.len() as u64), "{ends:?}");
            left.sort();
            assert_eq!(edges(store, links()).await, left, "{ends:?}");
            assert_eq!(apply_one(store, make.link([delete])).await, deleted(0), "none are left");
        }
    }

    /// D7: a deletion that names neither end would delete everything, and is refused.
    async fn a_deletion_without_an_end_is_refused(store: &Shared) {
        let make = Make::new();
        write_all(store, &make, &around()).await;
        let before = seen(store).await;
        for relation in [None, Some("has")] {
            let commit = make.link([upsert(99, edge("new/1", "r", "new/2")), unlink(None, relation, None)]);
            assert_eq!(refuse_link(store, commit.clone()).await, (1, LinkError::NoEnd));
            assert_eq!((seen(store).await, outcome(store, &commit).await), (before.clone(), None));
        }
    }

    /// D7: no part of an edge is empty or longer than a key may be.
    async fn empty_and_too_long_parts_are_refused(store: &Shared) {
        let make = Make::new();
        let (much, most) = ("x".repeat(257), "ü".repeat(256));
        for (index, what) in ["namespace", "type", "id", "type", "id", "relation"].into_iter().enumerate() {
            let with = |text: &str| {
                let mut parts = ["n", "a", "1", "b", "2", "r"];
                parts[index] = text;
                let [namespace, from, from_id, to, to_id, relation] = parts;
                LinkEdge::new(namespace, Entity::new(from, from_id), Entity::new(to, to_id), relation)
            };
            let before = seen(store).await;
            for empty in ["", "  ", "\n"] {
                let commit = make.link([upsert(1, edge("a/1", "r", "b/1")), upsert(2, with(empty))]);
                assert_eq!(refuse_link(store, commit).await, (1, LinkError::Empty(what)), "{empty:?}");
            }
            let (_, error) = refuse_link(store, make.link([upsert(1, with(&much))])).await;
            let LinkError::TooLarge(exceeded) = error else { panic!("{what}: {error:?}") };
            assert_eq!((&exceeded.limit[..], exceeded.max), ("key_chars", 256), "{what}");
            assert_eq!(seen(store).await, before, "{what}");
            let result = apply_one(store, make.link([upsert(3, with(&most))])).await;
            assert_eq!(result, upserted(3, true), "{what}: 256 characters are allowed");
            apply(store, make.link([LinkWrite::Delete {
                ends: LinkEnds {
                    namespace: with(&most).namespace().to_owned(),
                    from: Some(with(&most).from().clone()),
                    to: None,
                    relation: None,
                },
                by: None,
            }]))
            .await;
        }
        let (kind, id) = (ends(Some("/1"), None, None), ends(Some("a/"), None, None));
        let ends = [kind, id, ends(Some("a/1"), Some(""), None)];
        for (ends, what) in ends.into_iter().zip(["type", "id", "relation"]) {
            let commit = make.link([LinkWrite::Delete { ends, by: None }]);
            assert_eq!(refuse_link(store, commit).await, (0, LinkError::Empty(what)));
        }
    }

    /// D7: spaces around a part are removed, so that no two links look the same.
    async fn spaces_around_parts_of_an_edge_are_removed(store: &Shared) {
        let make = Make::new();
        let plain = edge("a/1", "r", "b/2");
        let spaced =
            LinkEdge::new(" ns\n", Entity::new("\ta ", " 1"), Entity::new("b  ", "\u{A0}2\u{2003}"), "  r ");
        assert_eq!(apply_one(store, make.link([upsert(1, plain.clone())])).await, upserted(1, true));
        assert_eq!(apply_one(store, make.link([upsert(2, spaced)])).await, upserted(1, false));
        assert_eq!(edges(store, links()).await, [plain]);
        let end = Entity::new(" a", "1 ");
        let which = LinkFilter::Of { end: end.clone(), direction: Direction::Forward, far: None };
        assert_eq!(edges(store, LinkQuery { which, ..links() }).await.len(), 1);
        let delete = LinkWrite::Delete { ends: LinkEnds { from: Some(end), ..ends(None, None, None) }, by: None };
        assert_eq!(apply_one(store, make.link([delete])).await, deleted(1));
    }

    /// Guards against a quote that ends a statement, a percent sign that matches everything, and a colon that splits a
    /// cursor.
    async fn odd_characters_are_taken_literally(store: &Shared) {
        let make = Make::new();
        let all: Vec<LinkEdge> = ODD.iter().map(|text| made_of(text)).collect();
        write_all(store, &make, &all).await;
        let mixed = ODD.iter().flat_map(|from| ODD.iter().map(move |to| (from, to)));
        let mixed: Vec<LinkEdge> = mixed.map(cross).collect();
        write_all(store, &make, &mixed).await;
        for text in ODD {
            for direction in DIRECTIONS {
                let end = Entity::new(text, text);
                let (far, relation) = (Some(text.to_owned()), Some(text.to_owned()));
                let which = LinkFilter::Of { end, direction, far };
                let query = LinkQuery { namespace: text.to_owned(), which, relation, ..links() };
                assert_eq!(edges(store, query).await, [made_of(text)], "{direction:?} {text:?}");
            }
        }
        for limit in [1, 7] {
            let mut found = edges(store, LinkQuery { limit, ..links() }).await;
            assert!(found.is_sorted(), "in the order of their bytes");
            found.dedup();
            assert_eq!(found.len(), mixed.len());
        }
        for text in ODD {
            let LinkEnds { from, to, .. } = ends(Some("a/1"), None, None);
            let from = from.map(|_| Entity::new(text, text));
            let ends = LinkEnds { namespace: text.to_owned(), from, to, relation: Some(text.to_owned()) };
            let result = apply_one(store, make.link([LinkWrite::Delete { ends, by: None }])).await;
            assert_eq!(result, deleted(1), "{text:?}");
        }
        assert_eq!(edges(store, links()).await.len(), mixed.len());
    }

    /// Guards against an index that cannot hold the longest entries, so that some edges cannot be written.
    async fn the_longest_edges_are_stored(store: &Shared) {
        let make = Make::new();
        let ascii: Vec<char> = ('!'..='~').collect();
        let emoji: Vec<char> = ('\u{1F300}'..='\u{1F5FF}').collect();
        let all = |part: u64| long(part, 256, &ascii);
        let ids = |part: u64| if part % 2 == 1 { long(part, 256, &emoji) } else { long(part, 64, &ascii) };
        for text in [&all as &(dyn Fn(u64) -> String + Sync), &ids] {
            let (namespace, from) = (text(0), Entity::new(text(2), text(1)));
            let to = Entity::new(text(4), text(3));
            for (number, relation) in [(1, text(6)), (2, text(8))] {
                let edge = LinkEdge::new(&namespace, from.clone(), to.clone(), relation);
                let result = apply_one(store, make.link([upsert(number, edge)])).await;
                assert_eq!(result, upserted(number.into(), true));
            }
            let which = LinkFilter::Of { end: to.clone(), direction: Direction::Reverse, far: None };
            let query = LinkQuery { namespace: namespace.clone(), which, limit: 1, ..links() };
            assert_eq!(edges(store, query).await.len(), 2, "long cursors work");
            let ends = LinkEnds { namespace, from: None, to: Some(to), relation: None };
            let result = apply_one(store, make.link([LinkWrite::Delete { ends, by: None }])).await;
            assert_eq!(result, deleted(2));
        }
        let too = |part: u64| long(part, 256, &emoji);
        let edge = LinkEdge::new(too(0), Entity::new(too(1), too(2)), Entity::new(too(3), too(4)), too(5));
        let (_, error) = refuse_link(store, make.link([upsert(1, edge)])).await;
        let LinkError::TooLarge(exceeded) = error else { panic!("{error:?}") };
        assert_eq!((&exceeded.limit[..], exceeded.actual), ("edge_bytes", 6 * 256 * 4));
    }

    /// D7: attributes are any JSON up to 256 KiB. More is refused before anything is written.
    async fn attributes_are_json_of_a_limited_size(store: &Shared) {
        let make = Make::new();
        let with = |attributes: Value| LinkWrite::Upsert {
            edge: edge("a/1", "r", "b/1"),
            id: link_id(1),
            attributes,
            by: None,
        };
        let values = [json!(null), json!({}), json!([1, {"ü": "\0"}]), json!("text"), json!({"b": 1, "a": 2})];
        for value in values {
            apply(store, make.link([with(value.clone())])).await;
            assert_eq!(all_links(store, ME, links()).await[0].attributes, value);
        }
        let most = json!("x".repeat(256 * 1024 - 2));
        apply(store, make.link([with(most.clone())])).await;
        assert_eq!(all_links(store, ME, links()).await[0].attributes, most);
        let before = seen(store).await;
        let other = upsert(2, edge("a/1", "r", "b/2"));
        let too_much = with(json!("x".repeat(256 * 1024 - 1)));
        let commit = Commit { links: vec![other, too_much], ..make.write([set("k", 1)]) };
        let (operation, error) = refuse_link(store, commit.clone()).await;
        let is_too_large = matches!(&error, LinkError::TooLarge(it) if it.limit == "cell_bytes");
        assert!(operation == 2 && is_too_large, "{operation}: {error:?}");
        assert_eq!((seen(store).await, outcome(store, &commit).await), (before, None));
    }

    /// D9: operations of one commit on the same edge are applied in order.
    async fn operations_on_one_edge_are_applied_in_order(store: &Shared) {
        let make = Make::new();
        let owns = edge("a/1", "r", "b/1");
        let (put, drop) = (|number| upsert(number, owns.clone()), unlink(None, None, Some("b/1")));
        let results = apply(store, make.link([put(1), drop.clone()])).await.results;
        assert_eq!(results, [upserted(1, true), deleted(1)]);
        assert_eq!(link(store, &owns).await, None);
        let results = apply(store, make.link([drop.clone(), put(2), put(3)])).await.results;
        assert_eq!(results, [deleted(0), upserted(2, true), upserted(2, false)]);
        assert_eq!(link(store, &owns).await.unwrap().attributes, json!({"n": 3}));
        let results = apply(store, make.link([put(4), drop.clone(), drop.clone(), put(5)])).await.results;
        assert_eq!(results, [upserted(2, false), deleted(1), deleted(0), upserted(5, true)]);
        assert_eq!(link(store, &owns).await.unwrap().id, link_id(5), "a new link on the same edge");
        let other = upsert(6, edge("a/2", "r", "b/1"));
        let results = apply(store, make.link([drop.clone(), other, drop])).await.results;
        assert_eq!(results, [deleted(1), upserted(6, true), deleted(1)]);
        assert_eq!(all_links(store, ME, links()).await, []);
    }

    /// Results of operations on links follow those on cells, and their indexes continue.
    async fn results_of_links_follow_those_of_cells(store: &Shared) {
        let make = Make::new();
        let owns = upsert(1, edge("a/1", "r", "b/1"));
        let commit = Commit { links: vec![owns.clone()], ..make.write([increment("n", 5), set("k", 1)]) };
        let committed = apply(store, commit.clone()).await;
        let values: Vec<_> = committed.results.iter().map(|result| result.value.clone()).collect();
        assert_eq!(values, [Some(json!(5)), None, upserted(1, true).value]);
        assert_eq!(outcome(store, &commit).await.unwrap().results, committed.results);
        let links = vec![owns, unlink(None, None, None)];
        let commit = Commit { links, ..make.write([increment("n", 5)]) };
        assert_eq!(refuse_link(store, commit).await, (2, LinkError::NoEnd));
        assert_eq!(get(store, "n").await.unwrap().value, Some(json!(5)), "the cell is unchanged");
    }

    /// Results of operations on links can be put into the next state.
    async fn results_of_links_are_put_into_the_next_state(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        write_all(store, &make, &around()).await;
        let commit = Commit {
            cells: vec![increment("n", 7)],
            links: vec![
                upsert(99, edge("new/1", "r", "order/1")),
                unlink(Some("order/1"), Some("has"), None),
            ],
            bindings: vec![
                binding(0, ResultPart::Value, "/vars/n"),
                binding(1, ResultPart::Value, "/vars/link"),
                binding(1, ResultPart::Created, "/vars/new"),
                binding(2, ResultPart::Value, "/vars/gone"),
                binding(2, ResultPart::Revision, "/vars/revision"),
            ],
            ..make.step(step(&head, "on"))
        };
        apply(store, commit.clone()).await;
        let state: Value = serde_json::from_slice(&load(store, run(1)).await.head.state).unwrap();
        let id = link_id(99).to_string();
        let vars = json!({"n": 7, "link": id, "new": true, "gone": 4, "revision": 0});
        assert_eq!(state, json!({"at": "on", "vars": vars}));
        assert_eq!(outcome(store, &commit).await.unwrap().results.len(), 3);
        let head = load(store, run(1)).await.head;
        let bindings = vec![binding(1, ResultPart::Value, "/vars/n")];
        let links = vec![upsert(1, edge("a/1", "r", "b/1"))];
        let commit = Commit { links, bindings, ..make.step(step(&head, "on")) };
        assert!(matches!(refuse(store, commit).await, Refused::ResultBinding { operation: 1, .. }));
        assert_eq!(link(store, &edge("a/1", "r", "b/1")).await, None);
    }

    /// D12: each changed edge has its own audit row with the actor. An operation that changes nothing has none.
    async fn each_changed_edge_is_audited(store: &Shared) {
        let make = Make::new();
        let owns = LinkWrite::Upsert {
            edge: edge("a b/1:2", "r%", "ü/x"),
            id: link_id(1),
            attributes: json!({"secret": 1}),
            by: Some(run(1)),
        };
        let [all, none] = ["a b/1:2", "x/1"].map(|from| unlink(Some(from), None, None));
        let links = vec![owns.clone(), owns, all, none];
        let actor = Some("ann".to_owned());
        let commit = Commit { links, actor: actor.clone(), ..make.commit_at(at(3)) };
        apply(store, commit.clone()).await;
        let said = |operation: &str, run, detail: &str| AuditRow {
            operation: operation.to_owned(),
            subject: "link:ns:a%20b:1%3A2:%C3%BC:x:r%25".to_owned(),
            actor: actor.clone(),
            run,
            detail: bytes(detail),
        };
        let rows = [
            said("links.upsert", Some(run(1)), r#"{"created":true}"#),
            said("links.upsert", Some(run(1)), r#"{"created":false}"#),
            said("links.delete", None, "{}"),
        ];
        let record = |(ordinal, row)| Record::Audit { commit: commit.id, ordinal, at: at(3), row };
        let rows: Vec<_> = (0..).zip(rows).map(record).collect();
        assert_eq!(all_audit(store, ME, 100).await, rows, "without attributes");
        let nothing = make.link([unlink(Some("x/1"), None, None)]);
        assert_eq!(apply_one(store, nothing.clone()).await, deleted(0));
        assert_eq!(all_audit(store, ME, 100).await, rows);
        assert_eq!(outcome(store, &nothing).await, None, "it leaves no trace");
        assert_eq!(apply_one(store, nothing).await, deleted(0), "it can be sent again");
    }

    /// D11: the same edges in two tenants are separate links, and a deletion affects only its tenant.
    async fn tenants_do_not_see_each_others_links(store: &Shared) {
        const TWO: TenantScope = tenant(2);
        let make = Make::new();
        write_all(store, &make, &around()).await;
        let mine = all_links(store, ME, links()).await;
        assert_eq!(all_links(store, TWO, links()).await, []);
        assert_eq!(all_links(store, TWO, links_of("order/1", Direction::Either)).await, []);
        let delete = || make.link([unlink(Some("order/1"), None, None), unlink(None, None, Some("order/1"))]);
        let gone = store.commit(TWO, delete()).await.unwrap().results;
        assert_eq!(gone, [deleted(0), deleted(0)]);
        let theirs = make.link([upsert(50, edge("order/1", "has", "item/1"))]);
        assert_eq!(store.commit(TWO, theirs).await.unwrap().results, [upserted(50, true)]);
        assert_eq!(all_links(store, ME, links()).await, mine);
        apply(store, delete()).await;
        let left = all_links(store, TWO, links_of("item/1", Direction::Reverse)).await;
        assert_eq!((left.len(), left[0].id), (1, link_id(50)));
    }

    /// D7: of concurrent writers of the same edge one creates it, and all get the same id.
    async fn one_of_many_concurrent_writers_creates_an_edge(store: &Shared) {
        let make = Make::new();
        for round in 0..5_u32 {
            let owns = edge("a/1", "r", &format!("b/{round}"));
            let mut tasks = JoinSet::new();
            for number in 0..16 {
                let commit = make.link([upsert(round * 100 + number, owns.clone())]);
                let store = store.clone();
                tasks.spawn(async move { apply(&store, commit).await.results.remove(0) });
            }
            let results = tasks.join_all().await;
            assert_eq!(results.iter().filter(|result| result.created).count(), 1);
            let id = Some(json!(link(store, &owns).await.unwrap().id.to_string()));
            assert!(results.iter().all(|result| result.value == id), "{results:?}");
        }
    }

    /// D7, D9: sixteen writers upsert and delete the same few edges. The remaining links match their results.
    async fn concurrent_link_writes_match_their_results(store: &Shared) {
        contended(std::slice::from_ref(store)).await;
    }
}
