//! The HTML pages of answer links, as browsers get them.

use axum::http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::flows::world;
use crate::kit::{Reply, ask, get, post};

const GUARDS: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-robots-tag", "noindex"),
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("x-content-type-options", "nosniff"),
];

#[track_caller]
fn is_guarded(reply: &Reply) {
    for (name, value) in GUARDS {
        assert_eq!(reply.header(name), value, "{reply:?}");
    }
    assert_eq!(reply.header("set-cookie"), "", "{reply:?}");
}

/// Asserts that the response is an accessible page without scripts. Every field has a label, and every reference to an
/// id resolves.
#[track_caller]
fn is_sound(reply: &Reply) {
    is_guarded(reply);
    assert_eq!(reply.header("content-type"), "text/html; charset=utf-8", "{reply:?}");
    let page = &reply.body;
    assert!(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"), "{page}");
    assert!(page.contains("<title>") && page.contains("<main>") && page.contains("<h1>"), "{page}");
    assert!(
        !page.contains("<script") && !page.contains("javascript:") && !page.contains(" onclick"),
        "{page}"
    );
    let ids = |mark: &str| -> Vec<String> {
        let parts = page.split(mark).skip(1).map(|rest| rest.split('"').next().unwrap());
        parts.flat_map(|value| value.split(' ')).map(str::to_owned).collect()
    };
    let known = ids(" id=\"");
    for mark in [" for=\"", "aria-describedby=\"", "href=\"#"] {
        for id in ids(mark) {
            assert!(known.contains(&id), "{id} is nowhere in {page}");
        }
    }
    let inputs =
        ["<input", "<select", "<textarea"].map(|tag| page.matches(tag).count()).iter().sum::<usize>();
    assert_eq!(page.matches("<label for=").count(), inputs, "every field has its label: {page}");
}

#[tokio::test]
async fn form_is_filled_in_corrected_and_accepted() {
    let world = world("handle").await;
    let prompt = "<script>alert(1)</script> invites \"you\"\n\nSecond paragraph";
    let token = world.token("invite", json!({"prompt": prompt})).await;
    let link = format!("/l/{token}");
    let page = get(&link).to(&world.router).await;
    assert_eq!(page.status, 200);
    is_sound(&page);
    for part in [
        "<title>Join us – Invite</title>".to_owned(),
        "<h1>Join us</h1>".to_owned(),
        "<p>&lt;script&gt;alert(1)&lt;/script&gt; invites &quot;you&quot;</p>".to_owned(),
        format!("<form method=\"post\" action=\"./{token}\">"),
        "<label for=\"f0-0\">Name</label>".to_owned(),
        "<p class=\"about\" id=\"f0-0-about\">As on your passport.</p>".to_owned(),
        "<input type=\"text\" id=\"f0-0\" name=\"name\" aria-describedby=\"f0-0-about\" required minlength=\"2\" value=\"\">"
            .to_owned(),
        "inputmode=\"numeric\" id=\"f0-1\" name=\"age\" required".to_owned(),
        "<input type=\"checkbox\" id=\"f0-2\" name=\"news\" value=\"true\">".to_owned(),
        "<option value=\"&lt;paid&gt;\">&lt;paid&gt;</option>".to_owned(),
        "<button name=\"outcome\" value=\"ACCEPT\">Continue</button>".to_owned(),
        "<time datetime=\"2026-01-01T01:00:00Z\">2026-01-01 01:00 UTC</time>".to_owned(),
    ] {
        assert!(page.body.contains(&part), "{part} is not in {}", page.body);
    }

    let typed = "outcome=ACCEPT&name=%3Cscript%3E%22&age=old&plan=%3Cpaid%3E&news=true";
    let wrong = post(&link).form(typed).to(&world.router).await;
    assert_eq!(wrong.status, 422);
    is_sound(&wrong);
    for part in [
        "<title>Error: Join us – Invite</title>",
        "role=\"alert\"",
        "<a href=\"#f0-1\">Age: ",
        "value=\"&lt;script&gt;&quot;\"",
        "id=\"f0-1\" name=\"age\" aria-describedby=\"f0-1-error\" aria-invalid=\"true\" required value=\"old\"",
        "<p class=\"error\" id=\"f0-1-error\">Error: ",
        "<option value=\"&lt;paid&gt;\" selected>",
        "value=\"true\" checked>",
    ] {
        assert!(wrong.body.contains(part), "{part} is not in {}", wrong.body);
    }
    assert!(!wrong.body.contains("f0-0-error"), "the name is fine: {}", wrong.body);
    let missing = post(&link).form("outcome=ACCEPT&name=&age=").to(&world.router).await;
    assert_eq!(missing.status, 422);
    is_sound(&missing);
    assert_eq!(missing.body.matches("this field is required").count(), 4, "{}", missing.body);

    let done = post(&link).form("outcome=ACCEPT&name=Ann&age=41&plan=free").to(&world.router).await;
    assert_eq!(done.status, 200);
    is_sound(&done);
    assert!(
        done.body.contains("<h1>Done</h1>") && done.body.contains("Your answer was received."),
        "{}",
        done.body
    );
    let gone = post(&link).form("outcome=ACCEPT&name=Ann&age=41").to(&world.router).await;
    assert_eq!(gone.status, 410);
    is_sound(&gone);
}

/// The next question has its own link. A password is never shown again.
#[tokio::test]
async fn one_page_leads_to_the_next() {
    let world = world("handle").await;
    let token = world.token("login", json!({})).await;
    let link = format!("/l/{token}");
    let wrong = post(&link).form("outcome=PASSWORD&user=ann&password=guess").to(&world.router).await;
    assert_eq!(wrong.status, 422);
    is_sound(&wrong);
    assert!(
        wrong.body.contains("this is not the password") && !wrong.body.contains("guess"),
        "{}",
        wrong.body
    );
    assert!(wrong.body.contains("<input type=\"password\""), "{}", wrong.body);
    assert!(wrong.body.contains("value=\"ann\""), "{}", wrong.body);
    let next = post(&link).form("outcome=PASSWORD&user=ann&password=secret").to(&world.router).await;
    assert_eq!(next.status, 200);
    is_sound(&next);
    let action = next.body.split("action=\"./").nth(1).unwrap().split('"').next().unwrap();
    assert_ne!(action, token);
    assert_eq!(get(&link).to(&world.router).await.status, 410);
    let done = post(&format!("/l/{action}")).form("code=1").to(&world.router).await;
    assert_eq!(done.status, 200, "{done:?}");
    assert!(done.body.contains("<h1>Done</h1>"), "{}", done.body);
}

#[tokio::test]
async fn each_outcome_is_a_button() {
    let world = world("handle").await;
    let link = format!("/l/{}", world.token("decision", json!({"prompt": "Buy it?"})).await);
    let page = get(&link).to(&world.router).await;
    is_sound(&page);
    for button in [
        "<button name=\"outcome\" value=\"APPROVE\">Approve</button>",
        "<button name=\"outcome\" value=\"SEND_BACK\">Send back</button>",
        "<p>Buy it?</p>",
    ] {
        assert!(page.body.contains(button), "{}", page.body);
    }
    for unclear in ["", "outcome=", "outcome=%3Cb%3E"] {
        let again = post(&link).form(unclear).to(&world.router).await;
        assert_eq!(again.status, 422, "{again:?}");
        is_sound(&again);
        assert!(again.body.contains("Choose one of the possible outcomes."), "{}", again.body);
    }
    let done = post(&link).form("outcome=SEND_BACK").to(&world.router).await;
    assert!(done.body.contains("<h1>Done</h1>"), "{}", done.body);
}

#[tokio::test]
async fn programs_read_and_answer_links_as_json() {
    let world = world("handle").await;
    let link = format!("/l/{}", world.token("login", json!({})).await);
    let shown = get(&link).header("accept", "application/json").to(&world.router).await;
    is_guarded(&shown);
    assert_eq!((shown.status.as_u16(), shown.header("content-type")), (200, "application/json"));
    assert_eq!(shown.json()["waits"][0]["place"], "password");
    let wrong = post(&link).json(&json!({"input": {"user": "ann"}})).to(&world.router).await;
    is_guarded(&wrong);
    wrong.is(422, "validationFailed");
    post(&link).json(&json!({"token": "x"})).to(&world.router).await.is(400, "unknownField");
    let input = json!({"input": {"user": "ann", "password": "secret"}, "outcome": "PASSWORD"});
    let answer = || post(&link).header("idempotency-key", "once").json(&input);
    let next = answer().to(&world.router).await;
    assert_eq!(next.json()["waits"][0]["place"], "code", "{next:?}");
    let again = answer().to(&world.router).await;
    assert_eq!((again.header("idempotency-replayed"), &again.body), ("true", &next.body));
    post(&link).json(&input).to(&world.router).await.is(410, "gone");
}

#[tokio::test]
async fn request_errors_are_html_pages_too() {
    let world = world("handle").await;
    let link = format!("/l/{}", world.token("login", json!({})).await);
    let text = post(&link).header("content-type", "text/plain").body("user=ann").to(&world.router).await;
    assert_eq!(text.status, 415);
    is_sound(&text);
    let large = post(&link).form(&"x".repeat(300_000)).to(&world.router).await;
    assert_eq!(large.status, 413);
    is_sound(&large);
    let method = ask(Method::DELETE, &link).to(&world.router).await;
    assert_eq!(method.status, 405);
    is_sound(&method);
    let method = ask(Method::PUT, &link).header("accept", "application/json").to(&world.router).await;
    method.is(405, "methodNotAllowed");
    is_guarded(&method);
    let shared = format!("{link}?utm_source=mail");
    assert_eq!(
        get(&shared).to(&world.router).await.status,
        200,
        "extra query parameters do not break a link"
    );
}

/// Sends raw requests over a socket, so that the bytes of the response are checked.
#[tokio::test]
async fn head_returns_the_headers_of_get_and_changes_nothing() {
    let world = world("handle").await;
    let link = format!("/l/{}", world.token("login", json!({})).await);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = world.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let said = |method: &'static str| {
        let request = format!("{method} {link} HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\n\r\n");
        async move {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            let head: Vec<_> =
                head.lines().filter(|line| !line.starts_with("date")).map(str::to_owned).collect();
            (head, body.to_owned())
        }
    };
    let (get_head, page) = said("GET").await;
    assert!(get_head[0].ends_with("200 OK") && page.contains("</html>"), "{get_head:?}");
    for _ in 0..3 {
        let (head, body) = said("HEAD").await;
        assert_eq!((head, body.as_str()), (get_head.clone(), ""));
    }
    assert_eq!(said("GET").await.1, page);
}
