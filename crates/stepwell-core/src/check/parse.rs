//! The second pass: parses schemas, expressions and templates. Also assembles the definition from the results of all
//! passes.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::Routes;
use super::refs::Links;
use super::{Location, ProblemCode, Report};
use crate::answerer::Answerer;
use crate::definition::{
    self, ActionNode, AwaitedNode, CollectNode, Compiled, Condition, EachNode, GuardNode, JoinNode, LoopNode,
    OverNode, PagesNode, PlaceIndex, PlaceKind, PlaceNode, RaiseNode, TransitionNode, TransitionTriggerNode,
    WaitNode,
};
use crate::expr::{Expr, ExprError};
use crate::ids::{DefinitionHash, Name};
use crate::limits::Limits;
use crate::save::Save;
use crate::schema::Schema;
use crate::spec::{Collect, DeliveryGuarantee, Guard, Over, Place, Quorum, Raise, Spec, Transition, Wait};
use crate::template::{Template, has_secret};
use crate::trigger::{Trigger, TriggerKind, TriggerNode};

/// All parsed parts. A part that could not be parsed is `None` or missing.
#[derive(Debug, Default)]
pub(super) struct Parts {
    signals: BTreeMap<Name, Option<Schema>>,
    documents: BTreeMap<Name, Schema>,
    context: Option<Schema>,
    input: Option<Schema>,
    output: Option<Schema>,
    places: Vec<PlaceParts>,
    transitions: Vec<Option<TransitionParts>>,
    triggers: Vec<TriggerNode>,
}

/// The parsed parts of one place, depending on its kind.
#[derive(Debug, Default)]
struct PlaceParts {
    /// The output of an end, the list of a loop or fork, or the prompt of a wait.
    template: Option<Template>,
    /// The filter of a wait, or the condition of a loop.
    expr: Option<Expr>,
    collect: Option<CollectNode>,
    /// The event selection of a wait.
    event: Option<AwaitedNode>,
}

#[derive(Debug)]
struct TransitionParts {
    on: TransitionTriggerNode,
    guard: Option<GuardNode>,
    action: Option<ActionNode>,
    set: Vec<(Save, Template)>,
    fail: Option<RaiseNode>,
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
    let mut of_field = |source: &Option<serde_json::Value>, name: &'static str| {
        let what = format!("the {name} schema");
        source.as_ref().and_then(|source| schema(source, &what, &Location::Field(name), report))
    };
    parts.context = of_field(&spec.context, "context");
    parts.input = of_field(&spec.input, "input");
    parts.output = of_field(&spec.output, "output");
    parts.places = spec.places.iter().map(|(name, place)| place_parts(name, place, report)).collect();
    parts.transitions = spec.transitions.iter().map(|t| transition(t, spec.envelope, report)).collect();
    parts.triggers = triggers(&spec.triggers, report);
    parts
}

/// Checks the triggers and compiles their inputs. Trigger ids must be unique.
fn triggers(all: &[Trigger], report: &mut Report) -> Vec<TriggerNode> {
    let mut known = BTreeSet::new();
    let mut node = |trigger: &Trigger| {
        let at = Location::Trigger(trigger.id.clone());
        if !known.insert(trigger.id.clone()) {
            let message = "another trigger has the same id: use a unique id".to_owned();
            report.add(ProblemCode::BadTrigger, at.clone(), message);
        }
        let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        if trigger.id.is_empty() || trigger.id.chars().count() > 64 || !trigger.id.chars().all(fits) {
            let message = "the id must have 1 to 64 characters: letters, digits, `_` and `-`".to_owned();
            report.add(ProblemCode::BadTrigger, at.clone(), message);
        }
        let input = trigger.input.as_ref().and_then(|source| plain_template(source, "input", &at, report));
        let is_fixed = input.as_ref().is_none_or(Template::is_constant);
        if matches!(trigger.on, TriggerKind::Schedule(_) | TriggerKind::Manual {}) && !is_fixed {
            let message =
                "`input` must not contain expressions, because there is no event to read: write plain data"
                    .to_owned();
            report.add(ProblemCode::BadTrigger, at.clone(), message);
        }
        let mut expr = |source: Option<&String>| source.and_then(|source| expression(source, &at, report));
        TriggerNode { filter: expr(trigger.on.filter()), correlation: expr(trigger.on.correlation()), input }
    };
    all.iter().map(&mut node).collect()
}

/// Compiles the event filter of a wait, if it has one.
fn awaited(wait: &Wait, at: &Location, report: &mut Report) -> Option<AwaitedNode> {
    let event = wait.event.as_ref()?;
    if wait.signal.is_none() {
        let message = "`event` requires `signal`, which is the name of the event".to_owned();
        report.add(ProblemCode::UnresolvableWait, at.clone(), message);
    }
    if event.of.is_some() && event.key.is_none() {
        let message = "`event.of` requires `event.key`, which is the value to compare with".to_owned();
        report.add(ProblemCode::UnresolvableWait, at.clone(), message);
    }
    let mut expr =
        |source: &Option<String>| source.as_ref().and_then(|source| expression(source, at, report));
    Some(AwaitedNode { of: expr(&event.of), key: expr(&event.key) })
}

