//! Random scripts that run on several stores at once. All stores must give the same answers.
//!
//! The alphabets are small, so that calls collide: two tenants with the same ids, three runs, three cells, two keys,
//! three handles, four entities, two processes, and a clock that advances. A decision may use a head that is no longer
//! current.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use bytes::Bytes;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};

use super::ask::{
    all_audit, all_cells, all_definitions, all_documents, all_handles, all_history, all_links, all_runs,
    all_seals, all_unsealed, all_waits, tallied,
};
use super::dump::{Dump, Names, dump};
use super::make::{at, hash, run, tenant};
pub use super::random::scripts;
use super::{Fresh, Shared};
use crate::commit::{Commit, CommitError, CommitId, CommitRef, NextState, Ownership, RunUpdate};
use crate::document::DocumentQuery;
use crate::handle::{HandleChange, HandleHash, HandleQuery, HandleWrite};
use crate::link::LinkQuery;
use crate::run::{Chain, Head, ProcessId, Status, StoredWait};
use crate::run_query::{RunFilter, RunQuery};
use crate::scope::TenantScope;
use crate::shadow::ShadowWrite;
use crate::store::{
    self, CellQuery, Claim, Cleanup, CleanupKind, CleanupResult, Heartbeat, HistoryQuery, Page, Record,
    RecordQuery, Store, StoreError, WaitQuery,
};

/// In a script's documents: stands for the run of the commit's step, or else the first run that it creates.
pub const OWN: RunId = run(0);

/// In a script's handle writes: stands for the handle's current fence.
pub const AS_READ: Option<u64> = Some(u64::MAX);

/// The handles of a script.
pub const HANDLES: [HandleHash; 3] = [hash(1), hash(2), hash(3)];

/// Calls that are made in order.
#[derive(Debug, Clone)]
pub struct Script(pub Vec<Line>);

/// One call of a script.
#[derive(Debug, Clone)]
pub struct Line {
    /// Seconds that pass before the call.
    pub tick: i64,
    /// The number of the tenant.
    pub tenant: u128,
    pub call: Call,
}

/// A call, as far as it is known before the script runs.
#[derive(Debug, Clone)]
pub enum Call {
    /// A commit, with a step on a head that the script has seen.
    Commit(Box<(Option<Move>, Commit)>),
    /// Repeats an earlier commit, counted back from the newest.
    Again(usize),
    /// Looks up an earlier commit, counted back from the newest.
    Outcome(usize),
    /// Any other call. The script sets its time.
    Ask(Ask),
}

/// A step on a run whose head is not known yet.
#[derive(Debug, Clone)]
pub struct Move {
    pub run: RunId,
    /// Permits a run that the script has not seen. Without it, such a run is replaced by a known one.
    pub stray: bool,
    /// The age of the head, counted back from the newest; `None` = the run is loaded first.
    pub back: Option<usize>,
    /// The step's fence, as an offset to the head's fence.
    pub fence: Option<u64>,
    pub in_order: bool,
    /// Number of messages to take, oldest first, if the run is loaded first.
    pub take: usize,
    /// Further sequence numbers to take; they may not exist.
    pub guess: Vec<u64>,
    pub next: Vec<NextState>,
    pub status: Status,
    pub wake: Option<Timestamp>,
    pub owner: Ownership,
    pub ledger: Option<Bytes>,
    pub definition: Option<DefinitionHash>,
    pub open: Vec<StoredWait>,
    pub close: Vec<u64>,
    pub shadows: Vec<ShadowWrite>,
}

/// A call with all its arguments.
#[derive(Debug, Clone)]
pub enum Ask {
    Commit(Box<Commit>),
    Outcome(CommitRef),
    Load(RunId),
    Claim(Claim),
    DueTenant(Vec<ProcessId>),
    Heartbeat(Heartbeat),
    Cells(CellQuery),
    Links(LinkQuery),
    Count(store::CountQuery, u32),
    Runs(Box<RunQuery>),
    RunCounts(Box<RunFilter>),
    Waits(WaitQuery),
    History(HistoryQuery),
    Documents(DocumentQuery),
    Definitions(Option<Name>, u32),
    Handles(HandleQuery),
    Record(RecordQuery),
    Audit(u32),
    Unsealed(u32),
    Seals(u32),
    Cleanup(Cleanup),
}

/// Counts per result: applied commits, refusals by reason, and maintenance that sealed rows, removed tombstones or
/// removed handles.
pub type CallCounts = BTreeMap<String, usize>;

