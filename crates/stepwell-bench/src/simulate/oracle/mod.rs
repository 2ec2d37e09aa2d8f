//! The oracle: observes all writes to the store and reports violations of the model and of general rules.
//!
//! It reads the rows of the store and the log of the actions. It never queries the engine and shares no decision logic
//! with it.

mod attempts;
mod end;
mod moves;
mod rows;
mod signals;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::Value;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{HistoryEntry, RunId, Snapshot};
use stepwell_store::{
    Claim, Commit, CommitId, HistoryQuery, Loaded, MemoryStore, NewRun, Parent, ProcessId, RunUpdate, Status,
    Store, TenantScope,
};

pub(crate) use self::attempts::{Ending, FailedAttempt};

use self::attempts::Attempts;
use self::signals::Signals;
use super::model::{Flow, Places};
use super::process::number_of;
use super::tally::Tally;
use super::time::micros;
use super::trace::Trace;
use super::world::{Settings, at_once};

/// The observed state of a simulation.
pub(crate) struct Oracle {
    pub(crate) settings: Settings,
    /// `true` if this simulation has no faults.
    pub(crate) calm: bool,
    pub(crate) quiet_since: Option<i64>,
    pub(crate) runs: BTreeMap<RunId, Shadow>,
    /// The runs of each plan, by the plan's number.
    pub(crate) plans: BTreeMap<u64, Vec<RunId>>,
    attempts: Attempts,
    signals: Signals,
    /// The documents of each run: by key, the token of the attempt that wrote it.
    notes: BTreeMap<RunId, BTreeMap<&'static str, u64>>,
    /// Committed increments over all runs.
    counted: u64,
}

/// An applied commit with its context.
pub(crate) struct Applied<'a> {
    pub(crate) memory: &'a MemoryStore,
    pub(crate) commit: &'a Commit,
    pub(crate) process: usize,
    /// Time when the process sent the commit.
    pub(crate) issued: i64,
    pub(crate) now: i64,
}

/// The oracle's copy of a run, built from its commits.
pub(crate) struct Shadow {
    /// Short name for messages, such as `r3:chain`.
    pub(crate) name: String,
    pub(crate) flow: &'static Flow,
    pub(crate) version: u64,
    pub(crate) fence: u64,
    pub(crate) owner: Option<ProcessId>,
    pub(crate) status: Status,
    pub(crate) snapshot: Snapshot,
    revision: u64,
    /// The ledger: attempts, errors and deadline stored next to the state.
    ledger: Value,
    history: Vec<(CommitId, Bytes, Bytes)>,
    /// Time when the newest step was sent.
    issued: i64,
    /// Time when each activation began, and the fence at that time.
    entered: BTreeMap<ActivationId, (i64, u64)>,
    newest_activation: ActivationId,
    counted: u64,
    pub(crate) parent: Option<Parent>,
    pub(crate) begins: i64,
}

impl Shadow {
    pub(crate) fn places(&self) -> Places {
        places(&self.snapshot)
    }

    /// Returns `true` if nothing more happens to the run without a request.
    pub(crate) fn has_ended(&self) -> bool {
        self.snapshot.is_terminal() || self.status == Status::Failed
    }

    /// Returns the code of the error that stopped the run.
    pub(crate) fn stopped(&self) -> Option<&str> {
        self.ledger["stopped"]["error"]["code"].as_str()
    }
}

/// Returns the places of a snapshot, sorted, each with `true` if it waits.
fn places(snapshot: &Snapshot) -> Places {
    let waits = |status| status == stepwell_core::snapshot::ActivationStatus::Waiting;
    let mut places: Places =
        snapshot.activations().iter().map(|a| (a.place.to_string(), waits(a.status))).collect();
    places.sort();
    places
}

pub(crate) const SCOPE: TenantScope = TenantScope::single();

impl Oracle {
    pub(crate) fn new(settings: Settings, calm: bool) -> Self {
        Oracle {
            settings,
            calm,
            quiet_since: None,
            runs: BTreeMap::new(),
            plans: BTreeMap::new(),
            attempts: Attempts::default(),
            signals: Signals::default(),
            notes: BTreeMap::new(),
            counted: 0,
        }
    }

    /// Returns the short name of a run.
    pub(crate) fn name(&self, run: RunId) -> String {
        self.runs.get(&run).map_or_else(|| format!("run {run}"), |shadow| shadow.name.clone())
    }

    /// Returns a short description of a commit.
    pub(crate) fn name_of_commit(&self, commit: &Commit) -> String {
        match (&commit.step, commit.create.first(), commit.send.first()) {
            (Some(step), ..) => format!("a step of {}", self.name(step.head.run)),
            (None, Some(new), _) => format!("the start of a {}", new.workflow),
            (None, None, Some(send)) => format!("a message to {}", self.name(send.to)),
            (None, None, None) => "a commit".to_owned(),
        }
    }

