//! Bundles: workflows that are taken elsewhere together, all of them or none.

use serde::Serialize;
use serde_json::json;
use stepwell_core::document::{Bundle, Problem, Problems};
use stepwell_core::{DefinitionHash, Document, Name};

use super::entry::{Entry, Pinned, Seen, WORKFLOW, Writing, detail, noted};
use super::{Absent, Catalogue, CatalogueError};
use crate::actor::Permission;
use crate::data::kv::List;

/// Workflows that are decided on at a time while all are exported.
const PAGE: u32 = 200;

/// Which version of each workflow is exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Which {
    /// The one that new runs get; workflows that cannot be started are left out.
    #[default]
    Active,
    /// The one with the highest number, also of workflows that cannot be started.
    Newest,
}

/// What is to be exported.
#[derive(Debug, Clone, Default)]
pub struct Export {
    names: Option<Vec<Name>>,
    which: Which,
}

impl Export {
    /// All workflows that can be started.
    pub fn all() -> Self {
        Export::default()
    }

    /// These workflows.
    pub fn of<N: Into<Name>>(names: impl IntoIterator<Item = N>) -> Self {
        Export { names: Some(names.into_iter().map(Into::into).collect()), which: Which::default() }
    }

    /// This version of each.
    #[must_use]
    pub fn which(mut self, which: Which) -> Self {
        self.which = which;
        self
    }
}

/// How a bundle is imported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Import {
    /// New runs get what was imported from then on.
    pub activate: bool,
    /// Nothing is written: it is only said what would be.
    pub dry_run: bool,
    /// What is to be remembered with each new version.
    pub note: Option<String>,
}

/// What the import of a workflow comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It was not there before.
    New,
    /// It has another version.
    NewVersion,
    /// The newest version says the same.
    Unchanged,
}

/// What the import of one workflow came to, or would.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Imported {
    /// The workflow.
    pub name: Name,
    /// What was done.
    pub outcome: Outcome,
    /// The version that it is.
    pub version: u32,
    /// The definition that runs of it are pinned to.
    pub hash: DefinitionHash,
    /// New runs get it, and did not before.
    pub is_activated: bool,
    /// What this engine lacks to run it. Another process may have it.
    pub warnings: Vec<Problem>,
}

impl Catalogue {
    /// Workflows as one document, in the order of their names.
    pub async fn export(&self, export: Export) -> Result<Bundle, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let Export { names, which } = export;
        let chosen = match names {
            Some(names) => self.chosen(names, which).await?,
            None => self.all(which).await?,
        };
        let (inner, scope) = (&self.engine.inner, self.engine.scope());
        let mut documents = Vec::with_capacity(chosen.len());
        for (name, pinned) in chosen {
            let workflow = inner.pinned(scope, &name, pinned).await?;
            let value = workflow.definition.spec().document.as_deref();
            let unfit = || CatalogueError::Invalid(format!("workflow `{name}` has no document"));
            documents.push(Document::of_value(value.ok_or_else(unfit)?, Some(&name))?);
        }
        Ok(Bundle::of(documents, inner.limits())?)
    }

    /// These workflows, each once; one that is not there or has no such version is an error.
    async fn chosen(
        &self,
        mut names: Vec<Name>,
        which: Which,
    ) -> Result<Vec<(Name, Pinned)>, CatalogueError> {
        names.sort();
        names.dedup();
        let mut chosen = Vec::with_capacity(names.len());
        for name in names {
            let entry = self.published(&name).await?.value;
            let pinned = picked(&entry, which).ok_or_else(|| CatalogueError::NotFound {
                absent: Absent::Version,
                what: format!("active version of workflow `{name}`"),
                hint: ": activate one, or export the newest".to_owned(),
            })?;
            chosen.push((name, pinned));
        }
        Ok(chosen)
    }

    async fn all(&self, which: Which) -> Result<Vec<(Name, Pinned)>, CatalogueError> {
        let (mut chosen, mut cursor) = (Vec::new(), None);
        loop {
            let list = List { prefix: String::new(), limit: Some(PAGE), cursor };
            let page = self.list::<Entry>(WORKFLOW, list).await?;
            let some = page
                .items
                .iter()
                .filter_map(|(name, entry, _)| Some((Name::from(name.as_str()), picked(entry, which)?)));
            chosen.extend(some);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(chosen),
            }
        }
    }

    /// Publishes everything in a bundle, or nothing. Everything that is wrong in any of it is told.
    pub async fn import(&self, text: &str, import: Import) -> Result<Vec<Imported>, CatalogueError> {
        self.engine.permit(Permission::Publish)?;
        let bundle = Bundle::read_within(text, self.engine.inner.limits())?;
        let unfit: Vec<_> = bundle.items().iter().flat_map(|item| self.unfit(None, item)).collect();
        if !unfit.is_empty() {
            return Err(Problems(unfit).into());
        }
        let Import { activate, dry_run, note } = import;
        let note = noted(note)?;
        let (bundle, note) = (&bundle, note.as_deref());
        self.change("a workflow of the bundle", || {
            Box::pin(async move {
                let (mut writing, mut imported) = (Writing::default(), Vec::new());
                for item in bundle.items() {
                    imported.push(self.import_one(item, activate, note, &mut writing).await?);
                }
                let writing = if dry_run { Writing::default() } else { writing };
                Ok((writing, imported))
            })
        })
        .await
    }

    async fn import_one(
        &self,
        document: &Document,
        activate: bool,
        note: Option<&str>,
        writing: &mut Writing,
    ) -> Result<Imported, CatalogueError> {
        let name = Name::from(document.name());
        let Seen { value: mut entry, revision } = self.entry(&name).await?;
        let before = entry.clone();
        let pinned = self.next(document, &name, &mut entry, note, writing)?;
        if activate {
            entry.active = Some(pinned);
        }
        let is_activated = entry.active != before.active;
        let outcome = match before.newest {
            None => Outcome::New,
            Some(newest) if newest == pinned => Outcome::Unchanged,
            Some(_) => Outcome::NewVersion,
        };
        if entry != before {
            writing.entry(&name, &entry, revision);
            let mut detail = detail(pinned);
            detail["outcome"] = json!(outcome);
            detail["activated"] = is_activated.into();
            writing.audit("workflow.import", &name, &detail);
        }
        let (Pinned { version, hash }, warnings) = (pinned, self.warnings(document));
        Ok(Imported { name, outcome, version, hash, is_activated, warnings })
    }
}

fn picked(entry: &Entry, which: Which) -> Option<Pinned> {
    match which {
        Which::Active => entry.active(),
        Which::Newest => entry.newest,
    }
}
