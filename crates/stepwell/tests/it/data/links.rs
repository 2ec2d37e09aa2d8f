//! Links between external entities: each typed edge exists once and is found from both ends.

use serde_json::{Value, json};
use stepwell::data::links::LinkListing;
use stepwell::data::{Changes, Links, Lookup, NewLink};
use stepwell::store::{Direction, Entity, LinkEnds};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{DataError, Engine};

use crate::kit::{self, audit, other_tenant};

async fn engine() -> TestEngine {
    kit::start(|builder| builder).await.unwrap()
}

fn task(id: &str) -> Entity {
    Entity::new("task", id)
}

fn ticket(id: &str) -> Entity {
    Entity::new("ticket", id)
}

/// Type, id and relation of the entities that a lookup finds.
async fn found(links: &Links, lookup: Lookup) -> Vec<String> {
    let page = links.lookup(lookup).await.unwrap();
    let told = |one: stepwell::data::Match| format!("{} {} {}", one.end.kind(), one.end.id(), one.relation);
    page.items.into_iter().map(told).collect()
}

#[tokio::test]
async fn an_upsert_replaces_the_attributes_of_a_link() {
    let engine = engine().await;
    let links = engine.links("mirror");
    let link = || NewLink::new(task("1"), ticket("7"));
    let first = links.upsert(link().attributes(json!({"a": 1, "b": 2}))).await.unwrap();
    engine.advance(std::time::Duration::from_secs(1)).await;
    let second = links.upsert(link().attributes(json!({"c": 3}))).await.unwrap();
    assert_eq!((first.created, second.created), (true, false));
    assert_eq!(first.link_id, second.link_id);
    let page = links.lookup(Lookup::of(task("1"))).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let one = &page.items[0];
    assert_eq!((one.link_id, &one.end, one.relation.as_str()), (first.link_id, &ticket("7"), "related"));
    assert_eq!(one.attributes, json!({"c": 3}), "replaced, not merged");
    assert_eq!((one.created_at, one.updated_at), (BEGINS, BEGINS.plus_ms(1_000)));
    assert_eq!(one.created_by_run, None);
    assert!(!links.upsert(link()).await.unwrap().created);
    assert_eq!(links.lookup(Lookup::of(task("1"))).await.unwrap().items[0].attributes, json!({}));
}

#[tokio::test]
async fn a_pair_may_have_several_relations_and_directions() {
    let engine = engine().await;
    let links = engine.links("mirror");
    for relation in ["mirrors", "blocks"] {
        assert!(links.upsert(NewLink::new(task("1"), task("2")).relation(relation)).await.unwrap().created);
    }
    assert!(links.upsert(NewLink::new(task("2"), task("1")).relation("blocks")).await.unwrap().created);
    assert!(engine.links("other").upsert(NewLink::new(task("1"), task("2"))).await.unwrap().created);
    assert_eq!(found(&links, Lookup::of(task("1"))).await, ["task 2 blocks", "task 2 mirrors"]);
    assert_eq!(found(&links, Lookup::of(task("1")).relation("mirrors")).await, ["task 2 mirrors"]);
    let back = Lookup::of(task("1")).direction(Direction::Reverse);
    assert_eq!(found(&links, back.clone()).await, ["task 2 blocks"]);
    let either = Lookup { direction: Direction::Either, ..back };
    assert_eq!(found(&links, either).await.len(), 3);
    assert_eq!(found(&engine.links("other"), Lookup::of(task("1"))).await, ["task 2 related"]);
}

