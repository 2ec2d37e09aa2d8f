//! Actions that workers elsewhere do: which there are, what they take and what they give.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell_core::schema::{Misfit, Schema};
use stepwell_core::{Failure, Name};

use super::entry::{ACTION, Writing};
use super::{Absent, Catalogue, CatalogueError};
use crate::action::ActionInfo;
use crate::actor::Permission;
use crate::fit;

/// The longest text that says what an action does, in characters.
const MAX_ABOUT: usize = 2_000;

/// An action that workers elsewhere do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteAction {
    /// Its name, by which steps call it.
    pub name: Name,
    /// What it does, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Which edition of it this is.
    #[serde(default = "first")]
    pub version: u32,
    /// JSON Schema of its input: calls that do not fit are refused when a workflow is published, and fail when it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// JSON Schema of its output: a result that does not fit is a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// What it is listed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Where in its input secrets may stand: JSON pointers, each with everything below it. Without any, none may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_fields: Vec<String>,
}

fn first() -> u32 {
    1
}

impl RemoteAction {
    /// An action of this name.
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

    /// Where in its input secrets may stand: JSON pointers, each with everything below it.
    #[must_use]
    pub fn secret_fields<F: Into<String>>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        self.secret_fields = fields.into_iter().map(Into::into).collect();
        self
    }

    /// What it does, for people.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// JSON Schema of its input.
    #[must_use]
    pub fn input(mut self, schema: Value) -> Self {
        self.input = Some(schema);
        self
    }

    /// JSON Schema of its output.
    #[must_use]
    pub fn output(mut self, schema: Value) -> Self {
        self.output = Some(schema);
        self
    }

    /// What is to be said of it, as of any other action.
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

    /// The same, ready to be held against what is given.
    pub(crate) fn read(&self) -> Result<Remote, String> {
        let compiled = |what: &str, schema: &Option<Value>| {
            let compiled = schema.as_ref().map(Schema::compile).transpose();
            compiled.map_err(|problems| {
                let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
                format!("action `{}`: the schema of its {what} cannot be used: {}", self.name, all.join("; "))
            })
        };
        let (input, output) = (compiled("input", &self.input)?, compiled("output", &self.output)?);
        let lists = self.input.as_ref().map(fit::lists).unwrap_or_default();
        Ok(Remote { action: self.clone(), input, output, lists })
    }
}

/// An action that workers elsewhere do, ready to be held against what is given.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) action: RemoteAction,
    input: Option<Schema>,
    output: Option<Schema>,
    /// Where in the input only lists are taken.
    lists: Vec<String>,
}

impl Remote {
    /// Where in its input secrets may stand.
    pub(crate) fn secret_fields(&self) -> &[String] {
        &self.action.secret_fields
    }

    /// The input as a worker is given it.
    pub(crate) fn takes(&self, input: &mut Value) -> Result<(), Failure> {
        fit::as_lists(input, &self.lists);
        let misfits = self.input.as_ref().map(|schema| schema.check(input)).unwrap_or_default();
        unfit(&misfits, "invalidInput", "the input does not fit")
    }

    /// The output as the run takes it.
    pub(crate) fn gives(&self, output: &Value) -> Result<(), Failure> {
        let misfits = self.output.as_ref().map(|schema| schema.check(output)).unwrap_or_default();
        unfit(&misfits, "invalidResult", "what the worker gave does not fit")
    }
}

fn unfit(misfits: &[Misfit], code: &str, what: &str) -> Result<(), Failure> {
    if misfits.is_empty() {
        return Ok(());
    }
    let all: Vec<_> = misfits.iter().map(ToString::to_string).collect();
    Err(Failure::new(code, format!("{what}: {}", all.join("; "))).finally())
}

impl Catalogue {
    /// Makes an action known that workers elsewhere do, for this tenant and for every process; one of the same name is replaced.
    pub async fn put_action(&self, action: RemoteAction) -> Result<(), CatalogueError> {
        self.may_change(&action.name)?;
        let inner = &self.engine.inner;
        if inner.registry.actions.contains_key(&action.name) {
            let why = format!("action `{}` is this program's own: choose another name", action.name);
            return Err(CatalogueError::Invalid(why));
        }
        let about = action.about.chars().count();
        if about > MAX_ABOUT {
            let why =
                format!("what is said of the action has {about} characters; it has at most {MAX_ABOUT}");
            return Err(CatalogueError::Invalid(why));
        }
        action.read().map_err(CatalogueError::Invalid)?;
        let mut writing = Writing::default();
        writing.action(&action.name, Some(&action));
        writing.audit("action.put", &action.name, &json!({"version": action.version}));
        self.commit(writing).await?;
        self.refresh().await?;
        // Runs may have waited for it.
        inner.look_at(Some(inner.host.now()));
        Ok(())
    }

    /// Takes an action away. Tasks that are posted stay and can be finished; runs that come to the action from now on stay as they
    /// are until it is there again.
    pub async fn delete_action(&self, name: impl Into<Name>) -> Result<(), CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        self.remote(&name).await?;
        let mut writing = Writing::default();
        writing.action(&name, None::<&RemoteAction>);
        writing.audit("action.delete", &name, &json!({}));
        self.commit(writing).await?;
        self.refresh().await
    }

    /// An action that workers elsewhere do.
    pub async fn action(&self, name: impl Into<Name>) -> Result<RemoteAction, CatalogueError> {
        self.engine.permit(Permission::View)?;
        self.remote(&name.into()).await
    }

    async fn remote(&self, name: &Name) -> Result<RemoteAction, CatalogueError> {
        let (found, _) = self.read(format!("{ACTION}{name}")).await?;
        found.ok_or_else(|| CatalogueError::NotFound {
            absent: Absent::Action,
            what: format!("action `{name}` that workers elsewhere do"),
            hint: String::new(),
        })
    }

    /// The actions that workers elsewhere do, in the order of their names.
    pub async fn actions(&self) -> Result<Vec<RemoteAction>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let known = self.engine.inner.catalogue_of(self.engine.scope()).await?;
        Ok(known.actions().cloned().collect())
    }

    /// Reads again what another process may have changed: documents are checked against the actions that are known then.
    pub async fn refresh(&self) -> Result<(), CatalogueError> {
        self.engine.inner.catalogue_of(self.engine.scope()).await?;
        Ok(())
    }
}
