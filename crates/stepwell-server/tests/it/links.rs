//! Entity links over HTTP: put, look up, list and delete.

use serde_json::{Value, json};

use crate::kit::{delete, get, put};
use crate::site::Site;

const LINKS: &str = "/v1/links/mirror";

fn edge(from: &str, to: &str, relation: Option<&str>) -> Value {
    let mut link = json!({"from": {"type": "task", "id": from}, "to": {"type": "issue", "id": to}});
    if let Some(relation) = relation {
        link["relation"] = relation.into();
    }
    link
}

/// Looks links up and returns the id at the other end and the relation of each.
async fn looked_up(site: &Site, query: &str) -> Vec<(String, String)> {
    let page = site.get(&format!("{LINKS}/lookup?{query}")).await;
    assert_eq!(page.status, 200, "{page:?}");
    let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
    let items = page.json()["items"].as_array().unwrap().clone();
    items.iter().map(|item| (text(item, "id"), text(item, "relation"))).collect()
}

/// D7: a typed edge is one link; putting it again replaces its attributes.
#[tokio::test]
async fn a_link_is_put_once_and_found_from_both_ends() {
    let site = Site::open().await;
    let mut link = edge(" a ", "1", None);
    link["attributes"] = json!({"since": 2020});
    let made = site.put(LINKS, &link).await;
    assert_eq!((made.status.as_u16(), &made.json()["created"]), (201, &json!(true)));
    link["attributes"] = json!({"since": 2021});
    let again = site.put(LINKS, &link).await;
    assert_eq!((again.status.as_u16(), &again.json()["linkId"]), (200, &made.json()["linkId"]));
    site.put(LINKS, &edge("a", "1", Some("mirrors"))).await;
    site.put(LINKS, &edge("a", "2", Some("mirrors"))).await;

    let of_a = looked_up(&site, "type=task&id=a").await;
    let both = |one: (&str, &str)| (one.0.to_owned(), one.1.to_owned());
    assert_eq!(of_a, [("1", "mirrors"), ("1", "related"), ("2", "mirrors")].map(both));
    assert_eq!(looked_up(&site, "type=issue&id=1").await, []);
    let back = looked_up(&site, "type=issue&id=1&direction=reverse&relation=related").await;
    assert_eq!(back, [both(("a", "related"))]);
    assert_eq!(looked_up(&site, "type=issue&id=2&direction=either").await, [both(("a", "mirrors"))]);
    assert_eq!(looked_up(&site, "type=task&id=a&toType=person").await, []);
    let found = site.get(&format!("{LINKS}/lookup?type=task&id=a&relation=related")).await.json();
    let link = json!({"linkId": made.json()["linkId"], "type": "issue", "id": "1", "relation": "related",
        "attributes": {"since": 2021}});
    assert_eq!(found, json!({"items": [link]}));
}

#[tokio::test]
async fn links_are_listed_in_pages_and_counted() {
    let site = Site::open().await;
    for (from, to) in [("a", "1"), ("a", "2"), ("b", "1")] {
        site.put(LINKS, &edge(from, to, None)).await;
    }
    site.put("/v1/links/other", &edge("a", "1", Some("x"))).await;
    let first = site.get(&format!("{LINKS}?limit=2")).await.json();
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    assert_eq!(first["items"][0]["from"], json!({"type": "task", "id": "a"}));
    assert_eq!(first["items"][0]["createdAt"], "2026-01-01T00:00:00Z");
    let cursor = first["nextCursor"].as_str().unwrap();
    let cursor: String = form_urlencoded::byte_serialize(cursor.as_bytes()).collect();
    let rest = site.get(&format!("{LINKS}?limit=2&cursor={cursor}")).await.json();
    assert_eq!((rest["items"][0]["from"]["id"].as_str(), rest.get("nextCursor")), (Some("b"), None));
    assert_eq!(site.get(&format!("{LINKS}?fromType=issue")).await.json(), json!({"items": []}));
    let names =
        json!({"items": [{"namespace": "mirror", "linkCount": 3}, {"namespace": "other", "linkCount": 1}]});
    assert_eq!(site.get("/v1/links").await.json(), names);
    let types = json!({"items": [{"type": "issue", "endCount": 3}, {"type": "task", "endCount": 3}]});
    assert_eq!(site.get(&format!("{LINKS}/types")).await.json(), types);
    let relations = json!({"items": [{"relation": "related", "linkCount": 3}]});
    assert_eq!(site.get(&format!("{LINKS}/relations")).await.json(), relations);
    site.get(&format!("{LINKS}?cursor=nonsense")).await.is(422, "invalid");
    site.get(&format!("{LINKS}?limit=201")).await.is(400, "badParameter");
}

