//! Verification of the audit trail against its seals.

use std::collections::{BTreeMap, BTreeSet};

use stepwell_core::Timestamp;
use stepwell_store::seal::{Seal, sealed};
use stepwell_store::{CommitId, Record, RecordQuery, StoreError};

use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::maintenance::AUDIT_CUT;

/// A fault in the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditFault {
    /// A sealed row differs from what was sealed.
    Changed {
        /// The commit that wrote the row.
        commit: CommitId,
        /// Position of the row within its commit.
        ordinal: u64,
        /// Number of the seal that covers the row.
        seal: u64,
    },
    /// A sealed row is missing.
    Removed {
        /// The commit that wrote the row.
        commit: CommitId,
        /// Position of the row within its commit.
        ordinal: u64,
        /// Number of the seal that covers the row.
        seal: u64,
    },
    /// A row exists that no seal covers and that is not waiting for one.
    Inserted {
        /// The commit that the row names.
        commit: CommitId,
        /// Position of the row within its commit.
        ordinal: u64,
    },
    /// A seal was changed, removed or moved.
    Seal {
        /// Number of the first seal affected.
        number: u64,
    },
}

/// The result of verifying the audit trail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of sealed rows that are unchanged.
    pub sealed: u64,
    /// Number of rows that are not sealed yet.
    pub unsealed: u64,
    /// Number of seals.
    pub seals: u64,
    /// The seal at which the trail begins, because earlier rows were removed after their retention; `None` if the trail is
    /// complete.
    pub begins: Option<CutSeal>,
    /// Hash of the last seal. A copy kept outside of the database reveals a trail whose end was cut off.
    pub head: Option<[u8; 32]>,
    /// Faults ordered by seal, then by row; at most 100.
    pub faults: Vec<AuditFault>,
}

/// The seal at which the audit trail was cut. Its rows and everything before it are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutSeal {
    pub number: u64,
    /// The time at which it was made: rows that are older are removed.
    pub at: Timestamp,
}

/// Maximum number of reported faults.
const MOST_FAULTS: usize = 100;
/// Page size for reading rows.
const AT_ONCE: u32 = 1_000;

/// Sealed rows that were not found yet: commit and position, with the seal's number and the row's hash.
type Expected = BTreeMap<(CommitId, u64), (u64, [u8; 32])>;

impl Engine {
    /// Verifies the audit trail against its seals, from the beginning. Concurrent writers are not blocked.
    pub async fn verify_audit(&self) -> Result<Verified, EngineError> {
        self.permit(Permission::Admin)?;
        let mut found = Verified::default();
        let mut expected = Expected::new();
        let mut check = Check { engine: self, found: &mut found, expected: &mut expected, cut: 0 };
        check.seals().await?;
        check.rows().await?;
        let cut = check.cut;
        // A trail may begin later only if it says so itself.
        if found.begins.is_some_and(|begins| begins.number > cut) {
            found.fault(AuditFault::Seal { number: 1 });
        }
        // While a cut is under way, rows of its seal may still be there.
        expected.retain(|_, (seal, _)| found.begins.is_none_or(|begins| begins.number != *seal));
        let gone: Vec<_> = expected.into_iter().collect();
        for ((commit, ordinal), (seal, _)) in gone {
            found.fault(AuditFault::Removed { commit, ordinal, seal });
        }
        found.faults.sort_by_key(AuditFault::place);
        found.faults.truncate(MOST_FAULTS);
        Ok(found)
    }
}

impl Verified {
    /// Returns `true` if no fault was found.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    fn fault(&mut self, fault: AuditFault) {
        self.faults.push(fault);
    }
}

impl AuditFault {
    fn place(&self) -> (u64, CommitId, u64) {
        match self {
            AuditFault::Changed { commit, ordinal, seal } | AuditFault::Removed { commit, ordinal, seal } => {
                (*seal, *commit, *ordinal)
            }
            AuditFault::Seal { number } => (*number, CommitId(uuid::Uuid::nil()), 0),
            AuditFault::Inserted { commit, ordinal } => (u64::MAX, *commit, *ordinal),
        }
    }
}

struct Check<'a> {
    engine: &'a Engine,
    found: &'a mut Verified,
    expected: &'a mut Expected,
    /// Highest number of a seal at which the trail says that it was cut.
    cut: u64,
}

