//! Who asks, and what they may: permissions on top of the tenant's scope.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Permission {
    /// See definitions, runs, their history and waits.
    #[serde(rename = "workflow:view")]
    View,
    /// Read data, links, slots and documents.
    #[serde(rename = "workflow:read")]
    Read,
    /// Start, signal, retry and cancel runs, and write data.
    #[serde(rename = "workflow:manage")]
    Manage,
    /// Make workflows known, and schedules.
    #[serde(rename = "workflow:publish")]
    Publish,
    /// Patch, move, migrate and fork runs, heal their shadow columns, and see the audit trail.
    #[serde(rename = "workflow:admin")]
    Admin,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Permission; 5] =
        [Permission::View, Permission::Read, Permission::Manage, Permission::Publish, Permission::Admin];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Permission::View => "workflow:view",
            Permission::Read => "workflow:read",
            Permission::Manage => "workflow:manage",
            Permission::Publish => "workflow:publish",
            Permission::Admin => "workflow:admin",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Permission {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Permission::ALL.into_iter().find(|permission| permission.as_str() == text);
        known.ok_or_else(|| {
            let all = Permission::ALL.map(Permission::as_str).join(", ");
            format!("`{text}` is not a permission; there are {all}")
        })
    }
}

/// Somebody who asks. Each permission is given by itself: none includes another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Who, for the audit trail.
    pub id: String,
    /// What they may do.
    pub permissions: BTreeSet<Permission>,
}

impl Actor {
    /// Somebody who may do this much.
    pub fn new(id: impl Into<String>, permissions: impl IntoIterator<Item = Permission>) -> Self {
        Actor { id: id.into(), permissions: permissions.into_iter().collect() }
    }

    /// They may do this.
    pub fn may(&self, permission: Permission) -> bool {
        self.permissions.contains(&permission)
    }
}
