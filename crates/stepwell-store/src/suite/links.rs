//! Cases about links: one for each typed edge, found from both ends, deleted by what they have in common.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{
    all_audit, all_links, apply, get, links, links_of, load, operated, outcome, refuse, started,
};
use super::dump::{Dump, Names, dump};
use super::make::{
    ME, Make, NAMESPACE, at, bytes, edge, ends, increment, link_id, new_run, run, set, step, tenant, thing,
    unlink, upsert,
};
use crate::cell::OpResult;
use crate::commit::{AuditRow, Commit, CommitError, Committed, Fill, FillPart, Refused};
use crate::link::{Direction, Edge, Ends, Entity, Link, LinkError, LinkFilter, LinkQuery, LinkWrite};
use crate::scope::TenantScope;
use crate::store::{MAX_PAGE, Record, StoreError};

const DIRECTIONS: [Direction; 3] = [Direction::Forward, Direction::Reverse, Direction::Either];

/// Edges around `order/1`, and some that only look as if they were its own.
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

fn around() -> Vec<Edge> {
    AROUND.iter().map(|(from, relation, to)| edge(from, relation, to)).collect()
}

async fn write_all(store: &Shared, make: &Make, edges: &[Edge]) {
    apply(store, make.link((1..).zip(edges).map(|(number, edge)| upsert(number, edge.clone())))).await;
}

/// The edges a listing gives, page by page.
async fn edges(store: &Shared, query: LinkQuery) -> Vec<Edge> {
    all_links(store, ME, query).await.into_iter().map(|link| link.edge).collect()
}

/// The one link of an edge.
async fn link(store: &Shared, edge: &Edge) -> Option<Link> {
    let all = LinkQuery { namespace: edge.namespace().to_owned(), ..links() };
    let mut found = all_links(store, ME, all).await;
    found.retain(|link| link.edge == *edge);
    assert!(found.len() <= 1, "an edge is kept once: {found:?}");
    found.pop()
}

