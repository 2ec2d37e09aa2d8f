//! Builders for parts of commits. They are deterministic: ids are counted, and each case sets the time.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde_json::{Number, Value, json};
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use uuid::Uuid;

use crate::cell::{CellKey, CellOp, CellWrite, Precondition, Space, Ttl, ValueType};
use crate::commit::{
    AuditRow, Commit, CommitId, KeyLifetime, KeyWrite, NewMessage, NewRun, NextState, OnMissingRun,
    Ownership, RunUpdate, SendMessage, StoredDefinition,
};
use crate::document::{DocumentOp, DocumentWrite};
use crate::handle::{HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite};
use crate::link::{Entity, LinkEdge, LinkEnds, LinkWrite};
use crate::run::{Head, ProcessId, Status, StoredWait};
use crate::scope::{TenantId, TenantScope};
use crate::shadow::ShadowWrite;

/// Builds commits with consecutive ids.
#[derive(Debug, Default)]
pub struct Make {
    made: AtomicU64,
}

impl Make {
    /// Starts counting ids at 1.
    pub fn new() -> Self {
        Make::default()
    }

    /// Builds an empty commit at second 0.
    pub fn commit(&self) -> Commit {
        self.commit_at(at(0))
    }

    /// Builds an empty commit at this time.
    pub fn commit_at(&self, at: Timestamp) -> Commit {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        Commit::new(CommitId(Uuid::from_u128(0xC0_0000 + u128::from(number))), at)
    }

    /// Builds a commit that starts a run.
    pub fn create(&self, new: NewRun) -> Commit {
        Commit { create: vec![new], ..self.commit() }
    }

    /// Builds a commit with a step of a run.
    pub fn step(&self, step: RunUpdate) -> Commit {
        Commit { step: Some(step), ..self.commit() }
    }

    /// Builds a commit that only writes cells.
    pub fn write(&self, cells: impl IntoIterator<Item = CellWrite>) -> Commit {
        Commit { cells: cells.into_iter().collect(), ..self.commit() }
    }

    /// Builds a commit that only writes links.
    pub fn link(&self, links: impl IntoIterator<Item = LinkWrite>) -> Commit {
        Commit { links: links.into_iter().collect(), ..self.commit() }
    }

    /// Builds a commit that only writes handles.
    pub fn handle(&self, handles: impl IntoIterator<Item = HandleWrite>) -> Commit {
        Commit { handles: handles.into_iter().collect(), ..self.commit() }
    }

    /// Builds a commit that only sends messages.
    pub fn send(&self, send: impl IntoIterator<Item = SendMessage>) -> Commit {
        Commit { send: send.into_iter().collect(), ..self.commit() }
    }
}

/// Returns the time this many seconds after the suite's epoch, or before it if negative.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + seconds * 1_000)
}

/// The tenant of most cases.
pub const ME: TenantScope = tenant(1);

/// Returns the scope of the tenant with this number.
pub const fn tenant(number: u128) -> TenantScope {
    TenantScope::trusted(TenantId::new(Uuid::from_u128(0x7E_0000 + number)))
}

/// Returns a run's id. A higher number is a newer run.
pub const fn run(number: u128) -> RunId {
    RunId::new(Uuid::from_u128(0xA0_0000 + number))
}

/// Returns the id of the process with this number.
pub const fn process(number: u128) -> ProcessId {
    ProcessId(Uuid::from_u128(0xB0_0000 + number))
}

/// Returns the hash of a definition with this text.
pub fn definition(text: &str) -> DefinitionHash {
    DefinitionHash::of(text.as_bytes())
}

