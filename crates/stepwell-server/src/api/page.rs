//! The HTML page that shows the contract. It is self-contained: it loads nothing from other servers.

/// HTML of the page at `/docs`.
pub(crate) const PAGE: &str = include_str!("docs.html");
