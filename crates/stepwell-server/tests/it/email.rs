//! Links sent by mail, from the flow to the mailbox and back.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use stepwell::flow::{Message, Outlet};
use stepwell_server::outlets::{Email, MessageTemplate, Security};
use stepwell_server::routes::FlowRoutes;

use crate::flows::{World, world_with};
use crate::kit::{Reply, ask, get, post, until};
use crate::smtp::{Server, SmtpFailure};

fn email(server: &Server) -> Email {
    email_within(server, Duration::from_secs(45))
}

fn email_within(server: &Server, timeout: Duration) -> Email {
    let invitation = MessageTemplate::new("{{name}}, join {{team.name}}", "Hello {{name}}!\n\n{{link}}\n")
        .html("<p>Hello <b>{{name}}</b>!</p><p><a href=\"{{link}}\">Join</a> until {{expires_at}}</p>");
    Email::builder("127.0.0.1", "Example <noreply@example.com>", "https://flows.example.com/l")
        .security(Security::None)
        .port(server.port)
        .timeout(timeout)
        .template("invitation", invitation)
        .build()
        .unwrap()
}

async fn world(server: &Server) -> World {
    world_of(email(server)).await
}

async fn world_of(email: Email) -> World {
    world_with("handle", FlowRoutes::new(), |flows| flows.outlet("mail", email)).await
}

fn invited(to: &str) -> Value {
    json!({"outlet": "mail", "to": to})
}

/// Returns the parts of an answer by which a client could tell answers apart: status, headers without `date`, and body.
fn seen(reply: &Reply) -> (u16, Vec<(String, String)>, &str) {
    let headers = reply.headers.iter().filter(|(name, _)| *name != "date");
    let mut headers: Vec<_> =
        headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    headers.sort();
    (reply.status.as_u16(), headers, &reply.body)
}

/// E7, E8: the starter of the flow cannot answer for the mailbox. Viewing the link consumes nothing; one answer does.
#[tokio::test]
async fn an_invitation_arrives_once_and_is_answered_once() {
    let server = Server::start().await;
    let world = world(&server).await;
    let begun = world.start("invite", invited("Ann <ann@example.com>")).await.json();
    assert_eq!((begun["status"].as_str(), begun["sent"].as_str()), (Some("waiting"), Some("mail")));
    let mail = server.mail().await;
    assert!(mail.from.contains("<noreply@example.com>") && mail.to.len() == 1, "{mail:?}");
    assert!(mail.to[0].contains("<ann@example.com>"), "{mail:?}");
    let id = mail.header("message-id");
    assert!(id.len() == 1 && id[0].contains(begun["flow"].as_str().unwrap()), "{id:?}");
    assert!(id[0].ends_with("@example.com>"), "{id:?}");
    let link = mail.link();

    let watching = begun["token"].as_str().unwrap();
    assert!(!link.contains(watching), "the starter has another token");
    let input = json!({"name": "Eve", "age": 40});
    let skipped =
        post("/v1/flows/resume").json(&json!({"token": watching, "input": input})).to(&world.router).await;
    skipped.is(403, "watchOnly");

    let before = world.handles().await;
    for method in [Method::GET, Method::HEAD] {
        for _ in 0..20 {
            let page = ask(method.clone(), &link).to(&world.router).await;
            assert_eq!(page.status, 200, "{page:?}");
            assert_eq!(page.body.is_empty(), method == Method::HEAD);
        }
    }
    let noted = until("the mail is recorded as sent", async || {
        world.handles().await.into_iter().find(|row| row.deliver_at.is_none())
    })
    .await;
    assert_eq!((noted.handle, &noted.state), (before[0].handle, &before[0].state));

    let done = post(&link).form("outcome=ACCEPT&name=Ann&age=41").to(&world.router).await;
    assert_eq!(done.status, 200, "{done:?}");
    assert!(done.body.contains("Your answer was received."), "{}", done.body);
    world.engine.advance(Duration::from_secs(600)).await;
    assert_eq!(server.mails().len(), 1, "it is sent once");
    assert_eq!(world.handles().await, []);
}

