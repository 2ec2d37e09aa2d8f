//! `email.send`: sends a mail with the content and recipients that the workflow gives.

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
    /// Recipients: an address, or a list of addresses.
    to: Addresses,
    /// Recipients of a copy, visible to all recipients.
    #[serde(default)]
    cc: Option<Addresses>,
    /// Recipients of a blind copy, not visible to the others.
    #[serde(default)]
    bcc: Option<Addresses>,
    /// Addresses for replies (default: the sender).
    #[serde(default)]
    reply_to: Option<Addresses>,
    /// Subject line, without line breaks.
    subject: String,
    /// Content as plain text. A mail has `text`, `html` or both.
    #[serde(default)]
    text: Option<String>,
    /// Content as HTML. Together with `text`, mail readers choose one of the two.
    #[serde(default)]
    html: Option<String>,
    /// Sender address (default: the sender that is configured for the server).
    #[serde(default)]
    from: Option<String>,
}

/// An address, or a list of addresses.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum Addresses {
    /// One address, such as `ann@example.com`.
    One(String),
    /// A list of addresses.
    Many(Vec<String>),
}

impl Addresses {
    /// Parses the addresses. An error names the field.
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
    /// The `Message-ID` of the mail, the same for every attempt of this step.
    message_id: String,
}

/// Registers the action `email.send`, which sends through the mailer.
#[must_use]
pub fn email(builder: Builder, mailer: Mailer) -> Builder {
    let send = move |cx: Cx, input: Input| {
        let mailer = mailer.clone();
        async move { send(&mailer, &cx, input).await }
    };
    builder.described(NAME, ABOUT, send).describe(NAME, described)
}

/// Returns the description of `email.send`.
pub(super) fn info() -> ActionInfo {
    described(ActionInfo::of::<Input, Output>(NAME, ABOUT))
}

const NAME: &str = "email.send";
const ABOUT: &str = "Sends a mail.";

fn described(info: ActionInfo) -> ActionInfo {
    let addresses = || json!({ "widget": "emails" });
    info.group("email")
        .codes(["smtp", "smtpRejected"])
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
        Err(failed) if failed.is_final => Err(ActionError::new("smtpRejected", failed.why).non_retryable()),
        Err(failed) => Err(ActionError::new("smtp", failed.why)),
    }
}

fn mail(mailer: &Mailer, cx: &Cx, input: Input, id: &str) -> Result<lettre::Message, ActionError> {
    let Input { to, cc, bcc, reply_to, subject, text, html, from } = input;
    if subject.chars().any(char::is_control) {
        return Err(invalid("`subject` contains a line break or another control character"));
    }
    if text.is_none() && html.is_none() {
        return Err(invalid("set `text`, `html` or both"));
    }
    let to = to.read("to")?;
    if to.is_empty() {
        return Err(invalid("`to` is empty: name at least one recipient"));
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
    worded(mail, text, html).map_err(|error| invalid(format!("cannot build the mail: {error}")))
}

/// Parses one address. An error names the field.
fn address(text: &str, field: &str) -> Result<Mailbox, ActionError> {
    let wrong = |why: &str| invalid(format!("`{field}` is not a valid mail address: {why}"));
    if text.chars().any(char::is_control) {
        return Err(wrong("it contains a line break or another control character"));
    }
    mailbox(text).map_err(|why| wrong(&why))
}
