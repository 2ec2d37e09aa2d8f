//! Strategies for the random scripts. The alphabets are small, so that drawn values collide.

use std::ops::Bound;

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::option::{of, weighted};
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use proptest::sample::{select, subsequence};
use serde_json::{Number, Value, json};
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{RunId, Timestamp};
use uuid::Uuid;

use super::make::{
    NAMESPACE, at, audit, bytes, definition, flow, key, link_id, message, new_run, process, remove, run,
    stored, tagged, thing, wait,
};
use super::script::{AS_READ, Ask, Call, HANDLES, Line, Move, OWN, Script};
use crate::cell::{CellKey, CellOp, CellWrite, Initial, Precondition, Space, Ttl, ValueType};
use crate::commit::{
    Commit, CommitId, KeyLifetime, KeyWrite, NewMessage, NewRun, NextState, OnMissingRun, Ownership,
    ResultBinding, ResultPart, SendMessage,
};
use crate::document::{DocumentQuery, DocumentWrite};
use crate::handle::{HandleChange, HandleHash, HandleKind, HandleQuery, HandleRow, HandleWrite};
use crate::link::{Direction, Entity, LinkEdge, LinkEnds, LinkFilter, LinkQuery, LinkWrite};
use crate::run::{Parent, ProcessId, Status, StoredWait};
use crate::run_query::{RunFilter, RunOrder, RunQuery};
use crate::shadow::{RefillColumn, ShadowCondition, ShadowFilter, ShadowRefill, ShadowWrite};
use crate::store::{
    CellFilter, CellQuery, Claim, Cleanup, CleanupKind, CountQuery, Heartbeat, HistoryQuery, RecordQuery,
    WaitFilter, WaitQuery,
};

/// Draws scripts of up to 60 calls.
pub fn scripts() -> impl Strategy<Value = Script> {
    let opening = vec(begin(), 1..4).prop_map(|create| {
        let create = create.into_iter().zip(1..).map(|(new, number)| NewRun { run: run(number), ..new });
        let commit = Commit { create: create.collect(), ..Commit::new(CommitId(Uuid::nil()), at(0)) };
        Call::Commit(Box::new((None, commit)))
    });
    (opening, vec(line(), 1..60)).prop_map(|(opening, mut lines)| {
        lines.insert(0, Line { tick: 0, tenant: 1, call: opening });
        Script(lines)
    })
}

fn line() -> impl Strategy<Value = Line> {
    let call = prop_oneof![
        12 => commit(),
        4 => show(),
        6 => data(),
        5 => handle_commit(),
        1 => (0_usize..4).prop_map(Call::Again),
        1 => (0_usize..4).prop_map(Call::Outcome),
        8 => ask().prop_map(Call::Ask),
        2 => cleanup().prop_map(|cleanup| Call::Ask(Ask::Cleanup(cleanup))),
    ];
    let tenants = prop_oneof![4 => Just(1_u128), 1 => Just(2_u128)];
    (0_i64..3, tenants, call).prop_map(|(tick, tenant, call)| Line { tick, tenant, call })
}

fn commit() -> BoxedStrategy<Call> {
    let definitions = vec(select(vec!["orders", "other"]).prop_map(stored), 0..2);
    let audits = vec(select(vec!["one", "two"]).prop_map(audit), 0..3);
    let keys = prop_oneof![6 => vec(a_key(), 0..1), 1 => vec(a_key(), 1..3)];
    let cells = prop_oneof![vec(cell_write(), 0..1), vec(cell_write(), 1..4)];
    let bindings = prop_oneof![vec(result_binding(), 0..1), vec(result_binding(), 1..3)];
    let create = prop_oneof![8 => vec(begin(), 0..1), 2 => vec(begin(), 1..2), 1 => vec(begin(), 2..4)];
    let documents = prop_oneof![vec(document(), 0..1), vec(document(), 1..5)];
    let links = prop_oneof![3 => vec(link_write(), 0..1), 2 => vec(link_write(), 1..4)];
    let handles = prop_oneof![6 => vec(handle_write(), 0..1), 1 => vec(handle_write(), 1..3)];
    let data = (cells, links, bindings, documents, actor(), handles);
    let parts = (weighted(0.6, step()), create, vec(send(), 0..3), data, keys, definitions, audits);
    parts
        .prop_map(|(step, create, send, data, keys, definitions, audit)| {
            let (cells, links, mut bindings, mut documents, actor, handles) = data;
            if step.as_ref().is_none_or(|step| step.next.is_empty()) && create.is_empty() {
                // Without a version every document is refused. Keep a few to test that.
                documents.truncate(keys.len());
            }
            let several = step.as_ref().is_some_and(|step| step.next.len() > 1);
            if (cells.is_empty() && links.is_empty()) || step.is_none() || several {
                // Without an operation, or without exactly one next state, a result binding is always refused; the
                // suite has cases for that.
                bindings.clear();
            }
            let empty = Commit::new(CommitId(Uuid::nil()), at(0));
            Call::Commit(Box::new((
                step,
                Commit {
                    create,
                    send,
                    handles,
                    cells,
                    links,
                    actor,
                    bindings,
                    documents,
                    keys,
                    definitions,
                    audit,
                    ..empty
                },
            )))
        })
        .boxed()
}

