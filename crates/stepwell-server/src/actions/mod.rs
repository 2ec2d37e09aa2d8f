//! Actions that use the network: `http.request` and `email.send`.
//!
//! They are not built into the engine. A program adds them to the engine's builder and sets their allowed targets.
//!
//! ```
//! use stepwell::testing::TestEngine;
//! use stepwell_server::actions::{self, HttpOptions};
//! use stepwell_server::outlets::Mailer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let http = HttpOptions { allow: vec!["10.1.0.0/16".to_owned()], ..HttpOptions::default() }.build()?;
//! let mailer = Mailer::builder("smtp.example.com", "Example <noreply@example.com>").build()?;
//! let engine = TestEngine::start(|engine| actions::email(actions::http(engine, http), mailer)).await?;
//! assert!(engine.actions().iter().any(|action| action.name.as_str() == "http.request"));
//! # Ok(())
//! # }
//! ```

mod email;
mod http;

use stepwell::{ActionError, ActionInfo};

pub use email::email;
pub use http::{Http, HttpOptions, http};

/// Returns the descriptions of these actions, for listing actions and checking workflows without a configured engine.
pub fn infos() -> Vec<ActionInfo> {
    vec![email::info(), http::info()]
}

/// Returns the non-retryable error `invalidInput`.
fn invalid(why: impl Into<String>) -> ActionError {
    ActionError::new("invalidInput", why).non_retryable()
}