/// The task mirror: one task has many tickets, and each is found from the other.
#[tokio::test]
async fn a_lookup_filters_by_direction_and_type() {
    let engine = engine().await;
    let links = engine.links("mirror");
    for (from, to) in [
        (task("1"), ticket("7")),
        (task("1"), ticket("8")),
        (task("1"), task("2")),
        (task("3"), ticket("7")),
        (ticket("9"), task("1")),
    ] {
        links.upsert(NewLink::new(from, to)).await.unwrap();
    }
    let of = |end: Entity, direction| Lookup::of(end).direction(direction);
    let typed = |lookup: Lookup| Lookup { to_type: Some("ticket".to_owned()), ..lookup };
    let forward = of(task("1"), Direction::Forward);
    assert_eq!(found(&links, Lookup::of(task("1"))).await, found(&links, forward.clone()).await);
    assert_eq!(
        found(&links, forward.clone()).await,
        ["task 2 related", "ticket 7 related", "ticket 8 related"]
    );
    assert_eq!(found(&links, typed(forward)).await, ["ticket 7 related", "ticket 8 related"]);
    let reverse = of(ticket("7"), Direction::Reverse);
    assert_eq!(found(&links, reverse).await, ["task 1 related", "task 3 related"]);
    let either = of(task("1"), Direction::Either);
    assert_eq!(found(&links, either.clone()).await.len(), 4);
    assert_eq!(
        found(&links, typed(either)).await,
        ["ticket 7 related", "ticket 8 related", "ticket 9 related"]
    );
    assert_eq!(found(&links, of(task("nobody"), Direction::Either)).await, [""; 0]);
}

#[tokio::test]
async fn a_link_to_itself_is_found_once_in_either_direction() {
    let engine = engine().await;
    let links = engine.links("self");
    links.upsert(NewLink::new(task("1"), task("1"))).await.unwrap();
    for direction in [Direction::Forward, Direction::Reverse, Direction::Either] {
        let lookup = Lookup::of(task("1")).direction(direction);
        assert_eq!(found(&links, lookup).await, ["task 1 related"], "{direction:?}");
    }
    assert_eq!(links.delete(None, Some(task("1")), None).await.unwrap(), 1);
}

#[tokio::test]
async fn names_are_trimmed_and_may_contain_any_character() {
    let engine = engine().await;
    let links = engine.links("  mirror ");
    let odd = Entity::new(" ta:sk%_' ", "\t1 ö\"\n");
    links.upsert(NewLink::new(odd, ticket(" 7 ")).relation(" is like ")).await.unwrap();
    let links = engine.links("mirror");
    let of = || Lookup::of(Entity::new("ta:sk%_'", "1 ö\""));
    assert_eq!(found(&links, of()).await, ["ticket 7 is like"]);
    assert_eq!(found(&links, of().relation("is like  ")).await, ["ticket 7 is like"]);
    let typed = Lookup { to_type: Some(" ticket ".to_owned()), ..of() };
    assert_eq!(found(&engine.links(" mirror"), typed).await, ["ticket 7 is like"]);
    let relation = Some(" is like ".to_owned());
    assert_eq!(engine.links("mirror ").delete(None, Some(ticket("7 ")), relation).await.unwrap(), 1);
}

#[tokio::test]
async fn every_part_of_a_link_has_1_to_256_characters() {
    let engine = engine().await;
    let long = |many: usize| "ü".repeat(many);
    let link = |of: Entity| NewLink::new(of, ticket("7"));
    let fits = link(Entity::new(long(256), long(256))).relation(long(256));
    assert!(engine.links(long(256)).upsert(fits).await.unwrap().created);
    let (links, task) = (engine.links("mirror"), || link(task("1")));
    let bad = [
        (links.clone(), link(Entity::new(long(257), "1"))),
        (links.clone(), link(Entity::new("task", long(257)))),
        (links.clone(), link(Entity::new(" ", "1"))),
        (links.clone(), link(Entity::new("task", ""))),
        (links.clone(), task().relation(long(257))),
        (links.clone(), task().relation("  ")),
        (engine.links(" "), task()),
        (engine.links(long(257)), task()),
    ];
    for (at, (links, link)) in bad.into_iter().enumerate() {
        let error = links.upsert(link).await.unwrap_err();
        assert!(matches!(error, DataError::Invalid(_)), "{at}: {error:?}");
    }
    assert_eq!(audit(&engine).await.len(), 1);
}