/// Draws a step that writes documents and is rarely refused, so that runs get many documents.
fn show() -> impl Strategy<Value = Call> {
    let running = step().prop_map(|step| Move {
        stray: false,
        back: None,
        fence: None,
        take: 0,
        guess: Vec::new(),
        status: Status::Running,
        ..step
    });
    (running, next(), vec(document(), 1..4)).prop_map(|(step, next, documents)| {
        let step = Move { next: vec![next], ..step };
        let commit = Commit { documents, ..Commit::new(CommitId(Uuid::nil()), at(0)) };
        Call::Commit(Box::new((Some(step), commit)))
    })
}

/// Draws a commit that only writes data, so that it is looked up in the audit trail.
fn data() -> BoxedStrategy<Call> {
    let audits = vec(select(vec!["one", "two"]).prop_map(audit), 0..2);
    let cells =
        prop_oneof![2 => vec(cell_write(), 0..1), 2 => vec(cell_write(), 1..3), 1 => written_and_deleted()];
    (cells, vec(link_write(), 0..4), actor(), audits)
        .prop_map(|(cells, links, actor, audit)| {
            let empty = Commit::new(CommitId(Uuid::nil()), at(0));
            Call::Commit(Box::new((None, Commit { cells, links, actor, audit, ..empty })))
        })
        .boxed()
}

/// Draws a commit that mainly writes handles, as flows do: they move to another handle, end, or become runs.
fn handle_commit() -> BoxedStrategy<Call> {
    let audits = vec(select(vec!["one", "two"]).prop_map(audit), 0..2);
    let create = prop_oneof![6 => vec(begin(), 0..1), 1 => vec(begin(), 1..2)];
    let keys = prop_oneof![8 => vec(a_key(), 0..1), 1 => vec(a_key(), 1..2)];
    let cells = prop_oneof![6 => vec(cell_write(), 0..1), 1 => vec(cell_write(), 1..2)];
    let handles = prop_oneof![
        3 => vec(handle_write(), 1..2),
        2 => vec(handle_write(), 2..5),
        2 => (a_handle(), handle_put()).prop_map(|(handle, put)| {
            vec![HandleWrite { handle, expected: AS_READ, then: HandleChange::Take }, put]
        }),
    ];
    (handles, create, keys, cells, audits)
        .prop_map(|(handles, create, keys, cells, audit)| {
            let empty = Commit::new(CommitId(Uuid::nil()), at(0));
            Call::Commit(Box::new((None, Commit { handles, create, keys, cells, audit, ..empty })))
        })
        .boxed()
}

fn a_handle() -> impl Strategy<Value = HandleHash> + Clone {
    select(HANDLES.to_vec())
}

fn expected() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![12 => Just(AS_READ), 1 => Just(None), 1 => (0_u64..4).prop_map(Some)]
}

fn handle_write() -> BoxedStrategy<HandleWrite> {
    let body = || vec(any::<u8>(), 0..5).prop_map(Bytes::from);
    let then = prop_oneof![
        of(a_process()).prop_map(HandleChange::SetOwner),
        of((second(), body())).prop_map(HandleChange::Deliver),
        vec(shadow(), 0..3).prop_map(HandleChange::WriteShadows),
        Just(HandleChange::Take),
    ];
    let other = (a_handle(), expected(), then);
    let other = other.prop_map(|(handle, expected, then)| HandleWrite { handle, expected, then });
    prop_oneof![1 => handle_put(), 1 => other].boxed()
}

