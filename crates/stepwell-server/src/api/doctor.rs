//! The doctor over HTTP: what is stuck and why, of a tenant and of one run, and how the store is doing.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::doctor::{Awaited, Example, Finding, Kind, Owner, Remedy, Severity};
use stepwell::ledger::{Tried, Tries};
use stepwell::store::TenantScope;
use stepwell::{Diagnose, Diagnosis, Permission, RunDiagnosis};

use super::call::{Call, Nothing};
use super::reply::Reply;
use super::route::{Route, get};
use super::runs::OfRun;
use super::shapes::{Id, Instant, RunStatus, Span, span};
use crate::routes::problem::Problem;

/// Free bytes on the disk below which it is nearly full.
const DISK_LOW: u64 = 1024 * 1024 * 1024;
/// Free bytes on the disk below which commits are about to fail.
const DISK_FULL: u64 = 64 * 1024 * 1024;
/// A log that is larger than this is not being copied back.
const LOG_LARGE: u64 = 1024 * 1024 * 1024;
/// Fewer fsyncs a second than this are few.
const FSYNCS_FEW: f64 = 50.0;

/// How a store is doing, beside what is in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreFacts {
    /// `sqlite` or `postgres`, and the version of the server.
    pub kind: String,
    /// The number of its newest migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<u32>,
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The size of the log beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// What is free on its disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// How often a second a page can be brought to disk, one after the other; measured now and then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsyncs_per_second: Option<f64>,
    /// Half of those take no longer than this many microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsync_p50_us: Option<u64>,
    /// 99 of 100 take no longer than this many microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsync_p99_us: Option<u64>,
}

/// Says how the store is doing.
pub type StoreFactsOf = Arc<dyn Fn() -> BoxFuture<'static, Result<StoreFacts, String>> + Send + Sync>;

/// How far is looked, and what counts as late.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HowFar {
    /// Rows of each kind that are looked at; 200 unless this says otherwise.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
    /// Examples of each finding; 5 unless this says otherwise.
    #[schemars(range(min = 1, max = 50))]
    examples: Option<u32>,
    /// What is due for longer than this is late; a minute unless this says otherwise.
    #[schemars(with = "Option<Span>")]
    late: Option<String>,
    /// A step that takes longer than this takes long; an hour unless this says otherwise.
    #[schemars(with = "Option<Span>")]
    long: Option<String>,
    /// Who waits for longer than this waits for very long; 30 days unless this says otherwise.
    #[schemars(with = "Option<Span>")]
    old: Option<String>,
    /// Everything is read, to find what cannot be: that takes as long as there is much.
    #[serde(default)]
    deep: bool,
}

impl HowFar {
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

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum HowBad {
    /// Somebody may want to know.
    Info,
    /// It may become a problem.
    Warning,
    /// Something does not go on by itself.
    Error,
}

impl From<Severity> for HowBad {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => HowBad::Info,
            Severity::Warning => HowBad::Warning,
            Severity::Error => HowBad::Error,
        }
    }
}

/// What to do about it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DoNext {
    /// What it is for, for a person.
    advice: String,
    /// The command that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

impl From<&Remedy> for DoNext {
    fn from(remedy: &Remedy) -> Self {
        DoNext { advice: remedy.advice(), command: remedy.command() }
    }
}

/// One of those that something was found of.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ExampleShown {
    /// The run, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// What it is called otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    workflow: Option<Name>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    since: Option<Timestamp>,
    /// What is to be said of this one.
    why: String,
    /// What to do about it, the likeliest first.
    next: Vec<DoNext>,
}

impl From<Example> for ExampleShown {
    fn from(example: Example) -> Self {
        let Example { run, name, workflow, since, why, remedies } = example;
        let next = remedies.iter().map(DoNext::from).collect();
        ExampleShown { run, name, workflow, since, why, next }
    }
}

/// Something that was found.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FindingShown {
    /// How bad it is.
    severity: HowBad,
    /// A stable word for the kind of thing.
    kind: String,
    /// What was found, in a line.
    what: String,
    /// Why that is so, or what it means.
    why: String,
    /// Since when, of the oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    since: Option<Timestamp>,
    /// How many were seen.
    count: u64,
    /// Some of them.
    examples: Vec<ExampleShown>,
}

impl From<Finding> for FindingShown {
    fn from(finding: Finding) -> Self {
        let Finding { severity, kind, what, why, since, count, examples } = finding;
        let examples = examples.into_iter().map(ExampleShown::from).collect();
        FindingShown {
            severity: severity.into(),
            kind: Kind::word(kind).to_owned(),
            what,
            why,
            since,
            count,
            examples,
        }
    }
}

