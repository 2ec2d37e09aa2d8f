//! The page that shows the contract: everything is in it, nothing comes from elsewhere.

/// The page.
pub(crate) const PAGE: &str = include_str!("docs.html");
