//! Tenant scopes. Only authentication or the embedding program creates one, and it decides which data a call can see.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stepwell_core::RunId;
use uuid::Uuid;

/// The id of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(Uuid);

impl TenantId {
    /// Creates a tenant id from a UUID.
    pub const fn new(id: Uuid) -> Self {
        TenantId(id)
    }

    /// Returns the id as a UUID.
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TenantId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(TenantId)
    }
}

/// The right to read and change one tenant's data. Every store call that touches data takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantScope(TenantId);

impl TenantScope {
    /// The tenant of programs that do not use tenants.
    pub const SINGLE: TenantId = TenantId(Uuid::from_u128(1));

    /// Returns the scope of programs that do not use tenants.
    pub const fn single() -> Self {
        TenantScope(Self::SINGLE)
    }

    /// Creates the scope of a tenant that was authenticated, or that the embedding program trusts.
    ///
    /// The caller decides which data is visible: no code below this call takes a tenant from another source.
    pub const fn trusted(tenant: TenantId) -> Self {
        TenantScope(tenant)
    }

    /// Returns the tenant of this scope.
    pub const fn tenant(&self) -> TenantId {
        self.0
    }

    /// Combines a run's id with this tenant.
    pub const fn run(self, run: RunId) -> RunKey {
        RunKey { tenant: self.0, run }
    }
}

/// A run and its tenant. Runs of two tenants can have the same id, so in-process maps use this as the key, never the id
/// alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunKey {
    pub tenant: TenantId,
    pub run: RunId,
}
