//! Bundles: several workflows exported to, and imported from, one file. An import publishes all of them or none.

use serde::Serialize;
use serde_json::json;
use stepwell_core::document::{Bundle, SourceProblem, SourceProblems};
use stepwell_core::{DefinitionHash, Name, WorkflowSource};

use super::check::known_actions_only;
use super::entry::{Entry, Pinned, Seen, WORKFLOW, Writing, detail, noted};
use super::{Absent, Catalogue, CatalogueError};
use crate::actor::Permission;
use crate::data::kv::KeyList;

/// Page size when all workflows are exported.
const PAGE: u32 = 200;

/// The version of each workflow that is exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExportVersion {
    /// The active version. Workflows without one are left out.
    #[default]
    Active,
    /// The highest version number, also of workflows that cannot be started.
    Newest,
}

/// Selects the workflows and versions to export.
#[derive(Debug, Clone, Default)]
pub struct Export {
    names: Option<Vec<Name>>,
    which: ExportVersion,
}

impl Export {
    /// Selects all workflows that have an active version.
    pub fn all() -> Self {
        Export::default()
    }

    /// Selects workflows by name.
    pub fn of<N: Into<Name>>(names: impl IntoIterator<Item = N>) -> Self {
        Export { names: Some(names.into_iter().map(Into::into).collect()), which: ExportVersion::default() }
    }

    /// Selects the version to export. Default: [`ExportVersion::Active`].
    #[must_use]
    pub fn which(mut self, which: ExportVersion) -> Self {
        self.which = which;
        self
    }
}

/// Options for the import of a bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Import {
    /// New runs use the imported versions from now on.
    pub activate: bool,
    /// Report the result, but write nothing.
    pub dry_run: bool,
    /// Note stored with each new version, at most 1,000 characters.
    pub note: Option<String>,
    /// Import new versions even if they call actions that this engine does not know.
    pub allow_unknown_actions: bool,
}

/// The effect of an import on one workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ImportOutcome {
    /// The workflow had no published version.
    New,
    /// The import adds a version to a published workflow.
    NewVersion,
    /// The newest version has the same content, so no version is added.
    Unchanged,
}

/// The result of importing one workflow. For a dry run: the result that the import would have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Imported {
    pub name: Name,
    pub outcome: ImportOutcome,
    /// The new version, or the existing one with the same content.
    pub version: u32,
    /// Hash of the definition. Runs of this version are pinned to it.
    pub hash: DefinitionHash,
    /// The import made this version the active one.
    pub is_activated: bool,
    /// Actions, guards and strategies that this engine lacks to run the version. Another process may have them.
    pub warnings: Vec<SourceProblem>,
}

impl Catalogue {
    /// Exports workflows as one bundle, ordered by name.
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
            let unfit = || {
                CatalogueError::Invalid(format!(
                    "workflow `{name}` was stored without its document and cannot be exported"
                ))
            };
            documents.push(WorkflowSource::of_value(value.ok_or_else(unfit)?, Some(&name))?);
        }
        Ok(Bundle::of(documents, inner.limits())?)
    }

    /// Picks a version of each named workflow. A workflow that does not exist or has no such version is an error.
    async fn chosen(
        &self,
        mut names: Vec<Name>,
        which: ExportVersion,
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

    async fn all(&self, which: ExportVersion) -> Result<Vec<(Name, Pinned)>, CatalogueError> {
        let (mut chosen, mut cursor) = (Vec::new(), None);
        loop {
            let list = KeyList { prefix: String::new(), limit: Some(PAGE), cursor };
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

    /// Publishes all workflows of a bundle, or none of them. An error lists all problems of all workflows.
    pub async fn import(&self, text: &str, import: Import) -> Result<Vec<Imported>, CatalogueError> {
        self.engine.permit(Permission::Publish)?;
        let bundle = Bundle::read_within(text, self.engine.inner.limits())?;
        let unfit: Vec<_> = bundle.items().iter().flat_map(|item| self.unfit(None, item)).collect();
        if !unfit.is_empty() {
            return Err(SourceProblems(unfit).into());
        }
        let Import { activate, dry_run, note, allow_unknown_actions } = import;
        let note = noted(note)?;
        let (bundle, note) = (&bundle, note.as_deref());
        self.change("a workflow of the bundle", || {
            Box::pin(async move {
                let (mut writing, mut imported) = (Writing::default(), Vec::new());
                for item in bundle.items() {
                    imported.push(self.import_one(item, activate, note, &mut writing).await?);
                }
                if !allow_unknown_actions {
                    let new =
                        imported.iter().filter(|one: &&Imported| one.outcome != ImportOutcome::Unchanged);
                    known_actions_only(&new.flat_map(|one| one.warnings.clone()).collect::<Vec<_>>())?;
                }
                let writing = if dry_run { Writing::default() } else { writing };
                Ok((writing, imported))
            })
        })
        .await
    }

    async fn import_one(
        &self,
        document: &WorkflowSource,
        activate: bool,
        note: Option<&str>,
        writing: &mut Writing,
    ) -> Result<Imported, CatalogueError> {
        let name = Name::from(document.name());
        let Seen { value: mut entry, revision, is_rebuilt } = self.entry(&name).await?;
        let before = entry.clone();
        let pinned = self.next(document, &name, &mut entry, note, writing).await?;
        if activate {
            entry.active = Some(pinned);
        }
        let is_activated = entry.active != before.active;
        let outcome = match before.newest {
            None => ImportOutcome::New,
            Some(newest) if newest == pinned => ImportOutcome::Unchanged,
            Some(_) => ImportOutcome::NewVersion,
        };
        if entry != before || is_rebuilt {
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

fn picked(entry: &Entry, which: ExportVersion) -> Option<Pinned> {
    match which {
        ExportVersion::Active => entry.active(),
        ExportVersion::Newest => entry.newest,
    }
}
