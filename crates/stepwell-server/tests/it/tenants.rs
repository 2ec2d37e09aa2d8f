//! Tenants over HTTP: only administrators of the server manage them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Spec;
use stepwell::store::{Fault, Faulty, MemoryStore, TenantId, TenantScope};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ManualClock, Permission, Start};
use stepwell_server::api::{ApiOptions, Quota, Server};
use uuid::Uuid;

use crate::kit::{Reply, TestRequest, delete, get, post, put, until};
use crate::site::Site;
use crate::table::key_of;

async fn host(site: &Site, ask: TestRequest) -> Reply {
    ask.by(&site.host).to(&site.router).await
}

/// Creates a tenant with a key that has every permission. Returns the tenant's path and the credential.
async fn made(site: &Site, name: &str) -> (String, String) {
    let all: Vec<_> = Permission::ALL.iter().map(|permission| permission.as_str()).collect();
    let asked = json!({"name": name, "key": {"name": "first", "permissions": all}});
    let made = host(site, post("/v1/tenants").json(&asked)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let secret = made.json()["key"]["secret"].as_str().unwrap().to_owned();
    (made.header("location").to_owned(), format!("Bearer {secret}"))
}

async fn whoami(site: &Site, key: &str) -> Reply {
    get("/v1/whoami").by(key).to(&site.router).await
}

#[tokio::test]
async fn tenant_is_created_with_its_first_key() {
    let site = Site::open().await;
    let (path, key) = made(&site, "Example Ltd").await;
    let me = whoami(&site, &key).await.json();
    assert_eq!(
        (&me["actor"], path.ends_with(me["tenant"].as_str().unwrap())),
        (&json!("apikey:first"), true)
    );
    let shown = host(&site, get(&path)).await;
    assert_eq!(shown.header("etag"), "\"1\"");
    let tenant = shown.json();
    assert_eq!((&tenant["name"], &tenant["suspended"]), (&json!("Example Ltd"), &json!(false)));
    assert_eq!((&tenant["createdBy"], tenant.get("key")), (&json!("apikey:test"), None));
    assert_eq!(host(&site, get("/v1/tenants")).await.json()["items"], json!([tenant]));

    let id = "018f0000-0000-7000-8000-000000000001";
    let bare = || post("/v1/tenants").json(&json!({"name": "bare", "id": id}));
    let answer = host(&site, bare()).await;
    assert_eq!((answer.status.as_u16(), answer.json().get("key")), (201, None));
    host(&site, bare()).await.is(409, "exists");
    let own = json!({"name": "own", "id": "00000000-0000-0000-0000-000000000001"});
    host(&site, post("/v1/tenants").json(&own)).await.is(409, "exists");
    let key = json!({"name": "ops", "permissions": ["workflow:view"]});
    let later = host(&site, post(&format!("/v1/tenants/{id}/apikeys")).json(&key)).await;
    let secret = format!("Bearer {}", later.json()["secret"].as_str().unwrap());
    assert_eq!(whoami(&site, &secret).await.json()["tenant"], id);
    for wrong in
        [json!({}), json!({"name": ""}), json!({"name": "x", "id": "y"}), json!({"name": "x", "quota": 1})]
    {
        host(&site, post("/v1/tenants").json(&wrong)).await.is(400, "badBody");
    }
}

/// D11: an administrator of one tenant cannot reach other tenants.
#[tokio::test]
async fn tenant_admins_cannot_manage_tenants() {
    let site = Site::open().await;
    let (path, key) = made(&site, "a").await;
    for key in [&key, &site.ours] {
        for ask in [
            get("/v1/tenants"),
            get(&path),
            put(&path).json(&json!({"suspended": true})),
            delete(&path),
            post("/v1/tenants").json(&json!({"name": "b"})),
            post(&format!("{path}/apikeys")).json(&json!({"name": "k", "permissions": ["workflow:view"]})),
        ] {
            ask.by(key).to(&site.router).await.is(403, "denied");
        }
    }
    let nobody = "/v1/tenants/018f0000-0000-7000-8000-00000000000f";
    host(&site, get(nobody)).await.is(404, "noTenant");
    host(&site, put(nobody).json(&json!({"name": "x"}))).await.is(404, "noTenant");
    host(&site, delete(nobody)).await.is(404, "noTenant");
    let key = json!({"name": "k", "permissions": ["workflow:view"]});
    host(&site, post(&format!("{nobody}/apikeys")).json(&key)).await.is(404, "noTenant");
    // The server's own tenant is refused: there, the new key could have more permissions than its creator.
    let own = "/v1/tenants/00000000-0000-0000-0000-000000000001/apikeys";
    let admin = key_of(&site.server, 1, &[Permission::Admin]).await;
    post(own).json(&key).by(&admin).to(&site.router).await.is(404, "noTenant");
}

#[tokio::test]
async fn keys_of_a_suspended_tenant_are_refused() {
    let site = Site::open().await;
    let (path, key) = made(&site, "a").await;
    let suspend = async |is: bool| host(&site, put(&path).json(&json!({"suspended": is}))).await;
    let suspended = suspend(true).await.json();
    assert_eq!(
        (&suspended["suspended"], &suspended["name"]),
        (&json!(true), &json!("a")),
        "the rest is unchanged"
    );
    for path in ["/v1/whoami", "/v1/kv", "/v1/tenants"] {
        get(path).by(&key).to(&site.router).await.is(403, "tenantSuspended");
    }
    assert_eq!(whoami(&site, &site.ours).await.status, 200, "other tenants get in");
    suspend(false).await;
    assert_eq!(whoami(&site, &key).await.status, 200);
}

/// A site whose store can be told to fail, with an active and a suspended tenant. Returns the keys of both.
async fn failing() -> (Site, Arc<Faulty<MemoryStore>>, String, String) {
    let store = Arc::new(Faulty::new(MemoryStore::new(), []));
    let engine =
        TestEngine::start_on(store.clone(), ManualClock::new(BEGINS), |builder| builder).await.unwrap();
    let server = Server::new((*engine).clone(), ApiOptions::default());
    let site = Site::of(engine, server).await;
    let (_, active) = made(&site, "active").await;
    let (path, suspended) = made(&site, "suspended").await;
    host(&site, put(&path).json(&json!({"suspended": true}))).await;
    (site, store, active, suspended)
}

/// Lets the cached keys and tenants expire. The next request reads the key, and then the tenant with this fault.
async fn expire(store: &Faulty<MemoryStore>, fault: Fault) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3)).await;
    tokio::time::resume();
    [Fault::None, fault].into_iter().for_each(|fault| store.then(fault));
}