fn handle_put() -> BoxedStrategy<HandleWrite> {
    let body = || vec(any::<u8>(), 0..5).prop_map(Bytes::from);
    let kind = prop_oneof![3 => Just(HandleKind::Flow), 1 => Just(HandleKind::Link)];
    let workflow = prop_oneof![4 => Just("orders"), 1 => Just("other")];
    let place = (a_handle(), expected(), a_run(), kind, workflow);
    let row = (body(), of(second()), of(a_process()), of((second(), body())));
    let written = (second(), actor(), second(), actor());
    (place, row, written, vec(shadow(), 0..3))
        .prop_map(|(place, row, written, mut shadows)| {
            let (handle, expected, run, kind, workflow) = place;
            let (state, expires_at, owner, delivery) = row;
            let (created_at, created_by, updated_at, updated_by) = written;
            let (deliver_at, delivery) = delivery.unzip();
            if kind == HandleKind::Link {
                // An answer link holds no flow, so there are no shadow columns.
                shadows.clear();
            }
            let (workflow, definition) = (workflow.into(), definition(workflow));
            let row = HandleRow {
                kind,
                run,
                workflow,
                definition,
                state,
                expires_at,
                owner,
                deliver_at,
                delivery,
                created_at,
                created_by,
                updated_at,
                updated_by,
                ..flow(0)
            };
            HandleWrite { handle, expected, then: HandleChange::Put(Box::new(row), shadows) }
        })
        .boxed()
}

/// Draws a key that is written and deleted, so that there are tombstones to remove.
fn written_and_deleted() -> impl Strategy<Value = Vec<CellWrite>> {
    cell_key().prop_map(|key| {
        let set = CellOp::Set { value: json!(1), value_type: ValueType::Json, ttl: Ttl::Forever };
        let write =
            |op| CellWrite { key: key.clone(), op, expect: Precondition::Anything, initial: None, by: None };
        vec![write(set), write(CellOp::Delete)]
    })
}

fn actor() -> impl Strategy<Value = Option<String>> {
    of(select(vec!["ann", "", "bob"]).prop_map(str::to_owned))
}

fn namespace() -> impl Strategy<Value = String> + Clone {
    prop_oneof![6 => Just(NAMESPACE), 1 => Just("other")].prop_map(str::to_owned)
}

fn a_thing() -> impl Strategy<Value = Entity> + Clone {
    select(vec!["a/1", "a/2", "b/1", "b/2"]).prop_map(thing)
}

fn relation() -> impl Strategy<Value = String> + Clone {
    prop_oneof![20 => Just("r"), 20 => Just("s"), 1 => Just("")].prop_map(str::to_owned)
}

fn link_write() -> BoxedStrategy<LinkWrite> {
    let edge = (namespace(), a_thing(), a_thing(), relation())
        .prop_map(|(namespace, from, to, relation)| LinkEdge::new(namespace, from, to, relation));
    let upsert = (edge, 1_u128..9, value(), of(a_run())).prop_map(|(edge, number, attributes, by)| {
        LinkWrite::Upsert { edge, id: link_id(number), attributes, by }
    });
    let ends = prop_oneof![
        8 => a_thing().prop_map(|from| (Some(from), None)),
        8 => a_thing().prop_map(|to| (None, Some(to))),
        4 => (a_thing(), a_thing()).prop_map(|(from, to)| (Some(from), Some(to))),
        1 => Just((None, None)),
    ];
    let delete =
        (namespace(), ends, of(relation()), of(a_run())).prop_map(|(namespace, (from, to), relation, by)| {
            LinkWrite::Delete { ends: LinkEnds { namespace, from, to, relation }, by }
        });
    prop_oneof![5 => upsert, 2 => delete].boxed()
}

fn a_run() -> impl Strategy<Value = RunId> + Clone {
    (1_u128..=3).prop_map(run)
}

fn a_process() -> impl Strategy<Value = ProcessId> + Clone {
    (1_u128..=2).prop_map(process)
}

fn expired() -> impl Strategy<Value = Vec<ProcessId>> {
    subsequence(vec![process(1), process(2)], 0..=2)
}

fn second() -> impl Strategy<Value = Timestamp> {
    (0_i64..70).prop_map(at)
}

