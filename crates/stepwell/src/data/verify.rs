//! Checks the audit trail against its seals.

use std::collections::{BTreeMap, BTreeSet};

use stepwell_store::seal::{Seal, sealed};
use stepwell_store::{CommitId, Record, RecordQuery, StoreError};

use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;

/// What is wrong with the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A sealed row says something else than when it was sealed.
    Changed {
        /// The commit that wrote it.
        commit: CommitId,
        /// Its place among the rows of that commit.
        ordinal: u64,
        /// The seal it is under.
        seal: u64,
    },
    /// A sealed row is gone.
    Removed {
        /// The commit that wrote it.
        commit: CommitId,
        /// Its place among the rows of that commit.
        ordinal: u64,
        /// The seal it was under.
        seal: u64,
    },
    /// A row is there that was never sealed and does not wait for it.
    SlippedIn {
        /// The commit it names.
        commit: CommitId,
        /// Its place among the rows of that commit.
        ordinal: u64,
    },
    /// A seal has been changed, removed or put in another order.
    Seal {
        /// Which.
        number: u64,
    },
}

/// What a check of the audit trail has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Rows that are sealed and as they were.
    pub sealed: u64,
    /// Rows that are not sealed yet.
    pub unsealed: u64,
    /// Seals.
    pub seals: u64,
    /// The hash of the last seal. Kept elsewhere, it also shows when the end of the trail was cut off.
    pub head: Option<[u8; 32]>,
    /// What is wrong, in the order of the seals, then of the rows; the first hundred at most.
    pub faults: Vec<Fault>,
}

/// Faults that are named.
const MOST_FAULTS: usize = 100;
/// Rows that are read at a time.
const AT_ONCE: u32 = 1_000;

/// A row under a seal that has not been met yet.
type Expected = BTreeMap<(CommitId, u64), (u64, [u8; 32])>;

impl Engine {
    /// Checks the audit trail against its seals, from the beginning. Whoever writes meanwhile is not held up.
    pub async fn verify_audit(&self) -> Result<Verified, EngineError> {
        self.permit(Permission::Admin)?;
        let mut found = Verified::default();
        let mut expected = Expected::new();
        let mut check = Check { engine: self, found: &mut found, expected: &mut expected };
        check.seals().await?;
        check.rows().await?;
        let gone: Vec<_> = expected.into_iter().collect();
        for ((commit, ordinal), (seal, _)) in gone {
            found.fault(Fault::Removed { commit, ordinal, seal });
        }
        found.faults.sort_by_key(Fault::place);
        found.faults.truncate(MOST_FAULTS);
        Ok(found)
    }
}

impl Verified {
    /// Nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }
}

impl Fault {
    fn place(&self) -> (u64, CommitId, u64) {
        match self {
            Fault::Changed { commit, ordinal, seal } | Fault::Removed { commit, ordinal, seal } => {
                (*seal, *commit, *ordinal)
            }
            Fault::Seal { number } => (*number, CommitId(uuid::Uuid::nil()), 0),
            Fault::SlippedIn { commit, ordinal } => (u64::MAX, *commit, *ordinal),
        }
    }
}

struct Check<'a> {
    engine: &'a Engine,
    found: &'a mut Verified,
    expected: &'a mut Expected,
}

impl Check<'_> {
    /// The seals are a chain; gives what they say of the rows.
    async fn seals(&mut self) -> Result<(), StoreError> {
        let (mut from, mut before) = (1, [0; 32]);
        loop {
            let query = RecordQuery::Seals { from, limit: AT_ONCE.min(100) };
            let page = self.engine.store().records(self.engine.scope, query).await?;
            for record in page.items {
                let Record::Seal(seal) = record else { continue };
                let follows = seal.number == from && seal.before == before;
                if !follows || seal.expected(self.engine.scope.tenant()) != seal.hash {
                    self.found.fault(Fault::Seal { number: seal.number.min(from) });
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

    /// Every row is under a seal and as it was, or waits for one.
    async fn rows(&mut self) -> Result<(), StoreError> {
        let (tenant, mut cursor) = (self.engine.scope.tenant(), None);
        let mut loose: Vec<(CommitId, u64)> = Vec::new();
        loop {
            let query = RecordQuery::Audit { limit: AT_ONCE, cursor };
            let page = self.engine.store().records(self.engine.scope, query).await?;
            for record in page.items {
                let Record::Audit { commit, ordinal, at, row } = record else { continue };
                match self.expected.remove(&(commit, ordinal)) {
                    None => loose.push((commit, ordinal)),
                    Some((_, hash)) if sealed(tenant, commit, ordinal, at, &row).hash == hash => {
                        self.found.sealed += 1;
                    }
                    Some((seal, _)) => self.found.fault(Fault::Changed { commit, ordinal, seal }),
                }
            }
            let Some(next) = page.next else { break };
            cursor = Some(next);
        }
        self.loose(loose).await
    }

    /// Rows that were under no seal when the seals were read: they wait for one, have got one since, or were slipped in.
    async fn loose(&mut self, mut loose: Vec<(CommitId, u64)>) -> Result<(), StoreError> {
        if loose.is_empty() {
            return Ok(());
        }
        let seals_before = self.found.seals;
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
        // Whoever seals meanwhile takes rows off the list and puts them under a seal in one transaction.
        let since = self.sealed_since(seals_before + 1).await?;
        for (commit, ordinal) in loose {
            if since.contains(&(commit, ordinal)) {
                self.found.unsealed += 1;
            } else {
                self.found.fault(Fault::SlippedIn { commit, ordinal });
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
