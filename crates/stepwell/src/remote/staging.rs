//! Changes that a worker stages with the result of its task. They are calls of built-in actions that only stage
//! changes, so a worker can do what a step of a workflow can do, in the commit of its own step.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell_core::{Failure, Name, RunId};
use stepwell_store::{CellError, Refused, StoreError};

use super::TaskId;
use crate::action::ActionInfo;
use crate::cx::{Cx, Staged};
use crate::engine::Inner;
use crate::error::EngineError;
use crate::{call_check, secrets};

/// Maximum number of changes that a worker can stage with one result.
pub const MAX_WRITES: usize = 100;

/// A change that a worker stages with the result of its task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskWrite {
    /// Name of a built-in action that only stages changes, such as `store.set`.
    pub action: Name,
    /// Input of the action.
    pub input: Value,
    /// Field of the task's output that gets the result of the change, which is known at the commit.
    pub save_as: Option<String>,
}

impl TaskWrite {
    /// Creates a change that calls this action.
    pub fn new(action: impl Into<Name>, input: Value) -> Self {
        TaskWrite { action: action.into(), input, save_as: None }
    }

    /// Sets the field of the task's output that gets the result of the change.
    #[must_use]
    pub fn save_as(mut self, field: impl Into<String>) -> Self {
        self.save_as = Some(field.into());
        self
    }
}

/// The output that a worker reports, and the changes that are committed with it.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) output: Value,
    pub(super) writes: Vec<TaskWrite>,
}

impl Inner {
    /// Fails if a change names an action that cannot be staged, or has no place for its result.
    pub(super) fn check_report(&self, report: &Report) -> Result<(), EngineError> {
        let Report { output, writes } = report;
        if writes.len() > MAX_WRITES {
            let count = writes.len();
            return Err(EngineError::Invalid(format!(
                "a worker can stage at most {MAX_WRITES} changes with a result (got {count})"
            )));
        }
        for (number, write) in (1..).zip(writes) {
            let wrong = |why: String| Err(EngineError::Invalid(format!("write {number}: {why}")));
            if !self.stageable().any(|info| info.name == write.action) {
                let all: Vec<_> = self.stageable().map(|info| format!("`{}`", info.name)).collect();
                let (action, all) = (&write.action, all.join(", "));
                return wrong(format!("a worker cannot stage the action `{action}`; it can stage {all}"));
            }
            if let Some((pointer, secret)) = secrets::found(&write.input).into_iter().next() {
                return wrong(format!("`{pointer}` names the secret `{secret}`: secrets cannot be written"));
            }
            if write.save_as.is_some() && !output.is_object() && !output.is_null() {
                return wrong("`saveAs` needs an output that is an object".to_owned());
            }
        }
        Ok(())
    }

    fn stageable(&self) -> impl Iterator<Item = &ActionInfo> {
        self.registry.described.values().filter(|info| info.is_stageable)
    }

    /// Stages the changes and returns the output with their results. A store that is unavailable does not count as a
    /// failure of the task.
    pub(super) async fn stage(
        self: &Arc<Self>,
        cx: &Cx,
        report: &Report,
    ) -> Result<Result<Value, Failure>, StoreError> {
        let mut output = report.output.clone();
        for (number, write) in (1..).zip(&report.writes) {
            let bound = cx.bindings();
            let result = match self.stage_one(cx, write).await {
                Ok(result) => result,
                Err(failure) if failure.code == "unavailable" => {
                    return Err(StoreError::Unavailable(failure.message));
                }
                Err(failure) => {
                    let message = format!("write {number} (`{}`): {}", write.action, failure.message);
                    return Ok(Err(Failure { message, ..failure }));
                }
            };
            cx.move_bindings(bound, write.save_as.as_deref());
            if let Some(field) = &write.save_as {
                if output.is_null() {
                    output = Value::Object(Map::new());
                }
                output[field.as_str()] = result;
            }
        }
        Ok(Ok(output))
    }

    async fn stage_one(&self, cx: &Cx, write: &TaskWrite) -> Result<Value, Failure> {
        let registry = &self.registry;
        let mut input = write.input.clone();
        if let Some(permission) = registry.described.get(&write.action).and_then(|info| info.permission) {
            cx.permit(permission).map_err(Failure::from)?;
        }
        call_check::as_lists(&mut input, registry.lists.get(&write.action).map_or(&[], Vec::as_slice));
        let action = registry.actions.get(&write.action).cloned();
        let action = action.expect("described actions are registered");
        action(cx.clone(), input).await.map_err(Failure::from)
    }

    /// Adds ids until there is one for each child that is started. A result that is decided again keeps them.
    pub(super) fn name_children(&self, ids: &mut Vec<RunId>, staged: &Staged) {
        ids.extend((ids.len()..staged.children.len()).map(|_| RunId::new(self.host.ids.next())));
    }
}

/// The staged changes of one attempt to commit a result, as far as they decide about the next attempt.
pub(super) struct Attempted {
    /// The result of a change was predicted from values that may have changed.
    pub(super) is_predicted: bool,
    /// Number of earlier attempts.
    pub(super) number: u32,
}

impl Attempted {
    /// Returns true if the changes may succeed when they are staged again on newer values.
    pub(super) fn may_stage_again(&self, staged: Option<&Staged>, refused: &Refused, task: TaskId) -> bool {
        match refused {
            // Another caller has used the idempotency key of a change meanwhile. Staged again, the change has the
            // recorded result. The key of the task itself is handled by the caller.
            Refused::Done { operation, .. } => *operation != super::finish::operation_of(task),
            Refused::Cell { operation, error: CellError::Conflict { .. }, .. } => {
                let most = staged.and_then(|staged| staged.updates.get(operation)).copied();
                self.is_predicted || most.is_some_and(|most| self.number + 1 < most)
            }
            _ => false,
        }
    }
}
