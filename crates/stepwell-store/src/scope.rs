//! Whose data a call may see: a scope that only authentication, or an embedder on purpose, can make.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stepwell_core::RunId;
use uuid::Uuid;

/// A tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(Uuid);

impl TenantId {
    /// A tenant id from a UUID.
    pub const fn new(id: Uuid) -> Self {
        TenantId(id)
    }

    /// The UUID.
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

/// The right to see and change one tenant's data; every store call that touches data takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantScope(TenantId);

impl TenantScope {
    /// The tenant of programs that have none.
    pub const SINGLE: TenantId = TenantId(Uuid::from_u128(1));

    /// For programs without tenants.
    pub const fn single() -> Self {
        TenantScope(Self::SINGLE)
    }

    /// The scope of a tenant that has been authenticated, or that the embedding program vouches for.
    ///
    /// Whoever calls this decides who sees what; nothing below takes a tenant from anywhere else.
    pub const fn vouched(tenant: TenantId) -> Self {
        TenantScope(tenant)
    }

    /// Whose data it is.
    pub const fn tenant(&self) -> TenantId {
        self.0
    }

    /// One of the tenant's runs.
    pub const fn run(self, run: RunId) -> RunKey {
        RunKey { tenant: self.0, run }
    }
}

/// A run and its tenant. Two tenants can have runs of the same id, so whatever a process remembers of runs it remembers
/// under this, never under the id alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunKey {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Its id.
    pub run: RunId,
}
