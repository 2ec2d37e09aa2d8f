//! Routes of the doctor: diagnose a tenant or one run, and report the health of the store.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::doctor::{AwaitedInput, Example, Finding, FindingKind, Owner, Remedy, Severity};
use stepwell::ledger::{Attempts, FailedAttempt};
use stepwell::store::TenantScope;
use stepwell::{Diagnose, Diagnosis, Permission, RunDiagnosis};

use super::call::{Call, Nothing};
use super::reply::Reply;
use super::route::{Route, get};
use super::runs::RunPath;
use super::shapes::{Id, Instant, RunStatus, Span, span};
use crate::routes::problem::Problem;

/// Free disk space below which the doctor warns, in bytes.
const DISK_LOW: u64 = 1024 * 1024 * 1024;
/// Free disk space below which the doctor reports an error, in bytes: commits are about to fail.
const DISK_FULL: u64 = 64 * 1024 * 1024;
/// Size of the write-ahead log above which the doctor warns, in bytes. A larger log means that a reader blocks
/// checkpoints.
const LOG_LARGE: u64 = 1024 * 1024 * 1024;
/// Rate of fsyncs below which the doctor warns, per second.
const FSYNCS_FEW: f64 = 50.0;

/// Facts about the store itself: type, schema, sizes and disk speed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreInfo {
    /// Type of the store, `sqlite` or `postgres`, and the version of the database server.
    pub kind: String,
    /// Number of the newest schema migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<u32>,
    /// Size of the database, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Size of the write-ahead log, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// Free space on the database's disk, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Sequential fsyncs of one page per second, measured from time to time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsyncs_per_second: Option<f64>,
    /// Median duration of an fsync, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsync_p50_us: Option<u64>,
    /// 99th percentile of the duration of an fsync, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsync_p99_us: Option<u64>,
}

/// A function that collects data about the store. Its error is reported as a finding.
pub type StoreInfoSource = Arc<dyn Fn() -> BoxFuture<'static, Result<StoreInfo, String>> + Send + Sync>;

/// Limits and thresholds of a diagnosis.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DiagnoseOptions {
    /// Maximum number of rows read of each kind, 1 to 1,000. Default: 200.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
    /// Maximum number of examples per finding, 1 to 50. Default: 5.
    #[schemars(range(min = 1, max = 50))]
    examples: Option<u32>,
    /// Time after its due time from which work counts as late. Default: `1m`.
    #[schemars(with = "Option<Span>")]
    late: Option<String>,
    /// Duration above which a step counts as long. Default: `1h`.
    #[schemars(with = "Option<Span>")]
    long: Option<String>,
    /// Age above which a wait is reported. Default: `30d`.
    #[schemars(with = "Option<Span>")]
    old: Option<String>,
    /// True = read every row to find unreadable ones; the time grows with the amount of data. Default: false.
    #[serde(default)]
    deep: bool,
}

impl DiagnoseOptions {
    fn read(&self) -> Result<Diagnose, Problem> {
        let ms = |said: &Option<String>, default: u64| match said {
            Some(text) => Ok::<_, Problem>(u64::try_from(span(text)?.as_millis()).unwrap_or(u64::MAX)),
            None => Ok(default),
        };
        let usual = Diagnose::default();
        Ok(Diagnose {
            limit: self.limit.unwrap_or(usual.limit),
            examples: self.examples.unwrap_or(usual.examples),
            late_ms: ms(&self.late, usual.late_ms)?,
            long_ms: ms(&self.long, usual.long_ms)?,
            old_ms: ms(&self.old, usual.old_ms)?,
            deep: self.deep,
            ..usual
        })
    }
}

/// Severity of a finding: `info`, `warning` or `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum FindingSeverity {
    /// Information that needs no action.
    Info,
    /// May become a problem.
    Warning,
    /// Something is stuck and needs an operator.
    Error,
}

impl From<Severity> for FindingSeverity {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => FindingSeverity::Info,
            Severity::Warning => FindingSeverity::Warning,
            Severity::Error => FindingSeverity::Error,
        }
    }
}

/// A suggested next step.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RemedyView {
    /// Text of the advice, for people.
    advice: String,
    /// Command that follows the advice; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

impl From<&Remedy> for RemedyView {
    fn from(remedy: &Remedy) -> Self {
        RemedyView { advice: remedy.advice(), command: remedy.command() }
    }
}