impl Check<'_> {
    /// Verifies the chain of seals and collects the rows they cover.
    async fn seals(&mut self) -> Result<(), StoreError> {
        let (mut from, mut before) = (1, [0; 32]);
        loop {
            let query = RecordQuery::Seals { from, limit: AT_ONCE.min(100) };
            let page = self.engine.store().records(self.engine.scope, query).await?;
            for record in page.items {
                let Record::Seal(seal) = record else { continue };
                if self.found.seals == 0 && seal.number > 1 {
                    self.found.begins = Some(CutSeal { number: seal.number, at: seal.at });
                    (from, before) = (seal.number, seal.before);
                }
                let follows = seal.number == from && seal.before == before;
                if !follows || seal.expected(self.engine.scope.tenant()) != seal.hash {
                    self.found.fault(AuditFault::Seal { number: seal.number.min(from) });
                }
                (from, before) = (seal.number + 1, seal.hash);
                self.known(&seal);
            }
            if page.next.is_none() {
                return Ok(());
            }
        }
    }

    fn known(&mut self, seal: &Seal) {
        self.found.seals += 1;
        self.found.head = Some(seal.hash);
        let rows = seal.rows.iter().map(|row| ((row.commit, row.ordinal), (seal.number, row.hash)));
        self.expected.extend(rows);
    }

    /// Verifies that every row is unchanged since it was sealed, or is waiting for its seal.
    async fn rows(&mut self) -> Result<(), StoreError> {
        let (tenant, mut cursor) = (self.engine.scope.tenant(), None);
        let mut loose: Vec<(CommitId, u64)> = Vec::new();
        loop {
            let query = RecordQuery::Audit { limit: AT_ONCE, cursor };
            let page = self.engine.store().records(self.engine.scope, query).await?;
            for record in page.items {
                let Record::Audit { commit, ordinal, at, row } = record else { continue };
                if row.operation == AUDIT_CUT {
                    let number = row.subject.strip_prefix("seal/").and_then(|number| number.parse().ok());
                    self.cut = self.cut.max(number.unwrap_or(0));
                }
                match self.expected.remove(&(commit, ordinal)) {
                    None => loose.push((commit, ordinal)),
                    Some((_, hash)) if sealed(tenant, commit, ordinal, at, &row).hash == hash => {
                        self.found.sealed += 1;
                    }
                    Some((seal, _)) => self.found.fault(AuditFault::Changed { commit, ordinal, seal }),
                }
            }
            let Some(next) = page.next else { break };
            cursor = Some(next);
        }
        self.loose(loose).await
    }

    /// Classifies rows that no seal covered when the seals were read: waiting for a seal, sealed since then, or
    /// inserted.
    async fn loose(&mut self, mut loose: Vec<(CommitId, u64)>) -> Result<(), StoreError> {
        if loose.is_empty() {
            return Ok(());
        }
        let seals_before = self.found.begins.map_or(0, |begins| begins.number - 1) + self.found.seals;
        let mut waiting: BTreeSet<CommitId> = BTreeSet::new();
        let mut cursor = None;
        loop {
            let query = RecordQuery::Unsealed { limit: AT_ONCE, cursor };
            let page = self.engine.store().records(self.engine.scope, query).await?;
            waiting.extend(page.items.iter().filter_map(|record| match record {
                Record::Unsealed(commit) => Some(*commit),
                _ => None,
            }));
            let Some(next) = page.next else { break };
            cursor = Some(next);
        }
        loose.retain(|(commit, _)| {
            let waits = waiting.contains(commit);
            self.found.unsealed += u64::from(waits);
            !waits
        });
        // Sealing removes a row from the waiting list and covers it by a seal in one transaction. So a row that is in
        // neither was inserted.
        let since = self.sealed_since(seals_before + 1).await?;
        for (commit, ordinal) in loose {
            if since.contains(&(commit, ordinal)) {
                self.found.unsealed += 1;
            } else {
                self.found.fault(AuditFault::Inserted { commit, ordinal });
            }
        }
        Ok(())
    }

    async fn sealed_since(&self, mut from: u64) -> Result<BTreeSet<(CommitId, u64)>, StoreError> {
        let mut since = BTreeSet::new();
        loop {
            let query = RecordQuery::Seals { from, limit: AT_ONCE.min(100) };
            let page = self.engine.store().records(self.engine.scope, query).await?;
            for record in page.items {
                let Record::Seal(seal) = record else { continue };
                from = seal.number + 1;
                since.extend(seal.rows.iter().map(|row| (row.commit, row.ordinal)));
            }
            if page.next.is_none() {
                return Ok(since);
            }
        }
    }
}
