//! The table of routes: the permission of each route, API keys, rate limits, and the OpenAPI contract.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};
use stepwell::store::{MemoryStore, TenantId, TenantScope};
use stepwell::{Engine, Grants, Permission};
use stepwell_server::api::{ApiOptions, Needs, NewKey, Route, Server, openapi, routes};
use uuid::Uuid;

use crate::kit::{ask, get, post};

/// A server on a store in memory.
pub(crate) async fn server(options: ApiOptions) -> Arc<Server> {
    let engine = Engine::builder(Arc::new(MemoryStore::new())).start().await.unwrap();
    Arc::new(Server::new(engine, options))
}

/// Creates a key of a tenant with these permissions. Returns the credential.
pub(crate) async fn key_of(server: &Server, tenant: u128, permissions: &[Permission]) -> String {
    granted(server, tenant, permissions.iter().copied().collect()).await
}

/// Creates a key of a tenant with these grants. Returns the credential.
pub(crate) async fn granted(server: &Server, tenant: u128, permissions: Grants) -> String {
    let scope = TenantScope::trusted(TenantId::new(Uuid::from_u128(tenant)));
    // The first key of a tenant is `test`. Names are unique, so the others have a longer one.
    let first = server.keys().create(scope, NewKey::new("test", permissions.clone()), None).await;
    let key = match first {
        Ok(key) => key,
        Err(_) => {
            let new = NewKey::new(format!("test {}", Uuid::now_v7()), permissions);
            server.keys().create(scope, new, None).await.unwrap()
        }
    };
    format!("Bearer {}", key.secret.unwrap())
}

/// Returns the path of a route with a value for every parameter.
fn filled(route: &Route) -> String {
    let part = |part: &str| match part {
        "{run}" => Uuid::from_u128(7).to_string(),
        "{version}" | "{number}" => "1".to_owned(),
        "{id}" => "0123456789abcdef".to_owned(),
        "{wait}" => format!("{}.1", Uuid::from_u128(7)),
        "{tenant}" => Uuid::from_u128(9).to_string(),
        part if part.starts_with('{') => "x".to_owned(),
        part => part.to_owned(),
    };
    route.path().split('/').map(part).collect::<Vec<_>>().join("/")
}

async fn asked(router: &Router, route: &Route, key: Option<&str>) -> u16 {
    let mut asks = ask(route.method().clone(), &filled(route));
    if let Some(key) = key {
        asks = asks.header("authorization", key);
    }
    // Reads only the head of the response, because some bodies never end.
    asks.begin(router).await.status().as_u16()
}

#[tokio::test]
async fn every_route_admits_exactly_its_permission() {
    let server = server(ApiOptions::default()).await;
    let router = server.clone().router();
    let routes = routes();
    assert!(routes.len() > 20, "{}", routes.len());
    let worker = granted(&server, 1, Grants::default().worker("*")).await;
    for route in &routes {
        let needed = match route.needs() {
            Needs::Nothing => {
                assert_ne!(asked(&router, route, None).await, 401, "{route:?}");
                continue;
            }
            Needs::Credential => Permission::ALL.to_vec(),
            Needs::Permission(permission) => vec![permission],
            Needs::Any(all) => all.to_vec(),
            Needs::Host => vec![Permission::Admin],
            Needs::HostView => vec![Permission::View],
            Needs::Worker => {
                let works = asked(&router, route, Some(&worker)).await;
                assert_ne!(works, 403, "{route:?}");
                for permission in Permission::ALL {
                    let key = key_of(&server, 1, &[permission]).await;
                    assert_eq!(asked(&router, route, Some(&key)).await, 403, "{route:?} with {permission}");
                }
                continue;
            }
        };
        for credential in [None, Some("Bearer nothing"), Some("Basic eDp5"), Some("Bearer swk_0_0_0")] {
            assert_eq!(asked(&router, route, credential).await, 401, "{route:?} {credential:?}");
        }
        for permission in Permission::ALL {
            let key = key_of(&server, 1, &[permission]).await;
            let status = asked(&router, route, Some(&key)).await;
            let may = needed.contains(&permission);
            assert_eq!(status == 403, !may, "{route:?} with {permission}: {status}");
            assert_ne!(status, 401, "{route:?} with {permission}");
        }
        let all = key_of(&server, 2, &Permission::ALL).await;
        let is_host = matches!(route.needs(), Needs::Host | Needs::HostView);
        assert_eq!(asked(&router, route, Some(&all)).await == 403, is_host, "{route:?} of another tenant");
    }
}

