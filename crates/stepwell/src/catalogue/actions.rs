//! Remote actions: the actions that remote workers run, with the schemas of their input and output.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell_core::schema::{Schema, SchemaViolation};
use stepwell_core::{Failure, Name};
use stepwell_store::Page;

use super::entry::{ACTION, Writing};
use super::repair::is_unreadable;
use super::{Absent, Catalogue, CatalogueError};
use crate::action::ActionInfo;
use crate::actor::Permission;
use crate::call_check;

/// Maximum length of an action's description, in characters.
const MAX_ABOUT: usize = 2_000;

/// An action that remote workers run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteAction {
    /// The name by which steps call the action.
    pub name: Name,
    /// Description for people, at most 2,000 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Version of the action. Default: 1.
    #[serde(default = "first")]
    pub version: u32,
    /// JSON Schema of the input. Publishing a workflow rejects calls that do not match it. A call that does not match
    /// it at run time fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// JSON Schema of the output. An output that does not match it is a failure of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Group under which the action is listed. Default: the part of the name before the first dot, or `other`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// JSON pointers to the parts of the input that may contain secrets. A pointer covers everything below it. Default:
    /// none, so that no part of the input may contain a secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_fields: Vec<String>,
}

fn first() -> u32 {
    1
}

impl RemoteAction {
    /// Creates an action with this name, version 1 and no schemas.
    pub fn new(name: impl Into<Name>) -> Self {
        let (about, version) = (String::new(), first());
        RemoteAction {
            name: name.into(),
            about,
            version,
            input: None,
            output: None,
            group: None,
            secret_fields: Vec::new(),
        }
    }

    /// Sets the JSON pointers to the parts of the input that may contain secrets. A pointer covers everything below it.
    #[must_use]
    pub fn secret_fields<F: Into<String>>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        self.secret_fields = fields.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the description for people.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// Sets the JSON Schema of the input.
    #[must_use]
    pub fn input(mut self, schema: Value) -> Self {
        self.input = Some(schema);
        self
    }

    /// Sets the JSON Schema of the output.
    #[must_use]
    pub fn output(mut self, schema: Value) -> Self {
        self.output = Some(schema);
        self
    }

    /// Describes the action in the same form as the program's own actions. A schema that is not set accepts everything.
    pub fn info(&self) -> ActionInfo {
        let mut info = ActionInfo::of::<Value, Value>(self.name.clone(), self.about.clone());
        let any = || json!({});
        info.input = self.input.clone().unwrap_or_else(any);
        info.output = self.output.clone().unwrap_or_else(any);
        info.version = self.version;
        info.is_remote = true;
        info.secret_fields.clone_from(&self.secret_fields);
        if let Some(group) = &self.group {
            info.group.clone_from(group);
        }
        info
    }

    /// Compiles the schemas, so that inputs and outputs can be checked against them.
    pub(crate) fn read(&self) -> Result<Remote, String> {
        let compiled = |what: &str, schema: &Option<Value>| {
            let compiled = schema.as_ref().map(Schema::compile).transpose();
            compiled.map_err(|problems| {
                let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
                format!("action `{}`: the schema of its {what} cannot be used: {}", self.name, all.join("; "))
            })
        };
        let (input, output) = (compiled("input", &self.input)?, compiled("output", &self.output)?);
        let lists = self.input.as_ref().map(call_check::lists).unwrap_or_default();
        Ok(Remote { action: self.clone(), input, output, lists })
    }
}

/// A remote action with compiled schemas.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) action: RemoteAction,
    input: Option<Schema>,
    output: Option<Schema>,
    /// JSON pointers to the parts of the input where the schema accepts only lists.
    lists: Vec<String>,
}

impl Remote {
    pub(crate) fn secret_fields(&self) -> &[String] {
        &self.action.secret_fields
    }

