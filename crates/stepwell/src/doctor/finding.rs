//! Findings of a diagnosis: severity, description, start time, cause and remedies.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use stepwell_core::{Name, RunId, Timestamp};

use crate::pause::PauseOf;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// No action is needed.
    Info,
    /// It may become a problem, or resolve itself.
    Warning,
    /// Something is stuck until an operator acts.
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

/// Kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FindingKind {
    /// Stored rows are unreadable.
    RowsUnreadable,
    /// Runs have failed and wait for an operator.
    RunsFailed,
    /// Processes crashed repeatedly during the same step.
    AttemptsCrashing,
    /// No process serves these runs: a definition, action or guard is missing.
    RunsUnserved,
    /// Runs are due, but no process has claimed them.
    RunsLate,
    /// Runs are owned by processes whose lease has expired.
    RunsOrphaned,
    /// This process owns runs but executes none of them.
    RunsUndriven,
    /// A step of a run takes long.
    RunsLong,
    /// A step keeps failing and is retried.
    AttemptsFailing,
    /// The inbox of a run is filled with signals that the run does not accept.
    InboxesFull,
    /// A wait has not ended although its timeout has passed.
    WaitsOverdue,
    /// A wait is older than the threshold `old_ms`.
    WaitsOld,
    /// Tasks of a remote action wait for a worker.
    TasksWaiting,
    /// Runs have waited for a limit of their workflow for a long time.
    LimitsFull,
    /// Runs are suspended by an operator.
    RunsSuspended,
    /// The delivery of events fails or has failed.
    EventsFailed,
    /// A schedule has failed and does not fire.
    SchedulesStopped,
    /// A schedule has not fired although it is due.
    SchedulesLate,
    /// A schedule cannot start its workflow, or the started run failed or was cancelled.
    SchedulesFailing,
    /// Schedules or triggers are paused.
    Paused,
    /// Handles have been reserved for long, by a live or an expired process.
    HandlesReserved,
    /// Outgoing messages of flows are due, but were not sent.
    MessagesUnsent,
    /// Many commits of the audit trail are not sealed.
    AuditUnsealed,
    /// Maintenance fails in this process.
    MaintenanceFailing,
    /// The computer's clock differs from the database's.
    ClockSkew,
}

impl FindingKind {
    /// Returns the code of the kind, as used in JSON.
    pub fn word(self) -> &'static str {
        match self {
            FindingKind::RowsUnreadable => "rowsUnreadable",
            FindingKind::RunsFailed => "runsFailed",
            FindingKind::AttemptsCrashing => "attemptsCrashing",
            FindingKind::RunsUnserved => "runsUnserved",
            FindingKind::RunsLate => "runsLate",
            FindingKind::RunsOrphaned => "runsOrphaned",
            FindingKind::RunsUndriven => "runsUndriven",
            FindingKind::RunsLong => "runsLong",
            FindingKind::AttemptsFailing => "attemptsFailing",
            FindingKind::InboxesFull => "inboxesFull",
            FindingKind::WaitsOverdue => "waitsOverdue",
            FindingKind::WaitsOld => "waitsOld",
            FindingKind::TasksWaiting => "tasksWaiting",
            FindingKind::LimitsFull => "limitsFull",
            FindingKind::RunsSuspended => "runsSuspended",
            FindingKind::EventsFailed => "eventsFailed",
            FindingKind::SchedulesStopped => "schedulesStopped",
            FindingKind::SchedulesLate => "schedulesLate",
            FindingKind::SchedulesFailing => "schedulesFailing",
            FindingKind::Paused => "paused",
            FindingKind::HandlesReserved => "handlesReserved",
            FindingKind::MessagesUnsent => "messagesUnsent",
            FindingKind::AuditUnsealed => "auditUnsealed",
            FindingKind::MaintenanceFailing => "maintenanceFailing",
            FindingKind::ClockSkew => "clockSkew",
        }
    }
}