/// With Citus, the server's own tenant may be on a node that is down. The tenants of other nodes still get in.
#[tokio::test]
async fn last_known_tenants_are_used_while_the_store_fails() {
    let (site, store, active, suspended) = failing().await;
    for key in [&active, &suspended] {
        whoami(&site, key).await;
    }
    for fault in [Fault::Before, Fault::LoseAnswer] {
        expire(&store, fault).await;
        assert_eq!(whoami(&site, &active).await.status, 200, "{fault:?}");
        expire(&store, fault).await;
        whoami(&site, &suspended).await.is(403, "tenantSuspended");
    }
    // The reads that were never answered still run: no further request waits for them.
    assert_eq!(whoami(&site, &active).await.status, 200);
    // Another server knows nothing of the tenant.
    let other = Arc::new(Server::new((*site.engine).clone(), ApiOptions::default()));
    [Fault::None, Fault::Before].into_iter().for_each(|fault| store.then(fault));
    assert_eq!(get("/v1/whoami").by(&active).to(&other.router()).await.status, 503);
}

#[tokio::test]
async fn tenant_updates_check_the_revision() {
    let site = Site::open().await;
    let (path, _) = made(&site, "a").await;
    let update =
        async |tag: &str, body: Value| host(&site, put(&path).header("if-match", tag).json(&body)).await;
    let renamed = update("\"1\"", json!({"name": "b", "requestsPerSecond": 5})).await;
    assert_eq!((renamed.header("etag"), &renamed.json()["requestsPerSecond"]), ("\"2\"", &json!(5)));
    let moved = update("\"1\"", json!({"name": "c"})).await.is(412, "revisionConflict");
    assert_eq!(moved["params"]["revision"], 2);
    assert_eq!(update("\"2\"", json!({"suspended": true})).await.json()["requestsPerSecond"], 5);
    assert_eq!(
        update("\"3\"", json!({"requestsPerSecond": null})).await.json().get("requestsPerSecond"),
        None
    );
    host(&site, put(&path).json(&json!({"requestsPerSecond": -1}))).await.is(400, "badBody");
    host(&site, delete(&path).header("if-match", "\"1\"")).await.is(409, "notEmpty");
}

