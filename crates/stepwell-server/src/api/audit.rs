//! Routes of the audit trail: list its rows and seals, and verify the rows against the seals.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::Permission;
use stepwell::core::{RunId, Timestamp};
use stepwell::data::{AuditFault, CutSeal, Verified};
use stepwell::store::seal::{Hash, Seal};
use stepwell::store::{AuditRow, CommitId, Record, RecordQuery, Store};

use super::call::{Call, Nothing};
use super::reply::Reply;
use super::route::{Route, get, post};
use super::shapes::{Id, Instant, Listing, Page};
use crate::routes::problem::Problem;

/// Page of a listing of seals.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListSeals {
    /// First seal to list: the `nextCursor` of the previous page. Default: 1.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    cursor: Option<u64>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

/// A row of the audit trail.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AuditRecord {
    /// Id of the commit that wrote the row, a UUID.
    #[schemars(with = "Id")]
    commit: CommitId,
    /// Position of the row within its commit, counted from 0.
    ordinal: u64,
    /// Time at which the row was written.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// Name of the operation.
    operation: String,
    /// Object of the operation, such as `store:NAMESPACE:KEY`.
    subject: String,
    /// Actor of the operation; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// Id of the run that the operation belongs to; absent if it belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// Details of the operation, any JSON value.
    detail: Value,
}

/// A seal over rows of the audit trail.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SealView {
    /// Number of the seal, counted from 1 without gaps.
    number: u64,
    /// Time at which the seal was created.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// Hash of the previous seal, in hexadecimal; zeros for the first seal.
    before: String,
    /// Number of rows that the seal covers.
    row_count: usize,
    /// Hash of the seal, in hexadecimal. A copy kept elsewhere reveals a trail that was truncated later.
    hash: String,
}

/// Result of verifying the audit trail.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AuditVerified {
    /// True if there are no faults.
    sound: bool,
    /// Number of sealed rows that are unchanged.
    sealed: u64,
    /// Number of rows that are not sealed yet.
    unsealed: u64,
    /// Number of seals in the trail.
    seals: u64,
    /// Number of the seal at which the trail begins, because older rows were removed after `audit.retention`; absent if
    /// the trail is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    begins_at_seal: Option<u64>,
    /// Time of that seal; absent if the trail is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    begins_at: Option<Timestamp>,
    /// Hash of the last seal, in hexadecimal; absent without seals.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<String>,
    /// The first faults, at most 100.
    faults: Vec<AuditFaultShape>,
}

/// A fault of the audit trail.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum AuditFaultShape {
    /// The content of a sealed row has changed.
    Changed {
        /// Id of the commit that wrote the row, a UUID.
        #[schemars(with = "Id")]
        commit: CommitId,
        /// Position of the row within its commit, counted from 0.
        ordinal: u64,
        /// Number of the seal that covers the row.
        seal: u64,
    },
    /// A sealed row is missing.
    Removed {
        /// Id of the commit that wrote the row, a UUID.
        #[schemars(with = "Id")]
        commit: CommitId,
        /// Position of the row within its commit, counted from 0.
        ordinal: u64,
        /// Number of the seal that covers the row.
        seal: u64,
    },
    /// A row was inserted: it is neither sealed nor waiting to be sealed.
    Inserted {
        /// Id of the commit that the row names, a UUID.
        #[schemars(with = "Id")]
        commit: CommitId,
        /// Position of the row within its commit, counted from 0.
        ordinal: u64,
    },
    /// A seal was changed, removed or reordered.
    Seal {
        /// Number of the seal.
        seal: u64,
    },
}

impl From<Seal> for SealView {
    fn from(seal: Seal) -> Self {
        let Seal { number, at, before, rows, hash } = seal;
        SealView { number, at, before: hex(before), row_count: rows.len(), hash: hex(hash) }
    }
}

impl From<AuditFault> for AuditFaultShape {
    fn from(fault: AuditFault) -> Self {
        match fault {
            AuditFault::Changed { commit, ordinal, seal } => {
                AuditFaultShape::Changed { commit, ordinal, seal }
            }
            AuditFault::Removed { commit, ordinal, seal } => {
                AuditFaultShape::Removed { commit, ordinal, seal }
            }
            AuditFault::Inserted { commit, ordinal } => AuditFaultShape::Inserted { commit, ordinal },
            AuditFault::Seal { number } => AuditFaultShape::Seal { seal: number },
        }
    }
}

fn hex(hash: Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        get("/v1/audit", "listAudit", admin, "List the audit trail, oldest first.")
            .ok::<Page<AuditRecord>>("Rows of the audit trail.")
            .to(list),
        get("/v1/audit/seals", "listAuditSeals", admin, "List the seals of the audit trail, oldest first.")
            .ok::<Page<SealView>>("Seals.")
            .to(seals),
        post("/v1/audit/verify", "verifyAudit", admin, "Verify the audit trail against its seals.")
            .notes("Reads the complete trail. Writes are not blocked meanwhile.")
            .ok::<AuditVerified>("Result of the verification.")
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
        Some(AuditRecord { commit, ordinal, at, operation, subject, actor, run, detail })
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
    Reply::ok(&Page::of(seals, SealView::from))
}

async fn verify(call: Call) -> Result<Reply, Problem> {
    let found = call.engine().verify_audit().await?;
    let sound = found.is_sound();
    let Verified { sealed, unsealed, seals, begins, head, faults } = found;
    let (begins_at_seal, begins_at) = begins.map(|CutSeal { number, at }| (number, at)).unzip();
    let faults = faults.into_iter().map(AuditFaultShape::from).collect();
    let head = head.map(hex);
    Reply::ok(&AuditVerified { sound, sealed, unsealed, seals, begins_at_seal, begins_at, head, faults })
}
