//! Decides when a join fires or fails, and completes its list of results.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::definition::JoinNode;
use crate::ids::Name;
use crate::refusal::Failure;
use crate::snapshot::ForkInstance;
use crate::spec::Tolerance;

/// Code of the failure of a join that can no longer fire.
pub const TOO_MANY_FAILURES: &str = "tooManyFailures";

/// The state of a join, as far as its branches have arrived.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JoinState {
    Open,
    Fires,
    Fails(Failure),
}

impl Tolerance {
    /// Returns true if this number of branches may fail.
    fn allows(self, failed: u32, branches: u32) -> bool {
        match self {
            Tolerance::Any => true,
            Tolerance::Count(most) => failed <= most,
            Tolerance::Percent(most) => u64::from(failed) * 100 <= u64::from(most) * u64::from(branches),
        }
    }
}

impl JoinNode {
    /// Returns the number of branches of this fork instance that makes the join fire.
    pub(crate) fn needed(&self, fork_instance: &ForkInstance) -> u32 {
        if self.is_all && fork_instance.list.is_some() { fork_instance.branches } else { self.quorum }
    }

    /// Returns the state of the join when this number of branches has arrived, and this number of them has failed.
    pub(crate) fn state(
        &self,
        join: &Name,
        fork_instance: &ForkInstance,
        (arrived, failed): (u32, u32),
    ) -> JoinState {
        let needed = self.needed(fork_instance);
        let Some(tolerate) = self.tolerate else {
            return if arrived < needed { JoinState::Open } else { JoinState::Fires };
        };
        let branches = fork_instance.branches;
        let completed = arrived.saturating_sub(failed);
        // With `all`, a failed branch that is tolerated counts as ended.
        let is_reached = if self.is_all { arrived >= branches } else { completed >= needed };
        let can_complete = branches.saturating_sub(failed);
        if !tolerate.allows(failed, branches) || (!self.is_all && can_complete < needed) {
            return JoinState::Fails(self.too_many_failures(join, fork_instance, (completed, failed)));
        }
        if is_reached { JoinState::Fires } else { JoinState::Open }
    }

    fn too_many_failures(
        &self,
        join: &Name,
        fork_instance: &ForkInstance,
        (completed, failed): (u32, u32),
    ) -> Failure {
        let branches = fork_instance.branches;
        let needed = match self.is_all {
            true => String::new(),
            false => format!("{} must complete, ", self.needed(fork_instance)),
        };
        let allowed = match self.tolerate {
            Some(Tolerance::Count(most)) => format!("at most {most} may fail"),
            Some(Tolerance::Percent(most)) => format!("at most {most}% may fail"),
            Some(Tolerance::Any) | None => format!("at most {} can", branches.saturating_sub(failed)),
        };
        let step = join.strip_suffix(".join").unwrap_or(join);
        let message = format!(
            "`{step}`: {failed} of {branches} branches failed and {completed} completed; {needed}{allowed}"
        );
        Failure::new(TOO_MANY_FAILURES, message)
    }

    /// Returns true if each item of the list of results describes how its branch ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.tolerate.is_some() || self.collect.as_ref().is_some_and(|collect| collect.settled)
    }

    /// Returns the list of results. With a tolerance, it has an item for each branch, also for those that the join
    /// ended or that never started.
    pub(crate) fn results(&self, branches: u32, mut arrived: BTreeMap<u32, Value>) -> Vec<Value> {
        let is_saved = self.collect.as_ref().is_some_and(|collect| collect.save.is_some());
        if self.tolerate.is_none() || !is_saved {
            return arrived.into_values().collect();
        }
        let ended = || json!({ "status": "ended" });
        (0..branches).map(|branch| arrived.remove(&branch).unwrap_or_else(ended)).collect()
    }
}