#[tokio::test]
async fn a_deletion_needs_an_end_and_returns_the_count() {
    let engine = engine().await;
    let links = engine.links("mirror");
    for (from, to, relation) in [
        ("1", "7", "mirrors"),
        ("1", "7", "blocks"),
        ("1", "8", "mirrors"),
        ("2", "7", "mirrors"),
        ("3", "9", "mirrors"),
    ] {
        links.upsert(NewLink::new(task(from), ticket(to)).relation(relation)).await.unwrap();
    }
    let mirrors = || Some("mirrors".to_owned());
    assert_eq!(links.delete(None, None, None).await.unwrap_err().code(), "invalid");
    assert_eq!(links.delete(None, None, mirrors()).await.unwrap_err().code(), "invalid");
    assert_eq!(links.delete(Some(task("none")), None, None).await.unwrap(), 0);
    assert_eq!(links.delete(Some(task("1")), Some(ticket("8")), None).await.unwrap(), 1);
    assert_eq!(links.delete(None, Some(ticket("7")), mirrors()).await.unwrap(), 2);
    assert_eq!(found(&links, Lookup::of(task("1"))).await, ["ticket 7 blocks"]);
    assert_eq!(links.delete(Some(task("1")), None, None).await.unwrap(), 1);
    assert_eq!(links.list(LinkListing::default(), None, None).await.unwrap().items.len(), 1);
    let again = links.upsert(NewLink::new(task("1"), ticket("7"))).await.unwrap();
    assert!(again.created, "what was deleted is created anew");
}

/// All pages of a lookup, `limit` rows at a time.
async fn paged(links: &Links, lookup: &Lookup, limit: u32) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let lookup = Lookup { limit: Some(limit), cursor, ..lookup.clone() };
        let page = links.lookup(lookup).await.unwrap();
        assert!(page.items.len() <= limit as usize);
        all.extend(page.items.iter().map(|one| format!("{} {}", one.end.id(), one.relation)));
        cursor = page.next;
        if cursor.is_none() {
            return all;
        }
    }
}

#[tokio::test]
async fn a_lookup_page_has_1_to_200_rows_and_a_cursor() {
    let engine = engine().await;
    let links = engine.links("mirror");
    let linked = |changes: Changes, at: usize| {
        let (hub, far) = (task("hub"), task(&format!("{at:03}")));
        let (from, to) = if at.is_multiple_of(2) { (hub, far) } else { (far, hub) };
        changes.link("mirror", NewLink::new(from, to))
    };
    engine.write((0..201).fold(Changes::new(), linked)).await.unwrap();
    let either = Lookup::of(task("hub")).direction(Direction::Either);
    let with = |limit| Lookup { limit, ..either.clone() };
    for limit in [0, 201] {
        assert_eq!(links.lookup(with(Some(limit))).await.unwrap_err().code(), "invalid");
        let listed = links.list(LinkListing::default(), Some(limit), None).await;
        assert_eq!(listed.unwrap_err().code(), "invalid");
        assert_eq!(links.types(Some(limit), None).await.unwrap_err().code(), "invalid");
    }
    assert_eq!(links.lookup(with(None)).await.unwrap().items.len(), 100);
    assert_eq!(links.lookup(with(Some(200))).await.unwrap().items.len(), 200);
    let all: Vec<_> = (0..201).map(|at| format!("{at:03} related")).collect();
    for limit in [1, 7, 200] {
        assert_eq!(paged(&links, &either, limit).await, all, "{limit} at a time");
    }
}