fn status() -> impl Strategy<Value = Status> {
    prop_oneof![
        5 => Just(Status::Running),
        5 => Just(Status::Waiting),
        1 => Just(Status::Failed),
        1 => Just(Status::Completed),
    ]
}

fn next() -> impl Strategy<Value = NextState> {
    let place = select(vec!["draft", "review", "wähle"]);
    let padding = vec("[a-z]{0,40}", 0..20);
    (place, padding).prop_map(|(place, padding)| NextState {
        state: json!({"at": place, "vars": {}, "padding": padding}).to_string().into(),
        entry: json!({ "entered": place }).to_string().into(),
        places: vec![place.into()],
    })
}

fn step() -> BoxedStrategy<Move> {
    let head = (
        a_run(),
        weighted(0.05, Just(())),
        prop_oneof![2 => Just(None), 3 => Just(Some(0)), 1 => (1_usize..3).prop_map(Some)],
    );
    let fence = prop_oneof![3 => Just(None), 2 => Just(Some(0)), 1 => Just(Some(1))];
    let fence = (fence, weighted(0.2, Just(())));
    let owner = prop_oneof![
        2 => Just(Ownership::Keep),
        2 => a_process().prop_map(Ownership::Take),
        1 => Just(Ownership::Release),
    ];
    let take = (0_usize..3, prop_oneof![9 => Just(vec![]), 1 => vec(1_u64..3, 1..3)]);
    let nexts = prop_oneof![2 => vec(next(), 0..1), 7 => vec(next(), 1..2), 2 => vec(next(), 2..4)].boxed();
    let row = (nexts, status(), of(second()), owner, of(select(vec!["{}", ""]).prop_map(bytes)));
    let pinned = weighted(0.1, select(vec!["orders", "other"]).prop_map(definition));
    let waits = (vec(a_wait(), 0..2), vec(1_u64..3, 0..2), vec(shadow(), 0..3));
    (head, fence, take, row, pinned, waits)
        .prop_map(
            |(
                head,
                (fence, in_order),
                (take, guess),
                (next, status, wake, owner, ledger),
                definition,
                (open, close, shadows),
            )| {
                let (run, stray, back) = head;
                Move {
                    run,
                    stray: stray.is_some(),
                    back,
                    fence,
                    in_order: in_order.is_some(),
                    take,
                    guess,
                    next,
                    status,
                    wake,
                    owner,
                    ledger,
                    definition,
                    open,
                    close,
                    shadows,
                }
            },
        )
        .boxed()
}

fn begin() -> impl Strategy<Value = NewRun> {
    let parent = of((a_run(), 1_u64..3).prop_map(|(run, activation)| Parent { run, activation, child: 0 }));
    let kind = select(vec!["orders", "other"]);
    let row = (a_run(), kind, 0_u64..2, next(), status(), of(second()), of(a_process()));
    let extras = (vec(a_wait(), 0..2), vec(shadow(), 0..3));
    (row, parent, extras).prop_map(|(row, parent, (open, shadows))| {
        let (run, kind, version, first, status, wake, owner) = row;
        let (workflow, definition) = (kind.into(), definition(kind));
        let root = parent.as_ref().map_or(run, |parent: &Parent| parent.run);
        NewRun {
            workflow,
            definition,
            version,
            first,
            status,
            wake,
            owner,
            parent,
            root,
            open,
            shadows,
            ..new_run(run)
        }
    })
}

/// Draws an open wait with or without a topic.
fn a_wait() -> impl Strategy<Value = StoredWait> {
    (1_u64..3, of(select(vec!["t", "u"])), of(0_i64..3)).prop_map(|(activation, topic, due)| StoredWait {
        topic: topic.map(str::to_owned),
        due: due.map(at),
        ..wait(activation)
    })
}

fn shadow() -> BoxedStrategy<ShadowWrite> {
    let value = prop_oneof![2 => shadow_value().prop_map(Some), 1 => Just(None)];
    let workflow = prop_oneof![5 => Just("orders"), 1 => Just("other")];
    (workflow, select(vec!["a", "b"]), value)
        .prop_map(|(workflow, name, value)| ShadowWrite {
            workflow: workflow.into(),
            name: name.into(),
            value,
        })
        .boxed()
}

fn shadow_value() -> BoxedStrategy<ShadowValue> {
    let texts = select(vec!["", "x", "X", "ü"]).prop_map(ShadowValue::from);
    let numbers = select(vec![0.0, 1.0, 1.5, -1e300]).prop_map(ShadowValue::from);
    prop_oneof![texts, numbers, any::<bool>().prop_map(ShadowValue::from)].boxed()
}