fn place_parts(name: &Name, place: &Place, report: &mut Report) -> PlaceParts {
    let at = Location::Place(name.clone());
    let mut parts = PlaceParts::default();
    match place {
        Place::End { output: Some(source), .. } => {
            parts.template = plain_template(source, "output", &at, report);
        }
        Place::Wait(wait) => {
            if let Some(form) = &wait.form {
                schema(form, "the form", &at, report);
            }
            for why in wait.answerers.iter().filter_map(|text| text.parse::<Answerer>().err()) {
                report.add(ProblemCode::BadAnswerer, at.clone(), why);
            }
            parts.template =
                wait.prompt.as_ref().and_then(|source| plain_template(source, "prompt", &at, report));
            parts.expr = wait.filter.as_ref().and_then(|source| expression(source, &at, report));
            parts.event = awaited(wait, &at, report);
        }
        Place::Fork(fork) => {
            parts.template =
                fork.each.as_ref().and_then(|each| plain_template(&each.items, "items", &at, report));
        }
        Place::Join(join) => {
            parts.collect = join.collect.as_ref().map(|collect| collected(collect, &at, report));
        }
        Place::Loop(round) => {
            match &round.over {
                Over::Items { list, .. } => parts.template = plain_template(list, "items", &at, report),
                Over::While(source) => parts.expr = expression(source, &at, report),
                Over::Pages(pages) => {
                    parts.template = plain_template(&pages.list, "items", &at, report);
                    parts.expr = expression(&pages.cursor, &at, report);
                }
            }
            parts.collect = round.collect.as_ref().map(|collect| collected(collect, &at, report));
        }
        Place::End { output: None, .. } | Place::Step {} | Place::Catch(_) => {}
    }
    parts
}

fn collected(collect: &Collect, at: &Location, report: &mut Report) -> CollectNode {
    CollectNode {
        save: collect.save_as.as_ref().and_then(|path| save(path, at, report)),
        result: collect.result.as_ref().and_then(|source| plain_template(source, "result", at, report)),
        settled: collect.settled,
    }
}

fn save(path: &str, at: &Location, report: &mut Report) -> Option<Save> {
    Save::parse(path).map_err(|message| report.add(ProblemCode::BadPath, at.clone(), message)).ok()
}

fn expression(source: &str, at: &Location, report: &mut Report) -> Option<Expr> {
    Expr::parse(source).map_err(|error| bad_expression(&error, at, report)).ok()
}

fn transition(t: &Transition, is_strict: bool, report: &mut Report) -> Option<TransitionParts> {
    let at = Location::Transition(t.id.clone());
    let on = definition::trigger(&t.on).map_err(|error| bad_expression(&error, &at, report));
    let guard = t.guard.as_ref().map(|guard| compile_guard(guard, is_strict, &at, report));
    let action = t.action.as_ref().map(|action| {
        let saved = action.save_as.as_ref().and_then(|path| save(path, &at, report));
        template(&action.input, "input", &at, report).map(|input| definition::action(action, input, saved))
    });
    let mut set = Vec::new();
    for assign in &t.set {
        let to = save(&assign.to, &at, report);
        let value = plain_template(&assign.value, &assign.to, &at, report);
        set.extend(to.zip(value));
    }
    let fail = t.fail.as_ref().and_then(|raise| match raise {
        Raise::New { code, message, is_final, errors } => {
            let code = plain_template(code, "code", &at, report);
            let message = plain_template(message, "message", &at, report);
            let is_final = is_final.unwrap_or(errors.is_some());
            let errors = errors.as_ref().map(|errors| plain_template(errors, "errors", &at, report));
            code.zip(message)
                .zip(errors.map_or(Some(None), |errors| errors.map(Some)))
                .map(|((code, message), errors)| RaiseNode::New { code, message, is_final, errors })
        }
        Raise::Again(local) => Some(RaiseNode::Again(local.clone())),
    });
    let lost_guard = matches!(guard, Some(None));
    let lost_action = matches!(action, Some(None));
    if lost_guard || lost_action {
        return None;
    }
    Some(TransitionParts { on: on.ok()?, guard: guard.flatten(), action: action.flatten(), set, fail })
}