    /// Checks and records an applied commit.
    pub(crate) fn applied(
        &mut self,
        applied: &Applied<'_>,
        trace: &mut Trace,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let commit = applied.commit;
        for new in &commit.create {
            self.born(applied, new, trace)?;
            tally.runs += 1;
            tally.children += u64::from(new.parent.is_some());
        }
        for audit in commit.audit.iter().filter(|audit| audit.operation == "run.retry") {
            audit.run.into_iter().for_each(|run| self.attempts.forgive(run));
        }
        let mut touched: BTreeSet<RunId> = commit.create.iter().map(|new| new.run).collect();
        if let Some(step) = &commit.step {
            self.stepped(applied, step, trace, tally)?;
            touched.insert(step.head.run);
        }
        touched.extend(commit.send.iter().map(|send| send.to));
        for run in touched {
            self.check_run(applied, run)?;
        }
        self.check_counters(applied)
    }

    /// Checks and records a new run.
    fn born(&mut self, applied: &Applied<'_>, new: &NewRun, trace: &mut Trace) -> Result<(), String> {
        let name = format!("r{}:{}", self.runs.len(), new.workflow);
        let (issued, now) = (applied.issued, applied.now);
        trace.line(now, format_args!("p{} starts {name} = {} (issued {issued})", applied.process, new.run));
        if self.runs.contains_key(&new.run) {
            return Err(format!("{name}: run {} was started twice", new.run));
        }
        let flow = Flow::of(&new.workflow).ok_or_else(|| format!("{name}: unknown workflow"))?;
        let snapshot = read_snapshot(&name, &new.first.state)?;
        let nowhere = (String::new(), false);
        let expected = flow.begins.enter(Places::new(), &nowhere);
        if new.version != 0 || places(&snapshot) != expected {
            return Err(format!("{name}: started as version {} in {:?}", new.version, places(&snapshot)));
        }
        let begins = issued.max(micros(snapshot.created_at()));
        self.check_parent(&name, applied, new)?;
        if let Some(plan) = snapshot.context()["plan"].as_u64() {
            let of_plan = self.plans.entry(plan).or_default();
            of_plan.push(new.run);
            if snapshot.context()["keyed"] == true && of_plan.len() > 1 {
                return Err(format!("{name}: a second run was started under the key of plan {plan}"));
            }
        }
        let entered =
            snapshot.activations().iter().map(|a| (a.id, (begins, u64::from(new.owner.is_some())))).collect();
        let newest_activation = snapshot.activations().iter().map(|a| a.id).max().unwrap_or_default();
        let shadow = Shadow {
            issued,
            name,
            flow,
            version: 0,
            revision: 1,
            fence: u64::from(new.owner.is_some()),
            owner: new.owner,
            status: new.status,
            snapshot,
            ledger: read_ledger(new.ledger.as_ref())?,
            history: vec![(applied.commit.id, new.first.entry.clone(), new.first.state.clone())],
            entered,
            newest_activation,
            counted: 0,
            parent: new.parent.clone(),
            begins,
        };
        self.runs.insert(new.run, shadow);
        Ok(())
    }

    /// Checks that a child starts in a step of its parent, and each child number once.
    fn check_parent(&self, name: &str, applied: &Applied<'_>, new: &NewRun) -> Result<(), String> {
        let Some(parent) = &new.parent else { return Ok(()) };
        if applied.commit.step.as_ref().map(|step| step.head.run) != Some(parent.run) {
            return Err(format!("{name}: a child was started without a step of {}", self.name(parent.run)));
        }
        let known = self.runs.values().filter_map(|other| other.parent.as_ref()).any(|other| other == parent);
        if known {
            return Err(format!(
                "{name}: child {} of {} already exists",
                parent.child,
                self.name(parent.run)
            ));
        }
        Ok(())
    }

    /// Checks and records a step, which may change only the row of the run.
    fn stepped(
        &mut self,
        applied: &Applied<'_>,
        step: &RunUpdate,
        trace: &mut Trace,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let run = step.head.run;
        let Some(shadow) = self.runs.get(&run) else {
            return Err(format!("run {run} moved but was never started"));
        };
        let name = shadow.name.clone();
        let loaded = at_once(applied.memory.load(SCOPE, run)).map_err(|error| format!("{name}: {error}"))?;
        let loaded = loaded.ok_or_else(|| format!("{name}: the run no longer exists"))?;
        let entries = step.next.iter().map(|next| read_entry(&name, &next.entry));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        say(trace, applied, &name, step, &loaded, &entries);
        check_owner(shadow, applied, step)?;
        let (version, revision) = (loaded.head.version, loaded.head.revision);
        let expected = shadow.version + step.next.len() as u64;
        if version != expected || revision != shadow.revision + 1 || loaded.head.fence < shadow.fence {
            return Err(format!(
                "{name}: version {} follows version {}, revision {revision} follows {}, fence {} follows {}",
                version, shadow.version, shadow.revision, loaded.head.fence, shadow.fence
            ));
        }
        let ledger = read_ledger(loaded.ledger.as_ref())?;
        self.check_ledger(applied, run, &ledger, tally)?;
        for entry in &entries {
            let Some(shadow) = self.runs.get(&run) else { return Ok(()) };
            self.signals.taken(shadow, applied, step, entry)?;
            self.moved(applied, run, &loaded, entry, tally)?;
        }
        if self.runs.get(&run).is_some_and(|shadow| shadow.history_state() != Some(&loaded.head.state)) {
            return Err(format!("{name}: its state differs from that of its last version"));
        }
        let Some(shadow) = self.runs.get_mut(&run) else { return Ok(()) };
        shadow.issued = applied.issued;
        shadow.version = version;
        shadow.revision = revision;
        shadow.fence = loaded.head.fence;
        shadow.owner = loaded.head.owner;
        shadow.status = loaded.head.status;
        shadow.ledger = ledger;
        Ok(())
    }

