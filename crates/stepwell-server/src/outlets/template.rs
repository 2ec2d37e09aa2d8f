//! Templates of messages, with placeholders such as `{{name}}`.

use serde_json::Value;
use stepwell::flow::{Message, OutletError};

use super::{SetupError, display_time};
use crate::escape;

/// The template of a message: subject, plain text and optionally HTML.
///
/// `{{name}}` is replaced by a field of the message's data, `{{user.name}}` by a nested field. `{{link}}`,
/// `{{expires_at}}`, `{{place}}`, `{{workflow}}` and `{{flow}}` are always available. Values are escaped in HTML, and
/// reduced to one line in the subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageTemplate {
    subject: String,
    text: String,
    html: Option<String>,
}

impl MessageTemplate {
    /// Creates a template without HTML.
    pub fn new(subject: impl Into<String>, text: impl Into<String>) -> Self {
        MessageTemplate { subject: subject.into(), text: text.into(), html: None }
    }

    /// Adds an HTML version, for mail readers that show it.
    #[must_use]
    pub fn html(mut self, html: impl Into<String>) -> Self {
        self.html = Some(html.into());
        self
    }

    /// Returns the built-in template, with or without the expiry time.
    pub(super) fn usual(expires: bool) -> Self {
        let until = if expires { "\nThe link is valid until {{expires_at}}.\n" } else { "" };
        let until_html = if expires { "<p>The link is valid until {{expires_at}}.</p>" } else { "" };
        let text = format!(
            "A workflow is waiting for your answer ({{{{workflow}}}}: {{{{place}}}}).\n\nOpen this link to answer:\n\n{{{{link}}}}\n{until}"
        );
        let html = format!(
            "<p>A workflow is waiting for your answer ({{{{workflow}}}}: {{{{place}}}}).</p>\
             <p><a href=\"{{{{link}}}}\">Open this link to answer</a></p>{until_html}"
        );
        MessageTemplate::new("Your answer is needed: {{workflow}}", text).html(html)
    }

    pub(super) fn read(&self, name: &str) -> Result<Read, SetupError> {
        let part = |what: &str, text: &str| {
            pieces(text).map_err(|why| SetupError(format!("template `{name}`, {what}: {why}")))
        };
        Ok(Read {
            subject: part("subject", &self.subject)?,
            text: part("text", &self.text)?,
            html: self.html.as_deref().map(|html| part("HTML", html)).transpose()?,
        })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Read {
    subject: Vec<Piece>,
    text: Vec<Piece>,
    html: Option<Vec<Piece>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value(String),
}

/// A message with all placeholders replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) subject: String,
    pub(super) text: String,
    pub(super) html: Option<String>,
}

impl Read {
    /// Replaces the placeholders by the message's values.
    pub(super) fn write(&self, message: &Message, link: &str) -> Result<Written, OutletError> {
        let fill = |pieces: &[Piece], as_it_goes: fn(&str) -> String| -> Result<String, OutletError> {
            pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => Ok(text.clone()),
                    Piece::Value(name) => value(name, message, link).map(|value| as_it_goes(&value)),
                })
                .collect()
        };
        let html = self.html.as_deref().map(|html| fill(html, escape::html)).transpose()?;
        let subject = one_line(&fill(&self.subject, str::to_owned)?);
        Ok(Written { subject, text: fill(&self.text, str::to_owned)?, html })
    }
}

fn value(name: &str, message: &Message, link: &str) -> Result<String, OutletError> {
    match name {
        "link" => return Ok(link.to_owned()),
        "expires_at" => return Ok(message.expires_at.map(display_time).unwrap_or_default()),
        "place" => return Ok(message.place.to_string()),
        "workflow" => return Ok(message.workflow.to_string()),
        "flow" => return Ok(message.flow.to_string()),
        _ => {}
    }
    let found = name.split('.').try_fold(&message.data, |value, part| value.get(part));
    match found {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Null) => Ok(String::new()),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => Ok(value.to_string()),
        Some(Value::Array(_) | Value::Object(_)) => Err(OutletError::new(format!(
            "the template uses `{name}`, which is a list or an object in the message's data"
        ))
        .non_retryable()),
        None => Err(OutletError::new(format!(
            "the template uses `{name}`, which the message's data does not have"
        ))
        .non_retryable()),
    }
}