/// Draws filters on shadow columns: equalities, ranges and prefixes.
fn shadow_filter() -> BoxedStrategy<ShadowFilter> {
    let bound = || {
        shadow_value().prop_flat_map(|value| {
            select(vec![Bound::Unbounded, Bound::Included(value.clone()), Bound::Excluded(value)])
        })
    };
    let range = (bound(), bound()).prop_map(|(from, to)| {
        let number = |bound: &Bound<ShadowValue>| match bound {
            Bound::Included(ShadowValue::Number(number)) => Bound::Included(*number),
            Bound::Excluded(ShadowValue::Number(number)) => Bound::Excluded(*number),
            _ => Bound::Unbounded,
        };
        let text = |bound: Bound<ShadowValue>| match bound {
            Bound::Included(ShadowValue::Text(text)) => Bound::Included(text),
            Bound::Excluded(ShadowValue::Text(text)) => Bound::Excluded(text),
            _ => Bound::Unbounded,
        };
        match (number(&from), number(&to)) {
            (Bound::Unbounded, Bound::Unbounded) => ShadowCondition::Texts { from: text(from), to: text(to) },
            (from, to) => ShadowCondition::Numbers { from, to },
        }
    });
    let condition = prop_oneof![2 => shadow_value().prop_map(ShadowCondition::Equals), 3 => range];
    let name = select(vec!["a", "b"]).prop_map(Into::into);
    (name, condition).prop_map(|(name, is)| ShadowFilter { name, is }).boxed()
}

/// Draws corrections of shadow columns.
fn refills() -> impl Strategy<Value = CleanupKind> {
    let value = prop_oneof![
        shadow_value().prop_map(RefillColumn::Set),
        shadow_value().prop_map(RefillColumn::SetIfMissing)
    ];
    let columns = btree_map(select(vec!["a", "b"]), value, 0..3);
    let refill = (a_run(), 0_u64..4, columns).prop_map(|(run, version, columns)| ShadowRefill {
        run,
        version,
        workflow: "orders".into(),
        columns: columns.into_iter().map(|(name, value)| (name.into(), value)).collect(),
    });
    btree_map(a_run(), refill, 0..3).prop_map(|refills| {
        CleanupKind::Shadows(
            refills.into_iter().map(|(run, refill)| ShadowRefill { run, ..refill }).collect(),
        )
    })
}

fn send() -> impl Strategy<Value = SendMessage> {
    let bodies = vec(any::<u8>(), 0..5).prop_map(Bytes::from);
    let missing = prop_oneof![4 => Just(OnMissingRun::Drop), 1 => Just(OnMissingRun::Refuse)];
    (a_run(), bodies, of(second()), any::<bool>(), missing).prop_map(
        |(to, body, expires_at, counts, missing)| SendMessage {
            to,
            message: NewMessage { body, expires_at, counts, ..message("signal") },
            missing,
        },
    )
}

fn cell_key() -> impl Strategy<Value = CellKey> {
    let owner = prop_oneof![
        4 => Just((Space::Kv, "ns".to_owned())),
        1 => Just((Space::Execution, run(1).to_string())),
        1 => Just((Space::Workflow, "orders".to_owned())),
    ];
    (owner, select(vec!["a", "ab", "b%"])).prop_map(|((space, owner), key)| CellKey {
        space,
        owner,
        key: key.to_owned(),
    })
}

fn value() -> impl Strategy<Value = Value> {
    select(vec![
        json!(null),
        json!(1),
        json!("text"),
        json!([1]),
        json!({"a": 1}),
        json!(i64::MAX),
        json!(0.5),
    ])
}

fn cell_op() -> impl Strategy<Value = CellOp> {
    let ttl = prop_oneof![Just(Ttl::Forever), Just(Ttl::Keep), second().prop_map(Ttl::Until)];
    let types = select(vec![ValueType::String, ValueType::Number, ValueType::Boolean, ValueType::Json]);
    let by = select(vec![Number::from(1), Number::from(-2), Number::from(i64::MAX)]);
    let field = (select(vec!["a", "b"]), value());
    prop_oneof![
        1 => Just(CellOp::Check),
        6 => (value(), types, ttl).prop_map(|(value, value_type, ttl)| CellOp::Set { value, value_type, ttl }),
        2 => Just(CellOp::Delete),
        4 => by.prop_map(|by| CellOp::Increment { by }),
        1 => field.prop_map(|(name, value)| CellOp::Merge { fields: [(name.to_owned(), value)].into_iter().collect() }),
        1 => value().prop_map(|item| CellOp::Append { item }),
        1 => Just(CellOp::RemoveFirst),
        1 => Just(CellOp::RemoveLast),
    ]
}