#[tokio::test]
async fn tenant_rate_limit_overrides_the_default() {
    let engine = TestEngine::start(|builder| builder).await.unwrap();
    let options = ApiOptions { requests_per_second: 1, burst: 2, ..ApiOptions::default() };
    let server = Server::new((*engine).clone(), options);
    let site = Site::of(engine, server).await;
    let id = "00000000-0000-0000-0000-000000000002";
    // Requests are counted per tenant: these two are within the burst of the server's own tenant.
    host(&site, post("/v1/tenants").json(&json!({"name": "a", "id": id}))).await;
    let set = host(&site, put(&format!("/v1/tenants/{id}")).json(&json!({"requestsPerSecond": 0}))).await;
    assert_eq!(set.status, 200, "{set:?}");
    let refused = async |key: &str| {
        let mut refused = 0;
        for _ in 0..10 {
            refused += u32::from(whoami(&site, key).await.status == 429);
        }
        refused
    };
    assert_eq!(refused(&site.ours).await, 0, "0 is unlimited");
    assert!(refused(&site.theirs).await > 0, "others have the server's rate limit");
}

#[tokio::test]
async fn tenant_rate_limit_applies_without_a_default() {
    let engine = TestEngine::start(|builder| builder).await.unwrap();
    let server = Server::new((*engine).clone(), ApiOptions { burst: 2, ..ApiOptions::default() });
    let site = Site::of(engine, server).await;
    let (path, key) = made(&site, "a").await;
    host(&site, put(&path).json(&json!({"requestsPerSecond": 1}))).await;
    let mut last = whoami(&site, &key).await;
    for _ in 0..10 {
        last = whoami(&site, &key).await;
    }
    last.is(429, "tooManyRequests");
    assert_eq!(whoami(&site, &site.ours).await.status, 200);
}

