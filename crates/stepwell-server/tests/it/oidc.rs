//! Tokens of OpenID Connect issuers: accepted and refused tokens, their permissions, and fetches of the issuer's keys.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::Permission;
use stepwell::store::{TenantId, TenantScope};
use stepwell::testing::TestEngine;
use stepwell_server::api::{ApiOptions, IssuerOptions, KeySource, Server, TenantOf};
use uuid::Uuid;

use crate::issuer::{AUDIENCE, Issuer, SigningKey, base64};
use crate::kit::{Reply, get, post, put, until};
use crate::site::Site;

const OURS: &str = "00000000-0000-0000-0000-000000000002";
const THEIRS: &str = "00000000-0000-0000-0000-000000000003";

/// A site with two registered tenants that accepts tokens of an issuer.
async fn site_with(issuer: &Issuer, tenant: TenantOf, change: impl FnOnce(&mut IssuerOptions)) -> Site {
    let engine = TestEngine::start(|builder| builder).await.unwrap();
    let mut options = IssuerOptions::new("main", issuer.url(), AUDIENCE, tenant);
    change(&mut options);
    let server = Server::new((*engine).clone(), ApiOptions::default()).with_issuers(vec![options]).unwrap();
    let site = Site::of(engine, server).await;
    for (name, id) in [("ours", OURS), ("theirs", THEIRS)] {
        let made = post("/v1/tenants").json(&json!({"name": name, "id": id})).by(&site.host);
        assert_eq!(made.to(&site.router).await.status, 201);
    }
    site
}

async fn site(issuer: &Issuer) -> Site {
    site_with(issuer, ours(), |_| {}).await
}

fn ours() -> TenantOf {
    TenantOf::Fixed(TenantId::new(OURS.parse().unwrap()))
}

async fn who(site: &Site, token: &str) -> Reply {
    get("/v1/whoami").by(token).to(&site.router).await
}