fn cell_write() -> impl Strategy<Value = CellWrite> {
    let expect = prop_oneof![
        8 => Just(Precondition::Anything),
        1 => Just(Precondition::Absent),
        1 => (0_u64..4).prop_map(Precondition::Live),
        1 => (0_u64..4).prop_map(Precondition::Exactly),
    ];
    let initial = (value(), any::<bool>())
        .prop_map(|(value, only_before_first_write)| Initial { value, only_before_first_write });
    (cell_key(), cell_op(), expect, weighted(0.2, initial), of(a_run()))
        .prop_map(|(key, op, expect, initial, by)| CellWrite { key, op, expect, initial, by })
}

fn result_binding() -> impl Strategy<Value = ResultBinding> {
    let part = select(vec![ResultPart::Value, ResultPart::Revision, ResultPart::Created]);
    let pointer = prop_oneof![8 => Just("/vars/n"), 1 => Just("/at/n"), 2 => Just("/new")];
    let operation = prop_oneof![8 => Just(0_usize), 1 => Just(1)];
    (operation, part, pointer).prop_map(|(operation, part, pointer)| ResultBinding {
        operation,
        part,
        pointer: pointer.to_owned(),
    })
}

fn document() -> impl Strategy<Value = DocumentWrite> {
    let run = prop_oneof![30 => Just(OWN), 1 => a_run()];
    let key = prop_oneof![30 => select(vec!["a", "b"]), 1 => Just("")];
    let tags = subsequence(vec!["x", "y"], 0..=2);
    let text = prop_oneof![3 => select(vec!["one", "two"]).prop_map(Some), 1 => Just(None)];
    (run, key, text, tags).prop_map(|(run, key, text, tags)| match text {
        Some(text) => tagged(run, key, text, &tags),
        None => remove(run, key),
    })
}

fn a_key() -> impl Strategy<Value = KeyWrite> {
    let lifetime = prop_oneof![
        second().prop_map(KeyLifetime::Until),
        a_run().prop_map(KeyLifetime::WithRun),
        (second(), a_run()).prop_map(|(until, run)| KeyLifetime::UntilWithRun(until, run)),
    ];
    (select(vec!["a", "b"]), 1_u8..3, lifetime)
        .prop_map(|(name, request, lifetime)| KeyWrite { lifetime, ..key(name, request) })
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        3 => a_run().prop_map(Ask::Load),
        3 => claim().prop_map(Ask::Claim),
        1 => expired().prop_map(Ask::DueTenant),
        2 => (a_process(), 0_u64..20).prop_map(|(process, seconds)| {
            Ask::Heartbeat(Heartbeat { process, now: at(0), lease_ms: seconds * 1_000 })
        }),
        3 => listing(),
        1 => handles().prop_map(Ask::Handles),
        2 => record(),
        2 => cleanup().prop_map(Ask::Cleanup),
    ]
}

fn claim() -> impl Strategy<Value = Claim> {
    let definitions = of(vec(select(vec!["orders", "other"]).prop_map(definition), 0..2));
    (weighted(0.8, a_process()), 0_u32..4, definitions, expired())
        .prop_map(|(by, limit, definitions, expired)| Claim { by, now: at(0), limit, definitions, expired })
}

