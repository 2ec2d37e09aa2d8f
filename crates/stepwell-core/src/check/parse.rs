//! The second pass: schemas, expressions and templates parse; and the assembly of what all passes found.

use std::collections::BTreeMap;

use super::graph::Routes;
use super::refs::Links;
use super::{Location, ProblemCode, Report};
use crate::definition::{
    self, ActionNode, Compiled, GuardNode, PlaceIndex, PlaceKind, PlaceNode, TransitionNode, TriggerNode,
    WaitNode,
};
use crate::expr::{Expr, ExprError};
use crate::ids::{DefinitionHash, Name};
use crate::limits::Limits;
use crate::schema::Schema;
use crate::spec::{Guard, Place, Spec, Transition};
use crate::template::Template;

/// Everything that had to be parsed; `None` or missing where it could not be.
#[derive(Debug, Default)]
pub(super) struct Parts {
    signals: BTreeMap<Name, Option<Schema>>,
    documents: BTreeMap<Name, Schema>,
    context: Option<Schema>,
    output: Option<Schema>,
    end_outputs: Vec<Option<Template>>,
    transitions: Vec<Option<TransitionParts>>,
}

#[derive(Debug)]
struct TransitionParts {
    on: TriggerNode,
    guard: Option<GuardNode>,
    action: Option<ActionNode>,
}

pub(super) fn parse(spec: &Spec, report: &mut Report) -> Parts {
    let mut parts = Parts::default();
    for (name, signal) in &spec.signals {
        let at = Location::Signal(name.clone());
        let schema =
            signal.payload.as_ref().and_then(|source| schema(source, "the payload schema", &at, report));
        parts.signals.insert(name.clone(), schema);
    }
    for (kind, source) in &spec.documents {
        let at = Location::Document(kind.clone());
        if let Some(schema) = schema(source, "the schema", &at, report) {
            parts.documents.insert(kind.clone(), schema);
        }
    }
    let at = Location::Definition;
    parts.context = spec.context.as_ref().and_then(|s| schema(s, "the context schema", &at, report));
    parts.output = spec.output.as_ref().and_then(|s| schema(s, "the output schema", &at, report));
    for (name, place) in &spec.places {
        let at = Location::Place(name.clone());
        let mut output = None;
        match place {
            Place::End { output: Some(source) } => output = template(source, "output", &at, report),
            Place::Wait(wait) => {
                if let Some(form) = &wait.form {
                    schema(form, "the form", &at, report);
                }
            }
            Place::End { output: None } | Place::Step {} | Place::Fork { .. } | Place::Join(_) => {}
        }
        parts.end_outputs.push(output);
    }
    parts.transitions = spec.transitions.iter().map(|t| transition(t, report)).collect();
    parts
}

fn transition(t: &Transition, report: &mut Report) -> Option<TransitionParts> {
    let at = Location::Transition(t.id.clone());
    let on = definition::trigger(&t.on).map_err(|error| bad_expression(&error, &at, report));
    let guard = t.guard.as_ref().map(|guard| compile_guard(guard, &at, report));
    let action = t.action.as_ref().map(|action| {
        template(&action.input, "input", &at, report).map(|input| definition::action(action, input))
    });
    let lost_guard = matches!(guard, Some(None));
    let lost_action = matches!(action, Some(None));
    if lost_guard || lost_action {
        return None;
    }
    Some(TransitionParts { on: on.ok()?, guard: guard.flatten(), action: action.flatten() })
}

fn compile_guard(guard: &Guard, at: &Location, report: &mut Report) -> Option<GuardNode> {
    let mut all = |guards: &[Guard]| -> Option<Vec<GuardNode>> {
        let nodes: Vec<_> = guards.iter().map(|guard| compile_guard(guard, at, report)).collect();
        nodes.into_iter().collect()
    };
    Some(match guard {
        Guard::And(inner) => GuardNode::And(all(inner)?),
        Guard::Or(inner) => GuardNode::Or(all(inner)?),
        Guard::Not(inner) => GuardNode::Not(Box::new(compile_guard(inner, at, report)?)),
        Guard::Expr(source) => match Expr::parse(source) {
            Ok(expr) => GuardNode::Expr(expr),
            Err(error) => {
                bad_expression(&error, at, report);
                return None;
            }
        },
        Guard::Completed(name) => GuardNode::Completed(name.clone()),
        Guard::Active(name) => GuardNode::Active(name.clone()),
        Guard::Named(name) => GuardNode::Named(name.clone()),
    })
}