/// An example of a finding.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FindingExample {
    /// Id of the run, a UUID; absent if the example is not a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// Name of the example, if it is not a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Name of the workflow; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    workflow: Option<Name>,
    /// Time since which the example is in this state; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    since: Option<Timestamp>,
    /// Explanation of this example.
    why: String,
    /// Suggested next steps, most likely first.
    next: Vec<RemedyView>,
}

impl From<Example> for FindingExample {
    fn from(example: Example) -> Self {
        let Example { run, name, workflow, since, why, remedies } = example;
        let next = remedies.iter().map(RemedyView::from).collect();
        FindingExample { run, name, workflow, since, why, next }
    }
}

/// A finding of the doctor.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FindingView {
    /// Severity of the finding: `info`, `warning` or `error`.
    severity: FindingSeverity,
    /// Stable code of the finding, for programs.
    kind: String,
    /// Summary of the finding, one line.
    what: String,
    /// Cause or effect of the finding.
    why: String,
    /// Time since which the oldest example is in this state; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    since: Option<Timestamp>,
    /// Number of matching items that were read.
    count: u64,
    /// Some of the matching items.
    examples: Vec<FindingExample>,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        let Finding { severity, kind, what, why, since, count, examples } = finding;
        let examples = examples.into_iter().map(FindingExample::from).collect();
        FindingView {
            severity: severity.into(),
            kind: FindingKind::word(kind).to_owned(),
            what,
            why,
            since,
            count,
            examples,
        }
    }
}

impl FindingView {
    /// Creates a finding about the store itself.
    fn of_store(severity: FindingSeverity, kind: &str, what: &str, why: String, advice: &str) -> Self {
        let next =
            vec![RemedyView { advice: advice.to_owned(), command: Some("stepwell db status".to_owned()) }];
        let example = FindingExample {
            run: None,
            name: Some("store".to_owned()),
            workflow: None,
            since: None,
            why: why.clone(),
            next,
        };
        FindingView {
            severity,
            kind: kind.to_owned(),
            what: what.to_owned(),
            why,
            since: None,
            count: 1,
            examples: vec![example],
        }
    }
}

/// Extent of the diagnosis for one kind of row.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ScannedRows {
    /// Kind of row, for people.
    kind: &'static str,
    /// Number of rows that were read.
    rows: u64,
    /// True if all rows were read; false if the limit was reached.
    all: bool,
}

/// A process that has registered with the store.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ProcessView {
    /// Id of the process, a UUID.
    #[schemars(with = "Id")]
    id: uuid::Uuid,
    /// True if the process's lease has not expired.
    alive: bool,
    /// Time at which the process's lease expires without a heartbeat; absent if it expired long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    lease_until: Option<Timestamp>,
    /// True if this process answers the request.
    this: bool,
}

/// Result of a diagnosis.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DoctorReport {
    /// Time of the diagnosis.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// True if no finding has the severity `error`.
    healthy: bool,
    /// Findings, most severe first.
    findings: Vec<FindingView>,
    /// Number of rows read, by kind.
    scanned: Vec<ScannedRows>,
    /// The processes that have registered with the store.
    processes: Vec<ProcessView>,
    /// Maximum number of runs that this process drives at a time; 0 = it drives none.
    max_runs: usize,
    /// Number of further runs that this process can drive now.
    free_slots: usize,
    /// Offset of the engine's clock, which follows the database's, from this computer's, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_ahead_ms: Option<i64>,
    /// Facts about the store. Present only for callers of the server's own tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreInfo>,
}

/// A wait of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AwaitedInputView {
    /// Name of the place or step that waits.
    #[schemars(with = "String")]
    place: Name,
    /// Names of the signals that the wait accepts.
    #[schemars(with = "Vec<String>")]
    signals: Vec<Name>,
    /// Name of the event that the wait accepts; absent if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    event: Option<Name>,
    /// Number of child runs that have not ended; absent if the wait is not for children.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<u32>,
    /// Users and roles that may answer; empty = no restriction.
    answerers: Vec<String>,
    /// Time at which the wait began.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// Time at which the wait times out; absent without a timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    until: Option<Timestamp>,
}

impl From<AwaitedInput> for AwaitedInputView {
    fn from(wait: AwaitedInput) -> Self {
        let AwaitedInput { place, signals, event, children, answerers, since, until } = wait;
        AwaitedInputView { place, signals, event, children, answerers, since, until }
    }
}

