//! Sources of a flow's token in a request, and the cookie for it.

use serde_json::json;
use stepwell_server::routes::FlowRoutes;

use crate::flows::{world, world_with};
use crate::kit::{get, post};

fn answer() -> serde_json::Value {
    json!({"input": {"user": "ann", "password": "secret"}})
}

#[tokio::test]
async fn token_is_read_from_body_query_header_or_cookie() {
    let routes = FlowRoutes::new().cookie("flow").unwrap();
    let world = world_with("sealed", routes, |flows| flows).await;
    let begun = world.start("login", json!({})).await;
    let cookie = begun.header("set-cookie").split(';').next().unwrap().to_owned();
    let token = cookie.trim_start_matches("flow=");
    let show = || get("/v1/flows/show");
    let resume = || post("/v1/flows/resume");
    let mut body = answer();
    body["token"] = json!(token);
    for ask in [
        resume().json(&body),
        post(&format!("/v1/flows/resume?token={token}")).json(&answer()),
        resume().header("x-flow-token", token).json(&answer()),
        resume().header("authorization", &format!("Bearer {token}")).json(&answer()),
        resume().header("authorization", &format!("bearer  {token} ")).json(&answer()),
        resume().header("cookie", &format!("a=b; {cookie}; c=d")).json(&answer()),
        resume().header("cookie", &cookie).header("x-flow-token", token).json(&body),
        get(&format!("/v1/flows/show?token={token}")),
        show().header("x-flow-token", token),
        show().header("authorization", &format!("Bearer {token}")),
        show().header("cookie", &cookie),
    ] {
        let reply = ask.to(&world.router).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    for ask in [
        resume().header("x-flow-token", "handle.other").json(&body),
        post(&format!("/v1/flows/resume?token={token}&token=handle.other")).json(&answer()),
        resume().header("cookie", &cookie).header("authorization", "Bearer handle.other").json(&answer()),
        show().header("x-flow-token", token).header("x-flow-token", "handle.other"),
    ] {
        ask.to(&world.router).await.is(422, "tokensDiffer");
    }
    for ask in
        [show(), show().header("authorization", "Basic YTpi"), show().header("cookie", "other=x; flow=")]
    {
        ask.to(&world.router).await.is(422, "tokenMissing");
    }
}

#[tokio::test]
async fn cookie_holds_the_token_until_the_flow_ends() {
    let routes = FlowRoutes::new().cookie("flow").unwrap();
    let world = world_with("handle", routes, |flows| flows).await;
    let begun = world.start("login", json!({})).await;
    assert_eq!(begun.json().get("token"), None);
    let set = begun.header("set-cookie");
    let (cookie, attributes) = set.split_once("; ").unwrap();
    assert!(cookie.starts_with("flow=handle."), "{set}");
    assert_eq!(attributes, "HttpOnly; SameSite=Strict; Path=/v1/flows; Max-Age=3600; Secure");

    let shown = get("/v1/flows/show").header("cookie", cookie).to(&world.router).await;
    assert_eq!(
        (shown.status.as_u16(), shown.header("set-cookie"), shown.json().get("token")),
        (200, "", None)
    );
    let wrong = post("/v1/flows/resume").header("cookie", cookie).json(&json!({"input": {}}));
    let wrong = wrong.to(&world.router).await;
    wrong.is(422, "validationFailed");
    assert_eq!(wrong.header("set-cookie"), "", "the token is still valid");
    let next = post("/v1/flows/resume").header("cookie", cookie).json(&answer()).to(&world.router).await;
    let second = next.header("set-cookie").split(';').next().unwrap().to_owned();
    assert!(second.starts_with("flow=handle.") && second != cookie, "{next:?}");
    let gone = post("/v1/flows/resume").header("cookie", cookie).json(&answer()).to(&world.router).await;
    gone.is(410, "gone");
    assert_eq!(gone.header("set-cookie"), "");
    let ended = post("/v1/flows/resume").header("cookie", &second).json(&json!({"input": {"code": "1"}}));
    let ended = ended.to(&world.router).await;
    assert_eq!(ended.json()["status"], "completed");
    assert_eq!(
        ended.header("set-cookie"),
        "flow=; HttpOnly; SameSite=Strict; Path=/v1/flows; Max-Age=0; Secure"
    );
}

#[tokio::test]
async fn cookie_attributes_follow_the_options() {
    let routes = FlowRoutes::new().cookie("flow").unwrap().cookie_path("/app/v1").unwrap().insecure_cookie();
    let world = world_with("sealed", routes, |flows| flows).await;
    let begun = world.start("login", json!({})).await;
    assert!(begun.header("set-cookie").ends_with("; HttpOnly; SameSite=Strict; Path=/app/v1; Max-Age=900"));
    for name in ["", "a b", "a;b", "a=b", "ä", "a\r\nb"] {
        assert!(FlowRoutes::new().cookie(name).is_err(), "{name:?}");
    }
    for path in ["", "app", "/a;b", "/a b", "/a\n"] {
        assert!(FlowRoutes::new().cookie("flow").unwrap().cookie_path(path).is_err(), "{path:?}");
    }
}

#[tokio::test]
async fn unconfigured_cookie_and_ignored_bearer_are_not_read() {
    let plain = world("sealed").await;
    let token = plain.token("login", json!({})).await;
    let show = get("/v1/flows/show").header("cookie", &format!("flow={token}"));
    show.to(&plain.router).await.is(422, "tokenMissing");

    let world = world_with("sealed", FlowRoutes::new().ignore_bearer(), |flows| flows).await;
    let token = world.token("login", json!({})).await;
    let show = get(&format!("/v1/flows/show?token={token}")).header("authorization", "Bearer an-api-key");
    assert_eq!(show.to(&world.router).await.status, 200);
}