fn run_filter() -> BoxedStrategy<RunFilter> {
    let workflow = of(select(vec!["orders", "other", "none"]).prop_map(Into::into));
    let found = prop_oneof![
        2 => Just(vec![]),
        1 => vec(shadow_filter(), 1..3),
    ];
    let without_prefix = of(select(vec!["", "o", "ord", "other", "x"]).prop_map(str::to_owned));
    let relatives = (of(a_run()), of(a_run()));
    let rare = || weighted(0.1, second());
    let times = (rare(), rare(), rare(), rare());
    let error = weighted(0.2, select(vec!["timeout", "http.*", "*", "none"]).prop_map(str::to_owned));
    let key = weighted(0.1, select(vec!["a", "b"]).prop_map(str::to_owned));
    let pinned = weighted(0.1, select(vec!["orders", "other"]).prop_map(definition));
    let id_prefix = select(vec!["0", "00000000-0000", "00000000000000000000000000000001", "7"]);
    let id_prefix = weighted(0.1, id_prefix.prop_map(|text| text.parse().unwrap()));
    let which = (workflow, without_prefix, vec(status(), 0..3), relatives, found);
    let more = (times, error, key, pinned, id_prefix, weighted(0.1, 1_u32..3));
    let filter =
        (which, more).prop_map(|(which, (times, error, start_key, definition, id_prefix, version))| {
            let (workflow, without_prefix, status, (parent, root), shadows) = which;
            let (created_after, created_before, updated_after, updated_before) = times;
            // A filter on shadow columns or on the version needs a workflow.
            let named = (!shadows.is_empty() || version.is_some()).then(|| "orders".into());
            let workflow = workflow.or(named);
            RunFilter {
                workflow,
                without_prefix,
                status,
                parent,
                root,
                id_prefix,
                version,
                definition,
                error,
                start_key,
                created_after,
                created_before: created_before
                    .filter(|before| created_after.is_none_or(|after| after < *before)),
                updated_after,
                updated_before: updated_before
                    .filter(|before| updated_after.is_none_or(|after| after < *before)),
                shadows,
            }
        });
    filter.boxed()
}

fn listing() -> BoxedStrategy<Ask> {
    let filter = prop_oneof![
        select(vec!["", "a", "b%", "%", "_"]).prop_map(|prefix| CellFilter::Prefix(prefix.to_owned())),
        select(vec!["a", "b%"]).prop_map(|key| CellFilter::Key(key.to_owned())),
    ];
    let cells =
        (cell_key(), filter, any::<bool>(), 0_u32..3).prop_map(|(key, filter, include_deleted, limit)| {
            let CellKey { space, owner, .. } = key;
            Ask::Cells(CellQuery { space, owner, filter, now: at(0), include_deleted, limit, cursor: None })
        });
    let order = of(select(vec![RunOrder::Asc, RunOrder::Desc]));
    let runs = (run_filter(), order, 0_u32..3).prop_map(|(filter, order, limit)| {
        Ask::Runs(Box::new(RunQuery { filter, order, limit, cursor: None }))
    });
    let run_counts = run_filter().prop_map(|filter| Ask::RunCounts(Box::new(filter)));
    let waits = (of(a_run()), of(select(vec!["t", "u"])), any::<bool>(), 0_u32..3);
    let waits = waits.prop_map(|(run, topic, by_due, limit)| {
        let all = if by_due { WaitFilter::Due } else { WaitFilter::All };
        let run = run.map_or(all, WaitFilter::Run);
        let of = topic.map_or(run, |topic| WaitFilter::Topic(topic.to_owned()));
        Ask::Waits(WaitQuery { of, limit, cursor: None })
    });
    let history = (a_run(), 0_u64..4, any::<bool>(), 0_u32..9).prop_map(|(run, from, with_state, limit)| {
        Ask::History(HistoryQuery { run, from, with_state, limit })
    });
    let which =
        (of(0_u64..6), of(select(vec!["a", "b"])), weighted(0.2, Just("note")), of(select(vec!["x", "y"])));
    let documents = (a_run(), which, 0_u32..3).prop_map(|(run, (at, key, kind, tag), limit)| {
        let (key, kind, tag) = (key.map(str::to_owned), kind.map(Into::into), tag.map(str::to_owned));
        Ask::Documents(DocumentQuery { run, at, key, kind, tag, limit, cursor: None })
    });
    let workflow = of(select(vec!["orders", "none"]).prop_map(Into::into));
    let definitions = (workflow, 0_u32..3).prop_map(|(workflow, limit)| Ask::Definitions(workflow, limit));
    let trail = (0_u32..3).prop_map(Ask::Audit);
    let seals = prop_oneof![(0_u32..3).prop_map(Ask::Unsealed), (0_u32..3).prop_map(Ask::Seals)];
    prop_oneof![
        1 => cells,
        2 => runs,
        1 => run_counts,
        1 => waits,
        1 => history,
        1 => documents,
        1 => definitions,
        1 => trail,
        1 => seals,
        2 => links(),
        1 => tally(),
    ]
    .boxed()
}