#[tokio::test]
async fn a_namespaces_links_types_and_relations_can_be_listed() {
    let engine = engine().await;
    let links = engine.links("mirror");
    for (from, to, relation) in [
        (task("1"), ticket("7"), "mirrors"),
        (task("2"), ticket("7"), "mirrors"),
        (task("1"), task("2"), "blocks"),
        (Entity::new("note", "1"), Entity::new("note", "1"), "blocks"),
    ] {
        links.upsert(NewLink::new(from, to).relation(relation)).await.unwrap();
    }
    engine.links("another").upsert(NewLink::new(task("1"), task("2"))).await.unwrap();
    let counts = |page: stepwell::store::Page<stepwell::data::Namespace>| {
        page.items.into_iter().map(|one| format!("{} {}", one.namespace, one.count)).collect::<Vec<_>>()
    };
    assert_eq!(counts(links.relations(None, None).await.unwrap()), ["blocks 2", "mirrors 2"]);
    let types = counts(links.types(None, None).await.unwrap());
    assert_eq!(
        types.iter().map(|told| told.split(' ').next().unwrap()).collect::<Vec<_>>(),
        ["note", "task", "ticket"]
    );
    let namespaces = counts(engine.link_namespaces(None, None).await.unwrap());
    assert_eq!(namespaces, ["another 1", "mirror 4"]);
    let list = async |filter: LinkListing| links.list(filter, None, None).await.unwrap().items.len();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(list(LinkListing::default()).await, 4);
    assert_eq!(list(LinkListing { from_type: some("task "), ..LinkListing::default() }).await, 3);
    assert_eq!(list(LinkListing { to_type: some("ticket"), ..LinkListing::default() }).await, 2);
    assert_eq!(list(LinkListing { relation: some(" blocks"), ..LinkListing::default() }).await, 2);
    let both = LinkListing { from_type: some("task"), to_type: some("task"), relation: some("mirrors") };
    assert_eq!(list(both).await, 0);
    let first = links.list(LinkListing::default(), Some(3), None).await.unwrap();
    let rest = links.list(LinkListing::default(), Some(3), first.next).await.unwrap();
    assert_eq!((first.items.len(), rest.items.len(), rest.next), (3, 1, None));
}

#[tokio::test]
async fn one_transaction_may_delete_and_link_the_same_edge() {
    let engine = engine().await;
    let link = || NewLink::new(task("1"), ticket("7"));
    let old = engine.links("mirror").upsert(link()).await.unwrap();
    let ends = LinkEnds { namespace: " mirror".to_owned(), from: Some(task("1")), to: None, relation: None };
    let changes = Changes::new().unlink(ends.clone()).link("mirror", link()).unlink(ends.clone());
    let results = engine.write(changes.clone().link("mirror", link())).await.unwrap();
    let told: Vec<_> = results.iter().map(|result| result.value.clone().unwrap()).collect();
    assert_eq!((&told[0], &told[2]), (&json!(1), &json!(1)));
    assert_ne!(told[1], json!(old.link_id.to_string()), "a new link has a new id");
    assert!(results[1].created && results[3].created);
    let rows = engine.links("mirror").list(LinkListing::default(), None, None).await.unwrap().items;
    assert_eq!((rows.len(), Value::from(rows[0].id.to_string())), (1, told[3].clone()));
}

async fn count(engine: &Engine) -> usize {
    engine.links("mirror").list(LinkListing::default(), None, None).await.unwrap().items.len()
}

#[tokio::test]
async fn no_link_of_another_tenant_is_read_deleted_or_counted() {
    let engine = engine().await;
    let theirs = engine.for_tenant(other_tenant());
    engine.links("mirror").upsert(NewLink::new(task("1"), ticket("7"))).await.unwrap();
    assert_eq!(count(&theirs).await, 0);
    assert_eq!(theirs.link_namespaces(None, None).await.unwrap().items, []);
    assert_eq!(theirs.links("mirror").types(None, None).await.unwrap().items, []);
    assert_eq!(theirs.links("mirror").delete(Some(task("1")), None, None).await.unwrap(), 0);
    assert!(theirs.links("mirror").upsert(NewLink::new(task("1"), ticket("7"))).await.unwrap().created);
    assert_eq!((count(&engine).await, count(&theirs).await), (1, 1));
}
