//! The roots of the scope that an expression reads.

use std::collections::BTreeSet;

use super::ast::{Item, Kind, Node, Path};

/// A root name, and the field that is read from it, if any.
pub(super) type Read = (String, Option<String>);

/// Returns the roots and fields that an expression reads, sorted.
pub(super) fn of(root: &Node) -> Vec<Read> {
    let mut names = BTreeSet::new();
    collect(root, true, &mut names);
    names.into_iter().collect()
}

/// Collects the roots that a node reads. `is_top` is true if a bare name in the node is a root.
fn collect(node: &Node, is_top: bool, names: &mut BTreeSet<Read>) {
    for inside in node.predicates().iter().chain(node.stages()) {
        collect(inside, false, names);
    }
    let group = node.group().unwrap_or_default();
    for inside in group.iter().flat_map(|(key, value)| [key, value]) {
        collect(inside, false, names);
    }
    match &node.kind {
        Kind::Path(path) => collect_path(path, is_top, names),
        Kind::Name(name) if is_top => {
            names.insert((name.clone(), None));
        }
        _ => children(node).into_iter().for_each(|child| collect(child, is_top, names)),
    }
}

/// Collects the roots that a path reads. Only its first step refers to the current context, or the second step after
/// `$` or `$$`.
fn collect_path(path: &Path, is_top: bool, names: &mut BTreeSet<Read>) {
    let mut is_still_top = is_top;
    for (index, step) in path.steps.iter().enumerate() {
        if let (Kind::Name(name), true, Some(Kind::Name(field))) =
            (&step.kind, is_still_top, path.steps.get(index + 1).map(|next| &next.kind))
        {
            names.insert((name.clone(), Some(field.clone())));
        }
        if let Kind::Sort(terms) = &step.kind {
            terms.iter().for_each(|term| collect(&term.node, false, names));
        }
        collect(step, is_still_top, names);
        let has_predicates = !step.predicates().is_empty() || !step.stages().is_empty();
        is_still_top = match step.kind {
            Kind::Top => !has_predicates,
            Kind::Here => is_still_top && !has_predicates,
            _ => false,
        };
    }
}

/// Returns the child nodes that are evaluated in the same context as the node.
pub(super) fn children(node: &Node) -> Vec<&Node> {
    match &node.kind {
        Kind::Block { nodes, .. } | Kind::Call { arguments: nodes, .. } => nodes.iter().collect(),
        Kind::List { items, .. } => items
            .iter()
            .flat_map(|item| match item {
                Item::One(node) => vec![node],
                Item::Range(from, to) => vec![from, to],
            })
            .collect(),
        Kind::Object(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
        Kind::Negate(inner) | Kind::Bind { value: inner, .. } => vec![inner],
        Kind::Chain { first, rest } => {
            std::iter::once(&**first).chain(rest.iter().map(|(_, node)| node)).collect()
        }
        Kind::Conditional { test, then, otherwise } => {
            [Some(test), Some(then), otherwise.as_ref()].into_iter().flatten().map(|node| &**node).collect()
        }
        Kind::Default { left, right, .. } => vec![left, right],
        _ => Vec::new(),
    }
}
