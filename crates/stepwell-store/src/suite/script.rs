//! Random scripts, run on several stores at once: the same questions must get the same answers.
//!
//! The alphabets are small, so that calls meet: two tenants with the same ids, three runs, three cells, two keys,
//! three handles, four things to link, two processes, a clock that moves on. A decision may be made on a head that is no longer
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
use crate::commit::{Commit, CommitError, CommitId, CommitRef, NextState, Ownership, Step};
use crate::document::DocumentQuery;
use crate::handle::{HandleChange, HandleHash, HandleQuery, HandleWrite};
use crate::link::LinkQuery;
use crate::run::{Chain, Head, OpenWait, ProcessId, Status};
use crate::scope::TenantScope;
use crate::shadow::ShadowWrite;
use crate::store::{
    self, Beat, CellQuery, Claim, HistoryQuery, Page, Record, RecordQuery, RunQuery, Store, StoreError,
    Sweep, SweepWhat, Swept, WaitQuery,
};

/// In a script's documents: the run that the commit moves, or else the first that it begins.
pub const OWN: RunId = run(0);

/// In a script's handles: the fence that the handle is under by then, whatever that is.
pub const AS_READ: Option<u64> = Some(u64::MAX);

/// The handles of a script.
pub const HANDLES: [HandleHash; 3] = [hash(1), hash(2), hash(3)];

/// Calls to be made one after the other.
#[derive(Debug, Clone)]
pub struct Script(pub Vec<Line>);

/// One call of a script.
#[derive(Debug, Clone)]
pub struct Line {
    /// Seconds that pass before it.
    pub tick: i64,
    /// Whose call it is.
    pub tenant: u128,
    /// What is called.
    pub call: Call,
}

/// A call, as far as it is known before the script runs.
#[derive(Debug, Clone)]
pub enum Call {
    /// A commit, with a step on a head that the script has seen.
    Commit(Box<(Option<Move>, Commit)>),
    /// A commit that was made before, once more.
    Again(usize),
    /// What became of a commit that was made before.
    Outcome(usize),
    /// Anything else; its time is the script's.
    Ask(Ask),
}

/// A step on a run, its head still to be found.
#[derive(Debug, Clone)]
pub struct Move {
    /// The run.
    pub run: RunId,
    /// It may be a run that nobody has seen; if not, and it is one, another is taken.
    pub stray: bool,
    /// How many heads ago it is decided; `None` = the run is loaded for it.
    pub back: Option<usize>,
    /// The fence it names, counted from the head's.
    pub fence: Option<u64>,
    /// It is to know every message.
    pub in_order: bool,
    /// How many messages it takes, oldest first, if the run is loaded for it.
    pub take: usize,
    /// Messages it takes on good luck.
    pub guess: Vec<u64>,
    /// The next snapshot.
    pub next: Vec<NextState>,
    /// The status.
    pub status: Status,
    /// When to look again.
    pub wake: Option<Timestamp>,
    /// The owner.
    pub owner: Ownership,
    /// Tries.
    pub attempt: Option<Bytes>,
    /// The definition it changes to.
    pub definition: Option<DefinitionHash>,
    /// Waits that open.
    pub open: Vec<OpenWait>,
    /// Waits that close.
    pub close: Vec<u64>,
    /// Shadow columns that change.
    pub shadows: Vec<ShadowWrite>,
}

/// A call with all its arguments.
#[derive(Debug, Clone)]
pub enum Ask {
    Commit(Box<Commit>),
    Outcome(CommitRef),
    Load(RunId),
    Claim(Claim),
    Due(Vec<ProcessId>),
    Beat(Beat),
    Cells(CellQuery),
    Links(LinkQuery),
    Tally(store::Tally, u32),
    Runs(RunQuery),
    Waits(WaitQuery),
    History(HistoryQuery),
    Documents(DocumentQuery),
    Definitions(Option<Name>, u32),
    Handles(HandleQuery),
    Record(RecordQuery),
    Audit(u32),
    Unsealed(u32),
    Seals(u32),
    Sweep(Sweep),
}

/// How often a script's commits were applied, or refused for which reason; how often rows were sealed, keys
/// forgotten, or handles over.
pub type Tally = BTreeMap<String, usize>;