/// Splits a text into literal text and placeholders.
fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else {
            return Err("a `{{` has no closing `}}`".to_owned());
        };
        let name = name.trim();
        let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '.';
        if name.is_empty() || !name.chars().all(fits) {
            return Err(format!(
                "`{{{{{name}}}}}` is not a placeholder: use letters, digits, `_`, `-` and `.`, as in `{{{{user.name}}}}`"
            ));
        }
        pieces.push(Piece::Text(before.to_owned()));
        pieces.push(Piece::Value(name.to_owned()));
        rest = after;
    }
    pieces.push(Piece::Text(rest.to_owned()));
    Ok(pieces)
}

/// Replaces control characters by spaces and collapses spaces, because a header is one line.
pub(super) fn one_line(text: &str) -> String {
    let visible: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    visible.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stepwell::core::RunId;
    use stepwell::flow::Message;
    use stepwell::store::TenantScope;
    use stepwell::testing::BEGINS;

    use super::{MessageTemplate, one_line};

    fn message(data: serde_json::Value) -> Message {
        Message {
            id: "id".to_owned(),
            tenant: TenantScope::single().tenant(),
            flow: "018f0000-0000-7000-8000-000000000000".parse::<RunId>().unwrap(),
            workflow: "invite".into(),
            place: "accept".into(),
            outcomes: Vec::new(),
            to: "ann@example.com".to_owned(),
            template: None,
            data,
            token: "handle.secret".to_owned(),
            expires_at: Some(BEGINS),
        }
    }

    #[test]
    fn values_are_escaped_only_in_html() {
        let template =
            MessageTemplate::new("{{name}} is invited", "{{ name }}: {{team.size}} {{link}} {{none}}.")
                .html("<b>{{name}}</b> until {{expires_at}}");
        let read = template.read("invite").unwrap();
        let data = json!({"name": "<Ann> & \"Ben\"", "team": {"size": 3}, "none": null, "link": "evil"});
        let written = read.write(&message(data), "https://example.com/l/t").unwrap();
        assert_eq!(written.subject, "<Ann> & \"Ben\" is invited");
        assert_eq!(written.text, "<Ann> & \"Ben\": 3 https://example.com/l/t .");
        assert_eq!(
            written.html.unwrap(),
            "<b>&lt;Ann&gt; &amp; &quot;Ben&quot;</b> until 2026-01-01 00:00 UTC"
        );
    }

    #[test]
    fn subject_is_always_one_line() {
        let read = MessageTemplate::new("Hi {{name}}", "").read("hi").unwrap();
        let data = json!({"name": "Ann\r\nBcc: eve@example.com\u{2028}"});
        assert_eq!(
            read.write(&message(data), "").unwrap().subject,
            "Hi Ann Bcc: eve@example.com\u{2028}",
            "a separator that is not a control character is encoded when it is sent"
        );
        assert_eq!(one_line("a\r\n\tb\0"), "a b");
    }

    #[test]
    fn unknown_or_structured_values_fail_by_name() {
        let read = MessageTemplate::new("{{nam}}", "").read("hi").unwrap();
        let error = read.write(&message(json!({"name": "Ann"})), "").unwrap_err();
        assert!(error.is_final() && error.to_string().contains("`nam`"), "{error}");
        let read = MessageTemplate::new("{{team}}", "").read("hi").unwrap();
        assert!(read.write(&message(json!({"team": {}})), "").unwrap_err().is_final());
    }

    #[test]
    fn malformed_template_is_rejected() {
        for text in ["{{", "a {{name", "{{}}", "{{ }}", "{{a b}}", "{{<x>}}"] {
            let error = MessageTemplate::new("", text).read("hi").unwrap_err();
            assert!(error.to_string().starts_with("template `hi`, text: "), "{error}");
        }
        assert!(
            MessageTemplate::usual(true).read("usual").is_ok()
                && MessageTemplate::usual(false).read("usual").is_ok()
        );
    }
}
