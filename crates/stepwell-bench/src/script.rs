//! The data of commit workloads: a run with about 1 KB of state, of which each step replaces about 200 bytes with
//! random text.

use bytes::Bytes;
use stepwell_core::{DefinitionHash, HistoryEntry, Name, RunId, Timestamp};
use stepwell_store::{Commit, CommitId, Head, NewRun, NextState, Ownership, ProcessId, RunUpdate, Status};
use uuid::Uuid;

/// A small deterministic random number generator: the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns an id that sorts by creation order like the ids of the engine.
    pub(crate) fn id(&mut self, counter: u64) -> Uuid {
        Uuid::from_u128((u128::from(counter) << 64) | u128::from(self.next()))
    }
}

const FIELDS: usize = 5;
const FIELD_BYTES: usize = 190;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Returns about 200 bytes of text that hardly compresses.
pub(crate) fn random_text(random: &mut Random) -> String {
    let mut text = String::with_capacity(FIELD_BYTES);
    while text.len() < FIELD_BYTES {
        let mut bits = random.next();
        for _ in 0..10 {
            text.push(LETTERS[(bits & 63) as usize] as char);
            bits >>= 6;
        }
    }
    text
}

/// The state of one run: five fields, of which each step rewrites one.
#[derive(Debug, Clone)]
pub(crate) struct State {
    fields: [Vec<u8>; FIELDS],
    random: Random,
    pub(crate) version: u64,
}

impl State {
    /// Returns the initial state of a run. All later states follow from the seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = State { fields: Default::default(), random: Random::new(seed), version: 0 };
        (0..FIELDS).for_each(|field| state.rewrite(field));
        state
    }

    /// Advances to the next state.
    pub(crate) fn step(&mut self) {
        self.version += 1;
        self.rewrite(self.version as usize % FIELDS);
    }

    fn rewrite(&mut self, field: usize) {
        self.fields[field] = random_text(&mut self.random).into_bytes();
    }

    /// Returns the state as the JSON that is committed.
    pub(crate) fn bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(1_100);
        out.extend_from_slice(b"{\"version\":");
        out.extend_from_slice(self.version.to_string().as_bytes());
        for (index, field) in self.fields.iter().enumerate() {
            out.extend_from_slice(b",\"field");
            out.push(b'0' + index as u8);
            out.extend_from_slice(b"\":\"");
            out.extend_from_slice(field);
            out.push(b'"');
        }
        out.push(b'}');
        out.into()
    }
}

pub(crate) const PROCESS: ProcessId = ProcessId(Uuid::from_u128(7));

/// A generator of commits that create and advance runs like the engine does.
#[derive(Debug)]
pub(crate) struct Script {
    ids: Random,
    counter: u64,
    workflow: Name,
    places: Vec<Name>,
    transitions: Vec<Name>,
}

impl Script {
    pub(crate) fn new(seed: u64) -> Self {
        Script {
            ids: Random::new(seed),
            counter: 0,
            workflow: Name::from("bench"),
            places: vec![Name::from("working")],
            transitions: vec![Name::from("work")],
        }
    }

    fn commit(&mut self, at: Timestamp) -> Commit {
        self.counter += 1;
        let id = self.ids.id(self.counter);
        Commit::new(CommitId(id), at)
    }

    fn next_state(&self, state: &State, at: Timestamp, action: &str) -> NextState {
        let entry = HistoryEntry {
            version: state.version,
            action: action.to_owned(),
            at,
            entered: self.places.clone(),
            exited: self.places.clone(),
            transitions: self.transitions.clone(),
            payload: None,
            input: None,
            output: None,
            duration_us: Some(0),
            actor: None,
        };
        let entry = serde_json::to_vec(&entry).expect("a history entry is plain data").into();
        NextState { state: state.bytes(), entry, places: self.places.clone() }
    }

    /// Returns the commit that creates a run, owned and due.
    pub(crate) fn create(&mut self, run: RunId, state: &State, at: Timestamp) -> Commit {
        let mut commit = self.commit(at);
        commit.create.push(NewRun {
            run,
            workflow: self.workflow.clone(),
            definition: DefinitionHash::of(b"bench"),
            version: state.version,
            first: self.next_state(state, at, "__start"),
            status: Status::Running,
            error: None,
            wake: Some(at),
            owner: Some(PROCESS),
            parent: None,
            root: run,
            ledger: None,
            open: Vec::new(),
            shadows: Vec::new(),
        });
        commit
    }

    /// Returns the commit that advances a run by one step of its owner.
    pub(crate) fn step(&mut self, head: Head, state: &State, at: Timestamp) -> Commit {
        let mut commit = self.commit(at);
        commit.step = Some(RunUpdate {
            fence: Some(head.fence),
            in_order: false,
            next: vec![self.next_state(state, at, "__auto:work")],
            status: head.status,
            error: None,
            wake: head.wake,
            owner: Ownership::Keep,
            ledger: None,
            definition: None,
            take: Vec::new(),
            open: Vec::new(),
            close: Vec::new(),
            shadows: Vec::new(),
            head,
        });
        commit
    }
}