/// Two stores that do not agree.
#[derive(Debug)]
pub struct Difference {
    /// The call, by its place in the script; `None` = what was left at the end.
    pub line: Option<usize>,
    /// What was asked.
    pub asked: String,
    /// What the first store said.
    pub first: String,
    /// Which other store said something else.
    pub store: usize,
    /// What that one said.
    pub other: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { line, asked, first, store, other } = self;
        let same = first.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
        let part =
            |text: &str| text.chars().skip(same.saturating_sub(BEFORE)).take(SHOWN).collect::<String>();
        writeln!(f, "stores 0 and {store} differ at line {line:?}: {asked}")?;
        writeln!(f, "after {same} characters that are the same:")?;
        writeln!(f, "  store 0: {}", part(first))?;
        write!(f, "  store {store}: {}", part(other))
    }
}

/// How much of two answers is shown around the place where they begin to differ.
const SHOWN: usize = 1_000;
/// How much of that is from before it.
const BEFORE: usize = 400;

/// The seed of [`differential`], unless `STEPWELL_SEED` names another.
const SEED: u64 = 1;

/// Runs this many random scripts on pairs of fresh stores, and panics with the smallest one on which they differ.
///
/// The scripts are the same every time; `STEPWELL_SEED=<number>` tries others.
pub fn differential(cases: u32, one: impl AsyncFn() -> Fresh, other: impl AsyncFn() -> Fresh) -> Tally {
    let seed = std::env::var("STEPWELL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let total = std::cell::RefCell::new(Tally::new());
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

/// Runs a script on all stores, comparing every answer and, at the end, everything they show.
pub async fn compare(script: &Script, stores: &[Shared]) -> Result<Tally, Difference> {
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
            let (asked, first) = ("what is wrong in itself".to_owned(), "nothing should be".to_owned());
            return Err(Difference { line: None, asked, first, store, other: faults.join("; ") });
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
) -> Result<(), Difference> {
    let first = answers.next().unwrap_or_default();
    match answers.enumerate().find(|(_, other)| *other != first) {
        None => Ok(()),
        Some((index, other)) => {
            Err(Difference { line, asked: asked.to_owned(), first, store: index + 1, other })
        }
    }
}

/// What a store said, and the heads it gave.
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
    tally: Tally,
}

impl<'a> Player<'a> {
    fn new(stores: &'a [Shared]) -> Self {
        Player { stores, now: 0, heads: BTreeMap::new(), commits: Vec::new(), tally: Tally::new() }
    }

    /// Puts the question to every store.
    async fn ask(
        &mut self,
        line: Option<usize>,
        scope: TenantScope,
        ask: &Ask,
    ) -> Result<Answer, Difference> {
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
        if let Ask::Sweep(Sweep { what: SweepWhat::Runs { .. }, .. }) = ask {
            // A run that begins anew under an old id begins to count anew: heads of the old one mean nothing.
            self.heads.retain(|(of, _), _| *of != scope);
            self.commits.retain(|(of, _)| *of != scope);
        }
        Ok(answer)
    }

    /// The call with what only the running script knows; `None` = there is nothing to ask.
    async fn resolve(&mut self, line: &Line, number: usize) -> Result<Option<Ask>, Difference> {
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

    /// Handles are read for the writes that are to name the right fence. Each counts on the ones before it; what is to
    /// happen to a handle that is not there happens to one that is, or not at all.
    async fn name_fences(
        &mut self,
        scope: TenantScope,
        writes: Vec<HandleWrite>,
    ) -> Result<Vec<HandleWrite>, Difference> {
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
                HandleChange::Own(_) | HandleChange::Deliver(_) => fences[&handle].map(|fence| fence + 1),
                HandleChange::Shade(_) => fences[&handle],
                HandleChange::Take => None,
            };
            fences.insert(handle, after);
            named.push(HandleWrite { handle, expected, then });
        }
        Ok(named)
    }

    async fn step(&mut self, scope: TenantScope, planned: &Move) -> Result<Step, Difference> {
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
            attempt,
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
        let head = head.cloned().unwrap_or_else(|| nowhere(run));
        let fence = fence.map(|ahead| head.fence + ahead);
        let take = taken;
        Ok(Step {
            head,
            fence,
            in_order,
            next,
            status,
            wake,
            owner,
            attempt,
            definition,
            take,
            open,
            close,
            shadows,
        })
    }
}