/// An action that an operator can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Diagnose the run in detail.
    Explain(RunId),
    /// Retry the failed step after its cause is repaired.
    Retry(RunId),
    /// Resume the suspended run.
    Resume(RunId),
    /// Cancel the run.
    Cancel(RunId),
    /// Delete the run with all its data.
    Delete(RunId),
    /// Send the signal that the run waits for.
    Signal(RunId, Name),
    /// Deploy a process that has the missing definitions, actions and guards.
    Register(Vec<String>),
    /// Start a process that executes runs.
    Serve,
    /// Show the delivery of an event.
    ShowEvent(RunId),
    /// Show the schedule.
    ShowSchedule(String),
    /// Resume the paused schedule or trigger.
    ResumeFiring(PauseOf),
    /// Run maintenance now.
    RunMaintenance,
    /// Instructions that no single command covers.
    Advice(String),
}

impl Remedy {
    /// Returns the shell command, if one command is enough.
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
            Remedy::ResumeFiring(PauseOf::Schedule(name)) => {
                format!("stepwell schedule resume {}", quoted(name))
            }
            Remedy::ResumeFiring(PauseOf::Trigger(workflow, trigger)) => {
                format!("stepwell trigger resume {} {}", quoted(workflow), quoted(trigger))
            }
            Remedy::RunMaintenance => "stepwell maintenance cleanup".to_owned(),
            Remedy::Register(_) | Remedy::Advice(_) => return None,
        })
    }

    /// Returns a short instruction for people.
    pub fn advice(&self) -> String {
        match self {
            Remedy::Explain(_) => "diagnose the run".to_owned(),
            Remedy::Retry(_) => "repair the cause, then retry".to_owned(),
            Remedy::Resume(_) => "resume the run".to_owned(),
            Remedy::Cancel(_) => "cancel the run".to_owned(),
            Remedy::Delete(_) => "delete the run with all its data".to_owned(),
            Remedy::Signal(..) => "send the signal it waits for".to_owned(),
            Remedy::Register(missing) => {
                format!("deploy a process that executes runs and has {}", missing.join(", "))
            }
            Remedy::Serve => "start a process that executes runs".to_owned(),
            Remedy::ShowEvent(_) => "show the delivery of the event".to_owned(),
            Remedy::ShowSchedule(_) => "show the schedule".to_owned(),
            Remedy::ResumeFiring(_) => "resume it".to_owned(),
            Remedy::RunMaintenance => "run maintenance now".to_owned(),
            Remedy::Advice(advice) => advice.clone(),
        }
    }
}

/// Quotes a word for a POSIX shell if necessary.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// An instance of a finding.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The affected run, if there is one.
    pub run: Option<RunId>,
    /// Name or key of the affected object, if it is not a run.
    pub name: Option<String>,
    pub workflow: Option<Name>,
    /// Start of the condition.
    pub since: Option<Timestamp>,
    /// Details of this instance.
    pub why: String,
    /// Remedies, most likely first.
    pub remedies: Vec<Remedy>,
}

/// A group of similar problems that the diagnosis found.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The highest severity among the instances.
    pub severity: Severity,
    pub kind: FindingKind,
    /// Description in one line.
    pub what: String,
    /// Cause of the problem, or its consequence.
    pub why: String,
    /// Start of the oldest instance.
    pub since: Option<Timestamp>,
    /// Number of instances found.
    pub count: u64,
    /// The first instances found, up to the limit `examples`.
    pub examples: Vec<Example>,
}

/// The findings so far. Problems with the same kind and description form one finding.
pub(super) struct Findings {
    examples: usize,
    found: BTreeMap<(FindingKind, String), Finding>,
}

impl Findings {
    pub(super) fn new(examples: u32) -> Self {
        Findings { examples: examples as usize, found: BTreeMap::new() }
    }

    /// Adds an instance to its finding. The finding has the highest severity of its instances.
    pub(super) fn add(
        &mut self,
        severity: Severity,
        kind: FindingKind,
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

    /// Returns the findings: most severe first, then by kind, then most frequent first.
    pub(super) fn done(self) -> Vec<Finding> {
        let mut all: Vec<_> = self.found.into_values().collect();
        all.sort_by_key(|finding| {
            (std::cmp::Reverse(finding.severity), finding.kind, std::cmp::Reverse(finding.count))
        });
        all
    }
}

/// Formats a duration for people with at most two units.
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
    fn spans_and_shell_words_are_formatted() {
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
