//! Seals: hash chains that make later changes of the audit trail detectable.
//!
//! Writers never wait for a seal. A sealer runs later, takes the rows that are not sealed yet in the order in which
//! they have become visible, and writes one seal over them. The seal contains the hash of every row and of the previous
//! seal. A row that is neither sealed nor listed as unsealed was inserted by other means.

use sha2::{Digest, Sha256};
use stepwell_core::Timestamp;
use uuid::Uuid;

use crate::commit::{AuditRow, CommitId};
use crate::scope::TenantId;
use crate::store::StoreError;

/// The bytes of a SHA-256 hash.
pub type Hash = [u8; 32];

/// A reference from a seal to a row of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRow {
    /// The commit that wrote the row.
    pub commit: CommitId,
    /// Index of the row within that commit.
    pub ordinal: u64,
    /// The hash of the row's content.
    pub hash: Hash,
}

/// A seal over rows of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Numbers start at 1 and have no gaps.
    pub number: u64,
    /// The time at which it was made.
    pub at: Timestamp,
    /// The hash of the previous seal; zeros for the first one.
    pub before: Hash,
    /// The rows, in the order in which they are hashed.
    pub rows: Vec<SealedRow>,
    /// The hash over all other fields and the tenant.
    pub hash: Hash,
}

/// Encoded size of a sealed row.
const ROW_BYTES: usize = 16 + 8 + 32;

impl Seal {
    /// Creates the seal that follows `last`.
    pub fn after(tenant: TenantId, last: Option<(u64, Hash)>, at: Timestamp, rows: Vec<SealedRow>) -> Self {
        let (number, before) = last.map_or((1, [0; 32]), |(number, hash)| (number.saturating_add(1), hash));
        let mut seal = Seal { number, at, before, rows, hash: [0; 32] };
        seal.hash = seal.expected(tenant);
        seal
    }

    /// Computes the hash that the seal must have.
    pub fn expected(&self, tenant: TenantId) -> Hash {
        let mut hash = Sha256::new();
        hash.update(tenant.uuid().as_bytes());
        hash.update(self.number.to_be_bytes());
        hash.update(self.at.micros().to_be_bytes());
        hash.update(self.before);
        hash.update(self.encoded_rows());
        hash.finalize().into()
    }

    /// Encodes the rows for storage.
    pub fn encoded_rows(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.rows.len() * ROW_BYTES);
        for SealedRow { commit, ordinal, hash } in &self.rows {
            bytes.extend_from_slice(commit.0.as_bytes());
            bytes.extend_from_slice(&ordinal.to_be_bytes());
            bytes.extend_from_slice(hash);
        }
        bytes
    }

    /// Decodes the output of [`Seal::encoded_rows`].
    pub fn decode_rows(bytes: &[u8]) -> Result<Vec<SealedRow>, StoreError> {
        let (rows, rest) = bytes.as_chunks::<ROW_BYTES>();
        if !rest.is_empty() {
            return Err(StoreError::Corrupt(format!(
                "a seal's rows end within a row ({} bytes)",
                bytes.len()
            )));
        }
        let part = |row: &[u8; ROW_BYTES], from: usize, to: usize| row[from..to].to_vec();
        let read = |row: &[u8; ROW_BYTES]| {
            let commit = Uuid::from_slice(&part(row, 0, 16)).ok()?;
            let ordinal = u64::from_be_bytes(part(row, 16, 24).try_into().ok()?);
            Some(SealedRow { commit: CommitId(commit), ordinal, hash: part(row, 24, 56).try_into().ok()? })
        };
        let unreadable = || StoreError::Corrupt("the rows of a seal cannot be decoded".to_owned());
        rows.iter().map(|row| read(row).ok_or_else(unreadable)).collect()
    }
}

/// Computes the hash of everything in a row.
pub fn sealed(tenant: TenantId, commit: CommitId, ordinal: u64, at: Timestamp, row: &AuditRow) -> SealedRow {
    let AuditRow { operation, subject, actor, run, detail } = row;
    let mut hash = Sha256::new();
    // Each part is preceded by its length, so that no two rows give the same bytes.
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    put(tenant.uuid().as_bytes());
    put(commit.0.as_bytes());
    put(&ordinal.to_be_bytes());
    put(&at.micros().to_be_bytes());
    put(operation.as_bytes());
    put(subject.as_bytes());
    put(&[u8::from(actor.is_some())]);
    put(actor.as_deref().unwrap_or_default().as_bytes());
    put(run.map(|run| run.uuid().into_bytes()).as_ref().map_or(&[][..], |run| &run[..]));
    put(detail);
    SealedRow { commit, ordinal, hash: hash.finalize().into() }
}
