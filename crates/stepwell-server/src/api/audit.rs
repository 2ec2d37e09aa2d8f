//! The audit trail: its rows, the seals over them, and whether both are as they were.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::Permission;
use stepwell::core::{RunId, Timestamp};
use stepwell::data::{Fault, Verified};
use stepwell::store::seal::{Hash, Seal};
use stepwell::store::{AuditRow, CommitId, Record, RecordQuery, Store};

use super::call::{Call, Nothing};
use super::reply::Reply;
use super::route::{Route, get, post};
use super::shapes::{Id, Instant, Listing, Page};
use crate::routes::problem::Problem;

/// Which seals.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListSeals {
    /// From this number on; what `nextCursor` of the part before says.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    cursor: Option<u64>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

/// A row of the audit trail.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AuditShown {
    /// The commit that wrote it.
    #[schemars(with = "Id")]
    commit: CommitId,
    /// Its place among the rows of that commit.
    ordinal: u64,
    /// When.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// What was done.
    operation: String,
    /// To what.
    subject: String,
    /// By whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// In which run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// The rest.
    detail: Value,
}

/// A seal over rows of the audit trail.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SealShown {
    /// Counts from 1, without a gap.
    number: u64,
    /// When it was made.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// The hash of the one before, in hex; zeros before the first.
    before: String,
    /// How many rows are under it.
    row_count: usize,
    /// Its hash, in hex. Kept elsewhere, it shows when the trail was cut off after it.
    hash: String,
}

/// What a check of the audit trail has found.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AuditVerified {
    /// Nothing is wrong.
    sound: bool,
    /// Rows that are sealed and as they were.
    sealed: u64,
    /// Rows that are not sealed yet.
    unsealed: u64,
    /// Seals.
    seals: u64,
    /// The hash of the last seal, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<String>,
    /// What is wrong; the first hundred at most.
    faults: Vec<AuditFault>,
}

/// What is wrong with the audit trail.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum AuditFault {
    /// A sealed row says something else than when it was sealed.
    Changed {
        /// The commit that wrote it.
        #[schemars(with = "Id")]
        commit: CommitId,
        /// Its place among the rows of that commit.
        ordinal: u64,
        /// The seal it is under.
        seal: u64,
    },
    /// A sealed row is gone.
    Removed {
        /// The commit that wrote it.
        #[schemars(with = "Id")]
        commit: CommitId,
        /// Its place among the rows of that commit.
        ordinal: u64,
        /// The seal it was under.
        seal: u64,
    },
    /// A row is there that was never sealed and does not wait for it.
    SlippedIn {
        /// The commit it names.
        #[schemars(with = "Id")]
        commit: CommitId,
        /// Its place among the rows of that commit.
        ordinal: u64,
    },
    /// A seal has been changed, removed or put in another order.
    Seal {
        /// Which.
        seal: u64,
    },
}

impl From<Seal> for SealShown {
    fn from(seal: Seal) -> Self {
        let Seal { number, at, before, rows, hash } = seal;
        SealShown { number, at, before: hex(before), row_count: rows.len(), hash: hex(hash) }
    }
}

impl From<Fault> for AuditFault {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Changed { commit, ordinal, seal } => AuditFault::Changed { commit, ordinal, seal },
            Fault::Removed { commit, ordinal, seal } => AuditFault::Removed { commit, ordinal, seal },
            Fault::SlippedIn { commit, ordinal } => AuditFault::SlippedIn { commit, ordinal },
            Fault::Seal { number } => AuditFault::Seal { seal: number },
        }
    }
}

fn hex(hash: Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        get("/v1/audit", "listAudit", admin, "Lists the audit trail, oldest first.")
            .ok::<Page<AuditShown>>("Its rows.")
            .to(list),
        get("/v1/audit/seals", "listAuditSeals", admin, "Lists the seals of the audit trail, oldest first.")
            .ok::<Page<SealShown>>("Seals.")
            .to(seals),
        post("/v1/audit/verify", "verifyAudit", admin, "Checks the audit trail against its seals.")
            .notes("All of it is read. Whoever writes meanwhile is not held up.")
            .ok::<AuditVerified>("What was found.")
            .to(verify),
    ]
}

async fn list(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let query = RecordQuery::Audit { limit: call.query.limit(), cursor: call.query.cursor() };
    let page = engine.store().records(engine.scope(), query).await?;
    let shown = page.filter_map(|record| {
        let Record::Audit { commit, ordinal, at, row } = record else { return None };
        let AuditRow { operation, subject, actor, run, detail } = row;
        let detail = serde_json::from_slice(&detail).unwrap_or_default();
        Some(AuditShown { commit, ordinal, at, operation, subject, actor, run, detail })
    });
    Reply::ok(&Page::of(shown, |row| row))
}

async fn seals(call: Call<Nothing, ListSeals>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let limit = Listing::of(call.query.limit, None).limit();
    let query = RecordQuery::Seals { from: call.query.cursor.unwrap_or(1), limit };
    let page = engine.store().records(engine.scope(), query).await?;
    let seals = page.filter_map(|record| match record {
        Record::Seal(seal) => Some(seal),
        _ => None,
    });
    Reply::ok(&Page::of(seals, SealShown::from))
}

async fn verify(call: Call) -> Result<Reply, Problem> {
    let found = call.engine().verify_audit().await?;
    let sound = found.is_sound();
    let Verified { sealed, unsealed, seals, head, faults } = found;
    let faults = faults.into_iter().map(AuditFault::from).collect();
    Reply::ok(&AuditVerified { sound, sealed, unsealed, seals, head: head.map(hex), faults })
}
