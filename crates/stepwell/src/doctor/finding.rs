//! What a doctor says: how bad, what, since when, why, and what to do next.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use stepwell_core::{Name, RunId, Timestamp};

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Somebody may want to know.
    Info,
    /// It may become a problem.
    Warning,
    /// Something does not go on by itself.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// What kind of thing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Something stored cannot be read.
    RowsUnreadable,
    /// Runs stand still with an error.
    RunsFailed,
    /// A process has died under the same step again and again.
    TriesDying,
    /// Runs that nobody can serve: something is missing.
    RunsUnserved,
    /// Runs are due and nobody takes them.
    RunsLate,
    /// Runs are owned by processes that are dead.
    RunsOrphaned,
    /// This process owns runs and works on none of them.
    RunsUndriven,
    /// A process has worked on the same step of a run for long.
    RunsLong,
    /// A step is tried again and again, and fails.
    TriesFailing,
    /// Signals that nothing takes fill the inbox of a run.
    InboxesFull,
    /// A wait should have ended by itself, and has not.
    WaitsOverdue,
    /// A run has waited for very long.
    WaitsOld,
    /// No worker takes what is there for it to do.
    TasksWaiting,
    /// Somebody has put runs aside.
    RunsSuspended,
    /// Events could not be delivered.
    EventsFailed,
    /// A schedule stands still.
    SchedulesStopped,
    /// A schedule should have fired, and has not.
    SchedulesLate,
    /// What a schedule starts cannot be started, or has failed.
    SchedulesFailing,
    /// Handles are reserved by a process that is dead, or has been at it for long.
    HandlesHeld,
    /// Messages should have been sent out, and were not.
    MessagesUnsent,
    /// The audit trail is not sealed.
    AuditUnsealed,
    /// Tidying up fails.
    UpkeepFailing,
    /// The computer's clock is not the database's.
    ClockAway,
}

impl Kind {
    /// The word for it, as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Kind::RowsUnreadable => "rowsUnreadable",
            Kind::RunsFailed => "runsFailed",
            Kind::TriesDying => "triesDying",
            Kind::RunsUnserved => "runsUnserved",
            Kind::RunsLate => "runsLate",
            Kind::RunsOrphaned => "runsOrphaned",
            Kind::RunsUndriven => "runsUndriven",
            Kind::RunsLong => "runsLong",
            Kind::TriesFailing => "triesFailing",
            Kind::InboxesFull => "inboxesFull",
            Kind::WaitsOverdue => "waitsOverdue",
            Kind::WaitsOld => "waitsOld",
            Kind::TasksWaiting => "tasksWaiting",
            Kind::RunsSuspended => "runsSuspended",
            Kind::EventsFailed => "eventsFailed",
            Kind::SchedulesStopped => "schedulesStopped",
            Kind::SchedulesLate => "schedulesLate",
            Kind::SchedulesFailing => "schedulesFailing",
            Kind::HandlesHeld => "handlesHeld",
            Kind::MessagesUnsent => "messagesUnsent",
            Kind::AuditUnsealed => "auditUnsealed",
            Kind::UpkeepFailing => "upkeepFailing",
            Kind::ClockAway => "clockAway",
        }
    }
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Look at the run.
    Explain(RunId),
    /// Try what failed again, when its cause is gone.
    Retry(RunId),
    /// Take up again what somebody has put aside.
    Resume(RunId),
    /// End it.
    Cancel(RunId),
    /// Remove it.
    Delete(RunId),
    /// Answer what it waits for.
    Signal(RunId, Name),
    /// Let the process that serves these runs have what is missing.
    Register(Vec<String>),
    /// Start a process that works on runs.
    Serve,
    /// Look at what became of an event.
    ShowEvent(RunId),
    /// Look at the schedule.
    ShowSchedule(String),
    /// Tidy up now.
    TidyUp,
    /// Something that is done elsewhere.
    Advice(String),
}

impl Remedy {
    /// The command that does it.
    pub fn command(&self) -> Option<String> {
        Some(match self {
            Remedy::Explain(run) => format!("stepwell doctor {run}"),
            Remedy::Retry(run) => format!("stepwell run retry {run}"),
            Remedy::Resume(run) => format!("stepwell run resume {run}"),
            Remedy::Cancel(run) => format!("stepwell run cancel {run}"),
            Remedy::Delete(run) => format!("stepwell run delete {run}"),
            Remedy::Signal(run, name) => format!("stepwell signal send {run} {} '{{}}'", quoted(name)),
            Remedy::Serve => "stepwell server start".to_owned(),
            Remedy::ShowEvent(event) => format!("stepwell event show {event}"),
            Remedy::ShowSchedule(name) => format!("stepwell schedule show {}", quoted(name)),
            Remedy::TidyUp => "stepwell upkeep cleanup".to_owned(),
            Remedy::Register(_) | Remedy::Advice(_) => return None,
        })
    }

