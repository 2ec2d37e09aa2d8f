//! Actions that reach out over the network, for workflows that are written down: `http.request` and `email.send`.
//!
//! An engine does not have them unless they are added to its builder: whoever adds them says where they may go.
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

/// What is to be said of these actions, also where nobody has set them up: for whoever lists or checks workflows.
pub fn infos() -> Vec<ActionInfo> {
    vec![email::info(), http::info()]
}

/// What is asked for can never be done.
fn invalid(why: impl Into<String>) -> ActionError {
    ActionError::new("invalidInput", why).finally()
}