fn handles() -> BoxedStrategy<HandleQuery> {
    let workflow = of(select(vec!["orders", "other", "none"]).prop_map(Into::into));
    let shadows = prop_oneof![
        1 => Just(vec![]),
        1 => vec(shadow_filter(), 1..3),
    ];
    (workflow, of(a_run()), actor(), shadows, 0_u32..3)
        .prop_map(|(workflow, run, created_by, shadows, limit)| {
            // A filter on shadow columns needs a workflow.
            let named = (!shadows.is_empty()).then(|| "orders".into());
            let workflow = workflow.or(named);
            HandleQuery { workflow, run, created_by, shadows, limit, cursor: None }
        })
        .boxed()
}

fn links() -> BoxedStrategy<Ask> {
    let kind = || of(select(vec!["a", "b"]).prop_map(str::to_owned));
    let direction = select(vec![Direction::Forward, Direction::Reverse, Direction::Either]);
    let which = prop_oneof![
        1 => (kind(), kind()).prop_map(|(from, to)| LinkFilter::All { from, to }),
        3 => (a_thing(), direction, kind())
            .prop_map(|(end, direction, far)| LinkFilter::Of { end, direction, far }),
    ];
    (namespace(), which, of(relation()), 0_u32..4)
        .prop_map(|(namespace, which, relation, limit)| {
            Ask::Links(LinkQuery { namespace, which, relation, limit, cursor: None })
        })
        .boxed()
}

fn tally() -> impl Strategy<Value = Ask> {
    let what = prop_oneof![
        Just(CountQuery::Keys { now: at(0) }),
        Just(CountQuery::Links),
        namespace().prop_map(|namespace| CountQuery::Types { namespace }),
        namespace().prop_map(|namespace| CountQuery::Relations { namespace }),
        (0_u32..4).prop_map(|max| CountQuery::Runs { max }),
    ];
    (what, 0_u32..3).prop_map(|(of, limit)| Ask::Count(of, limit))
}

fn record() -> impl Strategy<Value = Ask> {
    let key = select(vec!["a", "b"]).prop_map(|key| RecordQuery::Key {
        operation: super::make::OPERATION.to_owned(),
        key: key.to_owned(),
        now: at(0),
    });
    let definition =
        select(vec!["orders", "other"]).prop_map(|text| RecordQuery::Definition(definition(text)));
    let shadows = prop_oneof![
        a_run().prop_map(RecordQuery::Shadows),
        vec(a_run(), 0..3).prop_map(RecordQuery::ShadowsOf)
    ];
    let handle = a_handle().prop_map(RecordQuery::Handle);
    let undelivered = (0_u32..3).prop_map(|limit| RecordQuery::Undelivered { now: at(0), limit });
    let alive = a_process().prop_map(|process| RecordQuery::AliveProcess { process, now: at(0) });
    prop_oneof![key, definition, shadows, handle, undelivered, alive].prop_map(Ask::Record)
}

fn cleanup() -> BoxedStrategy<Cleanup> {
    let some = select(vec![1_u32, 2, 100]);
    let horizon = || prop_oneof![second(), Just(at(500))];
    let what = prop_oneof![
        // A store may choose which of two cells that expired at the same time it converts first, so there is no small
        // limit.
        2 => Just((100, CleanupKind::Cells)),
        2 => some.clone().prop_map(|limit| (limit, CleanupKind::Keys)),
        1 => (some.clone(), second()).prop_map(|(limit, ended_before)| (limit, CleanupKind::Runs(crate::EndedBefore::all(ended_before)))),
        4 => (some.clone(), namespace(), horizon()).prop_map(|(limit, namespace, before)| {
            (limit, CleanupKind::Tombstones { namespace, before })
        }),
        3 => some.clone().prop_map(|limit| (limit, CleanupKind::Seal)),
        3 => (some.clone(), horizon()).prop_map(|(limit, expired_by)| (limit, CleanupKind::Handles { expired_by })),
        3 => refills().prop_map(|what| (1, what)),
        3 => (some, a_run(), 0_u64..4).prop_map(|(limit, run, keep)| (limit, CleanupKind::History { run, keep })),
    ];
    what.prop_map(|(limit, what)| Cleanup { now: at(0), limit, what }).boxed()
}