    /// What it is for, for a person.
    pub fn advice(&self) -> String {
        match self {
            Remedy::Explain(_) => "look at it".to_owned(),
            Remedy::Retry(_) => "when the cause is gone, try again".to_owned(),
            Remedy::Resume(_) => "take it up again".to_owned(),
            Remedy::Cancel(_) => "or end it".to_owned(),
            Remedy::Delete(_) => "remove it with everything that is its own".to_owned(),
            Remedy::Signal(..) => "answer it".to_owned(),
            Remedy::Register(missing) => {
                format!("let a process that works on runs have {}", missing.join(", "))
            }
            Remedy::Serve => "start a process that works on runs".to_owned(),
            Remedy::ShowEvent(_) => "see what became of it".to_owned(),
            Remedy::ShowSchedule(_) => "look at the schedule".to_owned(),
            Remedy::TidyUp => "tidy up now".to_owned(),
            Remedy::Advice(advice) => advice.clone(),
        }
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// One of those that something was found of.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The run, if it is one.
    pub run: Option<RunId>,
    /// What it is called otherwise.
    pub name: Option<String>,
    /// The workflow.
    pub workflow: Option<Name>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// What is to be said of this one.
    pub why: String,
    /// What to do about it, the likeliest first.
    pub remedies: Vec<Remedy>,
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing.
    pub kind: Kind,
    /// What was found, in a line.
    pub what: String,
    /// Why that is so, or what it means.
    pub why: String,
    /// Since when, of the oldest.
    pub since: Option<Timestamp>,
    /// How many were seen.
    pub count: u64,
    /// Some of them, the first that were seen.
    pub examples: Vec<Example>,
}

/// What was found so far: what is alike is one finding.
pub(super) struct Findings {
    examples: usize,
    found: BTreeMap<(Kind, String), Finding>,
}

impl Findings {
    pub(super) fn new(examples: u32) -> Self {
        Findings { examples: examples as usize, found: BTreeMap::new() }
    }

    /// Something was found. Of those that are alike the worst says how bad they are.
    pub(super) fn add(
        &mut self,
        severity: Severity,
        kind: Kind,
        what: impl Into<String>,
        why: impl Into<String>,
        example: Example,
    ) {
        let what = what.into();
        let finding = self.found.entry((kind, what.clone())).or_insert_with(|| Finding {
            severity,
            kind,
            what,
            why: why.into(),
            since: None,
            count: 0,
            examples: Vec::new(),
        });
        finding.severity = finding.severity.max(severity);
        finding.count += 1;
        finding.since = [finding.since, example.since].into_iter().flatten().min();
        if finding.examples.len() < self.examples {
            finding.examples.push(example);
        }
    }

    /// All of them, the worst first, and of those the most frequent.
    pub(super) fn done(self) -> Vec<Finding> {
        let mut all: Vec<_> = self.found.into_values().collect();
        all.sort_by_key(|finding| {
            (std::cmp::Reverse(finding.severity), finding.kind, std::cmp::Reverse(finding.count))
        });
        all
    }
}

/// How long something takes, for a person: two of its units at most.
pub(super) fn span(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let Some(at) = UNITS.iter().position(|(unit, _)| ms >= *unit) else { return format!("{ms} ms") };
    let (unit, name) = UNITS[at];
    let rest = UNITS.get(at + 1).map(|(less, name)| (ms % unit / less, name));
    match rest.filter(|(rest, _)| *rest > 0) {
        Some((rest, less)) => format!("{} {name} {rest} {less}", ms / unit),
        None => format!("{} {name}", ms / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::{quoted, span};

    #[test]
    fn times_and_words_are_written_for_people_and_shells() {
        let spans = [(900, "900 ms"), (61_000, "1 min 1 s"), (7_200_000, "2 h"), (90_000_000, "1 d 1 h")];
        for (ms, text) in spans {
            assert_eq!(span(ms), text);
        }
        assert_eq!(quoted("nightly"), "nightly");
        assert_eq!(quoted("0 3 * * *"), "'0 3 * * *'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
