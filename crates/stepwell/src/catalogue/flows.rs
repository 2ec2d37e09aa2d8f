//! Checks of workflow documents against the flows of this engine: strategies, outlets, and what a strategy allows.

use serde_json::Value;
use stepwell_core::document::SourceProblem;
use stepwell_core::time::{duration_ms, missing_unit};
use stepwell_core::{Location, Name, WorkflowSource};

use super::Catalogue;
use super::check::at_step;
use crate::flow::flows::{Shared, reserved_route};
use crate::flow::strategy::{ROUTES, refuses_runs};

/// The fields of steps that name a strategy or an outlet: action and field.
const NAMED: [(&str, &str); 2] = [("flow.useStrategy", "strategy"), ("flow.sendOut", "outlet")];

impl Catalogue {
    /// Lists what prevents the publication of a document because of its strategy, or of its steps of flows.
    pub(super) fn flow_problems(&self, document: &WorkflowSource) -> Vec<SourceProblem> {
        let flows = self.engine.inner.flows.get().map(|flows| &**flows);
        let definition = document.definition();
        let mut problems = Vec::new();
        if definition.spec().strategy.is_some() && ROUTES.contains(&document.name()) {
            let message = reserved_route(document.name());
            problems.push(SourceProblem::new("badName", document.place_of_name(), message));
        }
        if let Some(flows) = flows {
            if let Some(Err(error)) =
                flows.strategies.named(definition).map(|name| flows.strategies.get(name))
            {
                let at = document.place_of_strategy();
                problems.push(SourceProblem::new("unknownStrategy", at, error.to_string()));
            }
            problems.extend(unknown_names(document, flows));
        }
        let Some(strategy) = refuses_runs(flows.map(|flows| &flows.strategies), definition) else {
            return problems;
        };
        // Core reports the parts itself if the document names one of the built-in strategies.
        let is_reported = definition.spec().strategy.as_deref() == Some(strategy)
            && matches!(strategy, "sealed" | "handle");
        let parts = if is_reported { Vec::new() } else { definition.needs_durable_run() };
        for (at, what) in parts {
            let message = format!("the strategy `{strategy}` allows no {what}: use the strategy `durable`");
            problems.push(at_part(document, &at, message));
        }
        problems.extend(self.remote_steps(document, strategy));
        problems
    }

    /// Lists the steps that remote workers execute. A flow in a token or behind a handle cannot wait for them.
    fn remote_steps(&self, document: &WorkflowSource, strategy: &str) -> Vec<SourceProblem> {
        let inner = &self.engine.inner;
        let elsewhere = inner.catalogues.cached(self.engine.scope().tenant());
        let is_remote =
            |name: &Name| !inner.registry.actions.contains_key(name) && elsewhere.action(name).is_some();
        let transitions = document.definition().spec().transitions.iter();
        let calls = transitions.filter_map(|one| Some((&one.id, &one.action.as_ref()?.name)));
        let remote = calls.filter(|(_, action)| is_remote(action));
        remote
            .map(|(id, action)| {
                let message = format!(
                    "the strategy `{strategy}` allows no action of remote workers, such as `{action}`: use the strategy `durable`"
                );
                at_step(document, id, "", NEEDS_RUN, message)
            })
            .collect()
    }

    /// Lists the parts of a document that have no effect here because this engine has no flows.
    pub(super) fn flow_warnings(&self, document: &WorkflowSource) -> Vec<SourceProblem> {
        if self.engine.inner.flows.get().is_some() {
            return Vec::new();
        }
        let spec = document.definition().spec();
        let why = "flows are not configured here";
        let mut warnings = Vec::new();
        if let Some(strategy) = &spec.strategy {
            let message = format!("the strategy `{strategy}` has no effect: {why}");
            warnings.push(SourceProblem::new("noFlows", document.place_of_strategy(), message));
        }
        for transition in &spec.transitions {
            let Some(call) = &transition.action else { continue };
            if NAMED.iter().any(|(action, _)| call.name.as_str() == *action) {
                let message = format!("`{}` cannot run: {why}", call.name);
                warnings.push(at_step(document, &transition.id, "", "noFlows", message));
            }
        }
        warnings
    }
}

/// The code of a part that only a durable run can have.
const NEEDS_RUN: &str = "needsDurableRun";

/// Lists the fields of steps of flows whose literal value cannot work: an unknown strategy, outlet or template, and a
/// lifetime that is not positive.
fn unknown_names(document: &WorkflowSource, flows: &Shared) -> Vec<SourceProblem> {
    let mut problems = Vec::new();
    for transition in &document.definition().spec().transitions {
        let Some(call) = &transition.action else { continue };
        let Some((_, field)) = NAMED.iter().find(|(action, _)| call.name.as_str() == *action) else {
            continue;
        };
        let mut add = |field: &str, code, message| {
            problems.push(at_step(document, &transition.id, &format!("/{field}"), code, message));
        };
        let literal = |field: &str| call.input.get(field).and_then(Value::as_str);
        if let Some(Err(error)) = literal("strategy").map(|name| flows.strategies.get(name)) {
            add(field, "unknownStrategy", error.to_string());
        }
        match literal("outlet").map(|name| flows.outlet(name)) {
            Some(Err(error)) => add(field, "unknownOutlet", error.to_string()),
            Some(Ok(outlet)) => {
                if let Some(Err(why)) = literal("template").map(|name| outlet.check_template(name)) {
                    add("template", "unknownTemplate", why);
                }
            }
            None => {}
        }
        if let Some(ttl) = literal("ttl")
            && duration_ms(&ttl.into()).is_none_or(|ms| ms == 0)
        {
            let message =
                format!("`ttl` must be a duration above zero, such as `30m` or `P3D` (got `{ttl}`)");
            add("ttl", "badTtl", missing_unit("ttl: ", &ttl.into()).unwrap_or(message));
        }
    }
    problems
}

/// Builds the problem of a part that only a durable run can have.
fn at_part(document: &WorkflowSource, at: &Location, message: String) -> SourceProblem {
    match at {
        Location::Place(name) | Location::Transition(name) => at_step(document, name, "", NEEDS_RUN, message),
        Location::Trigger(id) => {
            let at = document.place_of_trigger(id).unwrap_or_default();
            SourceProblem::new(NEEDS_RUN, at, message)
        }
        _ => SourceProblem::new(NEEDS_RUN, document.place_of_name(), message),
    }
}