/// E8: used, expired, unknown and malformed tokens get the same answer, byte for byte.
#[tokio::test]
async fn every_invalid_token_gets_the_same_answer() {
    let server = Server::start().await;
    let world = world(&server).await;
    world.start("invite", invited("ann@example.com")).await;
    let used = server.mail().await.link();
    let answer = "outcome=ACCEPT&name=Ann&age=41";
    assert_eq!(post(&used).form(answer).to(&world.router).await.status, 200);
    let expired = format!("/l/{}", world.token("login", json!({})).await);
    assert_eq!(get(&expired).to(&world.router).await.status, 200);
    world.engine.advance(Duration::from_secs(3_601)).await;
    let (rest, last) = used.split_at(used.len() - 1);
    let unknown = format!("{rest}{}", if last == "A" { "B" } else { "A" });
    let others = [
        unknown,
        expired,
        format!("/l/handle.{}", "A".repeat(64)),
        "/l/sealed.v4.local.AAAA".to_owned(),
        "/l/nothing".to_owned(),
        "/l/%FF%00".to_owned(),
        "/l/%3Cscript%3E".to_owned(),
    ];

    let page = post(&used).form(answer).to(&world.router).await;
    assert_eq!(page.status, 410);
    assert!(page.header("content-type").starts_with("text/html"), "{page:?}");
    let problem = get(&used).header("accept", "application/json").to(&world.router).await;
    problem.is(410, "gone");
    let resume = |token: &str| post("/v1/flows/resume").json(&json!({"token": token}));
    let resumed = resume(used.trim_start_matches("/l/")).to(&world.router).await;
    resumed.is(410, "gone");
    for other in &others {
        let answered = post(other).form(answer).to(&world.router).await;
        assert_eq!(seen(&answered), seen(&page), "{other}");
        assert_eq!(seen(&get(other).to(&world.router).await), seen(&page), "{other}");
        let asked = get(other).header("accept", "application/json").to(&world.router).await;
        assert_eq!(seen(&asked), seen(&problem), "{other}");
        let token = other.trim_start_matches("/l/");
        assert_eq!(seen(&resume(token).to(&world.router).await), seen(&resumed), "{other}");
    }
}

#[tokio::test]
async fn a_mail_with_a_temporary_error_is_retried() {
    let server = Server::start().await;
    server.moods([
        SmtpFailure::Says("451 later"),
        SmtpFailure::Greets("421 not now"),
        SmtpFailure::Hangs,
        SmtpFailure::Says("535 who are you?"),
    ]);
    // The server hangs once for this time; a mail that is accepted takes less even on a busy machine.
    let world = world_of(email_within(&server, Duration::from_secs(5))).await;
    world.start("invite", invited("ann@example.com")).await;
    for attempts in 1..=4_u32 {
        let pause = 5_000 << attempts;
        // The message is leased for a minute until the failed attempt is recorded.
        until("the attempt is recorded", async || {
            let left = world.handles().await.pop()?.deliver_at?.ms_since(world.engine.now());
            (pause - 5_000..=pause).contains(&left).then_some(())
        })
        .await;
        assert_eq!((server.connection_count(), server.mails().len()), (attempts as usize, 0));
        world.engine.advance(Duration::from_millis(pause + 5_000)).await;
    }
    let mail = server.mail().await;
    assert_eq!(mail.header("message-id").len(), 1);
    assert_eq!(get(&mail.link()).to(&world.router).await.status, 200);
}

#[tokio::test]
async fn a_permanently_refused_mail_is_abandoned_and_audited() {
    let server = Server::start().await;
    server.moods([SmtpFailure::Says("550 no such mailbox")]);
    let world = world(&server).await;
    world.start("invite", invited("nobody@example.com")).await;
    let row = until("the mail is abandoned", async || {
        world.audit().await.into_iter().find(|row| row.operation == "outlet.failed")
    })
    .await;
    let detail: Value = serde_json::from_slice(&row.detail).unwrap();
    assert_eq!((detail["outlet"].as_str(), detail["attempts"].as_u64()), (Some("mail"), Some(1)));
    assert!(detail["why"].as_str().unwrap().contains("550"), "{detail}");
    world.engine.advance(Duration::from_secs(3_000)).await;
    assert_eq!((server.connection_count(), server.mails().len()), (1, 0));
}