impl FindingShown {
    /// Something that the store itself has to say.
    fn of_store(severity: HowBad, kind: &str, what: &str, why: String, advice: &str) -> Self {
        let next = vec![DoNext { advice: advice.to_owned(), command: Some("stepwell db status".to_owned()) }];
        let example = ExampleShown {
            run: None,
            name: Some("store".to_owned()),
            workflow: None,
            since: None,
            why: why.clone(),
            next,
        };
        FindingShown {
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

/// What was looked at.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LookedAt {
    /// What.
    at: &'static str,
    /// How many rows.
    rows: u64,
    /// Those were all; if not, the limit was reached and there are more.
    all: bool,
}

/// A process that the store knows.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ProcessShown {
    /// The process.
    #[schemars(with = "Id")]
    id: uuid::Uuid,
    /// It counts as living.
    lives: bool,
    /// Until when, by its last heartbeat; absent if that is long past.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    lives_until: Option<Timestamp>,
    /// It is the one that answers.
    this: bool,
}

/// What is stuck, and why.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DoctorSays {
    /// When it was looked.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// Nothing is stuck.
    healthy: bool,
    /// What was found, the worst first.
    findings: Vec<FindingShown>,
    /// What was looked at, and how far.
    looked: Vec<LookedAt>,
    /// The processes that the store knows.
    processes: Vec<ProcessShown>,
    /// Runs that the process which answers works on at most; 0 = none.
    max_runs: usize,
    /// Runs that it has room for now.
    room: usize,
    /// By how many milliseconds its clock is ahead of its computer's, because it follows the database's.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_ahead_ms: Option<i64>,
    /// How the store is doing; only for the server's own tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreFacts>,
}

/// What a run waits for.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AwaitedShown {
    /// Where.
    #[schemars(with = "String")]
    place: Name,
    /// Signals that are taken there.
    #[schemars(with = "Vec<String>")]
    signals: Vec<Name>,
    /// The event that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    event: Option<Name>,
    /// Children that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<u32>,
    /// Who may answer, if not everybody.
    answerers: Vec<String>,
    /// Since when.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// Until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    until: Option<Timestamp>,
}

impl From<Awaited> for AwaitedShown {
    fn from(wait: Awaited) -> Self {
        let Awaited { place, signals, event, children, answerers, since, until } = wait;
        AwaitedShown { place, signals, event, children, answerers, since, until }
    }
}

/// A step that is tried, or a try of it that failed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TryShown {
    /// The step.
    #[schemars(with = "String")]
    transition: Name,
    /// Tries that have failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<u32>,
    /// When it failed, or is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    at: Option<Timestamp>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<Tries> for TryShown {
    fn from(tries: Tries) -> Self {
        TryShown { transition: tries.transition, failed: Some(tries.failed), at: tries.next, error: None }
    }
}

impl From<Tried> for TryShown {
    fn from(tried: Tried) -> Self {
        let error = Some(tried.error.to_string());
        TryShown { transition: tried.transition, failed: None, at: Some(tried.at), error }
    }
}

/// A message that nothing has taken yet.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeptShown {
    /// What it is about: `signal:NAME`, `event:NAME`, `child`, `cancel`.
    topic: String,
    /// When it came.
    #[schemars(with = "Instant")]
    received_at: Timestamp,
    /// When it is no longer wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    expires_at: Option<Timestamp>,
}

/// The process that works on a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct OwnerShown {
    /// The process.
    #[schemars(with = "Id")]
    id: uuid::Uuid,
    /// It lives.
    lives: bool,
    /// It is the one that answers.
    this: bool,
}

impl From<Owner> for OwnerShown {
    fn from(owner: Owner) -> Self {
        OwnerShown { id: owner.process.0, lives: owner.lives, this: owner.is_this }
    }
}

/// What there is to say of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunExplained {
    /// The run.
    #[schemars(with = "Id")]
    id: RunId,
    /// Its workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// The author's number of its definition; absent if that is not known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition_version: Option<u32>,
    /// How it is doing.
    status: RunStatus,
    /// Its version.
    version: u64,
    /// The places it is in.
    #[schemars(with = "Vec<String>")]
    places: Vec<Name>,
    /// Where it stands, in a sentence.
    stands: String,
    /// What would happen next, in a sentence.
    next: String,
    /// When it is looked at next.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    next_at: Option<Timestamp>,
    /// When it is cancelled if it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deadline: Option<Timestamp>,
    /// What it waits for.
    waits: Vec<AwaitedShown>,
    /// What is being tried.
    tries: Vec<TryShown>,
    /// The last tries that failed, oldest first.
    failures: Vec<TryShown>,
    /// Processes that died under the step that is tried.
    deaths: u32,
    /// The process that works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<OwnerShown>,
    /// What is in its inbox.
    kept: Vec<KeptShown>,
    /// What it needs and the process that answers does not have.
    missing: Vec<String>,
    /// Nothing is wrong with it that does not go on by itself.
    healthy: bool,
    /// What is wrong with it.
    findings: Vec<FindingShown>,
    /// What can be done to it, the likeliest first.
    remedies: Vec<DoNext>,
    /// When its row was last written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