/// A step in progress, or a failed attempt of one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AttemptView {
    /// Name of the transition or step.
    #[schemars(with = "String")]
    transition: Name,
    /// Number of failed attempts; absent for a single failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<u32>,
    /// Time of the next attempt, or of the failure for a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    at: Option<Timestamp>,
    /// Error of the failed attempt; absent for a step in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<Attempts> for AttemptView {
    fn from(attempts: Attempts) -> Self {
        AttemptView {
            transition: attempts.transition,
            failed: Some(attempts.failed),
            at: attempts.next,
            error: None,
        }
    }
}

impl From<FailedAttempt> for AttemptView {
    fn from(tried: FailedAttempt) -> Self {
        let error = Some(tried.error.to_string());
        AttemptView { transition: tried.transition, failed: None, at: Some(tried.at), error }
    }
}

/// A buffered message in the inbox of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BufferedMessage {
    /// Topic of the message: `signal:NAME`, `event:NAME`, `child` or `cancel`.
    topic: String,
    /// Time at which the message arrived.
    #[schemars(with = "Instant")]
    received_at: Timestamp,
    /// Time at which the message expires; absent if it never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    expires_at: Option<Timestamp>,
}

/// The process that owns a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct OwnerView {
    /// Id of the process, a UUID.
    #[schemars(with = "Id")]
    id: uuid::Uuid,
    /// True if the process's lease has not expired.
    alive: bool,
    /// True if this process answers the request.
    this: bool,
}

impl From<Owner> for OwnerView {
    fn from(owner: Owner) -> Self {
        OwnerView { id: owner.process.0, alive: owner.alive, this: owner.is_this }
    }
}

/// Explanation of the state of one run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunExplanation {
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    id: RunId,
    /// Name of the run's workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Workflow version that the run is pinned to; absent if this process does not know the definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition_version: Option<u32>,
    /// Current status of the run.
    status: RunStatus,
    /// Version of the run; every checkpoint increases it.
    version: u64,
    /// Names of the places or steps the run is in.
    #[schemars(with = "Vec<String>")]
    places: Vec<Name>,
    /// Description of the current state, one sentence.
    state: String,
    /// Description of the next step, one sentence.
    next: String,
    /// Time of the next step; absent if none is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    next_at: Option<Timestamp>,
    /// Time at which the run is cancelled if it has not ended; absent without a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deadline: Option<Timestamp>,
    /// Open waits of the run.
    waits: Vec<AwaitedInputView>,
    /// Steps in progress, with the number of failed attempts.
    attempts: Vec<AttemptView>,
    /// The most recent failed attempts, oldest first.
    failures: Vec<AttemptView>,
    /// Number of processes that crashed while running the current step.
    crashes: u32,
    /// Process that owns the run; absent if no process does.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<OwnerView>,
    /// Messages in the run's inbox.
    inbox: Vec<BufferedMessage>,
    /// Definitions, actions and guards that the run needs and this process lacks.
    missing: Vec<String>,
    /// True if no finding has the severity `error`.
    healthy: bool,
    /// Findings about the run.
    findings: Vec<FindingView>,
    /// Suggested next steps, most likely first.
    remedies: Vec<RemedyView>,
    /// Time at which the run's row was last written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

pub(super) fn routes() -> Vec<Route> {
    let view = Permission::View;
    vec![
        get(
            "/v1/doctor",
            "diagnose",
            view,
            "Diagnose the tenant: report what is stuck, why, and what to do.",
        )
        .notes("Changes nothing. Reads at most `limit` rows of each kind; `scanned` shows where it stopped.")
        .ok::<DoctorReport>("Result of the diagnosis.")
        .to(diagnose),
        get(
            "/v1/runs/{run}/doctor",
            "diagnoseRun",
            view,
            "Explain a run: its current state, its waits and its next step.",
        )
        .ok::<RunExplanation>("Explanation of the run.")
        .to(diagnose_run),
    ]
}

