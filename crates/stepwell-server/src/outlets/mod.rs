//! Outlets: deliver the token that resumes a flow, to people by mail and to programs by webhook.

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
pub use template::MessageTemplate;
pub use webhook::{Webhook, WebhookBuilder};

/// Upper limit of an outlet's timeout. The engine gives a delivery one minute before another process may retry it.
const LONGEST: Duration = Duration::from_secs(50);
/// Default timeout of an outlet.
const USUAL: Duration = Duration::from_secs(20);

/// Characters that are percent-encoded in a path segment: all but the unreserved ones.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A configuration error. The text says what is wrong and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(pub(crate) String);

impl SetupError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        SetupError(why.into())
    }
}

/// The base URL of the pages behind links.
#[derive(Debug, Clone)]
pub(crate) struct Links(String);

impl Links {
    /// Checks a base URL such as `https://flows.example.com/l`. It must not have a query or a fragment.
    pub(crate) fn new(base: &str) -> Result<Self, SetupError> {
        let uri: Option<Uri> = base.parse().ok();
        let is_web = uri.as_ref().is_some_and(|uri| matches!(uri.scheme_str(), Some("https" | "http")));
        let is_plain = uri.is_some_and(|uri| uri.host().is_some() && uri.query().is_none());
        if !is_web || !is_plain || base.contains('#') {
            return Err(SetupError::new(format!(
                "`{base}` is not a base URL for links: use one such as `https://flows.example.com/l`, without a query"
            )));
        }
        Ok(Links(base.trim_end_matches('/').to_owned()))
    }

    /// Returns the link for a token.
    pub(crate) fn to(&self, token: &str) -> String {
        format!("{}/{}", self.0, segment(token))
    }
}

/// Encodes text as one path segment.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Formats a time for people, in UTC and to the minute.
pub(crate) fn display_time(at: Timestamp) -> String {
    let text = at.to_string();
    match (text.get(..10), text.get(11..16)) {
        (Some(day), Some(time)) => format!("{day} {time} UTC"),
        _ => text,
    }
}

/// Rejects a timeout of zero or above the limit.
fn checked(timeout: Duration) -> Result<Duration, SetupError> {
    if timeout.is_zero() || timeout > LONGEST {
        return Err(SetupError::new(format!(
            "the timeout of a message must be greater than zero and at most {} seconds (got {timeout:?})",
            LONGEST.as_secs()
        )));
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use stepwell::testing::BEGINS;

    use super::{Links, display_time};

    #[test]
    fn link_ends_with_the_encoded_token() {
        let links = Links::new("https://flows.example.com/l/").unwrap();
        assert_eq!(links.to("handle.aB-_9"), "https://flows.example.com/l/handle.aB-_9");
        assert_eq!(links.to("a/b?c#d é"), "https://flows.example.com/l/a%2Fb%3Fc%23d%20%C3%A9");
        for base in ["", "/l", "ftp://example.com", "https://example.com/?a=b", "https://example.com/#a"] {
            assert!(Links::new(base).is_err(), "{base}");
        }
    }

    #[test]
    fn times_are_shown_to_the_minute() {
        assert_eq!(display_time(BEGINS.plus_micros(61_234_567)), "2026-01-01 00:01 UTC");
    }
}