    /// Converts single values to lists where the schema accepts only lists, then checks the input against the schema.
    pub(crate) fn takes(&self, input: &mut Value) -> Result<(), Failure> {
        call_check::as_lists(input, &self.lists);
        let violations = self.input.as_ref().map(|schema| schema.check(input)).unwrap_or_default();
        unfit(&violations, "invalidInput", "the input does not match the action's schema")
    }

    /// Checks the output of a worker against the schema.
    pub(crate) fn gives(&self, output: &Value) -> Result<(), Failure> {
        let violations = self.output.as_ref().map(|schema| schema.check(output)).unwrap_or_default();
        unfit(&violations, "invalidResult", "the worker's output does not match the action's schema")
    }
}

fn unfit(violations: &[SchemaViolation], code: &str, what: &str) -> Result<(), Failure> {
    if violations.is_empty() {
        return Ok(());
    }
    let all: Vec<_> = violations.iter().map(ToString::to_string).collect();
    Err(Failure::new(code, format!("{what}: {}", all.join("; "))).non_retryable())
}

impl Catalogue {
    /// Registers a remote action for this tenant, in every process. Replaces an action with the same name.
    pub async fn put_action(&self, action: RemoteAction) -> Result<(), CatalogueError> {
        self.may_change(&action.name)?;
        let inner = &self.engine.inner;
        if inner.registry.actions.contains_key(&action.name) {
            let why = format!("action `{}` is registered by this program: choose another name", action.name);
            return Err(CatalogueError::Invalid(why));
        }
        let about = action.about.chars().count();
        if about > MAX_ABOUT {
            let why =
                format!("the action's description has {about} characters; at most {MAX_ABOUT} are allowed");
            return Err(CatalogueError::Invalid(why));
        }
        action.read().map_err(CatalogueError::Invalid)?;
        let mut writing = Writing::default();
        writing.action(&action.name, Some(&action));
        writing.audit("action.put", &action.name, &json!({"version": action.version}));
        self.commit(writing).await?;
        self.refresh().await?;
        // Runs may be waiting for this action.
        inner.wake_at(Some(inner.host.now()));
        Ok(())
    }

    /// Deletes a remote action. Tasks that are already queued stay and can be completed. Runs that reach the action
    /// later wait until it is registered again.
    pub async fn delete_action(&self, name: impl Into<Name>) -> Result<(), CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        match self.remote(&name).await {
            // An unreadable action can be deleted.
            Err(error) if is_unreadable(&error) => {}
            found => drop(found?),
        }
        let mut writing = Writing::default();
        writing.action(&name, None::<&RemoteAction>);
        writing.audit("action.delete", &name, &json!({}));
        self.commit(writing).await?;
        self.refresh().await
    }

    /// Returns a remote action by name.
    pub async fn action(&self, name: impl Into<Name>) -> Result<RemoteAction, CatalogueError> {
        self.engine.permit(Permission::View)?;
        self.remote(&name.into()).await
    }

    async fn remote(&self, name: &Name) -> Result<RemoteAction, CatalogueError> {
        let (found, _) = self.read(format!("{ACTION}{name}")).await?;
        found.ok_or_else(|| CatalogueError::NotFound {
            absent: Absent::Action,
            what: format!("remote action `{name}`"),
            hint: String::new(),
        })
    }

    /// Lists the tenant's remote actions, ordered by name, as a single page.
    pub async fn actions(&self) -> Result<Page<RemoteAction>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let known = self.engine.inner.catalogue_of(self.engine.scope()).await?;
        let bad = known.unreadable_actions().cloned().collect();
        Ok(Page { items: known.actions().cloned().collect(), next: None, bad })
    }

    /// Reloads the cached catalogue if it is more than a second old or this process has changed it. Documents are
    /// checked against the cached actions.
    pub async fn refresh(&self) -> Result<(), CatalogueError> {
        self.engine.inner.catalogue_of(self.engine.scope()).await?;
        Ok(())
    }
}