#[tokio::test]
async fn api_key_works_until_rotated_or_revoked() {
    let server = server(ApiOptions::default()).await;
    let router = server.clone().router();
    let admin = key_of(&server, 1, &[Permission::Admin, Permission::Read]).await;
    let who = async |key: &str| {
        get("/v1/whoami").header("authorization", &format!("Bearer {key}")).to(&router).await
    };

    let more = json!({"name": "more", "permissions": ["workflow:manage"]});
    post("/v1/apikeys").header("authorization", &admin).json(&more).to(&router).await.is(403, "denied");

    let new = json!({"name": "ci", "permissions": ["workflow:read"], "ttl": "1h"});
    let made = post("/v1/apikeys").header("authorization", &admin).json(&new).to(&router).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let (id, secret) = (made["id"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned());
    let me = who(&secret).await.json();
    assert_eq!((&me["actor"], &me["permissions"]), (&json!("apikey:ci"), &json!(["workflow:read"])));
    // The tenant is part of the key, so the same key with another tenant does not exist.
    let elsewhere = secret.replacen(
        &Uuid::from_u128(1).simple().to_string(),
        &Uuid::from_u128(2).simple().to_string(),
        1,
    );
    assert_ne!(elsewhere, secret);
    who(&elsewhere).await.is(401, "unauthorized");

    let rotated = post(&format!("/v1/apikeys/{id}/rotate")).header("authorization", &admin);
    let rotated = rotated.json(&json!({"overlap": "0s"})).to(&router).await.json();
    let newer = rotated["secret"].as_str().unwrap().to_owned();
    who(&secret).await.is(401, "unauthorized");
    assert_eq!(who(&newer).await.status, 200);

    let listed = get("/v1/apikeys").header("authorization", &admin).to(&router).await;
    assert!(
        !listed.body.contains(newer.rsplit('_').next().unwrap()) && listed.body.contains("\"ci\""),
        "{listed:?}"
    );

    let path = format!("/v1/apikeys/{id}");
    let gone = ask(axum::http::Method::DELETE, &path).header("authorization", &admin).to(&router).await;
    assert_eq!(gone.status, 204);
    who(&newer).await.is(401, "unauthorized");
    ask(axum::http::Method::DELETE, &path)
        .header("authorization", &admin)
        .to(&router)
        .await
        .is(404, "noApiKey");
}

#[tokio::test]
async fn rate_limit_applies_per_tenant() {
    let server = server(ApiOptions { requests_per_second: 1, burst: 3, ..ApiOptions::default() }).await;
    let router = server.clone().router();
    let keys = [key_of(&server, 1, &[]).await, key_of(&server, 2, &[]).await];
    let who = async |key: &str| get("/v1/whoami").header("authorization", key).to(&router).await;
    let mut last = who(&keys[0]).await;
    for _ in 0..10 {
        last = who(&keys[0]).await;
    }
    last.is(429, "tooManyRequests");
    assert!(last.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(who(&keys[1]).await.status, 200);
}

/// The contract is committed so that reviews show its changes. To update it: `stepwell openapi > docs/openapi.json`.
#[test]
fn committed_contract_matches_the_routes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let committed: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let made = openapi();
    if committed != made {
        let changed: Vec<_> = made["paths"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(path, now)| committed["paths"][path] != **now)
            .map(|(path, _)| path)
            .collect();
        panic!(
            "docs/openapi.json is out of date (changed: {changed:?}): run `stepwell openapi > docs/openapi.json`"
        );
    }
}

#[test]
fn contract_operations_are_unique_and_references_resolve() {
    let made = openapi();
    let operations: Vec<_> = made["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|methods| methods.as_object().unwrap().values())
        .collect();
    assert_eq!(operations.len(), routes().len());
    let ids: BTreeSet<_> =
        operations.iter().map(|operation| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), operations.len());
    let text = made.to_string();
    for part in text.split("\"$ref\":\"").skip(1) {
        let reference = part.split('"').next().unwrap();
        assert!(made.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}
