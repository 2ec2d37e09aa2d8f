//! Parts of commits, made the same way every time: ids are counted and the clock stands where a case puts it.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde_json::{Number, Value, json};
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use uuid::Uuid;

use crate::cell::{CellKey, CellOp, CellWrite, Expect, Space, Ttl, ValueType};
use crate::commit::{
    AuditRow, Commit, CommitId, KeyWrite, Lives, Missing, NewMessage, NewRun, NextState, Ownership, Send,
    Step, StoredDefinition,
};
use crate::document::{DocumentOp, DocumentWrite};
use crate::handle::{HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite};
use crate::link::{Edge, Ends, Entity, LinkWrite};
use crate::run::{Head, OpenWait, ProcessId, Status};
use crate::scope::{TenantId, TenantScope};
use crate::shadow::ShadowWrite;

/// Makes commits with ids that count up.
#[derive(Debug, Default)]
pub struct Make {
    made: AtomicU64,
}

impl Make {
    /// Begins to count.
    pub fn new() -> Self {
        Make::default()
    }

    /// A commit that changes nothing yet, at second 0.
    pub fn commit(&self) -> Commit {
        self.commit_at(at(0))
    }

    /// A commit that changes nothing yet, at a time of one's own.
    pub fn commit_at(&self, at: Timestamp) -> Commit {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        Commit::new(CommitId(Uuid::from_u128(0xC0_0000 + u128::from(number))), at)
    }

    /// A commit that starts a run.
    pub fn create(&self, new: NewRun) -> Commit {
        Commit { create: vec![new], ..self.commit() }
    }

    /// A commit that moves a run.
    pub fn step(&self, step: Step) -> Commit {
        Commit { step: Some(step), ..self.commit() }
    }

    /// A commit that only writes cells.
    pub fn write(&self, cells: impl IntoIterator<Item = CellWrite>) -> Commit {
        Commit { cells: cells.into_iter().collect(), ..self.commit() }
    }

    /// A commit that only writes links.
    pub fn link(&self, links: impl IntoIterator<Item = LinkWrite>) -> Commit {
        Commit { links: links.into_iter().collect(), ..self.commit() }
    }

    /// A commit that only writes handles.
    pub fn handle(&self, handles: impl IntoIterator<Item = HandleWrite>) -> Commit {
        Commit { handles: handles.into_iter().collect(), ..self.commit() }
    }

    /// A commit that only sends messages.
    pub fn send(&self, send: impl IntoIterator<Item = Send>) -> Commit {
        Commit { send: send.into_iter().collect(), ..self.commit() }
    }
}

/// So many seconds after the suite's beginning of time, or before it.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + seconds * 1_000)
}

/// The tenant of most cases.
pub const ME: TenantScope = tenant(1);

/// A tenant.
pub const fn tenant(number: u128) -> TenantScope {
    TenantScope::vouched(TenantId::new(Uuid::from_u128(0x7E_0000 + number)))
}

/// A run's id; a higher number is a newer run.
pub const fn run(number: u128) -> RunId {
    RunId::new(Uuid::from_u128(0xA0_0000 + number))
}

/// A process's id.
pub const fn process(number: u128) -> ProcessId {
    ProcessId(Uuid::from_u128(0xB0_0000 + number))
}

/// The hash of a definition with this text.
pub fn definition(text: &str) -> DefinitionHash {
    DefinitionHash::of(text.as_bytes())
}

/// A definition with this text.
pub fn stored(text: &str) -> StoredDefinition {
    let body = Bytes::copy_from_slice(text.as_bytes());
    StoredDefinition { hash: definition(text), workflow: text.into(), version: 1, body, publisher: None }
}

/// Bytes of a text.
pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A checkpoint whose state, entry and place all show this text.
pub fn next(text: &str) -> NextState {
    NextState {
        state: json!({"at": text, "vars": {}}).to_string().into(),
        entry: json!({"entered": text}).to_string().into(),
        places: vec![Name::from(text)],
    }
}