#[tokio::test]
async fn links_are_deleted_by_one_end_or_both() {
    let site = Site::open().await;
    for (from, to) in [("a", "1"), ("a", "2"), ("b", "1")] {
        site.put(LINKS, &edge(from, to, None)).await;
    }
    let gone = async |query: &str| site.delete(&format!("{LINKS}?{query}")).await;
    gone("").await.is(422, "invalid");
    gone("fromType=task").await.is(422, "invalid");
    gone("relation=related").await.is(422, "invalid");
    let both = "fromType=task&fromId=a&toType=issue&toId=2";
    assert_eq!(gone(both).await.json(), json!({"deletedCount": 1}));
    assert_eq!(gone(both).await.json(), json!({"deletedCount": 0}));
    assert_eq!(gone("toType=issue&toId=1&relation=other").await.json(), json!({"deletedCount": 0}));
    let keyed = || delete(&format!("{LINKS}?toType=issue&toId=1")).header("idempotency-key", "d-1");
    let (first, again) = (site.ask(keyed()).await, site.ask(keyed()).await);
    assert_eq!((first.json(), again.json()), (json!({"deletedCount": 2}), json!({"deletedCount": 2})));
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(site.get("/v1/links").await.json(), json!({"items": []}));
}

#[tokio::test]
async fn keyed_link_is_put_once_and_invalid_links_are_refused() {
    let site = Site::open().await;
    let ask = |to: &str| put(LINKS).header("idempotency-key", "l-1").json(&edge("a", to, None));
    let (first, again) = (site.ask(ask("1")).await, site.ask(ask("1")).await);
    assert_eq!((first.status.as_u16(), again.status.as_u16(), &first.body), (201, 201, &again.body));
    assert_eq!(again.header("idempotency-replayed"), "true");
    site.ask(ask("2")).await.is(422, "keyReused");
    let long = "x".repeat(257);
    for wrong in [
        json!({}),
        edge("", "1", None),
        edge(&long, "1", None),
        edge("a", "1", Some("")),
        json!({"from": {"type": "a", "id": "1", "name": "x"}, "to": {"type": "b", "id": "1"}}),
    ] {
        site.put(LINKS, &wrong).await.is(400, "badBody");
    }
    let blank = site.put(LINKS, &edge("  ", "1", None)).await.is(422, "invalid");
    assert!(blank["detail"].as_str().unwrap().contains("empty"), "{blank}");
    site.get(&format!("{LINKS}/lookup")).await.is(400, "badParameter");
    site.get(&format!("{LINKS}/lookup?type=a&id=1&direction=up")).await.is(400, "badParameter");
}

/// D11: a tenant's links are hidden from other tenants.
#[tokio::test]
async fn another_tenant_sees_and_deletes_nothing() {
    let site = Site::open().await;
    site.put(LINKS, &edge("a", "1", None)).await;
    for path in ["/v1/links", LINKS, "/v1/links/mirror/types", "/v1/links/mirror/lookup?type=task&id=a"] {
        assert_eq!(site.as_other_tenant(get(path)).await.json(), json!({"items": []}), "{path}");
    }
    let gone = site.as_other_tenant(delete(&format!("{LINKS}?fromType=task&fromId=a"))).await;
    assert_eq!(gone.json(), json!({"deletedCount": 0}));
    assert_eq!(site.as_other_tenant(put(LINKS).json(&edge("a", "1", None))).await.status, 201);
    assert_eq!(looked_up(&site, "type=task&id=a").await.len(), 1);
}