    /// Checks and records the runs that a process has claimed.
    pub(crate) fn claimed(
        &mut self,
        now: i64,
        process: usize,
        claim: &Claim,
        taken: &[Loaded],
        trace: &mut Trace,
        tally: &mut Tally,
    ) -> Result<(), String> {
        for loaded in taken {
            let run = loaded.head.run;
            let Some(shadow) = self.runs.get_mut(&run) else {
                return Err(format!("run {run} was claimed but never started"));
            };
            let before = shadow.owner.map(number_of);
            let from = before.map_or(String::new(), |owner| format!(" from p{owner}"));
            let (name, fence) = (&shadow.name, loaded.head.fence);
            trace.line(now, format_args!("p{process} claims {name}{from}, fence {fence}"));
            tally.takeovers += u64::from(before.is_some());
            if before.is_some() && self.calm {
                return Err(format!("{name}: p{process} claimed it from a process that is alive"));
            }
            if loaded.head.version != shadow.version || fence != shadow.fence + 1 {
                return Err(format!(
                    "{name}: the claim changed its version or did not raise its fence ({fence})"
                ));
            }
            shadow.revision = loaded.head.revision;
            shadow.fence = fence;
            shadow.owner = claim.by;
        }
        Ok(())
    }

    /// Records the death of a process.
    pub(crate) fn died(&mut self, process: usize) {
        self.attempts.died(process);
    }
}

impl Shadow {
    fn history_state(&self) -> Option<&Bytes> {
        self.history.last().map(|(_, _, state)| state)
    }
}

/// Checks that a step with a fence comes from the owner of the run.
fn check_owner(shadow: &Shadow, applied: &Applied<'_>, step: &RunUpdate) -> Result<(), String> {
    let owner = shadow.owner.map(number_of);
    if step.fence.is_some() && owner != Some(applied.process) {
        let (name, process) = (&shadow.name, applied.process);
        return Err(format!("{name}: a step of p{process} was accepted, but the owner is {owner:?}"));
    }
    Ok(())
}

fn say(
    trace: &mut Trace,
    applied: &Applied<'_>,
    name: &str,
    step: &RunUpdate,
    loaded: &Loaded,
    entries: &[HistoryEntry],
) {
    let Applied { process, issued, now, .. } = *applied;
    let words: Vec<_> = entries.iter().map(|entry| entry.action.as_str()).collect();
    let word = if words.is_empty() { "-".to_owned() } else { words.join(", ") };
    let (version, fence, status) = (loaded.head.version, loaded.head.fence, loaded.head.status);
    let owner = loaded.head.owner.map_or("none".to_owned(), |owner| format!("p{}", number_of(owner)));
    let wake = loaded.head.wake.map(micros);
    let by = if step.fence.is_some() { "owner" } else { "other" };
    trace.line(
        now,
        format_args!(
            "p{process} ({by}) commits {name} v{version} {word}: {status}, fence {fence}, owner {owner}, wake {wake:?} \
             (issued {issued})"
        ),
    );
}

fn read_snapshot(name: &str, state: &[u8]) -> Result<Snapshot, String> {
    serde_json::from_slice(state).map_err(|error| format!("{name}: unreadable state: {error}"))
}

fn read_entry(name: &str, entry: &[u8]) -> Result<HistoryEntry, String> {
    serde_json::from_slice(entry).map_err(|error| format!("{name}: unreadable history entry: {error}"))
}

fn read_ledger(ledger: Option<&Bytes>) -> Result<Value, String> {
    ledger.map_or(Ok(Value::Null), |bytes| {
        serde_json::from_slice(bytes).map_err(|error| format!("unreadable ledger: {error}"))
    })
}

/// Reads the checkpoint of a version from the store.
fn checkpoint(memory: &MemoryStore, run: RunId, version: u64) -> Result<(CommitId, Bytes, Bytes), String> {
    let query = HistoryQuery { run, from: version, with_state: true, limit: 1 };
    let page = at_once(memory.history(SCOPE, query)).map_err(|error| error.to_string())?;
    let row = page.items.into_iter().next().filter(|row| row.version == version);
    let row = row.ok_or_else(|| format!("run {run} has no checkpoint of version {version}"))?;
    let state = row.state.ok_or_else(|| format!("run {run} has no state of version {version}"))?;
    Ok((row.commit, row.entry, state))
}