/// A name cannot inject a header, a recipient or markup into a mail.
#[tokio::test]
async fn mail_data_cannot_inject_headers_or_markup() {
    let server = Server::start().await;
    let world = world(&server).await;
    let evil = "Ann\r\nBcc: eve@example.com\r\n\r\n<script>alert(1)</script>.\r\n.\r\nQUIT";
    let mut input = invited("ann@example.com");
    input["template"] = json!("invitation");
    input["data"] = json!({"name": evil, "team": {"name": "Ä & <Co>"}, "link": "https://evil.example.com"});
    world.start("invite", input).await;
    let mail = server.mail().await;
    assert_eq!(mail.to.len(), 1, "{mail:?}");
    assert!(mail.header("bcc").is_empty(), "{}", mail.text);
    assert_eq!(mail.header("subject").len(), 1, "{}", mail.text);
    let text = mail.decoded();
    assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{text}");
    let html = text.split("text/html").nth(1).unwrap();
    assert!(!html.contains("<script>"), "{html}");
    assert!(!text.contains("evil.example.com"), "{text}");
    assert_eq!(get(&mail.link()).to(&world.router).await.status, 200);
    assert_eq!(server.mails().len(), 1);
}

fn message(to: &str) -> Message {
    let flow: stepwell::core::RunId = "018f0000-0000-7000-8000-000000000000".parse().unwrap();
    Message {
        id: format!("{flow}-1"),
        tenant: stepwell::store::TenantScope::single().tenant(),
        flow,
        workflow: "invite".into(),
        place: "accept".into(),
        outcomes: vec!["ACCEPT".into()],
        to: to.to_owned(),
        template: None,
        data: Value::Null,
        token: "handle.a/b".to_owned(),
        expires_at: None,
    }
}

#[tokio::test]
async fn an_unsendable_mail_fails_without_contacting_the_server() {
    let server = Server::start().await;
    let email = email(&server);
    for to in [
        "ann",
        "ann@example.com\r\nRCPT TO:<eve@example.com>",
        "a@example.com, b@example.com",
        "Ann <a\n@example.com>",
    ] {
        let error = email.send(message(to)).await.unwrap_err();
        assert!(error.is_final(), "{to:?}: {error}");
    }
    let unknown = Message { template: Some("invitatoin".to_owned()), ..message("ann@example.com") };
    let error = email.send(unknown).await.unwrap_err();
    assert!(error.is_final() && error.to_string().contains("`invitation`"), "{error}");
    let nameless = Message { template: Some("invitation".to_owned()), ..message("ann@example.com") };
    let error = email.send(nameless).await.unwrap_err();
    assert!(error.is_final() && error.to_string().contains("`name`"), "{error}");
    assert_eq!(server.connection_count(), 0);

    email.send(message("ann@example.com")).await.unwrap();
    let text = server.mail().await.decoded();
    assert!(text.contains("https://flows.example.com/l/handle.a%2Fb"), "{text}");
    assert!(!text.contains("is valid until"), "{text}");
}

#[tokio::test]
async fn an_unreachable_mail_server_is_a_retryable_error() {
    let server = Server::start().await;
    server.moods([SmtpFailure::Hangs]);
    let error =
        email_within(&server, Duration::from_millis(500)).send(message("ann@example.com")).await.unwrap_err();
    assert!(!error.is_final() && error.to_string().contains("500 ms"), "{error}");
    let nobody = Email::builder("127.0.0.1", "noreply@example.com", "https://flows.example.com/l");
    let nobody = nobody.security(Security::None).port(1).build().unwrap();
    assert!(!nobody.send(message("ann@example.com")).await.unwrap_err().is_final());
    // With `StartTls`, a server that does not encrypt gets no mail.
    let insisting = Email::builder("localhost", "noreply@example.com", "https://flows.example.com/l");
    let insisting = insisting.security(Security::StartTls).port(server.port).build().unwrap();
    assert!(!insisting.send(message("ann@example.com")).await.unwrap_err().is_final());
    assert_eq!(server.mails().len(), 0);
}
