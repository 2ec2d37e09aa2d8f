//! Previews of a run, which change nothing: its transitions, and the effect of a signal.

use std::sync::Arc;

use serde::Serialize;
use stepwell_core::dispatch::Available;
use stepwell_core::{ActionCall, Decision, HistoryEntry, RunId, available, dispatch};
use stepwell_store::TenantScope;

use crate::actor::Permission;
use crate::engine::{Inner, Run, permit};
use crate::error::EngineError;
use crate::idempotent::answer_of;
use crate::registry::refuse_own;
use crate::signal::{AskedSignal, Signal, Signalled, earlier_input_first};

/// The predicted outcome of a signal to a run in its current state.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalPreview {
    /// The outcome that the signal would have now.
    pub outcome: Signalled,
    /// The signal was sent earlier under the same id, so sending it again changes nothing.
    pub is_repeated: bool,
    /// The effect of a signal that would be consumed now.
    pub effect: Option<Effect>,
}

/// The effect of a signal.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// The run would get a new version with this history entry.
    Change(Box<HistoryEntry>),
    /// This action would start. The transition fires when the action succeeds.
    Action(Box<ActionCall>),
}

impl SignalPreview {
    fn repeated(outcome: Signalled) -> Self {
        SignalPreview { outcome, is_repeated: true, effect: None }
    }
}

impl Run {
    /// Returns every transition that leaves a place of this run, and the reason why it cannot fire now. Guards see a
    /// null payload.
    pub async fn available(&self) -> Result<Vec<Available>, EngineError> {
        permit(self.caller().map(Arc::as_ref), Permission::View)?;
        let inner = self.inner();
        let loaded_run = inner.load(self.scope(), self.id()).await?;
        let answers = inner.registry.answer_for_available(&loaded_run.workflow, &loaded_run.snapshot).await?;
        let now = inner.host.now();
        Ok(available(loaded_run.definition(), &loaded_run.snapshot, &answers, now)?)
    }

    /// Returns what the signal would do now, or the refusal it would get. Nothing is stored.
    pub async fn preview(&self, signal: Signal) -> Result<SignalPreview, EngineError> {
        permit(self.caller().map(Arc::as_ref), Permission::Manage)?;
        self.inner().preview(self.scope(), self.id(), &signal.by(self.caller())).await
    }
}

impl Inner {
    pub(crate) async fn preview(
        &self,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
    ) -> Result<SignalPreview, EngineError> {
        let payload = signal.checked_payload()?;
        let key = signal.key(run, &payload, Signalled::Consumed);
        let loaded_run = self.load(scope, run).await?;
        refuse_own(loaded_run.definition().name(), run)?;
        if let Some(key) = &key
            && let Some(answer) = self.recorded(scope, key).await?
        {
            return Ok(SignalPreview::repeated(answer_of(key, &answer)?));
        }
        let event = signal.event(&payload);
        let asked = AskedSignal::new(&event, signal, &payload);
        let decided = match self.decide_signal(&loaded_run, &asked).await {
            Ok(decided) => decided,
            Err(refused) => {
                let earlier = self.resolve_refusal(scope, run, signal, &payload, None, refused).await?;
                return Ok(SignalPreview::repeated(earlier.value));
            }
        };
        let Some(pending) = decided else {
            return match signal.is_answer() {
                true => Err(earlier_input_first(&loaded_run)),
                false => Ok(SignalPreview { outcome: Signalled::Buffered, is_repeated: false, effect: None }),
            };
        };
        let effect = match pending.change {
            Some(change) => Some(Effect::Change(Box::new(change.entry))),
            None => {
                let (workflow, snapshot) = (&loaded_run.workflow, &loaded_run.snapshot);
                let answers = self.registry.answer(workflow, snapshot, &event).await?;
                match dispatch(loaded_run.definition(), snapshot, &event, &answers, self.host.now())? {
                    Decision::Act(call) => Some(Effect::Action(Box::new(call))),
                    _ => None,
                }
            }
        };
        Ok(SignalPreview { outcome: Signalled::Consumed, is_repeated: false, effect })
    }
}