/// A checkpoint whose state has nothing in common with that of another number, so that it is stored whole.
pub fn unlike(number: u64) -> NextState {
    let noise = |n: u64| (number * 7_919 + n * n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let text: String = (0..90).map(|n| format!("{:x}", noise(n))).collect();
    NextState { state: bytes(&text), ..next("unlike") }
}

/// A waiting run of workflow `orders`.
pub fn new_run(run: RunId) -> NewRun {
    NewRun {
        run,
        workflow: "orders".into(),
        definition: definition("orders"),
        version: 0,
        first: next("created"),
        status: Status::Waiting,
        wake: None,
        owner: None,
        parent: None,
        root: run,
        attempt: None,
        open: Vec::new(),
        shadows: Vec::new(),
    }
}

/// A run that is due at this second.
pub fn due_run(run: RunId, seconds: i64) -> NewRun {
    NewRun { status: Status::Running, wake: Some(at(seconds)), ..new_run(run) }
}

/// A step to the next version that changes nothing else.
pub fn step(head: &Head, text: &str) -> Step {
    Step { next: vec![next(text)], ..attempt(head, None) }
}

/// A step that changes only the attempt record.
pub fn attempt(head: &Head, attempt: Option<&str>) -> Step {
    Step {
        head: head.clone(),
        fence: None,
        in_order: false,
        next: Vec::new(),
        status: head.status,
        wake: head.wake,
        owner: Ownership::Keep,
        attempt: attempt.map(bytes),
        definition: None,
        take: Vec::new(),
        open: Vec::new(),
        close: Vec::new(),
        shadows: Vec::new(),
    }
}

/// A step that ends the run.
pub fn end(head: &Head) -> Step {
    Step { status: Status::Completed, wake: None, owner: Ownership::Release, ..step(head, "end") }
}

/// A message that counts.
pub fn message(topic: &str) -> NewMessage {
    NewMessage { topic: topic.to_owned(), body: bytes(topic), expires_at: None, counts: true }
}

/// A message to a run that must be there.
pub fn to(run: RunId, topic: &str) -> Send {
    Send { to: run, message: message(topic), missing: Missing::Refuse }
}

/// An open wait.
pub fn wait(activation: u64) -> OpenWait {
    OpenWait {
        activation,
        place: "review".into(),
        since: at(0),
        until: Some(at(60)),
        detail: bytes(&format!("{{\"for\":{activation}}}")),
        topic: None,
    }
}

/// A shadow column of a run of `orders` that holds something.
pub fn shade(name: &str, value: impl Into<ShadowValue>) -> ShadowWrite {
    ShadowWrite { value: Some(value.into()), ..unshade(name) }
}

/// A shadow column of a run of `orders` that holds nothing any more.
pub fn unshade(name: &str) -> ShadowWrite {
    ShadowWrite { workflow: "orders".into(), name: name.into(), value: None }
}

/// What a handle is found by; a higher number comes later in the order.
pub const fn hash(number: u8) -> HandleHash {
    HandleHash([number; 32])
}

/// The flow of this number, one of `orders`, that rests behind the handle of the same number.
pub fn flow(number: u8) -> HandleRow {
    HandleRow {
        handle: hash(number),
        kind: HandleKind::Flow,
        run: run(number.into()),
        workflow: "orders".into(),
        definition: definition("orders"),
        state: bytes(&format!("{{\"flow\":{number}}}")),
        expires_at: None,
        owner: None,
        fence: 0,
        deliver_at: None,
        delivery: None,
        created_at: at(0),
        created_by: None,
        updated_at: at(0),
        updated_by: None,
        commit: CommitId(Uuid::nil()),
    }
}

/// The handle of this number, that leads to a run of `orders`.
pub fn leading(number: u8, run: RunId) -> HandleRow {
    HandleRow { kind: HandleKind::Link, run, ..flow(number) }
}

/// Puts a handle that is not there.
pub fn rest(row: HandleRow) -> HandleWrite {
    HandleWrite { expected: None, ..rest_on(0, row, Vec::new()) }
}

/// Puts a handle that is there under this fence, with shadow columns of its flow.
pub fn rest_on(fence: u64, row: HandleRow, shadows: Vec<ShadowWrite>) -> HandleWrite {
    let handle = row.handle;
    HandleWrite { handle, expected: Some(fence), then: HandleChange::Put(Box::new(row), shadows) }
}

/// Gives the handle of this number to a process.
pub fn own(number: u8, fence: u64, process: ProcessId) -> HandleWrite {
    HandleWrite { handle: hash(number), expected: Some(fence), then: HandleChange::Own(Some(process)) }
}

/// What is behind the handle of this number is to be sent out at this second.
pub fn deliver(number: u8, fence: u64, seconds: i64) -> HandleWrite {
    let then = HandleChange::Deliver(Some((at(seconds), bytes("sealed"))));
    HandleWrite { handle: hash(number), expected: Some(fence), then }
}

/// Uses the handle of this number up.
pub fn use_up(number: u8, fence: u64) -> HandleWrite {
    HandleWrite { handle: hash(number), expected: Some(fence), then: HandleChange::Take }
}

/// The namespace of most cells.
pub const NAMESPACE: &str = "ns";

/// A cell of the key-value store.
pub fn cell(key: &str) -> CellKey {
    CellKey { space: Space::Kv, owner: NAMESPACE.to_owned(), key: key.to_owned() }
}

/// An operation that expects nothing.
pub fn write(key: &str, op: CellOp) -> CellWrite {
    CellWrite { key: cell(key), op, expect: Expect::Anything, initial: None, by: None }
}

/// Sets a value that stays.
pub fn set(key: &str, value: impl Into<Value>) -> CellWrite {
    write(key, CellOp::Set { value: value.into(), value_type: ValueType::Json, ttl: Ttl::Forever })
}

/// Sets a value that expires at this second.
pub fn set_until(key: &str, value: impl Into<Value>, seconds: i64) -> CellWrite {
    let ttl = Ttl::Until(at(seconds));
    write(key, CellOp::Set { value: value.into(), value_type: ValueType::Json, ttl })
}

/// Adds a number.
pub fn increment(key: &str, by: impl Into<Number>) -> CellWrite {
    write(key, CellOp::Increment { by: by.into() })
}

/// Deletes.
pub fn delete(key: &str) -> CellWrite {
    write(key, CellOp::Delete)
}

/// A thing, written `type/id`.
pub fn thing(text: &str) -> Entity {
    let (kind, id) = text.split_once('/').expect("a thing is written `type/id`");
    Entity::new(kind, id)
}

/// An edge of the usual namespace.
pub fn edge(from: &str, relation: &str, to: &str) -> Edge {
    Edge::new(NAMESPACE, thing(from), thing(to), relation)
}

/// The id of a link that was created under this number.
pub const fn link_id(number: u128) -> Uuid {
    Uuid::from_u128(0xD0_0000 + number)
}

/// Upserts a link; the number is its id if it is new, and an attribute in any case.
pub fn upsert(number: u32, edge: Edge) -> LinkWrite {
    LinkWrite::Upsert { edge, id: link_id(number.into()), attributes: json!({ "n": number }), by: None }
}

/// Links of the usual namespace, by what they have in common.
pub fn ends(from: Option<&str>, relation: Option<&str>, to: Option<&str>) -> Ends {
    let (from, to) = (from.map(thing), to.map(thing));
    Ends { namespace: NAMESPACE.to_owned(), from, to, relation: relation.map(str::to_owned) }
}

/// Deletes links of the usual namespace.
pub fn unlink(from: Option<&str>, relation: Option<&str>, to: Option<&str>) -> LinkWrite {
    LinkWrite::Delete { ends: ends(from, relation, to), by: None }
}

/// The operation of most keys.
pub const OPERATION: &str = "start";

/// A key for a request, told apart by its number; it holds for a minute.
pub fn key(key: &str, request: u8) -> KeyWrite {
    KeyWrite {
        operation: OPERATION.to_owned(),
        key: key.to_owned(),
        request: [request; 32],
        answer: bytes(&format!("answer {request}")),
        lives: Lives::Until(at(60)),
    }
}

/// Shows a note with this text, untagged.
pub fn put(run: RunId, key: &str, text: &str) -> DocumentWrite {
    tagged(run, key, text, &[])
}

/// Shows a note with this text and these tags.
pub fn tagged(run: RunId, key: &str, text: &str, tags: &[&str]) -> DocumentWrite {
    let body = json!({ "text": text }).to_string().into();
    let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    DocumentWrite { run, key: key.to_owned(), op: DocumentOp::Put { kind: "note".into(), body, tags } }
}

/// Shows nothing under a key any more.
pub fn remove(run: RunId, key: &str) -> DocumentWrite {
    DocumentWrite { run, key: key.to_owned(), op: DocumentOp::Remove }
}

/// A row of the audit trail.
pub fn audit(subject: &str) -> AuditRow {
    AuditRow {
        operation: "set".to_owned(),
        subject: subject.to_owned(),
        actor: Some("ann".to_owned()),
        run: None,
        detail: bytes("{}"),
    }
}
