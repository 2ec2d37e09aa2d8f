//! Several workflows in one file, to be taken elsewhere together.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fields::{Fields, Report, wrong};
use super::problem::{Place, Problems};
use super::read::API_VERSION;
use super::tree::{Kind, Node};
use super::{Document, tree, yaml};
use crate::limits::Limits;

/// What a file of several workflows calls itself.
const KIND: &str = "Bundle";

/// Several workflows, each of another name.
#[derive(Debug, Clone)]
pub struct Bundle {
    items: Vec<Document>,
}

impl Bundle {
    /// Reads YAML or JSON. Everything that is wrong in any item is told, where it stands in the file.
    pub fn read(text: &str) -> Result<Bundle, Problems> {
        Bundle::read_within(text, &Limits::default())
    }

    /// The same with limits of one's own.
    pub fn read_within(text: &str, limits: &Limits) -> Result<Bundle, Problems> {
        let root = tree::read_bundle(text)?;
        let mut report = Report::default();
        let mut items = Vec::new();
        for node in nodes(&root, &mut report) {
            match Document::of_tree(node, None, limits) {
                Ok(document) => items.push(document),
                Err(problems) => problems.0.into_iter().for_each(|problem| report.take(problem)),
            }
        }
        unique(&items, &mut report);
        if report.problems.is_empty() { Ok(Bundle { items }) } else { Err(report.finish()) }
    }

    /// Puts documents together. Each has its name in it, and no two the same.
    pub fn of(documents: Vec<Document>, limits: &Limits) -> Result<Bundle, Problems> {
        let named: Result<Vec<_>, _> = documents.into_iter().map(|one| one.named(limits)).collect();
        let (items, mut report) = (named?, Report::default());
        unique(&items, &mut report);
        if report.problems.is_empty() { Ok(Bundle { items }) } else { Err(report.finish()) }
    }

    /// The text says that it is a bundle.
    pub fn is_one(text: &str) -> bool {
        let kind = |root: Node| root.field("kind").and_then(Node::text).map(str::to_owned);
        tree::read_bundle(text).ok().and_then(kind).as_deref() == Some(KIND)
    }

    /// The workflows.
    pub fn items(&self) -> &[Document] {
        &self.items
    }

    /// The bundle as JSON.
    pub fn to_value(&self) -> Value {
        let items: Vec<_> = self.items.iter().map(Document::value).collect();
        json!({"apiVersion": API_VERSION, "kind": KIND, "items": items})
    }

    /// The bundle as YAML; comments are not kept.
    pub fn to_yaml(&self) -> String {
        yaml(&self.to_value())
    }
}

/// The items of a bundle, as they stand in its tree.
fn nodes<'a>(root: &'a Node, report: &mut Report) -> &'a [Node] {
    let Some(mut fields) = Fields::of(root, "a bundle", report) else { return &[] };
    if let Some(api) = fields.get("apiVersion")
        && api.text() != Some(API_VERSION)
    {
        report.add("apiVersion", api.at, format!("`apiVersion` is `{API_VERSION}`"));
    }
    let kind = fields.need("kind", report);
    if let Some(kind) = kind.filter(|kind| kind.text() != Some(KIND)) {
        report.add("kind", kind.at, format!("`kind` is `{KIND}`"));
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

/// Two workflows of one name would be two versions of it, and nobody could say which is the later.
fn unique(items: &[Document], report: &mut Report) {
    let mut seen: BTreeMap<&str, Place> = BTreeMap::new();
    for item in items {
        let at = item.place_of_name();
        if let Some(first) = seen.insert(item.name(), at) {
            let line = if first.line > 0 { format!(", in line {}", first.line) } else { String::new() };
            let message = format!("another item is called `{}`{line}: a bundle has each once", item.name());
            report.add("duplicateName", at, message);
        }
    }
}
