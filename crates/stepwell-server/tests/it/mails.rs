//! The `email.send` action in workflows: mails that arrive, and inputs that are refused.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::{Backoff, Retry};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Failure, Spec};
use stepwell::testing::TestEngine;
use stepwell::{Permission, Run, RunError, Start};
use stepwell_server::actions;
use stepwell_server::outlets::{Email, Mailer, Security};

use crate::kit::until;
use crate::smtp::{Server, SmtpFailure};

fn mailer(server: &Server) -> Mailer {
    mailer_within(server, Duration::from_secs(45))
}

/// A mailer for a server that hangs. It is retried until the mail arrives.
fn impatient(server: &Server) -> Mailer {
    mailer_within(server, Duration::from_millis(500))
}

fn mailer_within(server: &Server, timeout: Duration) -> Mailer {
    let mailer = Mailer::builder("127.0.0.1", "Example <noreply@example.com>").security(Security::None);
    mailer.port(server.port).timeout(timeout).build().unwrap()
}

/// A workflow with one `email.send`, whose input is the `input` of the run.
fn once(retries: u32) -> Definition {
    let retry = Retry { attempts: retries, delay_ms: 1_000, backoff: Backoff::Fixed, ..Retry::default() };
    Spec::new("once")
        .step("begin")
        .end_with("done", json!({"$expr": "context.sent"}))
        .transition(
            Transition::new("send", "begin", "done")
                .action("email.send")
                .input(json!({"$expr": "context.input"}))
                .save_as("sent")
                .retry(retry),
        )
        .initial("begin")
        .build()
        .unwrap()
}

async fn engine(mailer: Mailer, retries: u32) -> TestEngine {
    TestEngine::start(|engine| actions::email(engine.workflow(once(retries)), mailer)).await.unwrap()
}

async fn start(engine: &TestEngine, input: &Value) -> Run {
    engine.start(Start::new("once").input(&json!({"input": input}))).await.unwrap()
}