/// Builds a definition with this text.
pub fn stored(text: &str) -> StoredDefinition {
    let body = Bytes::copy_from_slice(text.as_bytes());
    StoredDefinition { hash: definition(text), workflow: text.into(), version: 1, body, publisher: None }
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Builds a checkpoint whose state, entry and place all contain this text.
pub fn next(text: &str) -> NextState {
    NextState {
        state: json!({"at": text, "vars": {}}).to_string().into(),
        entry: json!({"entered": text}).to_string().into(),
        places: vec![Name::from(text)],
    }
}

/// Builds a checkpoint whose state has nothing in common with that of another number, so that it is stored in full.
pub fn unrelated_state(number: u64) -> NextState {
    let noise = |n: u64| (number * 7_919 + n * n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let text: String = (0..90).map(|n| format!("{:x}", noise(n))).collect();
    NextState { state: bytes(&text), ..next("unlike") }
}

/// Builds a waiting run of workflow `orders`.
pub fn new_run(run: RunId) -> NewRun {
    NewRun {
        run,
        workflow: "orders".into(),
        definition: definition("orders"),
        version: 0,
        first: next("created"),
        status: Status::Waiting,
        error: None,
        wake: None,
        owner: None,
        parent: None,
        root: run,
        ledger: None,
        open: Vec::new(),
        shadows: Vec::new(),
    }
}

/// Builds a run that is due at this second.
pub fn due_run(run: RunId, seconds: i64) -> NewRun {
    NewRun { status: Status::Running, wake: Some(at(seconds)), ..new_run(run) }
}

/// Builds a step to the next version that changes nothing else.
pub fn step(head: &Head, text: &str) -> RunUpdate {
    RunUpdate { next: vec![next(text)], ..attempt(head, None) }
}

/// Builds a step that changes only the ledger.
pub fn attempt(head: &Head, ledger: Option<&str>) -> RunUpdate {
    RunUpdate {
        head: head.clone(),
        fence: None,
        in_order: false,
        next: Vec::new(),
        status: head.status,
        error: None,
        wake: head.wake,
        owner: Ownership::Keep,
        ledger: ledger.map(bytes),
        definition: None,
        take: Vec::new(),
        open: Vec::new(),
        close: Vec::new(),
        shadows: Vec::new(),
    }
}

/// Builds a step that completes the run.
pub fn end(head: &Head) -> RunUpdate {
    RunUpdate { status: Status::Completed, wake: None, owner: Ownership::Release, ..step(head, "end") }
}

/// Builds a message that counts against the inbox's limit.
pub fn message(topic: &str) -> NewMessage {
    NewMessage { topic: topic.to_owned(), body: bytes(topic), expires_at: None, counts: true }
}

/// Builds a message that refuses the commit if its run does not exist.
pub fn to(run: RunId, topic: &str) -> SendMessage {
    SendMessage { to: run, message: message(topic), missing: OnMissingRun::Refuse }
}

/// Builds an open wait without a topic.
pub fn wait(activation: u64) -> StoredWait {
    StoredWait {
        activation,
        place: "review".into(),
        since: at(0),
        until: Some(at(60)),
        detail: bytes(&format!("{{\"for\":{activation}}}")),
        topic: None,
        due: None,
    }
}

/// Builds a write that sets a shadow column of a run of `orders`.
pub fn set_shadow(name: &str, value: impl Into<ShadowValue>) -> ShadowWrite {
    ShadowWrite { value: Some(value.into()), ..unset_shadow(name) }
}

/// Builds a write that removes a shadow column of a run of `orders`.
pub fn unset_shadow(name: &str) -> ShadowWrite {
    ShadowWrite { workflow: "orders".into(), name: name.into(), value: None }
}

/// Returns the hash of the handle with this number. A higher number comes later in the order.
pub const fn hash(number: u8) -> HandleHash {
    HandleHash([number; 32])
}

/// Builds the row of a handle with the state of a flow of `orders`. Handle and flow have the same number.
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

/// Builds the row of an answer link to a run of `orders`.
pub fn answer_link(number: u8, run: RunId) -> HandleRow {
    HandleRow { kind: HandleKind::Link, run, ..flow(number) }
}

/// Puts a handle that does not exist yet.
pub fn put_handle(row: HandleRow) -> HandleWrite {
    HandleWrite { expected: None, ..put_handle_on(0, row, Vec::new()) }
}

/// Puts a handle that exists under this fence, with shadow columns of its flow.
pub fn put_handle_on(fence: u64, row: HandleRow, shadows: Vec<ShadowWrite>) -> HandleWrite {
    let handle = row.handle;
    HandleWrite { handle, expected: Some(fence), then: HandleChange::Put(Box::new(row), shadows) }
}

/// Reserves the handle with this number for a process.
pub fn own(number: u8, fence: u64, process: ProcessId) -> HandleWrite {
    HandleWrite { handle: hash(number), expected: Some(fence), then: HandleChange::SetOwner(Some(process)) }
}

/// Schedules a delivery of the handle with this number at this second.
pub fn deliver(number: u8, fence: u64, seconds: i64) -> HandleWrite {
    let then = HandleChange::Deliver(Some((at(seconds), bytes("sealed"))));
    HandleWrite { handle: hash(number), expected: Some(fence), then }
}

/// Uses up the handle with this number.
pub fn delete_handle(number: u8, fence: u64) -> HandleWrite {
    HandleWrite { handle: hash(number), expected: Some(fence), then: HandleChange::Take }
}

/// The namespace of most cells and links.
pub const NAMESPACE: &str = "ns";

/// Returns the name of a cell in the usual namespace.
pub fn cell(key: &str) -> CellKey {
    CellKey { space: Space::Kv, owner: NAMESPACE.to_owned(), key: key.to_owned() }
}

/// Builds an operation without a condition.
pub fn write(key: &str, op: CellOp) -> CellWrite {
    CellWrite { key: cell(key), op, expect: Precondition::Anything, initial: None, by: None }
}

/// Sets a value that never expires.
pub fn set(key: &str, value: impl Into<Value>) -> CellWrite {
    write(key, CellOp::Set { value: value.into(), value_type: ValueType::Json, ttl: Ttl::Forever })
}

/// Sets a value that expires at this second.
pub fn set_until(key: &str, value: impl Into<Value>, seconds: i64) -> CellWrite {
    let ttl = Ttl::Until(at(seconds));
    write(key, CellOp::Set { value: value.into(), value_type: ValueType::Json, ttl })
}

/// Adds a number to a cell.
pub fn increment(key: &str, by: impl Into<Number>) -> CellWrite {
    write(key, CellOp::Increment { by: by.into() })
}

/// Deletes a cell's value.
pub fn delete(key: &str) -> CellWrite {
    write(key, CellOp::Delete)
}

/// Parses an entity written `type/id`.
pub fn thing(text: &str) -> Entity {
    let (kind, id) = text.split_once('/').expect("an entity is written `type/id`");
    Entity::new(kind, id)
}

/// Builds an edge in the usual namespace.
pub fn edge(from: &str, relation: &str, to: &str) -> LinkEdge {
    LinkEdge::new(NAMESPACE, thing(from), thing(to), relation)
}

/// Returns the id of the link that is created with this number.
pub const fn link_id(number: u128) -> Uuid {
    Uuid::from_u128(0xD0_0000 + number)
}

/// Upserts a link. The number is its id if the link is new, and always its attribute.
pub fn upsert(number: u32, edge: LinkEdge) -> LinkWrite {
    LinkWrite::Upsert { edge, id: link_id(number.into()), attributes: json!({ "n": number }), by: None }
}

/// Selects links of the usual namespace by their ends and relation.
pub fn ends(from: Option<&str>, relation: Option<&str>, to: Option<&str>) -> LinkEnds {
    let (from, to) = (from.map(thing), to.map(thing));
    LinkEnds { namespace: NAMESPACE.to_owned(), from, to, relation: relation.map(str::to_owned) }
}

/// Deletes links of the usual namespace.
pub fn unlink(from: Option<&str>, relation: Option<&str>, to: Option<&str>) -> LinkWrite {
    LinkWrite::Delete { ends: ends(from, relation, to), by: None }
}

/// The operation of most idempotency keys.
pub const OPERATION: &str = "start";

/// Builds an idempotency key that expires at second 60. The number stands for the request.
pub fn key(key: &str, request: u8) -> KeyWrite {
    KeyWrite {
        operation: OPERATION.to_owned(),
        key: key.to_owned(),
        request: [request; 32],
        answer: bytes(&format!("answer {request}")),
        lifetime: KeyLifetime::Until(at(60)),
    }
}

/// Puts a document of type `note` with this text and no tags.
pub fn put(run: RunId, key: &str, text: &str) -> DocumentWrite {
    tagged(run, key, text, &[])
}

/// Puts a document of type `note` with this text and these tags.
pub fn tagged(run: RunId, key: &str, text: &str, tags: &[&str]) -> DocumentWrite {
    let body = json!({ "text": text }).to_string().into();
    let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    DocumentWrite { run, key: key.to_owned(), op: DocumentOp::Put { kind: "note".into(), body, tags } }
}

/// Removes the document under a key.
pub fn remove(run: RunId, key: &str) -> DocumentWrite {
    DocumentWrite { run, key: key.to_owned(), op: DocumentOp::Remove }
}

/// Builds a row of the audit trail.
pub fn audit(subject: &str) -> AuditRow {
    AuditRow {
        operation: "set".to_owned(),
        subject: subject.to_owned(),
        actor: Some("ann".to_owned()),
        run: None,
        detail: bytes("{}"),
    }
}