fn compile_guard(guard: &Guard, is_strict: bool, at: &Location, report: &mut Report) -> Option<GuardNode> {
    let mut all = |guards: &[Guard]| -> Option<Vec<GuardNode>> {
        let nodes: Vec<_> = guards.iter().map(|guard| compile_guard(guard, is_strict, at, report)).collect();
        nodes.into_iter().collect()
    };
    Some(match guard {
        Guard::And(inner) => GuardNode::And(all(inner)?),
        Guard::Or(inner) => GuardNode::Or(all(inner)?),
        Guard::Not(inner) => GuardNode::Not(Box::new(compile_guard(inner, is_strict, at, report)?)),
        Guard::Expr(source) => {
            GuardNode::Expr(Condition { expr: expression(source, at, report)?, is_strict })
        }
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

/// Compiles a template that must not contain a secret. Secrets are resolved in action inputs only.
fn plain_template(
    source: &serde_json::Value,
    what: &str,
    at: &Location,
    report: &mut Report,
) -> Option<Template> {
    if has_secret(source) {
        let message = format!("`{what}`: a secret is allowed only in the input of an action that accepts it");
        report.add(ProblemCode::BadExpression, at.clone(), message);
    }
    template(source, what, at, report)
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

/// Assembles the definition. Only called if no pass found a problem.
pub(super) fn assemble(
    spec: Spec,
    hash: DefinitionHash,
    links: &Links,
    parts: Parts,
    routes: &Routes,
    inside: Vec<Vec<PlaceIndex>>,
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
                set: parts.set,
                fail: parts.fail,
                retry: t.retry.clone().unwrap_or_default(),
                error_place: links.error_place[index],
                retry_target: links.retry_target[index],
                timeout_ms: t.timeout_ms,
                loop_step: t.loop_step,
                is_at_most_once: t.delivery == DeliveryGuarantee::AtMostOnce,
                heartbeat: t.heartbeat,
            }
        })
        .collect();
    let places = assemble_places(&spec, links, parts.places, routes, &transitions, inside);
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
        input: parts.input,
        output: parts.output,
        shadows: Vec::new(),
        admission: Default::default(),
        triggers: parts.triggers,
        spec,
    }
}

fn assemble_places(
    spec: &Spec,
    links: &Links,
    parts: Vec<PlaceParts>,
    routes: &Routes,
    transitions: &[TransitionNode],
    inside: Vec<Vec<PlaceIndex>>,
) -> Vec<PlaceNode> {
    let places =
        spec.places.iter().zip(parts).zip(inside).zip(out(spec.places.len(), transitions)).enumerate();
    places
        .map(|(index, ((((name, place), parts), inside), out))| PlaceNode {
            name: name.clone(),
            kind: assemble_kind(index, place, parts, (links, routes), spec.envelope),
            out,
            inside,
        })
        .collect()
}

fn assemble_kind(
    index: PlaceIndex,
    place: &Place,
    parts: PlaceParts,
    (links, routes): (&Links, &Routes),
    is_strict: bool,
) -> PlaceKind {
    let checked = "a spec without problems has every part parsed";
    let error_place = links.place_error[index];
    match place {
        Place::Step {} => PlaceKind::Step,
        Place::Wait(wait) => PlaceKind::Wait(WaitNode {
            signal: wait.signal.clone(),
            filter: parts.expr,
            children: wait.children,
            prompt: parts.template,
            event: parts.event,
            error_place,
        }),
        Place::Fork(fork) => PlaceKind::Fork {
            branches: links.branches[index].clone(),
            join: routes.join_of_fork.get(&index).copied(),
            each: fork.each.as_ref().map(|each| EachNode {
                items: parts.template.expect(checked),
                item: each.item.clone(),
                index: each.index.clone(),
                limit: each.limit.unwrap_or(u32::MAX),
                most: each.most,
                error_place,
            }),
        },
        Place::Join(join) => PlaceKind::Join(JoinNode {
            quorum: routes.quorum.get(&index).copied().unwrap_or_default(),
            is_all: join.quorum == Quorum::All,
            cancel_rest: join.cancel_rest,
            collect: parts.collect.map(|collect| CollectNode {
                settled: collect.settled || join.tolerate.is_some(),
                ..collect
            }),
            ignore_failures: join.ignore_failures,
            tolerate: join.tolerate,
            error_place,
        }),
        Place::Loop(round) => PlaceKind::Loop(LoopNode {
            over: match &round.over {
                Over::Items { item, .. } => {
                    OverNode::Items { list: parts.template.expect(checked), item: item.clone() }
                }
                Over::While(_) => OverNode::While(Condition { expr: parts.expr.expect(checked), is_strict }),
                Over::Pages(pages) => OverNode::Pages(PagesNode {
                    fetch: links.fetch[index].expect(checked),
                    list: parts.template.expect(checked),
                    cursor: parts.expr.expect(checked),
                    next: pages.next.clone(),
                    item: pages.item.clone(),
                }),
            },
            index: round.index.clone(),
            first: links.first[index].expect(checked),
            then: links.then[index].expect(checked),
            most: round.most,
            collect: parts.collect,
            error_place,
        }),
        Place::Catch(catch) => {
            PlaceKind::Catch { local: catch.local.clone(), first: links.first[index].expect(checked) }
        }
        Place::End { .. } => PlaceKind::End { output: parts.template, error_place },
    }
}

/// Returns the transitions that leave each place, in the order in which they are tried: by priority, then as written.
fn out(places: usize, transitions: &[TransitionNode]) -> Vec<Vec<usize>> {
    let mut out = vec![Vec::new(); places];
    for (index, transition) in transitions.iter().enumerate() {
        out[transition.from].push(index);
    }
    out.iter_mut().for_each(|out| out.sort_by_key(|&t| std::cmp::Reverse(transitions[t].priority)));
    out
}