fn schema(source: &serde_json::Value, what: &str, at: &Location, report: &mut Report) -> Option<Schema> {
    match Schema::compile(source) {
        Ok(schema) => Some(schema),
        Err(problems) => {
            for problem in problems {
                report.add(ProblemCode::BadSchema, at.clone(), format!("{what}: {problem}"));
            }
            None
        }
    }
}

fn template(source: &serde_json::Value, what: &str, at: &Location, report: &mut Report) -> Option<Template> {
    match Template::compile(source) {
        Ok(template) => Some(template),
        Err(problems) => {
            for problem in problems {
                let message = format!("`{what}{}`: {}", problem.pointer, problem.message);
                report.add(ProblemCode::BadExpression, at.clone(), message);
            }
            None
        }
    }
}

fn bad_expression(error: &ExprError, at: &Location, report: &mut Report) {
    report.add(ProblemCode::BadExpression, at.clone(), error.to_string());
}

/// Puts the definition together; only called when no pass found a problem.
pub(super) fn assemble(
    spec: Spec,
    hash: DefinitionHash,
    links: &Links,
    parts: Parts,
    routes: &Routes,
) -> Compiled {
    let checked = "a spec without problems has every part resolved";
    let transitions: Vec<_> = spec
        .transitions
        .iter()
        .zip(parts.transitions)
        .enumerate()
        .map(|(index, (t, parts))| {
            let parts = parts.expect(checked);
            let (from, to) = links.ends[index];
            TransitionNode {
                id: t.id.clone(),
                from: from.expect(checked),
                to: to.expect(checked),
                on: parts.on,
                guard: parts.guard,
                priority: t.priority,
                action: parts.action,
                retry: t.retry.clone().unwrap_or_default(),
                error_place: links.error_place[index],
                retry_target: links.retry_target[index],
                timeout_ms: definition::timeout_ms(t),
                loop_step: t.loop_step,
            }
        })
        .collect();
    let places = assemble_places(&spec, links, parts.end_outputs, routes, &transitions);
    Compiled {
        hash,
        limits: Limits::default(),
        initial: links.initial.expect(checked),
        by_name: spec.places.keys().cloned().enumerate().map(|(index, name)| (name, index)).collect(),
        transition_by_id: transitions.iter().enumerate().map(|(index, t)| (t.id.clone(), index)).collect(),
        places,
        transitions,
        signals: parts.signals,
        documents: parts.documents,
        context: parts.context,
        output: parts.output,
        shadows: Vec::new(),
        spec,
    }
}

fn assemble_places(
    spec: &Spec,
    links: &Links,
    outputs: Vec<Option<Template>>,
    routes: &Routes,
    transitions: &[TransitionNode],
) -> Vec<PlaceNode> {
    let places = spec.places.iter().zip(outputs).enumerate();
    places
        .map(|(index, ((name, place), output))| PlaceNode {
            name: name.clone(),
            kind: assemble_kind(index, place, output, links, routes),
            out: out_of(index, transitions),
        })
        .collect()
}

fn assemble_kind(
    index: PlaceIndex,
    place: &Place,
    output: Option<Template>,
    links: &Links,
    routes: &Routes,
) -> PlaceKind {
    match place {
        Place::Step {} => PlaceKind::Step,
        Place::Wait(wait) => PlaceKind::Wait(WaitNode {
            signal: wait.signal.clone(),
            children: wait.children,
            error_place: links.wait_error[index],
        }),
        Place::Fork { .. } => PlaceKind::Fork {
            branches: links.branches[index].clone(),
            join: routes.join_of_fork.get(&index).copied(),
        },
        Place::Join(join) => PlaceKind::Join {
            quorum: routes.quorum.get(&index).copied().unwrap_or_default(),
            cancel_rest: join.cancel_rest,
        },
        Place::End { .. } => PlaceKind::End { output },
    }
}

/// In the order in which they are tried: priority first, then as written.
fn out_of(place: PlaceIndex, transitions: &[TransitionNode]) -> Vec<usize> {
    let mut out: Vec<usize> = (0..transitions.len()).filter(|&t| transitions[t].from == place).collect();
    out.sort_by_key(|&t| std::cmp::Reverse(transitions[t].priority));
    out
}