#[tokio::test]
async fn only_an_empty_tenant_can_be_deleted() {
    let waits = Spec::new("waits").wait("here", "GO").end("done").signal("GO").auto("end", "here", "done");
    let waits = waits.initial("here").build().unwrap();
    let site = Site::open_with(|builder| builder.workflow(waits)).await;
    let (path, key) = made(&site, "a").await;
    let us = async |ask: TestRequest| ask.by(&key).to(&site.router).await;
    us(put("/v1/kv/n/k").json(&json!({"value": 1}))).await;
    let link = json!({"from": {"type": "a", "id": "1"}, "to": {"type": "b", "id": "1"}});
    us(put("/v1/links/n").json(&link)).await;
    us(post("/v1/runs").json(&json!({"workflow": "waits"}))).await;
    let refused = async || host(&site, delete(&path)).await.is(409, "notEmpty")["params"]["has"].clone();
    assert_eq!(refused().await, json!(["API keys", "runs", "keys with a value", "links"]));
    us(delete("/v1/kv/n/k")).await;
    us(delete("/v1/links/n?fromType=a&fromId=1")).await;
    assert_eq!(refused().await, json!(["API keys", "runs"]));

    let (path, key) = made(&site, "b").await;
    let keys = get("/v1/apikeys").by(&key).to(&site.router).await.json();
    let id = keys["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(delete(&format!("/v1/apikeys/{id}")).by(&key).to(&site.router).await.status, 204);
    assert_eq!(host(&site, delete(&path)).await.status, 204);
    host(&site, get(&path)).await.is(404, "noTenant");
    whoami(&site, &key).await.is(401, "unauthorized");
}

#[tokio::test]
async fn quota_limits_keys_schedules_and_workflows() {
    let waits = Spec::new("waits").wait("here", "GO").end("done").signal("GO").auto("end", "here", "done");
    let waits = waits.initial("here").build().unwrap();
    let engine = TestEngine::start(|builder| builder.workflow(waits)).await.unwrap();
    let quota = Quota { api_keys: 3, workflows: 1, schedules: 1, runs: 0 };
    let server = Server::new((*engine).clone(), ApiOptions { quota, ..ApiOptions::default() });
    let site = Site::of(engine, server).await;
    let (path, key) = made(&site, "a").await;
    let us = async |ask: TestRequest| ask.by(&key).to(&site.router).await;
    let over = |reply: &Reply, what: &str, limit: u32| {
        assert_eq!(reply.is(403, "quotaExceeded")["params"], json!({"what": what, "limit": limit}));
    };
    let another = || {
        let name = Uuid::now_v7().to_string();
        post("/v1/apikeys").json(&json!({"name": name, "permissions": ["workflow:view"]}))
    };
    for _ in 0..2 {
        assert_eq!(us(another()).await.status, 201);
    }
    over(&us(another()).await, "apiKeys", 3);
    let theirs = json!({"name": "k", "permissions": ["workflow:view"]});
    over(&host(&site, post(&format!("{path}/apikeys")).json(&theirs)).await, "apiKeys", 3);
    assert_eq!(another().by(&site.theirs).to(&site.router).await.status, 201, "a quota per tenant");

    let schedule = |name: &str| {
        put(&format!("/v1/schedules/{name}")).json(&json!({"cron": "0 0 * * *", "workflow": "waits"}))
    };
    assert_eq!(us(schedule("one")).await.status, 200);
    assert_eq!(us(schedule("one")).await.status, 200, "an existing one can be changed");
    over(&us(schedule("two")).await, "schedules", 1);
    assert_eq!(us(delete("/v1/schedules/one")).await.status, 204);
    let is_put = async || (us(schedule("two")).await.status == 200).then_some(());
    until("the first is off and does not count", is_put).await;
    over(&us(schedule("one")).await, "schedules", 1);

    let draft = |name: &str, text: &str| {
        put(&format!("/v1/workflows/{name}/draft")).header("content-type", "text/yaml").body(text.to_owned())
    };
    assert_eq!(us(draft("one", "a: 1")).await.status, 201);
    over(&us(draft("two", "a: 1")).await, "workflows", 1);
    assert_eq!(us(draft("one", "a: 2").header("if-match", "\"1\"")).await.status, 200);

    let own = json!({"quota": {"apiKeys": 0, "workflows": 2}});
    let set = host(&site, put(&path).json(&own)).await.json();
    assert_eq!(set["quota"], own["quota"]);
    assert_eq!(us(another()).await.status, 201, "0 is unlimited");
    assert_eq!(us(draft("two", "a: 1")).await.status, 201);
    over(&us(draft("three", "a: 1")).await, "workflows", 2);
    over(&us(schedule("one")).await, "schedules", 1);
}

#[tokio::test]
async fn quota_limits_unfinished_runs() {
    let waits = Spec::new("waits").wait("here", "GO").end("done").signal("GO").auto("end", "here", "done");
    let waits = waits.initial("here").build().unwrap();
    let engine = TestEngine::start(|builder| builder.workflow(waits)).await.unwrap();
    let quota = Quota { runs: 3, ..Quota::default() };
    let server = Server::new((*engine).clone(), ApiOptions { quota, ..ApiOptions::default() });
    let site = Site::of(engine, server).await;
    let start =
        async |key: &str| post("/v1/runs").json(&json!({"workflow": "waits"})).by(key).to(&site.router).await;
    // Runs count however they were started.
    let ours = site.engine.for_tenant(TenantScope::trusted(TenantId::new(Uuid::from_u128(2))));
    let mut begun = Vec::new();
    for _ in 0..3 {
        let start = Start::new("waits").key(format!("k{}", begun.len()));
        begun.push(ours.start_once(start).await.unwrap().run.id());
    }
    let problem = start(&site.ours).await.is(403, "quotaExceeded");
    assert_eq!(
        (&problem["params"], &problem["retryable"]),
        (&json!({"what": "runs", "limit": 3}), &json!(true))
    );
    let again = post("/v1/runs").json(&json!({"workflow": "waits"})).header("idempotency-key", "k1");
    assert_eq!(site.ask(again).await.json()["id"], begun[1].to_string(), "a replay needs no quota");
    assert_eq!(start(&site.theirs).await.status, 201, "each tenant has its quota");
    let signal = format!("/v1/runs/{}/signals/GO", begun[0]);
    assert_eq!(site.post(&signal, &json!(null)).await.status, 200);
    until("the quota has room again", async || (start(&site.ours).await.status == 201).then_some(())).await;
    until("the quota is used up", async || (start(&site.ours).await.status == 403).then_some(())).await;
}