/// What the links of a thing must be, by going through all edges.
fn expected(edges: &[Edge], query: &LinkQuery) -> Vec<Edge> {
    let LinkFilter::Of { end, direction, far: kind } = &query.which else { panic!("not of a thing") };
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

/// Every way to ask for the links of `order/1`.
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

/// What every operation of a commit was refused with.
async fn refuse_link(store: &Shared, commit: Commit) -> (usize, LinkError) {
    match refuse(store, commit).await {
        Refused::Link { operation, error } => (operation, error),
        other => panic!("refused for something else: {other:?}"),
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

fn fill(operation: usize, part: FillPart, pointer: &str) -> Fill {
    Fill { operation, part, pointer: pointer.to_owned() }
}

/// Edges whose parts are all the same text.
fn made_of(text: &str) -> Edge {
    Edge::new(text, Entity::new(text, text), Entity::new(text, text), text)
}

/// Makes an edge to something that has this id.
type Named = fn(&str) -> Edge;

/// Texts with everything in them that some database takes for a pattern, a quote, an escape or a separator.
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

/// An edge between two things that have odd types and ids.
fn cross((from, to): (&&str, &&str)) -> Edge {
    Edge::new(NAMESPACE, Entity::new(from, to), Entity::new(to, from), from)
}

/// A text of so many characters that does not compress.
fn long(seed: u64, characters: usize, letters: &[char]) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        letters[(state >> 33) as usize % letters.len()]
    };
    (0..characters).map(|_| next()).collect()
}

/// Two types, two things each, two relations: edges that those who write at the same time all want.
fn contested() -> Vec<Edge> {
    let things = ["a/1", "a/2", "b/1"];
    let pairs = things.iter().flat_map(|from| things.iter().map(move |to| (*from, *to)));
    pairs.flat_map(|(from, to)| ["r", "s"].map(|relation| edge(from, relation, to))).collect()
}

/// Commits what must be applied, if not now, then later: others may hold for a while what it wants.
async fn insist(store: &Shared, commit: Commit) -> Committed {
    loop {
        match store.commit(ME, commit.clone()).await {
            Err(CommitError::Store(StoreError::Unavailable(_))) => tokio::task::yield_now().await,
            answer => return answer.expect("the commit is applied"),
        }
    }
}

/// Writes links as others do at the same time; gives how many it created and deleted.
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
            1 => vec![delete(Ends { from: Some(from), ..ends(None, None, None) })],
            2 => vec![upsert(number, pick(0)), delete(Ends { to: Some(to), ..ends(None, Some("r"), None) })],
            _ => vec![
                delete(Ends { from: Some(from), to: Some(to), ..ends(None, None, None) }),
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

/// Sixteen at once upsert and delete the same few edges, by any number of stores on the same database; what is
/// left, and what is on record, is what they were told.
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
    assert!(created > 50 && gone > 50, "they met: {created} created, {gone} deleted");
    let left = all_links(store, ME, links()).await;
    assert_eq!(left.len() as u64, created - gone);
    let mut on_record: BTreeMap<String, u64> = BTreeMap::new();
    for record in all_audit(store, ME, 1_000).await {
        let Record::Audit { row, .. } = record else { panic!("not a row of the audit trail: {record:?}") };
        let counts = row.operation == "links.delete" || row.detail == r#"{"created":true}"#;
        *on_record.entry(row.operation).or_default() += u64::from(counts);
    }
    assert_eq!((on_record["links.upsert"], on_record["links.delete"]), (created, gone), "so says the trail");
    let all: Vec<Edge> = left.into_iter().map(|link| link.edge).collect();
    for thing in ["a/1", "a/2", "b/1"] {
        for direction in DIRECTIONS {
            let query = links_of(thing, direction);
            assert_eq!(edges(store, query.clone()).await, expected(&all, &query), "{thing} {direction:?}");
        }
    }
}

cases! { links as __suite_links;
    /// D7: an edge is there once; written again it keeps its id and gets other attributes.
    async fn an_edge_is_kept_once(store: &Shared) {
        let make = Make::new();
        let owns = edge("person/1", "owns", "order/1");
        let by = |number, by| match upsert(number, owns.clone()) {
            LinkWrite::Upsert { edge, id, attributes, .. } => LinkWrite::Upsert { edge, id, attributes, by },
            other => other,
        };
        let first = Commit { links: vec![by(1, Some(run(1)))], ..make.commit_at(at(5)) };
        assert_eq!(operated(store, first).await, upserted(1, true));
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
            assert_eq!(operated(store, commit).await, upserted(1, false), "it says which one it is");
            (kept.attributes, kept.updated_at) = (json!({ "n": number }), at(6 + i64::from(number)));
            let found = all_links(store, ME, links()).await;
            assert_eq!(found, [kept.clone()], "attributes are replaced, not merged");
        }
        apply(store, make.link([unlink(Some("person/1"), None, None)])).await;
        let anew = Commit { links: vec![by(4, None)], ..make.commit_at(at(20)) };
        assert_eq!(operated(store, anew).await, upserted(4, true), "once deleted it is another link");
        let anew = link(store, &owns).await.unwrap();
        assert_eq!((anew.id, anew.created_at, anew.created_by), (link_id(4), at(20), None));
    }

    /// D7: what differs in any part is another link.
    async fn each_part_of_an_edge_tells_links_apart(store: &Shared) {
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
        let elsewhere = Edge::new("elsewhere", thing("a/1"), thing("b/1"), "r");
        for (number, edge) in (1..).zip(all.iter().chain([&elsewhere])) {
            let result = operated(store, make.link([upsert(number, edge.clone())])).await;
            assert_eq!(result, upserted(number.into(), true), "{edge:?}");
        }
        all.sort();
        assert_eq!(edges(store, links()).await, all);
        let other = LinkQuery { namespace: "elsewhere".to_owned(), ..links() };
        assert_eq!(edges(store, other).await, [elsewhere]);
        let pair = LinkQuery { limit: 1, ..links_of("a/1", Direction::Either) };
        assert_eq!(edges(store, pair).await.len(), 5, "both ways, and both relations of the pair");
    }

    /// D7: from either end, filtered by relation and by the type at the other end, in order, page by page.
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
        assert_eq!(DIRECTIONS.map(count), [8, 6, 12], "the question is worth asking");
        for nobody in ["order/3", "orde/1", "order/", "Order/1", "order/1%"] {
            for direction in DIRECTIONS {
                assert_eq!(edges(store, links_of(nobody, direction)).await, [], "{nobody}");
            }
        }
    }

    /// D7: a namespace's links are listed in the order of their edges, filtered by the types at their ends.
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

    /// D7: a link from a thing to itself is one link, also when both ways are gone.
    async fn a_link_from_a_thing_to_itself_is_found_once(store: &Shared) {
        let make = Make::new();
        let own = [edge("a/1", "r", "a/1"), edge("a/1", "s", "a/1")];
        write_all(store, &make, &own).await;
        for direction in DIRECTIONS {
            for limit in [1, 2, 3] {
                let query = LinkQuery { limit, ..links_of("a/1", direction) };
                assert_eq!(edges(store, query).await, own, "{direction:?}, pages of {limit}");
            }
        }
        let gone = operated(store, make.link([unlink(Some("a/1"), None, Some("a/1"))])).await;
        assert_eq!(gone, deleted(2));
    }

    /// D6, D7: a page begins after the last link of the one before, whatever comes and goes meanwhile.
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
                LinkWrite::Delete { ends: Ends { from, to, ..ends(None, None, None) }, by: None }
            };
            let come = [11, 13, 17, 21].map(|number| upsert(number, edge(number)));
            apply(store, make.link([16, 10, 20].map(drop).into_iter().chain(come))).await;
            let second = page(first.next).await;
            assert_eq!(edges_of(second.items), [17, 18, 21, 22].map(edge), "the cursor's own link has gone");
            let third = page(second.next).await;
            assert_eq!((edges_of(third.items), third.next), ([24, 26, 28].map(edge).to_vec(), None));
        }
    }

    /// A page has at least one link and at most a thousand, also of both ways together.
    async fn a_page_of_links_is_never_empty_and_never_endless(store: &Shared) {
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
        let gone = operated(store, make.link([unlink(None, None, Some("hub/1"))])).await;
        assert_eq!(gone, deleted(600));
        let left = LinkQuery { limit: 600, ..links_of("hub/1", Direction::Either) };
        let left = store.links(ME, left).await.unwrap();
        assert_eq!((left.items.len(), left.next), (600, None), "no page follows a full last one");
    }

    /// D7: links are deleted by where they begin, where they end, or both, and of these by relation; it says how
    /// many.
    async fn links_are_deleted_by_what_they_have_in_common(store: &Shared) {
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
            Ends { namespace: "elsewhere".to_owned(), ..ends(Some(one), None, None) },
        ];
        for ends in wanted {
            write_all(store, &make, &all).await;
            let (gone, mut left): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|edge| ends.has(edge));
            let delete = LinkWrite::Delete { ends: ends.clone(), by: None };
            let result = operated(store, make.link([delete.clone()])).await;
            assert_eq!(result, deleted(gone.len() as u64), "{ends:?}");
            left.sort();
            assert_eq!(edges(store, links()).await, left, "{ends:?}");
            assert_eq!(operated(store, make.link([delete])).await, deleted(0), "there are none any more");
        }
    }

    /// D7: a deletion that names neither end would take everything, and is refused.
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

    /// D7: an edge has no empty part and none longer than a key may be.
    async fn empty_and_too_long_parts_are_refused(store: &Shared) {
        let make = Make::new();
        let (much, most) = ("x".repeat(257), "ü".repeat(256));
        for (index, what) in ["namespace", "type", "id", "type", "id", "relation"].into_iter().enumerate() {
            let with = |text: &str| {
                let mut parts = ["n", "a", "1", "b", "2", "r"];
                parts[index] = text;
                let [namespace, from, from_id, to, to_id, relation] = parts;
                Edge::new(namespace, Entity::new(from, from_id), Entity::new(to, to_id), relation)
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
            let result = operated(store, make.link([upsert(3, with(&most))])).await;
            assert_eq!(result, upserted(3, true), "{what}: 256 characters are not too many");
            apply(store, make.link([LinkWrite::Delete {
                ends: Ends {
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

    /// D7: spaces around a part are not part of it, so that nobody has two links that look the same.
    async fn spaces_around_a_part_are_not_part_of_it(store: &Shared) {
        let make = Make::new();
        let plain = edge("a/1", "r", "b/2");
        let spaced =
            Edge::new(" ns\n", Entity::new("\ta ", " 1"), Entity::new("b  ", "\u{A0}2\u{2003}"), "  r ");
        assert_eq!(operated(store, make.link([upsert(1, plain.clone())])).await, upserted(1, true));
        assert_eq!(operated(store, make.link([upsert(2, spaced)])).await, upserted(1, false));
        assert_eq!(edges(store, links()).await, [plain]);
        let end = Entity::new(" a", "1 ");
        let which = LinkFilter::Of { end: end.clone(), direction: Direction::Forward, far: None };
        assert_eq!(edges(store, LinkQuery { which, ..links() }).await.len(), 1);
        let delete = LinkWrite::Delete { ends: Ends { from: Some(end), ..ends(None, None, None) }, by: None };
        assert_eq!(operated(store, make.link([delete])).await, deleted(1));
    }

    /// The accident: a quote ends a statement, a percent sign finds everything, a colon splits a cursor.
    async fn odd_characters_are_taken_literally(store: &Shared) {
        let make = Make::new();
        let all: Vec<Edge> = ODD.iter().map(|text| made_of(text)).collect();
        write_all(store, &make, &all).await;
        let mixed = ODD.iter().flat_map(|from| ODD.iter().map(move |to| (from, to)));
        let mixed: Vec<Edge> = mixed.map(cross).collect();
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
            let Ends { from, to, .. } = ends(Some("a/1"), None, None);
            let from = from.map(|_| Entity::new(text, text));
            let ends = Ends { namespace: text.to_owned(), from, to, relation: Some(text.to_owned()) };
            let result = operated(store, make.link([LinkWrite::Delete { ends, by: None }])).await;
            assert_eq!(result, deleted(1), "{text:?}");
        }
        assert_eq!(edges(store, links()).await.len(), mixed.len());
    }

    /// The accident: an index takes no entry of that length, and only some edges can be written.
    async fn the_longest_edges_are_kept(store: &Shared) {
        let make = Make::new();
        let ascii: Vec<char> = ('!'..='~').collect();
        let emoji: Vec<char> = ('\u{1F300}'..='\u{1F5FF}').collect();
        let all = |part: u64| long(part, 256, &ascii);
        let ids = |part: u64| if part % 2 == 1 { long(part, 256, &emoji) } else { long(part, 64, &ascii) };
        for text in [&all as &(dyn Fn(u64) -> String + Sync), &ids] {
            let (namespace, from) = (text(0), Entity::new(text(2), text(1)));
            let to = Entity::new(text(4), text(3));
            for (number, relation) in [(1, text(6)), (2, text(8))] {
                let edge = Edge::new(&namespace, from.clone(), to.clone(), relation);
                let result = operated(store, make.link([upsert(number, edge)])).await;
                assert_eq!(result, upserted(number.into(), true));
            }
            let which = LinkFilter::Of { end: to.clone(), direction: Direction::Reverse, far: None };
            let query = LinkQuery { namespace: namespace.clone(), which, limit: 1, ..links() };
            assert_eq!(edges(store, query).await.len(), 2, "cursors are as long as they must be");
            let ends = Ends { namespace, from: None, to: Some(to), relation: None };
            let result = operated(store, make.link([LinkWrite::Delete { ends, by: None }])).await;
            assert_eq!(result, deleted(2));
        }
        let too = |part: u64| long(part, 256, &emoji);
        let edge = Edge::new(too(0), Entity::new(too(1), too(2)), Entity::new(too(3), too(4)), too(5));
        let (_, error) = refuse_link(store, make.link([upsert(1, edge)])).await;
        let LinkError::TooLarge(exceeded) = error else { panic!("{error:?}") };
        assert_eq!((&exceeded.limit[..], exceeded.actual), ("edge_bytes", 6 * 256 * 4));
    }

    /// D7: attributes are any JSON, up to 256 KiB; more is refused before anything is written.
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

    /// D9: operations of one commit on the same edge come one after the other.
    async fn operations_on_one_edge_come_one_after_the_other(store: &Shared) {
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
        assert_eq!(link(store, &owns).await.unwrap().id, link_id(5), "another link on the same edge");
        let other = upsert(6, edge("a/2", "r", "b/1"));
        let results = apply(store, make.link([drop.clone(), other, drop])).await.results;
        assert_eq!(results, [deleted(1), upserted(6, true), deleted(1)]);
        assert_eq!(all_links(store, ME, links()).await, []);
    }

    /// Results of operations on links come after those on cells, and count on from them.
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
        assert_eq!(get(store, "n").await.unwrap().value, Some(json!(5)), "the cell is as it was");
    }

    /// What an operation on links gives is put into the next state.
    async fn a_links_result_is_filled_into_the_next_state(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        write_all(store, &make, &around()).await;
        let commit = Commit {
            cells: vec![increment("n", 7)],
            links: vec![
                upsert(99, edge("new/1", "r", "order/1")),
                unlink(Some("order/1"), Some("has"), None),
            ],
            fills: vec![
                fill(0, FillPart::Value, "/vars/n"),
                fill(1, FillPart::Value, "/vars/link"),
                fill(1, FillPart::Created, "/vars/new"),
                fill(2, FillPart::Value, "/vars/gone"),
                fill(2, FillPart::Revision, "/vars/revision"),
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
        let fills = vec![fill(1, FillPart::Value, "/vars/n")];
        let links = vec![upsert(1, edge("a/1", "r", "b/1"))];
        let commit = Commit { links, fills, ..make.step(step(&head, "on")) };
        assert!(matches!(refuse(store, commit).await, Refused::Fill { operation: 1, .. }));
        assert_eq!(link(store, &edge("a/1", "r", "b/1")).await, None);
    }

    /// D12: each edge that changes is on record by itself, with who was behind it; what changes nothing is
    /// not.
    async fn each_edge_that_changes_is_on_record(store: &Shared) {
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
        assert_eq!(all_audit(store, ME, 100).await, rows, "and no attribute is in it");
        let nothing = make.link([unlink(Some("x/1"), None, None)]);
        assert_eq!(operated(store, nothing.clone()).await, deleted(0));
        assert_eq!(all_audit(store, ME, 100).await, rows);
        assert_eq!(outcome(store, &nothing).await, None, "it has left no trace");
        assert_eq!(operated(store, nothing).await, deleted(0), "and may be sent again");
    }

    /// D11: the same edges in two tenants are two links each, and a deletion takes one's own.
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

    /// D7: of those who write the same edge at the same time one creates it, and all name the same link.
    async fn one_of_those_who_write_an_edge_at_once_creates_it(store: &Shared) {
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

    /// D7, D9: sixteen at once upsert and delete the same few edges; what is left is what they were told.
    async fn what_is_left_is_what_those_who_wrote_at_once_were_told(store: &Shared) {
        contended(std::slice::from_ref(store)).await;
    }
}