/// A commit that is sent again. If nothing but its keys is in the way of that, they may be over, and it is applied
/// again; but the audit trail has its rows by its id, so then it must write none. The same goes for one that left its
/// trace in a handle, which may be as it was before.
fn unless_over(commit: Commit) -> Commit {
    let in_handle = !commit.handles.is_empty() && commit.record().is_none();
    if (commit.keys.is_empty() && !in_handle) || commit.step.is_some() || !commit.create.is_empty() {
        return commit;
    }
    Commit { audit: Vec::new(), cells: Vec::new(), links: Vec::new(), fills: Vec::new(), ..commit }
}

/// A head of a run that nobody has seen.
fn nowhere(run: RunId) -> Head {
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
            | Ask::Beat(Beat { now, .. })
            | Ask::Cells(CellQuery { now, .. })
            | Ask::Record(
                RecordQuery::Key { now, .. }
                | RecordQuery::Living { now, .. }
                | RecordQuery::Undelivered { now, .. },
            )
            | Ask::Tally(store::Tally::Keys { now }, _)
            | Ask::Sweep(Sweep { now, .. }) => *now = time,
            Ask::Commit(commit) => commit.at = time,
            Ask::Outcome(_)
            | Ask::Links(_)
            | Ask::Tally(..)
            | Ask::Unsealed(_)
            | Ask::Seals(_)
            | Ask::Load(_)
            | Ask::Due(_)
            | Ask::Runs(_)
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
        Ask::Outcome(reference) => only(said(store.outcome(scope, reference).await)),
        Ask::Load(run) => {
            let loaded = store.load(scope, run).await;
            let found = loaded.as_ref().ok().and_then(Option::as_ref);
            let heads = found.map(|loaded| loaded.head.clone()).into_iter().collect();
            let inbox = found.map(|loaded| loaded.inbox.iter().map(|message| message.seq).collect());
            Answer { text: said(loaded), heads, inbox: inbox.unwrap_or_default(), ..Answer::default() }
        }
        Ask::Claim(claim) => {
            let taken = store.claim(scope, claim).await;
            let heads =
                taken.iter().flat_map(|taken| &taken.items).map(|loaded| loaded.head.clone()).collect();
            Answer { text: said(taken), heads, ..Answer::default() }
        }
        Ask::Due(dead) => only(said(sorted(store.due(dead).await))),
        Ask::Beat(beat) => {
            let beaten = store.beat(beat).await;
            let living = beaten.as_ref().map_or(0, |beaten| beaten.living);
            let dead = sorted(beaten.map(|beaten| beaten.dead));
            only(format!("{living} live, {}", said(dead)))
        }
        Ask::Cells(query) => only(format!("{:?}", all_cells(store, scope, query).await)),
        Ask::Links(query) => only(format!("{:?}", all_links(store, scope, query).await)),
        Ask::Tally(of, limit) => only(format!("{:?}", tallied(store, scope, of, limit).await)),
        Ask::Runs(query) => only(format!("{:?}", all_runs(store, scope, query).await)),
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
            Answer { text: said(found), fence, ..Answer::default() }
        }
        Ask::Audit(limit) => only(format!("{:?}", all_audit(store, scope, limit).await)),
        Ask::Unsealed(limit) => only(format!("{:?}", all_unsealed(store, scope, limit).await)),
        Ask::Seals(limit) => only(format!("{:?}", all_seals(store, scope, limit).await)),
        Ask::Sweep(sweep) => {
            let name = match sweep.what {
                SweepWhat::Seal => Some("Sealed"),
                SweepWhat::Tombstones { .. } => Some("Forgotten"),
                SweepWhat::Handles { .. } => Some("Over"),
                _ => None,
            };
            let swept = store.sweep(scope, sweep).await;
            let applied = name.filter(|_| matches!(swept, Ok(Swept { count: 1.., .. }))).map(str::to_owned);
            Answer { text: said(swept), applied, ..Answer::default() }
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
        Err(CommitError::Store(error)) => Answer { text: said::<()>(Err(error)), ..Answer::default() },
        Err(CommitError::Unknown { .. }) => Answer { text: "unknown".to_owned(), ..Answer::default() },
    }
}

/// The fence of the handle that was read, if that was one.
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

/// An answer as text. What a store says about its own troubles is its own; which kind of trouble it is, is not.
fn said<T: Debug>(result: Result<T, StoreError>) -> String {
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