async fn diagnose(call: Call<Nothing, DiagnoseOptions>) -> Result<Reply, Problem> {
    let is_host = call.caller.scope().tenant() == TenantScope::single().tenant();
    let mut options = call.query.read()?;
    if options.deep {
        options.unreadable = call.server.keys.unreadable(call.caller.scope()).await?;
        if is_host {
            options.unreadable.extend(call.server.tenants.unreadable().await?);
        }
    }
    let Diagnosis { at, findings, scanned, processes, max_runs, free, clock_ahead_ms } =
        call.engine().diagnose(&options).await?;
    let mut findings: Vec<_> = findings.into_iter().map(FindingView::from).collect();
    let store = match call.server.store_info.as_ref().filter(|_| is_host) {
        Some(info) => Some(info().await),
        None => None,
    };
    findings.extend(store.iter().flat_map(store_findings));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let processes = processes.into_iter().map(|seen| ProcessView {
        id: seen.process.0,
        alive: seen.alive,
        lease_until: Some(seen.lease_until).filter(|until| *until > Timestamp::MIN),
        this: seen.is_this,
    });
    let scanned =
        scanned.into_iter().map(|one| ScannedRows { kind: one.kind, rows: one.rows, all: one.is_all });
    Reply::ok(&DoctorReport {
        at,
        healthy: findings.iter().all(|finding| finding.severity < FindingSeverity::Error),
        findings,
        scanned: scanned.collect(),
        processes: processes.collect(),
        max_runs,
        free_slots: free,
        clock_ahead_ms,
        store: store.and_then(Result::ok),
    })
}

/// Creates findings from the data about the store.
fn store_findings(info: &Result<StoreInfo, String>) -> Vec<FindingView> {
    let info = match info {
        Ok(info) => info,
        Err(why) => {
            let what = "the data about the store cannot be read";
            return vec![FindingView::of_store(
                FindingSeverity::Warning,
                "storeSilent",
                what,
                why.clone(),
                "check the database",
            )];
        }
    };
    let mib = |bytes: u64| bytes / (1024 * 1024);
    let mut found = Vec::new();
    if let Some(free) = info.free_bytes.filter(|free| *free < DISK_LOW) {
        let severity = if free < DISK_FULL { FindingSeverity::Error } else { FindingSeverity::Warning };
        let why = format!("{} MiB are free; on a full disk, commits are refused", mib(free));
        found.push(FindingView::of_store(
            severity,
            "diskLow",
            "the disk is nearly full",
            why,
            "free disk space",
        ));
    }
    if let Some(log) = info.log_bytes.filter(|log| *log > LOG_LARGE) {
        let why = format!("the write-ahead log has {} MiB: a long read prevents checkpoints", mib(log));
        found.push(FindingView::of_store(
            FindingSeverity::Warning,
            "logLarge",
            "the write-ahead log is large",
            why,
            "end long reads and backups",
        ));
    }
    if let Some(rate) = info.fsyncs_per_second.filter(|rate| *rate < FSYNCS_FEW) {
        let why = format!("{rate:.0} fsyncs per second limit the number of transactions per second");
        found.push(FindingView::of_store(
            FindingSeverity::Warning,
            "diskSlow",
            "the disk is slow",
            why,
            "use a faster disk",
        ));
    }
    found
}

async fn diagnose_run(call: Call<RunPath, DiagnoseOptions>) -> Result<Reply, Problem> {
    let found: RunDiagnosis = call.engine().diagnose_run(call.path.run, &call.query.read()?).await?;
    let inbox = found.inbox.into_iter().map(|message| BufferedMessage {
        topic: message.topic,
        received_at: message.received_at,
        expires_at: message.expires_at,
    });
    Reply::ok(&RunExplanation {
        id: found.run,
        workflow: found.workflow,
        definition_version: found.definition_version,
        status: found.status.into(),
        version: found.version,
        places: found.places,
        state: found.state,
        next: found.next,
        next_at: found.next_at,
        deadline: found.deadline,
        waits: found.waits.into_iter().map(AwaitedInputView::from).collect(),
        attempts: found.attempts.into_iter().map(AttemptView::from).collect(),
        failures: found.failures.into_iter().map(AttemptView::from).collect(),
        crashes: found.crashes,
        owner: found.owner.map(OwnerView::from),
        inbox: inbox.collect(),
        missing: found.missing,
        healthy: found.findings.iter().all(|finding| finding.severity < Severity::Error),
        findings: found.findings.into_iter().map(FindingView::from).collect(),
        remedies: found.remedies.iter().map(RemedyView::from).collect(),
        updated_at: found.updated_at,
    })
}
