//! The catalogue of a tenant: its workflows, their drafts, their published versions and the active one.
//!
//! An entry is a cell with a revision. A published version is a stored definition and a small cell with its publisher
//! and time. Every change is one commit (`entry.rs`). The part that starts need is cached and reloaded when it is older
//! than a second (`known.rs`).

mod actions;
mod activation;
mod bundle;
mod check;
mod drafts;
mod entry;
mod error;
mod flows;
mod known;
mod publish;
mod repair;
mod versions;

pub use actions::RemoteAction;
pub use activation::Activated;
pub use bundle::{Export, ExportVersion, Import, ImportOutcome, Imported};
pub use check::Checked;
pub use drafts::{Draft, Drafted};
pub(crate) use entry::OWNER;
pub use error::{Absent, CatalogueError};
pub(crate) use known::{Catalogues, ReadWorkflows};
pub use publish::{Publish, Published};
pub(crate) use repair::check_cell;
pub use versions::{Version, WorkflowSummary, WorkflowVersion};

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
    /// Returns the tenant's catalogue: drafts, published versions and the active version of each workflow.
    pub fn catalogue(&self) -> Catalogue {
        Catalogue { engine: self.clone() }
    }
}

impl Catalogue {
    /// Updates the schedules of triggers and wakes the gates of limits after a committed change of these workflows. If
    /// the process dies before this call, maintenance derives the same schedules from the catalogue, and gates with a
    /// queue read the limit at their next check.
    async fn after_change(&self, names: &[Name]) {
        let tenant = self.engine.scope().tenant();
        tracing::debug!(%tenant, ?names, "workflows changed in the catalogue");
        if let Err(error) = self.engine.inner.plan_triggers(self.engine.scope()).await {
            tracing::warn!(%tenant, %error, "the schedules of triggers could not be updated; retried later");
        }
        for name in names {
            if let Err(error) = self.engine.inner.wake_gates(self.engine.scope(), name).await {
                tracing::warn!(%tenant, workflow = %name, %error, "waiting runs learn of their new limit later");
            }
        }
    }
}
