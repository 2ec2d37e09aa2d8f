//! What is wrong with a document: in itself, and as far as this engine knows what it calls.

use serde::Serialize;
use stepwell_core::document::{Problem, Problems};
use stepwell_core::near::did_you_mean;
use stepwell_core::{Document, Name};

use super::{Catalogue, CatalogueError, RemoteAction};
use crate::actor::Permission;
use crate::fit::check_calls;
use crate::schedule::check_document_triggers;

/// What was found when a document was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    /// What keeps it from being published.
    pub problems: Vec<Problem>,
    /// What this engine lacks to run it. Another process may have it.
    pub warnings: Vec<Problem>,
}

impl Checked {
    /// It can be published.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Catalogue {
    /// Checks a text; `name` is what the workflow is called if the text does not say so itself.
    pub fn check(&self, name: Option<&str>, text: &str) -> Result<Checked, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.map(Name::from);
        Ok(match self.sound(name.as_ref(), text) {
            Ok(document) => Checked { problems: Vec::new(), warnings: self.warnings(&document) },
            Err(Problems(problems)) => Checked { problems, warnings: Vec::new() },
        })
    }

    /// Checks a draft.
    pub async fn check_draft(&self, name: impl Into<Name>) -> Result<Checked, CatalogueError> {
        let draft = self.draft(name).await?;
        self.check(Some(&draft.name), &draft.text)
    }

    /// Reads a text that can be published, or says everything that is wrong with it.
    pub(super) fn sound(&self, name: Option<&Name>, text: &str) -> Result<Document, Problems> {
        let limits = self.engine.inner.limits();
        let document = Document::read_within(text, name.map(Name::as_str), limits)?;
        let problems = self.unfit(name, &document);
        if problems.is_empty() { document.named(limits) } else { Err(Problems(problems)) }
    }

    /// What keeps a document from being published that can be read.
    pub(super) fn unfit(&self, name: Option<&Name>, document: &Document) -> Vec<Problem> {
        let mut problems = Vec::new();
        let own = Name::from(document.name());
        if let Some(name) = name.filter(|name| **name != own) {
            let message = format!("the document is called `{own}`, and it is to be published as `{name}`");
            problems.push(Problem::new("otherName", document.place_of_name(), message));
        }
        if let Err(CatalogueError::Invalid(why)) = self.may_be_called(&own) {
            problems.push(Problem::new("badName", document.place_of_name(), why));
        }
        let inner = &self.engine.inner;
        let mut known: Vec<_> = inner.registry.described.values().cloned().collect();
        let elsewhere = inner.catalogues.held(self.engine.scope().tenant());
        known.extend(elsewhere.actions().map(RemoteAction::info));
        for wrong in check_calls(document.definition(), &known) {
            let pointer =
                if wrong.pointer.is_empty() { String::new() } else { format!("`{}` ", wrong.pointer) };
            let message = format!("calls `{}`: {pointer}{}", wrong.action, wrong.message);
            problems.push(at_step(document, &wrong.transition, &wrong.pointer, "badCall", message));
        }
        problems.extend(check_document_triggers(document));
        problems.sort_by_key(|problem| problem.at);
        problems
    }

    /// What this engine lacks to run a document.
    pub(super) fn warnings(&self, document: &Document) -> Vec<Problem> {
        let (inner, definition) = (&self.engine.inner, document.definition());
        let elsewhere = inner.catalogues.held(self.engine.scope().tenant());
        let mut warnings = Vec::new();
        for transition in &definition.spec().transitions {
            let Some(call) = &transition.action else { continue };
            if !inner.registry.actions.contains_key(&call.name) && elsewhere.action(&call.name).is_none() {
                let own = inner.registry.actions.keys().map(Name::as_str);
                let remote = elsewhere.actions().map(|action| action.name.as_str());
                let hint = did_you_mean(&call.name, own.chain(remote));
                let message = format!("action `{}` is not known to this engine{hint}", call.name);
                warnings.push(at_step(document, &transition.id, "", "unknownAction", message));
            }
        }
        for guard in definition.named_guards() {
            if !inner.registry.guards.contains_key(guard) {
                let hint = did_you_mean(guard, inner.registry.guards.keys().map(Name::as_str));
                let message = format!("guard `{guard}` is not known to this engine{hint}");
                warnings.push(Problem::new("unknownGuard", document.place_of_name(), message));
            }
        }
        if let Some(Err(error)) = inner.flows.get().map(|flows| flows.admits(definition)) {
            warnings.push(Problem::new("cannotRest", document.place_of_name(), error.to_string()));
        }
        warnings.sort_by_key(|problem| problem.at);
        warnings
    }
}

/// A problem of a step, where its input stands.
fn at_step(document: &Document, transition: &str, pointer: &str, code: &str, message: String) -> Problem {
    let at = document.place_of_input(transition, pointer).unwrap_or_default();
    let step = transition.split('.').next().map(str::to_owned);
    Problem { step, ..Problem::new(code, at, message) }
}
