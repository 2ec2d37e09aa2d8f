//! Checks of workflow documents: the problems of the document itself, and the actions and guards this engine lacks.

use serde::Serialize;
use stepwell_core::document::{SourceProblem, SourceProblems};
use stepwell_core::near::did_you_mean;
use stepwell_core::{Name, WorkflowSource};

use super::{Catalogue, CatalogueError, RemoteAction};
use crate::action::ActionInfo;
use crate::actor::Permission;
use crate::call_check::check_calls;
use crate::schedule::check_document_triggers;

/// The result of checking a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    /// Errors. A document with errors cannot be published.
    pub problems: Vec<SourceProblem>,
    /// Doubts about a valid document: actions, guards and strategies that this engine lacks, error
    /// codes that nothing raises, loops over a first page only, and settings without an effect.
    pub warnings: Vec<SourceProblem>,
}

impl Checked {
    /// Returns `true` if the document can be published.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Catalogue {
    /// Checks a document. `name` is the name of the workflow if the document itself has none.
    pub fn check(&self, name: Option<&str>, text: &str) -> Result<Checked, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.map(Name::from);
        Ok(match self.sound(name.as_ref(), text) {
            Ok(document) => Checked { problems: Vec::new(), warnings: self.warnings(&document) },
            Err(SourceProblems(problems)) => Checked { problems, warnings: Vec::new() },
        })
    }

    /// Checks a draft, under the name it is stored with.
    pub async fn check_draft(&self, name: impl Into<Name>) -> Result<Checked, CatalogueError> {
        let draft = self.draft(name).await?;
        self.check(Some(&draft.name), &draft.text)
    }

    /// Parses a document and checks that it can be published. The error lists every problem.
    pub(super) fn sound(&self, name: Option<&Name>, text: &str) -> Result<WorkflowSource, SourceProblems> {
        let limits = self.engine.inner.limits();
        let document = WorkflowSource::read_within(text, name.map(Name::as_str), limits)?;
        let problems = self.unfit(name, &document);
        if problems.is_empty() { document.named(limits) } else { Err(SourceProblems(problems)) }
    }

    /// Lists the problems that prevent the publication of a document that was parsed without errors.
    pub(super) fn unfit(&self, name: Option<&Name>, document: &WorkflowSource) -> Vec<SourceProblem> {
        let mut problems = Vec::new();
        let own = Name::from(document.name());
        if let Some(name) = name.filter(|name| **name != own) {
            let message = format!("the document names its workflow `{own}`, but it is published as `{name}`");
            problems.push(SourceProblem::new("otherName", document.place_of_name(), message));
        }
        if let Err(CatalogueError::Invalid(why)) = self.may_be_called(&own) {
            problems.push(SourceProblem::new("badName", document.place_of_name(), why));
        }
        let inner = &self.engine.inner;
        let mut known: Vec<_> = inner.registry.described.values().cloned().collect();
        let elsewhere = inner.catalogues.cached(self.engine.scope().tenant());
        known.extend(elsewhere.actions().map(RemoteAction::info));
        for wrong in check_calls(document.definition(), &known) {
            let pointer =
                if wrong.pointer.is_empty() { String::new() } else { format!("`{}` ", wrong.pointer) };
            let message = format!("calls `{}`: {pointer}{}", wrong.action, wrong.message);
            problems.push(at_step(document, &wrong.transition, &wrong.pointer, "badCall", message));
        }
        problems.extend(check_document_triggers(document));
        problems.extend(self.flow_problems(document));
        problems.sort_by_key(|problem| problem.at);
        problems
    }

    /// Lists what may be wrong in a valid document, and what this engine lacks to run it: actions, guards, and a
    /// strategy that admits it.
    pub(super) fn warnings(&self, document: &WorkflowSource) -> Vec<SourceProblem> {
        let (inner, definition) = (&self.engine.inner, document.definition());
        let elsewhere = inner.catalogues.cached(self.engine.scope().tenant());
        let mut warnings = document.warnings_with(&|action| {
            let own = inner.registry.described.get(action).map(ActionInfo::facts);
            own.or_else(|| elsewhere.action(action).map(|remote| remote.action.info().facts()))
        });
        for transition in &definition.spec().transitions {
            let Some(call) = &transition.action else { continue };
            if !inner.registry.actions.contains_key(&call.name) && elsewhere.action(&call.name).is_none() {
                let own = inner.registry.actions.keys().map(Name::as_str);
                let remote = elsewhere.actions().map(|action| action.name.as_str());
                let hint = did_you_mean(&call.name, own.chain(remote));
                let message = format!("action `{}` is not known to this engine{hint}", call.name);
                warnings.push(at_step(document, &transition.id, "", UNKNOWN_ACTION, message));
            }
        }
        for guard in definition.named_guards() {
            if !inner.registry.guards.contains_key(guard) {
                let hint = did_you_mean(guard, inner.registry.guards.keys().map(Name::as_str));
                let message = format!("guard `{guard}` is not known to this engine{hint}");
                warnings.push(SourceProblem::new("unknownGuard", document.place_of_name(), message));
            }
        }
        warnings.extend(self.flow_warnings(document));
        if let Some(Err(error)) = inner.flows.get().map(|flows| flows.check_workflow(definition)) {
            warnings.push(SourceProblem::new("cannotRest", document.place_of_name(), error.to_string()));
        }
        warnings.sort_by_key(|problem| problem.at);
        warnings
    }
}

/// The code of the warning about a call of an unknown action.
const UNKNOWN_ACTION: &str = "unknownAction";

/// Returns the warnings about unknown actions as errors, if there are any.
pub(super) fn known_actions_only(warnings: &[SourceProblem]) -> Result<(), SourceProblems> {
    let unknown = warnings.iter().filter(|warning| warning.code == UNKNOWN_ACTION).cloned();
    let unknown: Vec<_> = unknown
        .map(|warning| {
            let message = format!(
                "{}: register it first, or set `allowUnknownActions` (`--allow-unknown-actions`)",
                warning.message
            );
            SourceProblem { message, ..warning }
        })
        .collect();
    if unknown.is_empty() { Ok(()) } else { Err(SourceProblems(unknown)) }
}

/// Builds a problem that points at the input of a step.
pub(super) fn at_step(
    document: &WorkflowSource,
    transition: &str,
    pointer: &str,
    code: &str,
    message: String,
) -> SourceProblem {
    let at = document.place_of_input(transition, pointer).unwrap_or_default();
    let step = transition.split('.').next().map(str::to_owned);
    SourceProblem { step, ..SourceProblem::new(code, at, message) }
}
