//! `email.send`: sends a mail, with the words and recipients that the workflow gives.

use lettre::message::{Mailbox, MessageBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell::{ActionError, ActionInfo, Builder, Cx, Permission};

use super::invalid;
use crate::outlets::Mailer;
use crate::outlets::mailer::{dated, mailbox, worded};

/// A mail. An address is `ann@example.com` or `Ann <ann@example.com>`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    /// Who it is for: an address, or a list of them.
    to: Addresses,
    /// Who gets a copy, for all to see.
    #[serde(default)]
    cc: Option<Addresses>,
    /// Who gets a copy that the others do not see.
    #[serde(default)]
    bcc: Option<Addresses>,
    /// Where answers go; without it, to the sender.
    #[serde(default)]
    reply_to: Option<Addresses>,
    /// The subject: one line.
    subject: String,
    /// The words as plain text. A mail has `text`, `html` or both.
    #[serde(default)]
    text: Option<String>,
    /// The words as HTML.
    #[serde(default)]
    html: Option<String>,
    /// Who it is from; without it, the sender that mails of this server have.
    #[serde(default)]
    from: Option<String>,
}

/// An address, or a list of them.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum Addresses {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Addresses {
    /// Reads them; what is wrong is said of its field.
    fn read(&self, field: &str) -> Result<Vec<Mailbox>, ActionError> {
        match self {
            Addresses::One(one) => Ok(vec![address(one, field)?]),
            Addresses::Many(many) => {
                let numbered = many.iter().enumerate();
                numbered.map(|(number, one)| address(one, &format!("{field}[{number}]"))).collect()
            }
        }
    }
}

/// A mail that was sent.
#[derive(Serialize, JsonSchema)]
struct Output {
    /// Its `Message-ID`: the same for every try of this step.
    message_id: String,
}

/// Registers `email.send`.
#[must_use]
pub fn email(builder: Builder, mailer: Mailer) -> Builder {
    let send = move |cx: Cx, input: Input| {
        let mailer = mailer.clone();
        async move { send(&mailer, &cx, input).await }
    };
    builder.described(NAME, ABOUT, send).describe(NAME, described)
}

/// What is to be said of `email.send`.
pub(super) fn info() -> ActionInfo {
    described(ActionInfo::of::<Input, Output>(NAME, ABOUT))
}

const NAME: &str = "email.send";
const ABOUT: &str = "Sends a mail.";

fn described(info: ActionInfo) -> ActionInfo {
    let addresses = || json!({ "widget": "emails" });
    info.group("email")
        .icon("mail")
        .permission(Permission::Manage)
        .hint("to", addresses())
        .hint("cc", addresses())
        .hint("bcc", addresses())
        .hint("reply_to", json!({ "widget": "emails", "advanced": true }))
        .hint("subject", json!({ "widget": "text" }))
        .hint("text", json!({ "widget": "textarea" }))
        .hint("html", json!({ "widget": "html" }))
        .hint("from", json!({ "widget": "email", "advanced": true }))
}

async fn send(mailer: &Mailer, cx: &Cx, input: Input) -> Result<Output, ActionError> {
    let message_id = mailer.id(&cx.idempotency_key());
    let mail = mail(mailer, cx, input, &message_id)?;
    match mailer.send(mail).await {
        Ok(()) => Ok(Output { message_id }),
        Err(failed) if failed.is_final => Err(ActionError::new("smtpRejected", failed.why).finally()),
        Err(failed) => Err(ActionError::new("smtp", failed.why)),
    }
}

fn mail(mailer: &Mailer, cx: &Cx, input: Input, id: &str) -> Result<lettre::Message, ActionError> {
    let Input { to, cc, bcc, reply_to, subject, text, html, from } = input;
    if subject.chars().any(char::is_control) {
        return Err(invalid("`subject` has a line end or another control character in it"));
    }
    if text.is_none() && html.is_none() {
        return Err(invalid("a mail has `text`, `html` or both"));
    }
    let to = to.read("to")?;
    if to.is_empty() {
        return Err(invalid("`to` names nobody"));
    }
    let others = |given: Option<Addresses>, field| given.map_or(Ok(Vec::new()), |given| given.read(field));
    let (cc, bcc, reply_to) = (others(cc, "cc")?, others(bcc, "bcc")?, others(reply_to, "reply_to")?);
    let from = from.map(|from| address(&from, "from")).transpose()?;
    let mut mail = dated(cx.now())
        .from(from.unwrap_or_else(|| mailer.from().clone()))
        .subject(subject)
        .message_id(Some(id.to_owned()));
    mail = to.into_iter().fold(mail, MessageBuilder::to);
    mail = cc.into_iter().fold(mail, MessageBuilder::cc);
    mail = bcc.into_iter().fold(mail, MessageBuilder::bcc);
    mail = reply_to.into_iter().fold(mail, MessageBuilder::reply_to);
    worded(mail, text, html).map_err(|error| invalid(format!("no mail can be made of this: {error}")))
}

/// One address; what is wrong with it is said of its field.
fn address(text: &str, field: &str) -> Result<Mailbox, ActionError> {
    let wrong = |why: &str| invalid(format!("`{field}` is no address that mail can have: {why}"));
    if text.chars().any(char::is_control) {
        return Err(wrong("it has a line end or another control character in it"));
    }
    mailbox(text).map_err(|why| wrong(&why))
}