/// A difference between two stores.
#[derive(Debug)]
pub struct Divergence {
    /// Index of the call in the script; `None` = the final state differs.
    pub line: Option<usize>,
    /// The call, formatted with `Debug`.
    pub asked: String,
    /// The answer of the first store.
    pub first: String,
    /// Index of the store that answered differently.
    pub store: usize,
    /// The answer of that store.
    pub other: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Divergence { line, asked, first, store, other } = self;
        let same = first.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
        let part =
            |text: &str| text.chars().skip(same.saturating_sub(BEFORE)).take(SHOWN).collect::<String>();
        writeln!(f, "stores 0 and {store} differ at line {line:?}: {asked}")?;
        writeln!(f, "the first {same} characters are equal, then:")?;
        writeln!(f, "  store 0: {}", part(first))?;
        write!(f, "  store {store}: {}", part(other))
    }
}

/// Number of characters of each answer that are shown around the difference.
const SHOWN: usize = 1_000;
/// Number of those characters that come before the difference.
const BEFORE: usize = 400;

/// The default seed of [`differential`]. `STEPWELL_SEED` overrides it.
const SEED: u64 = 1;

/// Runs this many random scripts on pairs of fresh stores. Panics with the smallest script for which they differ.
///
/// The scripts are the same every time; `STEPWELL_SEED=<number>` selects others.
pub fn differential(cases: u32, one: impl AsyncFn() -> Fresh, other: impl AsyncFn() -> Fresh) -> CallCounts {
    let seed = std::env::var("STEPWELL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let total = std::cell::RefCell::new(CallCounts::new());
    let result = TestRunner::new_with_rng(config, rng).run(&scripts(), |script| {
        let tally = runtime.block_on(async {
            let fresh = [one().await, other().await];
            compare(&script, &fresh.each_ref().map(|fresh| fresh.store().clone())).await
        });
        let tally = tally.map_err(|difference| TestCaseError::fail(difference.to_string()))?;
        for (name, count) in tally {
            *total.borrow_mut().entry(name).or_default() += count;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("with STEPWELL_SEED={seed}: {error}");
    }
    total.into_inner()
}

/// Runs a script on all stores. Compares every answer and, at the end, everything they show.
pub async fn compare(script: &Script, stores: &[Shared]) -> Result<CallCounts, Divergence> {
    let mut player = Player::new(stores);
    for (number, line) in script.0.iter().enumerate() {
        player.now += line.tick;
        let scope = tenant(line.tenant);
        let Some(ask) = player.resolve(line, number).await? else { continue };
        player.ask(Some(number), scope, &ask).await?;
    }
    for scope in [tenant(1), tenant(2)] {
        let mut dumps = Vec::new();
        for store in stores {
            dumps.push(dump(store, scope, &Names::default(), at(player.now)).await);
        }
        let mut faults = dumps.iter().map(Dump::faults).enumerate();
        if let Some((store, faults)) = faults.find(|(_, faults)| !faults.is_empty()) {
            let (asked, first) = ("inconsistencies of the store".to_owned(), "none expected".to_owned());
            return Err(Divergence { line: None, asked, first, store, other: faults.join("; ") });
        }
        let dumps = dumps.iter().map(|dump| format!("{dump:#?}"));
        same(None, &format!("everything of tenant {}", scope.tenant()), dumps)?;
    }
    Ok(player.tally)
}

fn same(
    line: Option<usize>,
    asked: &str,
    mut answers: impl Iterator<Item = String>,
) -> Result<(), Divergence> {
    let first = answers.next().unwrap_or_default();
    match answers.enumerate().find(|(_, other)| *other != first) {
        None => Ok(()),
        Some((index, other)) => {
            Err(Divergence { line, asked: asked.to_owned(), first, store: index + 1, other })
        }
    }
}

/// A store's answer, and the heads in it.
#[derive(Default)]
struct Answer {
    text: String,
    heads: Vec<Head>,
    inbox: Vec<u64>,
    fence: Option<u64>,
    applied: Option<String>,
}

struct Player<'a> {
    stores: &'a [Shared],
    now: i64,
    heads: BTreeMap<(TenantScope, RunId), Vec<Head>>,
    commits: Vec<(TenantScope, Commit)>,
    tally: CallCounts,
}

impl<'a> Player<'a> {
    fn new(stores: &'a [Shared]) -> Self {
        Player { stores, now: 0, heads: BTreeMap::new(), commits: Vec::new(), tally: CallCounts::new() }
    }

    /// Makes the call on every store and compares the answers.
    async fn ask(
        &mut self,
        line: Option<usize>,
        scope: TenantScope,
        ask: &Ask,
    ) -> Result<Answer, Divergence> {
        let mut answers = Vec::new();
        for store in self.stores {
            answers.push(answer(store, scope, ask.clone()).await);
        }
        let texts = answers.iter_mut().map(|answer| std::mem::take(&mut answer.text));
        same(line, &format!("{ask:?}"), texts)?;
        let answer = answers.swap_remove(0);
        for head in answer.heads.clone() {
            self.heads.entry((scope, head.run)).or_default().push(head);
        }
        if let Some(applied) = &answer.applied {
            *self.tally.entry(applied.clone()).or_default() += 1;
        }
        if let Ask::Cleanup(Cleanup { what: CleanupKind::Runs { .. }, .. }) = ask {
            // A new run with the id of a removed one starts again at revision 1, so its old heads are meaningless.
            self.heads.retain(|(of, _), _| *of != scope);
            self.commits.retain(|(of, _)| *of != scope);
        }
        Ok(answer)
    }

    /// Completes a call with what only the running script knows; `None` = there is nothing to call.
    async fn resolve(&mut self, line: &Line, number: usize) -> Result<Option<Ask>, Divergence> {
        let scope = tenant(line.tenant);
        let earlier = |back: &usize| {
            let mine: Vec<_> = self.commits.iter().filter(|(of, _)| *of == scope).collect();
            mine.iter().rev().nth(*back).map(|(_, commit)| commit.clone())
        };
        Ok(match &line.call {
            Call::Commit(change) => {
                let (planned, commit) = &**change;
                let mut commit = Commit { at: at(self.now), ..commit.clone() };
                commit.id = CommitId(uuid::Uuid::from_u128(0xC0_0000 + number as u128));
                if let Some(planned) = planned {
                    commit.step = Some(self.step(scope, planned).await?);
                }
                let moved = commit.step.as_ref().map(|step| step.head.run);
                let own = moved.or_else(|| commit.create.first().map(|new| new.run));
                let named = commit.documents.iter_mut().filter(|write| write.run == OWN);
                named.for_each(|write| write.run = own.unwrap_or(OWN));
                commit.handles = self.name_fences(scope, commit.handles).await?;
                self.commits.push((scope, commit.clone()));
                Some(Ask::Commit(commit.into()))
            }
            Call::Again(back) => {
                let again = |commit| Commit { at: at(self.now), ..unless_over(commit) };
                earlier(back).map(|commit| Ask::Commit(again(commit).into()))
            }
            Call::Outcome(back) => earlier(back).map(|commit| Ask::Outcome(commit.reference())),
            Call::Ask(ask) => Some(ask.clone().at(at(self.now))),
        })
    }

    /// Reads the handles and fills in the current fences. Each write takes the previous ones into account.
    ///
    /// A write to a handle that does not exist goes to an existing one instead, or is dropped.
    async fn name_fences(
        &mut self,
        scope: TenantScope,
        writes: Vec<HandleWrite>,
    ) -> Result<Vec<HandleWrite>, Divergence> {
        let mut fences = BTreeMap::new();
        for handle in HANDLES.into_iter().filter(|_| !writes.is_empty()) {
            let read = self.ask(None, scope, &Ask::Record(RecordQuery::Handle(handle))).await?;
            fences.insert(handle, read.fence);
        }
        let mut named = Vec::new();
        for HandleWrite { mut handle, mut expected, then } in writes {
            if expected == AS_READ {
                if !matches!(then, HandleChange::Put(..)) && fences[&handle].is_none() {
                    let there = fences.iter().find(|(_, fence)| fence.is_some());
                    let Some((other, _)) = there else { continue };
                    handle = *other;
                }
                expected = fences[&handle];
            }
            let after = match then {
                HandleChange::Put(..) => Some(fences[&handle].unwrap_or(0) + 1),
                HandleChange::SetOwner(_) | HandleChange::Deliver(_) => {
                    fences[&handle].map(|fence| fence + 1)
                }
                HandleChange::WriteShadows(_) => fences[&handle],
                HandleChange::Take => None,
            };
            fences.insert(handle, after);
            named.push(HandleWrite { handle, expected, then });
        }
        Ok(named)
    }

    async fn step(&mut self, scope: TenantScope, planned: &Move) -> Result<RunUpdate, Divergence> {
        let Move {
            run,
            stray,
            back,
            fence,
            in_order,
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
        } = planned.clone();
        let mut taken = guess;
        let known = |of: &RunId| self.heads.contains_key(&(scope, *of));
        let seen = self.heads.keys().find(|(of, _)| *of == scope).map(|(_, run)| *run);
        let run = if known(&run) || stray { run } else { seen.unwrap_or(run) };
        let mut back = back;
        if back.is_none() {
            let loaded = self.ask(None, scope, &Ask::Load(run)).await?;
            taken.extend(loaded.inbox.into_iter().take(take));
            back = Some(0);
        }
        let known = self.heads.get(&(scope, run));
        let head = known.and_then(|heads| heads.iter().rev().nth(back.unwrap_or(0)).or(heads.first()));
        let head = head.cloned().unwrap_or_else(|| unknown_head(run));
        let fence = fence.map(|ahead| head.fence + ahead);
        let take = taken;
        // A code is kept with the status `failed` only.
        let code = ["timeout", "http.404", "http.500"][next.len() % 3];
        Ok(RunUpdate {
            head,
            fence,
            in_order,
            next,
            status,
            error: Some(code.to_owned()),
            wake,
            owner,
            ledger,
            definition,
            take,
            open,
            close,
            shadows,
        })
    }
}

/// Prepares a commit that is sent again.
///
/// If only its keys can refuse it and they have expired, it is applied a second time. The audit trail already has rows
/// under its id, so it must not write any then. The same holds for a commit whose trace was in a handle that has
/// changed back.
fn unless_over(commit: Commit) -> Commit {
    let in_handle = !commit.handles.is_empty() && commit.record().is_none();
    if (commit.keys.is_empty() && !in_handle) || commit.step.is_some() || !commit.create.is_empty() {
        return commit;
    }
    Commit { audit: Vec::new(), cells: Vec::new(), links: Vec::new(), bindings: Vec::new(), ..commit }
}

/// Returns a head of a run that the script has not seen.
fn unknown_head(run: RunId) -> Head {
    Head {
        run,
        revision: 0,
        version: 0,
        fence: 0,
        owner: None,
        status: Status::Waiting,
        wake: None,
        inbox_seen: 0,
        state: Bytes::new(),
        chain: Chain { base: 0, bytes: 0 },
    }
}

impl Ask {
    fn at(mut self, time: Timestamp) -> Self {
        match &mut self {
            Ask::Claim(Claim { now, .. })
            | Ask::Heartbeat(Heartbeat { now, .. })
            | Ask::Cells(CellQuery { now, .. })
            | Ask::Record(
                RecordQuery::Key { now, .. }
                | RecordQuery::AliveProcess { now, .. }
                | RecordQuery::Undelivered { now, .. },
            )
            | Ask::Count(store::CountQuery::Keys { now }, _)
            | Ask::Cleanup(Cleanup { now, .. }) => *now = time,
            Ask::Commit(commit) => commit.at = time,
            Ask::Outcome(_)
            | Ask::Links(_)
            | Ask::Count(..)
            | Ask::Unsealed(_)
            | Ask::Seals(_)
            | Ask::Load(_)
            | Ask::DueTenant(_)
            | Ask::Runs(_)
            | Ask::RunCounts(_)
            | Ask::Waits(_)
            | Ask::History(_)
            | Ask::Documents(_)
            | Ask::Definitions(..)
            | Ask::Handles(_)
            | Ask::Record(_)
            | Ask::Audit(_) => {}
        }
        self
    }
}

async fn answer(store: &dyn Store, scope: TenantScope, ask: Ask) -> Answer {
    let only = |text| Answer { text, ..Answer::default() };
    match ask {
        Ask::Commit(commit) => committed(store, scope, *commit).await,
        Ask::Outcome(reference) => only(formatted(store.outcome(scope, reference).await)),
        Ask::Load(run) => {
            let loaded = store.load(scope, run).await;
            let found = loaded.as_ref().ok().and_then(Option::as_ref);
            let heads = found.map(|loaded| loaded.head.clone()).into_iter().collect();
            let inbox = found.map(|loaded| loaded.inbox.iter().map(|message| message.seq).collect());
            Answer { text: formatted(loaded), heads, inbox: inbox.unwrap_or_default(), ..Answer::default() }
        }
        Ask::Claim(claim) => {
            let taken = store.claim(scope, claim).await;
            let heads =
                taken.iter().flat_map(|taken| &taken.items).map(|loaded| loaded.head.clone()).collect();
            Answer { text: formatted(taken), heads, ..Answer::default() }
        }
        Ask::DueTenant(expired) => only(formatted(sorted(store.due(expired).await))),
        Ask::Heartbeat(beat) => {
            let membership = store.heartbeat(beat).await;
            let alive = membership.as_ref().map_or(0, |membership| membership.alive);
            let expired = sorted(membership.map(|membership| membership.expired));
            only(format!("{alive} live, {}", formatted(expired)))
        }
        Ask::Cells(query) => only(format!("{:?}", all_cells(store, scope, query).await)),
        Ask::Links(query) => only(format!("{:?}", all_links(store, scope, query).await)),
        Ask::Count(of, limit) => only(format!("{:?}", tallied(store, scope, of, limit).await)),
        Ask::RunCounts(filter) => {
            let query = RecordQuery::RunCounts(filter);
            only(formatted(store.records(scope, query).await))
        }
        Ask::Runs(query) => only(format!("{:?}", all_runs(store, scope, *query).await)),
        Ask::Waits(query) => only(format!("{:?}", all_waits(store, scope, query).await)),
        Ask::History(query) => only(format!("{:?}", all_history(store, scope, query).await)),
        Ask::Documents(query) => only(format!("{:?}", all_documents(store, scope, query).await)),
        Ask::Definitions(workflow, limit) => {
            only(format!("{:?}", all_definitions(store, scope, workflow, limit).await))
        }
        Ask::Handles(query) => only(format!("{:?}", all_handles(store, scope, query).await)),
        Ask::Record(query) => {
            let found = store.records(scope, query).await;
            let fence = found.as_ref().ok().and_then(read_fence);
            Answer { text: formatted(found), fence, ..Answer::default() }
        }
        Ask::Audit(limit) => only(format!("{:?}", all_audit(store, scope, limit).await)),
        Ask::Unsealed(limit) => only(format!("{:?}", all_unsealed(store, scope, limit).await)),
        Ask::Seals(limit) => only(format!("{:?}", all_seals(store, scope, limit).await)),
        Ask::Cleanup(cleanup) => {
            let name = match cleanup.what {
                CleanupKind::Seal => Some("Sealed"),
                CleanupKind::Tombstones { .. } => Some("Forgotten"),
                CleanupKind::Handles { .. } => Some("Over"),
                _ => None,
            };
            let cleaned = store.cleanup(scope, cleanup).await;
            let applied =
                name.filter(|_| matches!(cleaned, Ok(CleanupResult { count: 1.., .. }))).map(str::to_owned);
            Answer { text: formatted(cleaned), applied, ..Answer::default() }
        }
    }
}

async fn committed(store: &dyn Store, scope: TenantScope, commit: Commit) -> Answer {
    match store.commit(scope, commit).await {
        Ok(done) => {
            let heads = done.head.iter().chain(&done.created).cloned().collect();
            let applied = Some("Applied".to_owned());
            Answer { text: format!("{done:?}"), heads, applied, ..Answer::default() }
        }
        Err(CommitError::Refused(refused)) => {
            let text = format!("{refused:?}");
            let name = text.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
            Answer { text, applied: name, ..Answer::default() }
        }
        Err(CommitError::Store(error)) => Answer { text: formatted::<()>(Err(error)), ..Answer::default() },
        Err(CommitError::Unknown { .. }) => Answer { text: "unknown".to_owned(), ..Answer::default() },
    }
}

/// Returns the fence of the handle in the answer, if there is one.
fn read_fence(page: &Page<Record>) -> Option<u64> {
    page.items.iter().find_map(|record| match record {
        Record::Handle(row) => Some(row.fence),
        _ => None,
    })
}

fn sorted<T: Ord>(result: Result<Vec<T>, StoreError>) -> Result<Vec<T>, StoreError> {
    result.map(|mut items| {
        items.sort();
        items
    })
}

/// Formats an answer for the comparison. The kind of an error must be the same in all stores, its text need not.
fn formatted<T: Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(StoreError::Unavailable(_)) => "unavailable".to_owned(),
        Err(StoreError::Full(_)) => "full".to_owned(),
        Err(StoreError::Fatal(_)) => "fatal".to_owned(),
        Err(StoreError::Corrupt(_)) => "corrupt".to_owned(),
        Err(StoreError::Bad(_)) => "bad row".to_owned(),
        Err(StoreError::Schema(_)) => "schema".to_owned(),
        Err(StoreError::Invalid(_)) => "invalid".to_owned(),
    }
}
