//! The values of secrets that this process has given to workers, kept in memory for the lease. A secret may be rotated
//! meanwhile: the worker's result is redacted with the value that the worker got, and with the current one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepwell_core::Timestamp;
use stepwell_store::TenantId;

use super::TaskId;
use crate::secrets::Revealed;

/// Maximum number of leases whose secrets are kept. Beyond it, the leases that end first are forgotten.
const MAX_LEASES: usize = 10_000;

/// A lease of a task.
type Lease = (TenantId, TaskId, u64);

/// The secrets of one lease and the end of the lease.
struct Kept {
    secrets: Arc<Revealed>,
    until: Timestamp,
}

/// The secrets in the inputs of leased tasks, by lease.
#[derive(Default)]
pub(crate) struct LeasedSecrets(Mutex<BTreeMap<Lease, Kept>>);

impl LeasedSecrets {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Lease, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the secrets that a worker gets with a task.
    pub(super) fn keep(&self, lease: Lease, secrets: Revealed, until: Timestamp) {
        if secrets.is_empty() {
            return;
        }
        let mut all = self.lock();
        while all.len() >= MAX_LEASES {
            let first = all.iter().min_by_key(|(_, kept)| kept.until).map(|(lease, _)| *lease);
            let Some(first) = first else { break };
            all.remove(&first);
        }
        all.insert(lease, Kept { secrets: Arc::new(secrets), until });
    }

    /// Records a new end of the lease.
    pub(super) fn renew(&self, lease: Lease, until: Timestamp) {
        if let Some(kept) = self.lock().get_mut(&lease) {
            kept.until = until;
        }
    }

    /// Returns the secrets of a lease. `None` if it had none, or if another process granted it.
    pub(super) fn of(&self, lease: Lease) -> Option<Arc<Revealed>> {
        self.lock().get(&lease).map(|kept| kept.secrets.clone())
    }

    /// Forgets a lease that is over.
    pub(super) fn forget(&self, lease: Lease) {
        self.lock().remove(&lease);
    }
}

impl fmt::Debug for LeasedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedSecrets").finish_non_exhaustive()
    }
}