async fn send(engine: &TestEngine, input: &Value) -> Result<Value, Failure> {
    let run = start(engine, input).await;
    let result = tokio::time::timeout(Duration::from_secs(60), run.result()).await;
    match result.unwrap_or_else(|_| panic!("no result within 60 seconds: {input}")) {
        Ok(output) => Ok(output),
        Err(RunError::Failed { error, .. }) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

#[track_caller]
fn is(result: Result<Value, Failure>, code: &str, is_final: bool) -> String {
    let error = result.expect_err(code);
    assert_eq!((error.code.as_str(), error.is_final), (code, is_final), "{error:?}");
    error.message
}

fn mail() -> Value {
    json!({"to": "ann@example.com", "subject": "Hello", "text": "Hi Ann"})
}

#[tokio::test]
async fn a_mail_arrives_as_it_was_written() {
    let server = Server::start().await;
    let engine = engine(mailer(&server), 0).await;
    let input = json!({
        "to": ["Änn <ann@example.com>", "ben@example.com"],
        "cc": "cid@example.com",
        "bcc": ["dan@example.com", "eve@example.com"],
        "reply_to": "Help <help@example.com>",
        "from": "Sales <sales@example.org>",
        "subject": "Grüße an alle, die es lesen — auch wenn die Zeile sehr lang wird und umgebrochen werden muss",
        "text": "Hi\r\n.\r\nQUIT\n.dot\nund mehr, damit es überwiegend lesbar bleibt",
        "html": "<p>Hi &amp; <b>Ä</b></p>",
    });
    let output = send(&engine, &input).await.unwrap();
    let mail = server.mail().await;
    assert!(mail.from.contains("<sales@example.org>"), "{mail:?}");
    let to: Vec<_> = mail.to.iter().map(|to| to.split(['<', '>']).nth(1).unwrap()).collect();
    assert_eq!(
        to,
        ["ann@example.com", "ben@example.com", "cid@example.com", "dan@example.com", "eve@example.com"]
    );
    assert!(mail.header("bcc").is_empty() && !mail.text.contains("eve@"), "{}", mail.text);
    assert_eq!(mail.header("cc"), ["cid@example.com"]);
    assert!(mail.header("reply-to")[0].contains("<help@example.com>"), "{}", mail.text);
    assert!(mail.header("from")[0].contains("<sales@example.org>"), "{}", mail.text);
    assert_eq!(mail.header("message-id"), [output["message_id"].as_str().unwrap()]);
    assert_eq!(mail.header("date"), ["Thu, 01 Jan 2026 00:00:00 +0000"]);
    let text = mail.decoded();
    assert!(text.contains("multipart/alternative") && text.contains("<b>Ä</b>"), "{text}");
    assert!(text.contains("QUIT") && text.contains("\r\n.dot"), "{text}");
    assert_eq!(server.mails().len(), 1);
}

#[tokio::test]
async fn mail_is_text_or_html_from_the_default_sender() {
    let server = Server::start().await;
    let email = Email::builder("127.0.0.1", "Example <noreply@example.com>", "https://flows.example.com/l")
        .security(Security::None)
        .port(server.port)
        .build()
        .unwrap();
    let engine = engine(email.mailer(), 0).await;
    send(&engine, &mail()).await.unwrap();
    let html =
        json!({"to": "Ann <ann@example.com>", "cc": null, "bcc": [], "subject": "", "html": "<p>Hi</p>"});
    send(&engine, &html).await.unwrap();
    let mails = server.mails();
    for (mail, kind) in mails.iter().zip(["text/plain", "text/html"]) {
        assert!(mail.header("content-type")[0].starts_with(kind), "{}", mail.text);
        assert_eq!(mail.header("from"), ["Example <noreply@example.com>"]);
        assert!(mail.header("cc").is_empty() && mail.header("reply-to").is_empty(), "{}", mail.text);
    }
    let ids: Vec<_> = mails.iter().flat_map(|mail| mail.header("message-id")).collect();
    assert!(ids.len() == 2 && ids[0] != ids[1] && ids[0].ends_with("@example.com>"), "{ids:?}");
}

#[tokio::test]
async fn retried_mail_keeps_its_message_id() {
    let server = Server::start().await;
    let moods = [
        SmtpFailure::Says("451 later"),
        SmtpFailure::Greets("421 not now"),
        SmtpFailure::Says("535 who are you?"),
        SmtpFailure::Hangs,
    ];
    server.moods(moods);
    let engine = engine(impatient(&server), 12).await;
    let run = start(&engine, &mail()).await;
    while server.mails().is_empty() {
        let tried = server.connection_count();
        engine.advance(Duration::from_secs(2)).await;
        until("the next attempt has ended", async || {
            let view = run.view().await.unwrap();
            (view.ledger.failures.len() >= tried.max(1) || !server.mails().is_empty()).then_some(())
        })
        .await;
    }
    let failures = run.view().await.unwrap().ledger.failures;
    assert!(failures.iter().all(|tried| tried.error.code == "smtp" && !tried.error.is_final), "{failures:?}");
    let mail = server.mail().await;
    let result = tokio::time::timeout(Duration::from_secs(60), run.result()).await.unwrap().unwrap();
    assert_eq!(mail.header("message-id"), [result["message_id"].as_str().unwrap()]);
    let id = result["message_id"].as_str().unwrap();
    assert!(id.starts_with(&format!("<{}", run.id())), "{id}");
    assert_eq!((server.connection_count(), server.mails().len()), (5, 1));
}

#[tokio::test]
async fn permanent_smtp_rejection_is_final() {
    let server = Server::start().await;
    server.moods([SmtpFailure::Says("550 no such mailbox"), SmtpFailure::Greets("554 go away")]);
    let engine = engine(mailer(&server), 0).await;
    assert!(is(send(&engine, &mail()).await, "smtpRejected", true).contains("550"));
    assert!(is(send(&engine, &mail()).await, "smtpRejected", true).contains("554"));
    // The server does not support SMTPUTF8, so it can never accept this address.
    let mut unsayable = mail();
    unsayable["to"] = json!("änn@example.com");
    is(send(&engine, &unsayable).await, "smtpRejected", true);
    assert!(server.mails().is_empty());
    let nobody =
        Mailer::builder("127.0.0.1", "a@example.com").security(Security::None).port(1).build().unwrap();
    let engine = self::engine(nobody, 0).await;
    is(send(&engine, &mail()).await, "smtp", false);
}

/// No input can inject a header or a recipient into a mail. The error names the field.
#[tokio::test]
async fn invalid_mail_is_refused_by_field_before_connecting() {
    let server = Server::start().await;
    let engine = engine(mailer(&server), 0).await;
    let bad = [
        "",
        "ann",
        "ann@",
        "ann@example.com\r\nBcc: eve@example.com",
        "ann@example.com\n",
        "Ann\r\nBcc: eve@example.com <ann@example.com>",
        "a@example.com, b@example.com",
        "Ann <a@example.com>, Eve <b@example.com>",
        "a@example.com> RCPT TO:<b@example.com",
        "\u{85}ann@example.com\u{0}",
    ];
    for field in ["to", "cc", "bcc", "reply_to", "from"] {
        for address in bad {
            let mut input = mail();
            input[field] = json!(address);
            let message = match send(&engine, &input).await {
                Err(error) => is(Err(error), "invalidInput", true),
                Ok(_) => panic!("{field}: {address:?}"),
            };
            assert!(message.contains(&format!("`{field}`")), "{message}");
        }
        if field != "from" {
            let mut input = mail();
            input[field] = json!(["ann@example.com", "eve"]);
            let message = is(send(&engine, &input).await, "invalidInput", true);
            assert!(message.contains(&format!("`{field}[1]`")), "{message}");
        }
    }
    for (field, value) in [
        ("subject", json!("Hi\r\nBcc: eve@example.com")),
        ("subject", json!("Hi\nthere")),
        ("subject", json!("Hi\u{0}")),
        ("subject", json!("Hi\u{85}")),
        ("subject", json!(null)),
        ("to", json!([])),
        ("to", json!(null)),
        ("to", json!({"a": 1})),
        ("text", json!(null)),
        ("text", json!(1)),
        ("attachments", json!([])),
    ] {
        let mut input = mail();
        input[field] = value;
        is(send(&engine, &input).await, "invalidInput", true);
    }
    assert_eq!(server.connection_count(), 0);
}

#[tokio::test]
async fn email_action_is_described_for_editors() {
    let server = Server::start().await;
    let engine = engine(mailer(&server), 0).await;
    let info = engine.actions().into_iter().find(|info| info.name.as_str() == "email.send").unwrap();
    assert_eq!((info.group.as_str(), info.icon.as_str()), ("email", "mail"));
    assert_eq!((info.permission, info.has_side_effects), (Some(Permission::Manage), true));
    assert_eq!(info.input["required"], json!(["to", "subject"]));
    assert_eq!(info.input["additionalProperties"], false);
    for (name, field) in info.input["properties"].as_object().unwrap() {
        assert!(field["description"].as_str().is_some_and(|text| text.len() > 10), "{name}: {field}");
        assert!(field.get("x-workflow-editor").is_some(), "{name}: {field}");
    }
}