/// Replaces some claims; `null` removes one.
fn with(mut claims: Value, others: &Value) -> Value {
    for (name, value) in others.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

/// Asserts that a token is refused and that the response does not reveal why.
#[track_caller]
fn is_refused(reply: &Reply, what: &str) {
    let problem = reply.is(401, "unauthorized");
    assert_eq!(reply.header("www-authenticate"), r#"Bearer error="invalid_token""#, "{what}");
    assert_eq!(problem["params"], json!({"error": "invalid_token"}), "{what}");
    let same = "This needs a valid credential: `Authorization: Bearer …` with an API key or a token.";
    assert_eq!(problem["detail"], same, "{what}");
}

#[tokio::test]
async fn tokens_of_every_algorithm_and_api_keys_are_accepted() {
    let signs = [
        SigningKey::rsa("r", "RS256"),
        SigningKey::rsa("r", "RS384"),
        SigningKey::rsa("r", "RS512"),
        SigningKey::rsa("r", "PS256"),
        SigningKey::rsa("r", "PS384"),
        SigningKey::rsa("r", "PS512"),
        SigningKey::p256("e"),
        SigningKey::p384("f"),
        SigningKey::ed25519("d"),
    ];
    let issuer = Issuer::start(&[&signs[0], &signs[6], &signs[7], &signs[8]]).await;
    let site = site(&issuer).await;
    for signs in &signs {
        let me = who(&site, &signs.token(&issuer.claims())).await;
        assert_eq!(me.status, 200, "{}: {me:?}", signs.algorithm);
        let expected = json!({
            "tenant": OURS,
            "actor": "oidc:main:ann",
            "permissions": ["workflow:view", "workflow:manage"],
            "roles": [],
            "user": "ann",
        });
        assert_eq!(me.json(), expected, "{}", signs.algorithm);
    }
    assert_eq!(issuer.fetches(), 1, "the keys are cached");
    assert_eq!(who(&site, &site.ours).await.json()["actor"], "apikey:test");
    let written = put("/v1/kv/n/k").json(&json!({"value": 1})).by(&signs[6].token(&issuer.claims()));
    assert_eq!(written.to(&site.router).await.status, 201, "the token permits writing");
    let read = get("/v1/kv/n/k").by(&signs[6].token(&issuer.claims())).to(&site.router).await;
    assert_eq!(read.is(403, "denied")["params"]["permission"], "workflow:read", "but not reading");
}

#[tokio::test]
async fn token_with_invalid_claims_is_refused() {
    let (rsa, good) = (SigningKey::rsa("r", "RS256"), SigningKey::p256("e"));
    let issuer = Issuer::start(&[&rsa, &good]).await;
    let site = site(&issuer).await;
    let claims = issuer.claims();
    assert_eq!(who(&site, &good.token(&claims)).await.status, 200);
    let now = claims["iat"].as_i64().unwrap();
    for (what, others) in [
        ("another issuer", json!({"iss": "https://id.example.com"})),
        ("another issuer", json!({"iss": format!("{}/", issuer.url())})),
        ("no issuer", json!({"iss": null})),
        ("another audience", json!({"aud": "others"})),
        ("another audience", json!({"aud": ["others", "stepwell2", "stepwell others"]})),
        ("no audience", json!({"aud": null})),
        ("no end", json!({"exp": null})),
        ("an end that is no time", json!({"exp": "later"})),
        ("not yet", json!({"nbf": now + 31})),
        ("made later", json!({"iat": now + 31})),
        ("no subject", json!({"sub": null})),
        ("no subject", json!({"sub": ""})),
        ("a name that would break a line", json!({"sub": "ann\nadmin"})),
        ("too long a name", json!({"sub": "x".repeat(257)})),
        ("too long", json!({"more": "x".repeat(16 * 1024)})),
    ] {
        is_refused(&who(&site, &good.token(&with(claims.clone(), &others))).await, what);
    }
    for (what, others) in [
        ("one audience of several", json!({"aud": ["others", AUDIENCE]})),
        ("clocks that are apart", json!({"nbf": now + 29, "iat": now + 29})),
        ("clocks that are apart", json!({"exp": now - 29})),
        ("a fraction of a second", json!({"exp": 0.5 + (now + 1) as f64})),
    ] {
        let reply = who(&site, &good.token(&with(claims.clone(), &others))).await;
        assert_eq!(reply.status, 200, "{what}: {reply:?}");
    }
    let expired = who(&site, &good.token(&with(claims.clone(), &json!({"exp": now - 30})))).await;
    assert!(expired.is(401, "unauthorized")["detail"].as_str().unwrap().contains("expired"));
    assert!(expired.header("www-authenticate").contains("has expired"), "{expired:?}");
    site.engine.advance(Duration::from_secs(631)).await;
    let over = who(&site, &good.token(&claims)).await.is(401, "unauthorized");
    assert_eq!(over["params"]["expired"], true, "expiry follows the engine's clock");
}

/// A token must be signed with one of the issuer's keys, whatever its header claims.
#[tokio::test]
async fn foreign_and_forged_signatures_are_refused() {
    let (rsa, good) = (SigningKey::rsa("r", "RS256"), SigningKey::p256("e"));
    let issuer = Issuer::start(&[&rsa, &good]).await;
    let site = site(&issuer).await;
    let claims = issuer.claims();
    // A public key as the shared secret: a verifier that trusts the algorithm of the header would accept it.
    for public in [rsa.jwk["n"].as_str().unwrap().to_owned(), rsa.jwk.to_string(), good.jwk.to_string()] {
        let forged = SigningKey::shared("r", public.as_bytes());
        is_refused(&who(&site, &forged.token(&claims)).await, "a public key as the secret");
    }
    let part = |value: &Value| base64(value.to_string());
    for alg in ["none", "None", "NONE", "nOnE", "", "HS256", "ES512", "RS1"] {
        for signature in ["", "AAAA"] {
            let token =
                format!("Bearer {}.{}.{signature}", part(&json!({"alg": alg, "kid": "e"})), part(&claims));
            is_refused(&who(&site, &token).await, alg);
        }
    }
    is_refused(&who(&site, &SigningKey::p256("e").token(&claims)).await, "another key of the same name");
    is_refused(&who(&site, &good.token_of(Some("r"), &claims)).await, "a key of another kind");
    is_refused(&who(&site, &good.token_of(Some("gone"), &claims)).await, "a key that is not there");
    assert_eq!(who(&site, &good.token_of(None, &claims)).await.status, 200, "only one key fits");

    let token = good.token(&claims);
    let token = token.strip_prefix("Bearer ").unwrap();
    let mut parts = token.split('.');
    let (head, payload, signature) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let other = part(&with(claims.clone(), &json!({"sub": "joe"})));
    let crit = part(&json!({"alg": "ES256", "kid": "e", "crit": ["exp"]}));
    let logout = part(&json!({"alg": "ES256", "kid": "e", "typ": "logout+jwt"}));
    let twice = base64(r#"{"alg":"ES256","kid":"e","kid":"e"}"#);
    for token in [
        format!("{head}.{other}.{signature}"),
        format!("{head}.{payload}."),
        format!("{head}.{payload}.{signature}="),
        format!("{head}.{payload}.{signature}.x"),
        format!("{head}..{signature}"),
        format!("{crit}.{payload}.{signature}"),
        format!("{logout}.{payload}.{signature}"),
        format!("{twice}.{payload}.{signature}"),
        "a.b.c".to_owned(),
        "..".to_owned(),
        format!("{}.{}.{}", base64("[]"), base64("7"), base64("x")),
    ] {
        is_refused(&who(&site, &format!("Bearer {token}")).await, &token);
    }
    // Changes each character of the signature, and every tenth one of the rest.
    let bytes = token.as_bytes();
    let from = token.len() - signature.len();
    for at in (0..from).step_by(10).chain(from..token.len()) {
        let mut changed = bytes.to_vec();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        is_refused(&who(&site, &format!("Bearer {changed}")).await, &format!("changed at {at}"));
    }
}

#[tokio::test]
async fn only_allowed_algorithms_and_matching_keys_count() {
    let (rsa, ec) = (SigningKey::rsa("r", "RS256"), SigningKey::p256("e"));
    let issuer = Issuer::start(&[&rsa, &ec]).await;
    let only = |options: &mut IssuerOptions| {
        options.algorithms = [stepwell_server::api::Algorithm::ES256].into();
    };
    let site = site_with(&issuer, ours(), only).await;
    assert_eq!(who(&site, &ec.token(&issuer.claims())).await.status, 200);
    is_refused(&who(&site, &rsa.token(&issuer.claims())).await, "an algorithm that is not allowed");

    let for_others = [
        with(ec.jwk.clone(), &json!({"use": "enc"})),
        with(ec.jwk.clone(), &json!({"key_ops": ["sign"]})),
        with(ec.jwk.clone(), &json!({"alg": "ES384"})),
        with(ec.jwk.clone(), &json!({"x": "AAAA"})),
    ];
    for jwk in for_others {
        let issuer = Issuer::start(&[]).await;
        // Unreadable keys are skipped; the others still count.
        issuer.publish_raw(vec![
            json!({"kty": "oct", "k": "AAAA", "kid": "e"}),
            json!(7),
            jwk.clone(),
            rsa.jwk.clone(),
        ]);
        let site = self::site(&issuer).await;
        is_refused(&who(&site, &ec.token(&issuer.claims())).await, &jwk.to_string());
        assert_eq!(who(&site, &rsa.token(&issuer.claims())).await.status, 200, "{jwk}");
    }
}

#[tokio::test]
async fn tenant_claim_cannot_select_the_server_tenant() {
    let signs = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&signs]).await;
    let roles = |options: &mut IssuerOptions| {
        options.permissions_claim = "/realm/roles".to_owned();
        options.roles.insert("boss".to_owned(), Permission::ALL.into());
        options.actor_claim = "email".to_owned();
    };
    let site = site_with(&issuer, TenantOf::Claim("org".to_owned()), roles).await;
    let of = |org: Value| {
        let more = json!({"org": org, "realm": {"roles": ["boss", "other"]}, "email": "ann@example.com"});
        signs.token(&with(issuer.claims(), &more))
    };
    for (org, tenant) in [("ours", OURS), (OURS, OURS), ("theirs", THEIRS)] {
        let me = who(&site, &of(json!(org))).await.json();
        assert_eq!((&me["tenant"], &me["actor"]), (&json!(tenant), &json!("oidc:main:ann@example.com")));
        assert_eq!(me["permissions"].as_array().unwrap().len(), 6);
    }
    let home = TenantScope::SINGLE.to_string();
    for org in [
        json!(home),
        json!("nobody"),
        json!(Uuid::from_u128(9).to_string()),
        json!(""),
        json!(7),
        json!([OURS]),
        Value::Null,
    ] {
        is_refused(&who(&site, &of(org.clone())).await, &org.to_string());
    }
    // The tenants do not see each other's data.
    let write = put("/v1/kv/n/k").json(&json!({"value": 1})).by(&of(json!("ours")));
    assert_eq!(write.to(&site.router).await.status, 201);
    assert_eq!(get("/v1/kv/n/k").by(&of(json!("ours"))).to(&site.router).await.status, 200);
    assert_eq!(get("/v1/kv/n/k").by(&of(json!("theirs"))).to(&site.router).await.status, 404);
    get("/v1/tenants").by(&of(json!("ours"))).to(&site.router).await.is(403, "denied");

    let suspend = put(&format!("/v1/tenants/{OURS}")).json(&json!({"suspended": true})).by(&site.host);
    assert_eq!(suspend.to(&site.router).await.status, 200);
    who(&site, &of(json!("ours"))).await.is(403, "tenantSuspended");
    assert_eq!(who(&site, &of(json!("theirs"))).await.status, 200);
    // A name that two tenants have is ambiguous, so it is refused.
    let twin = post("/v1/tenants").json(&json!({"name": "theirs"})).by(&site.host);
    assert_eq!(twin.to(&site.router).await.status, 201);
    until("the ambiguous name is refused", async || {
        (who(&site, &of(json!("theirs"))).await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn unmapped_roles_grant_no_permissions() {
    let signs = SigningKey::p256("e");
    let issuer = Issuer::start(&[&signs]).await;
    let roles = |options: &mut IssuerOptions| {
        options.permissions_claim = "roles".to_owned();
        options.roles.insert("viewer".to_owned(), [Permission::View].into());
    };
    let site = site_with(&issuer, ours(), roles).await;
    for (said, permitted) in [
        (json!({"roles": ["viewer"]}), json!(["workflow:view"])),
        (json!({"roles": "viewer"}), json!(["workflow:view"])),
        (json!({"roles": ["workflow:admin", "admin", "Viewer"]}), json!([])),
        (json!({"roles": {"viewer": true}}), json!([])),
        (json!({}), json!([])),
    ] {
        let token = signs.token(&with(issuer.claims(), &said));
        assert_eq!(who(&site, &token).await.json()["permissions"], permitted, "{said}");
        let may = get("/v1/runs").by(&token).to(&site.router).await.status == 200;
        assert_eq!(may, permitted != json!([]), "{said}");
    }
}

#[tokio::test]
async fn rotated_keys_are_fetched_at_a_limited_rate() {
    let (old, new) = (SigningKey::p256("old"), SigningKey::p256("new"));
    let issuer = Issuer::start(&[&old]).await;
    let site = site_with(&issuer, ours(), |options| options.pause = Duration::ZERO).await;
    assert_eq!(who(&site, &old.token(&issuer.claims())).await.status, 200);
    issuer.publish(&[&new]);
    assert_eq!(who(&site, &new.token(&issuer.claims())).await.status, 200, "a new key is fetched at once");
    is_refused(&who(&site, &old.token(&issuer.claims())).await, "a key that was removed");

    let issuer = Issuer::start(&[&old]).await;
    let site = site_with(&issuer, ours(), |options| options.pause = Duration::from_secs(600)).await;
    let garbage = (0..200).map(|n| {
        let token = old.token_of(Some(&format!("garbage-{n}")), &issuer.claims());
        let router = site.router.clone();
        async move { get("/v1/whoami").by(&token).to(&router).await.status.as_u16() }
    });
    let statuses = futures_util::future::join_all(garbage).await;
    assert!(statuses.iter().all(|status| *status == 401), "{statuses:?}");
    assert_eq!(issuer.fetches(), 1, "one fetch for all of them");
    assert_eq!(who(&site, &old.token(&issuer.claims())).await.status, 200);
}

#[tokio::test]
async fn cached_keys_outlive_a_short_issuer_outage() {
    let signs = SigningKey::p256("e");
    let issuer = Issuer::start(&[&signs]).await;
    let soon = |options: &mut IssuerOptions| {
        options.refresh = Duration::ZERO;
        options.pause = Duration::ZERO;
        options.max_stale = Duration::from_secs(8);
    };
    let site = site_with(&issuer, ours(), soon).await;
    let token = signs.token(&issuer.claims());
    assert_eq!(who(&site, &token).await.status, 200);
    until("the keys are refreshed in the background", async || {
        assert_eq!(who(&site, &token).await.status, 200);
        (issuer.fetches() > 1).then_some(())
    })
    .await;
    issuer.become_unavailable();
    assert_eq!(who(&site, &token).await.status, 200, "the cached keys are valid");
    let away = until("the cached keys are too old", async || {
        Some(who(&site, &token).await).filter(|reply| reply.status != 200)
    })
    .await;
    away.is(503, "unavailable");
    assert!(!away.header("retry-after").is_empty());
    assert_eq!(who(&site, &site.ours).await.status, 200, "API keys need no issuer");
}

#[tokio::test]
async fn discovery_document_must_name_the_issuer() {
    let signs = SigningKey::p256("e");
    let issuer = Issuer::start(&[&signs]).await;
    issuer.set_issuer("https://id.example.com");
    let site = self::site(&issuer).await;
    who(&site, &signs.token(&issuer.claims())).await.is(503, "unavailable");
    assert_eq!(issuer.fetches(), 0, "its keys are not fetched");

    let at = issuer.web.url("/keys");
    let site = site_with(&issuer, ours(), |options| options.keys = KeySource::Url(at)).await;
    assert_eq!(
        who(&site, &signs.token(&issuer.claims())).await.status,
        200,
        "the URL of the keys can be configured instead"
    );
    let set = json!({"keys": [signs.jwk]}).to_string();
    let site = site_with(&issuer, ours(), |options| options.keys = KeySource::Set(set)).await;
    issuer.become_unavailable();
    assert_eq!(who(&site, &signs.token(&issuer.claims())).await.status, 200, "and so can the keys");
    is_refused(&who(&site, &signs.token_of(Some("x"), &issuer.claims())).await, "an unknown key id");
}

#[tokio::test]
async fn configured_issuer_counts_as_a_credential() {
    let engine = TestEngine::start(|builder| builder).await.unwrap();
    let server = Server::new((*engine).clone(), ApiOptions::default());
    assert!(!server.has_credentials().await.unwrap());
    let issuer = IssuerOptions::new("main", "https://id.example.com", AUDIENCE, ours());
    assert!(server.with_issuers(vec![issuer]).unwrap().has_credentials().await.unwrap());
}
