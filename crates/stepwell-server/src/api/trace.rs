//! The id of a request and its trace context (W3C Trace Context).

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, HeaderValue};
use uuid::Uuid;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Maximum length of a request id, in characters.
const ID_CHARS: usize = 255;

/// Request id and trace context of a request.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    request: String,
    trace: String,
    span: String,
    flags: String,
    /// Span and flags of the caller; `None` without a `traceparent`.
    caller: Option<(String, u8)>,
}

impl Trace {
    /// Reads the ids from the headers and generates those that are missing.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let fresh = Uuid::now_v7();
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let request = text(REQUEST_ID).filter(|id| (1..=ID_CHARS).contains(&id.len()));
        let (trace, flags, caller) = match text(TRACEPARENT).and_then(parent) {
            Some((trace, span, flags)) => {
                let bits = u8::from_str_radix(&flags, 16).unwrap_or_default();
                (trace, flags, Some((span, bits)))
            }
            None => (fresh.simple().to_string(), "00".to_owned(), None),
        };
        let span = format!("{:016x}", fresh.as_u128() as u64);
        let request = request.map_or_else(|| fresh.to_string(), str::to_owned);
        Trace { request, trace, span, flags, caller }
    }

    /// Returns the caller's sampling decision; `None` if the request has no `traceparent`.
    pub(crate) fn is_sampled_by_caller(&self) -> Option<bool> {
        self.caller.as_ref().map(|(_, flags)| flags & 1 == 1)
    }

    /// Sets the sampled flag for the response.
    pub(crate) fn sampled(mut self, is_sampled: bool) -> Self {
        self.flags = format!("{:02x}", u8::from(is_sampled));
        self
    }

    /// Returns the trace id as a UUID.
    pub(crate) fn uuid(&self) -> Option<Uuid> {
        self.trace.parse().ok()
    }

    /// Returns the id of this request's span as a number.
    pub(crate) fn span_number(&self) -> Option<u64> {
        u64::from_str_radix(&self.span, 16).ok()
    }

    /// Returns the id of the caller's span as a number; `None` without a `traceparent`.
    pub(crate) fn parent_number(&self) -> Option<u64> {
        self.caller.as_ref().and_then(|(span, _)| u64::from_str_radix(span, 16).ok())
    }

    /// Returns the trace id, 32 hexadecimal digits.
    pub(crate) fn id(&self) -> &str {
        &self.trace
    }

    /// Returns the request id, from the header or generated.
    pub(crate) fn request(&self) -> &str {
        &self.request
    }

    /// Adds the request id and `traceparent` to the response headers.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        let parent = format!("00-{}-{}-{}", self.trace, self.span, self.flags);
        for (name, value) in [(REQUEST_ID, &self.request), (TRACEPARENT, &parent)] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
    }
}

/// Parses a `traceparent` into trace id, span id and flags. Returns `None` if it is invalid.
fn parent(text: &str) -> Option<(String, String, String)> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_zero = |part: &str| part.bytes().all(|b| b == b'0');
    let is_whole = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    let is_meant =
        version != "ff" && !is_zero(trace) && !is_zero(span) && (version != "00" || parts.next().is_none());
    (is_whole && is_meant).then(|| (trace.to_owned(), span.to_owned(), flags.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::parent;

    #[test]
    fn invalid_traceparent_is_ignored() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        assert_eq!(
            parent(&format!("00-{trace}-{span}-01")),
            Some((trace.to_owned(), span.to_owned(), "01".to_owned()))
        );
        // A later version may have further fields.
        assert!(parent(&format!("01-{trace}-{span}-01-more")).is_some());
        let zero = "0".repeat(32);
        for wrong in [
            String::new(),
            "00".to_owned(),
            format!("00-{trace}-{span}-01-more"),
            format!("00-{zero}-{span}-01"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
        ] {
            assert_eq!(parent(&wrong), None, "{wrong}");
        }
    }
}
