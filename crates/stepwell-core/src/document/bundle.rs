//! Bundles: several workflows in one file, for moving them together.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fields::{Fields, Report, wrong};
use super::problem::{Position, SourceProblems};
use super::read::API_VERSION;
use super::tree::{Kind, Node};
use super::{WorkflowSource, tree, yaml};
use crate::limits::Limits;

/// The `kind` of a bundle file.
const KIND: &str = "Bundle";

/// Several workflow documents with different names.
#[derive(Debug, Clone)]
pub struct Bundle {
    items: Vec<WorkflowSource>,
}

impl Bundle {
    /// Parses a bundle from YAML or JSON. Reports all problems of all items, with their positions in the file.
    pub fn read(text: &str) -> Result<Bundle, SourceProblems> {
        Bundle::read_within(text, &Limits::default())
    }

    /// Does the same as [`Bundle::read`], with these limits instead of the default limits.
    pub fn read_within(text: &str, limits: &Limits) -> Result<Bundle, SourceProblems> {
        let root = tree::read_bundle(text)?;
        let mut report = Report::default();
        let mut items = Vec::new();
        for node in nodes(&root, &mut report) {
            match WorkflowSource::of_tree(node, None, limits) {
                Ok(document) => items.push(document),
                Err(problems) => problems.0.into_iter().for_each(|problem| report.take(problem)),
            }
        }
        unique(&items, &mut report);
        if report.problems.is_empty() { Ok(Bundle { items }) } else { Err(report.finish()) }
    }

    /// Creates a bundle of workflow documents. Each gets its name written into it. The names must be unique.
    pub fn of(documents: Vec<WorkflowSource>, limits: &Limits) -> Result<Bundle, SourceProblems> {
        let named: Result<Vec<_>, _> = documents.into_iter().map(|one| one.named(limits)).collect();
        let (items, mut report) = (named?, Report::default());
        unique(&items, &mut report);
        if report.problems.is_empty() { Ok(Bundle { items }) } else { Err(report.finish()) }
    }

    /// Returns true if the text is a bundle by its `kind`.
    pub fn is_one(text: &str) -> bool {
        let kind = |root: Node| root.field("kind").and_then(Node::text).map(str::to_owned);
        tree::read_bundle(text).ok().and_then(kind).as_deref() == Some(KIND)
    }

    /// Returns the workflows of the bundle.
    pub fn items(&self) -> &[WorkflowSource] {
        &self.items
    }

    /// Returns the bundle as JSON.
    pub fn to_value(&self) -> Value {
        let items: Vec<_> = self.items.iter().map(WorkflowSource::value).collect();
        json!({"apiVersion": API_VERSION, "kind": KIND, "items": items})
    }

    /// Returns the bundle as YAML, without the comments.
    pub fn to_yaml(&self) -> String {
        yaml(&self.to_value())
    }
}

/// Returns the items of a bundle.
fn nodes<'a>(root: &'a Node, report: &mut Report) -> &'a [Node] {
    let Some(mut fields) = Fields::of(root, "a bundle", report) else { return &[] };
    if let Some(api) = fields.get("apiVersion")
        && api.text() != Some(API_VERSION)
    {
        report.add("apiVersion", api.at, format!("`apiVersion` must be `{API_VERSION}`"));
    }
    let kind = fields.need("kind", report);
    if let Some(kind) = kind.filter(|kind| kind.text() != Some(KIND)) {
        report.add("kind", kind.at, format!("`kind` must be `{KIND}`"));
    }
    fields.get("metadata");
    let items = fields.need("items", report);
    fields.finish(report);
    match items.map(|items| (&items.kind, items)) {
        Some((Kind::List(items), _)) => items,
        Some((_, other)) => wrong(other, "items", "a list of workflows", report).unwrap_or_default(),
        None => &[],
    }
}

/// Reports duplicate workflow names. The order of versions of two items with the same name would be undefined.
fn unique(items: &[WorkflowSource], report: &mut Report) {
    let mut seen: BTreeMap<&str, Position> = BTreeMap::new();
    for item in items {
        let at = item.place_of_name();
        if let Some(first) = seen.insert(item.name(), at) {
            let line = if first.line > 0 { format!(", in line {}", first.line) } else { String::new() };
            let message = format!(
                "another item has the name `{}`{line}: names in a bundle must be unique",
                item.name()
            );
            report.add("duplicateName", at, message);
        }
    }
}
