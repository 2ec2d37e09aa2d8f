//! Outlets: how what resumes a flow reaches people by mail, and programs by webhook.

pub(crate) mod client;
pub mod email;
pub mod mailer;
pub(crate) mod target;
pub mod template;
pub mod webhook;

use std::time::Duration;

use axum::http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use stepwell::core::Timestamp;

pub use client::system_tls;
pub use email::{Email, EmailBuilder};
pub use mailer::{Mailer, MailerBuilder, Security};
pub use template::Template;
pub use webhook::{Webhook, WebhookBuilder};

/// How long an outlet may take for one message at most: the engine gives it a minute before somebody else tries.
const LONGEST: Duration = Duration::from_secs(50);
/// How long an outlet takes for one message at most, unless it is told otherwise.
const USUAL: Duration = Duration::from_secs(20);

/// What is kept as it is in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What was set up cannot work; the text says what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(pub(crate) String);

impl SetupError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        SetupError(why.into())
    }
}

/// The address under which the pages of links are.
#[derive(Debug, Clone)]
struct Links(String);

impl Links {
    /// Takes an address such as `https://flows.example.com/l`.
    fn new(base: &str) -> Result<Self, SetupError> {
        let uri: Option<Uri> = base.parse().ok();
        let is_web = uri.as_ref().is_some_and(|uri| matches!(uri.scheme_str(), Some("https" | "http")));
        let is_plain = uri.is_some_and(|uri| uri.host().is_some() && uri.query().is_none());
        if !is_web || !is_plain || base.contains('#') {
            return Err(SetupError::new(format!(
                "`{base}` is not the address of links: use one such as `https://flows.example.com/l`, without a query"
            )));
        }
        Ok(Links(base.trim_end_matches('/').to_owned()))
    }

    /// The link that has this token.
    fn to(&self, token: &str) -> String {
        format!("{}/{}", self.0, segment(token))
    }
}

/// The text as one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// An instant as people read it, to the minute.
pub(crate) fn for_people(at: Timestamp) -> String {
    let text = at.to_string();
    match (text.get(..10), text.get(11..16)) {
        (Some(day), Some(time)) => format!("{day} {time} UTC"),
        _ => text,
    }
}

/// Refuses a time that cannot be kept to.
fn checked(timeout: Duration) -> Result<Duration, SetupError> {
    if timeout.is_zero() || timeout > LONGEST {
        return Err(SetupError::new(format!(
            "a message is sent within {} seconds at most, and its timeout is {timeout:?}",
            LONGEST.as_secs()
        )));
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use stepwell::testing::BEGINS;

    use super::{Links, for_people};

    #[test]
    fn a_link_is_the_address_and_the_token_as_one_segment() {
        let links = Links::new("https://flows.example.com/l/").unwrap();
        assert_eq!(links.to("handle.aB-_9"), "https://flows.example.com/l/handle.aB-_9");
        assert_eq!(links.to("a/b?c#d é"), "https://flows.example.com/l/a%2Fb%3Fc%23d%20%C3%A9");
        for base in ["", "/l", "ftp://example.com", "https://example.com/?a=b", "https://example.com/#a"] {
            assert!(Links::new(base).is_err(), "{base}");
        }
    }

    #[test]
    fn people_read_an_instant_to_the_minute() {
        assert_eq!(for_people(BEGINS.plus_micros(61_234_567)), "2026-01-01 00:01 UTC");
    }
}