pub(super) fn routes() -> Vec<Route> {
    let view = Permission::View;
    vec![
        get("/v1/doctor", "diagnose", view, "Says what is stuck and why, and what to do about it.")
            .notes("It changes nothing, and looks at so many rows of each kind at most; `looked` says where it stopped.")
            .ok::<DoctorSays>("What was found.")
            .to(diagnose),
        get("/v1/runs/{run}/doctor", "diagnoseRun", view, "Explains a run: where it stands, what it waits for, and what would happen next.")
            .ok::<RunExplained>("What there is to say.")
            .to(diagnose_run),
    ]
}

async fn diagnose(call: Call<Nothing, HowFar>) -> Result<Reply, Problem> {
    let Diagnosis { at, findings, looked, processes, max_runs, free, clock_ahead_ms } =
        call.engine().diagnose(&call.query.read()?).await?;
    let mut findings: Vec<_> = findings.into_iter().map(FindingShown::from).collect();
    let is_host = call.caller.scope().tenant() == TenantScope::single().tenant();
    let store = match call.server.store_facts.as_ref().filter(|_| is_host) {
        Some(facts) => Some(facts().await),
        None => None,
    };
    findings.extend(store.iter().flat_map(of_facts));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let processes = processes.into_iter().map(|seen| ProcessShown {
        id: seen.process.0,
        lives: seen.lives,
        lives_until: Some(seen.lives_until).filter(|until| *until > Timestamp::MIN),
        this: seen.is_this,
    });
    let looked = looked.into_iter().map(|one| LookedAt { at: one.at, rows: one.rows, all: one.is_all });
    Reply::ok(&DoctorSays {
        at,
        healthy: findings.iter().all(|finding| finding.severity < HowBad::Error),
        findings,
        looked: looked.collect(),
        processes: processes.collect(),
        max_runs,
        room: free,
        clock_ahead_ms,
        store: store.and_then(Result::ok),
    })
}

/// What is wrong with the store itself.
fn of_facts(facts: &Result<StoreFacts, String>) -> Vec<FindingShown> {
    let facts = match facts {
        Ok(facts) => facts,
        Err(why) => {
            let what = "the store does not say how it is doing";
            return vec![FindingShown::of_store(
                HowBad::Warning,
                "storeSilent",
                what,
                why.clone(),
                "look at it",
            )];
        }
    };
    let mib = |bytes: u64| bytes / (1024 * 1024);
    let mut found = Vec::new();
    if let Some(free) = facts.free_bytes.filter(|free| *free < DISK_LOW) {
        let severity = if free < DISK_FULL { HowBad::Error } else { HowBad::Warning };
        let why = format!("{} MiB are free; when there are none, commits are refused", mib(free));
        found.push(FindingShown::of_store(severity, "diskLow", "the disk is nearly full", why, "make room"));
    }
    if let Some(log) = facts.log_bytes.filter(|log| *log > LOG_LARGE) {
        let why = format!(
            "the log beside the database has {} MiB: some reader keeps it from being copied",
            mib(log)
        );
        found.push(FindingShown::of_store(
            HowBad::Warning,
            "logLarge",
            "the log grows",
            why,
            "end long reads and backups",
        ));
    }
    if let Some(rate) = facts.fsyncs_per_second.filter(|rate| *rate < FSYNCS_FEW) {
        let why = format!("{rate:.0} fsyncs a second: there cannot be more transactions than that");
        found.push(FindingShown::of_store(
            HowBad::Warning,
            "diskSlow",
            "the disk is slow",
            why,
            "use a faster disk",
        ));
    }
    found
}

async fn diagnose_run(call: Call<OfRun, HowFar>) -> Result<Reply, Problem> {
    let found: RunDiagnosis = call.engine().diagnose_run(call.path.run, &call.query.read()?).await?;
    let kept = found.kept.into_iter().map(|message| KeptShown {
        topic: message.topic,
        received_at: message.received_at,
        expires_at: message.expires_at,
    });
    Reply::ok(&RunExplained {
        id: found.run,
        workflow: found.workflow,
        definition_version: found.definition_version,
        status: found.status.into(),
        version: found.version,
        places: found.places,
        stands: found.stands,
        next: found.next,
        next_at: found.next_at,
        deadline: found.deadline,
        waits: found.waits.into_iter().map(AwaitedShown::from).collect(),
        tries: found.tries.into_iter().map(TryShown::from).collect(),
        failures: found.failures.into_iter().map(TryShown::from).collect(),
        deaths: found.deaths,
        owner: found.owner.map(OwnerShown::from),
        kept: kept.collect(),
        missing: found.missing,
        healthy: found.findings.iter().all(|finding| finding.severity < Severity::Error),
        findings: found.findings.into_iter().map(FindingShown::from).collect(),
        remedies: found.remedies.iter().map(DoNext::from).collect(),
        updated_at: found.updated_at,
    })
}
