//! The catalogue: which workflows a tenant has, their drafts, their published versions, and which of these is started.
//!
//! An entry is a cell with a revision, a published version is a stored definition and a small cell that says who has
//! published it and when; every change is one commit (`entry.rs`). What a start by name needs of it is kept in memory and read again
//! when it is older than a second (`known.rs`).

mod actions;
mod activation;
mod bundle;
mod check;
mod drafts;
mod entry;
mod error;
mod known;
mod publish;
mod versions;

pub use actions::RemoteAction;
pub use activation::Activated;
pub use bundle::{Export, Import, Imported, Outcome, Which};
pub use check::Checked;
pub use drafts::{Draft, Drafted};
pub use error::{Absent, CatalogueError};
pub(crate) use known::Catalogues;
pub use publish::{Publish, Published};
pub use versions::{Edition, Listed, Version};

use stepwell_core::Name;

use crate::engine::Engine;

/// The workflows of a tenant.
///
/// ```
/// # use stepwell::catalogue::Publish;
/// # use stepwell::testing::TestEngine;
/// # use stepwell::Start;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = TestEngine::start(|engine| engine).await?;
/// let catalogue = engine.catalogue();
/// let text = "steps: [{ id: done, type: control.return, value: { $expr: payload.n * 2 } }]";
/// let draft = catalogue.put_draft("twice", text, 0).await?;
/// let published = catalogue.publish("twice", Publish::draft(draft.revision).activate()).await?;
/// assert_eq!(published.version, 1);
/// let run = engine.start(Start::new("twice").input(&serde_json::json!({"n": 21}))).await?;
/// assert_eq!(run.result().await?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Catalogue {
    engine: Engine,
}

impl Engine {
    /// The workflows of the tenant: drafts, published versions, and which of them is started.
    pub fn catalogue(&self) -> Catalogue {
        Catalogue { engine: self.clone() }
    }
}

impl Catalogue {
    /// What new runs of these workflows are has changed, and the change is committed. A process may die before it comes here:
    /// whatever is done here is found out again from the catalogue itself.
    async fn after_change(&self, names: &[Name]) {
        let tenant = self.engine.scope().tenant();
        tracing::debug!(%tenant, ?names, "what workflows stand for has changed");
        if let Err(error) = self.engine.inner.plan_triggers(self.engine.scope()).await {
            tracing::warn!(%tenant, %error, "schedules are not what triggers say yet");
        }
    }
}
