//! Callers and their permissions within a tenant.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stepwell_core::Answerer;

/// A permission. Each is granted separately; none includes another.
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
    /// Publish workflows and change schedules.
    #[serde(rename = "workflow:publish")]
    Publish,
    /// See, claim and answer the waits that name the caller or one of the caller's roles.
    #[serde(rename = "workflow:answer")]
    Answer,
    /// Patch, move, migrate and fork runs, heal their shadow columns, and see the audit trail.
    #[serde(rename = "workflow:admin")]
    Admin,
}

impl Permission {
    /// All permissions, in the order of their declaration.
    pub const ALL: [Permission; 6] = [
        Permission::View,
        Permission::Read,
        Permission::Manage,
        Permission::Publish,
        Permission::Answer,
        Permission::Admin,
    ];

    /// Returns the name of the permission, such as `workflow:view`.
    pub fn as_str(self) -> &'static str {
        match self {
            Permission::View => "workflow:view",
            Permission::Read => "workflow:read",
            Permission::Manage => "workflow:manage",
            Permission::Publish => "workflow:publish",
            Permission::Answer => "workflow:answer",
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
            format!("unknown permission `{text}`; use one of {all}")
        })
    }
}

/// Prefix of the permission to work on remote tasks: `worker:mail.send`, or `worker:*` for every action.
const WORKER: &str = "worker:";
/// Maximum length of an action name in a grant, in bytes.
const MOST_CHARS: usize = 256;
/// Stands for every action.
const EVERY: &str = "*";

/// The grants of a caller: permissions, and the remote actions whose tasks the caller may work on.
///
/// Serialized as a list of names: `["workflow:view", "worker:mail.send"]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Grants {
    permissions: BTreeSet<Permission>,
    actions: BTreeSet<String>,
}

impl Grants {
    /// Returns every permission and the tasks of every action.
    pub fn all() -> Self {
        Grants::from_iter(Permission::ALL).worker(EVERY)
    }

    /// Adds the tasks of an action; `*` stands for every action.
    #[must_use]
    pub fn worker(mut self, action: impl Into<String>) -> Self {
        self.actions.insert(action.into());
        self
    }

    /// Returns true if the grants include this permission.
    pub fn may(&self, permission: Permission) -> bool {
        self.permissions.contains(&permission)
    }

    /// Returns true if the grants include the tasks of this action.
    pub fn may_work_on(&self, action: &str) -> bool {
        self.actions.contains(EVERY) || self.actions.contains(action)
    }

    /// Returns true if the grants include the tasks of at least one action.
    pub fn is_worker(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns true if nothing is granted.
    pub fn is_empty(&self) -> bool {
        self.permissions.is_empty() && self.actions.is_empty()
    }

    /// Returns the name of the first grant in `others` that is missing here.
    pub fn lacking(&self, others: &Grants) -> Option<String> {
        let permission = others.permissions.iter().find(|one| !self.may(**one)).map(ToString::to_string);
        permission.or_else(|| {
            let action = others.actions.iter().find(|action| !self.may_work_on(action))?;
            Some(format!("{WORKER}{action}"))
        })
    }

    /// Adds all grants of `others`.
    pub fn extend(&mut self, others: &Grants) {
        self.permissions.extend(&others.permissions);
        self.actions.extend(others.actions.iter().cloned());
    }

    /// Adds the grant with this name. Fails for an unknown permission or an invalid action name.
    pub fn add(&mut self, word: &str) -> Result<(), String> {
        let Some(action) = word.strip_prefix(WORKER) else {
            self.permissions.insert(word.parse()?);
            return Ok(());
        };
        if !(1..=MOST_CHARS).contains(&action.len()) || !action.bytes().all(|byte| byte.is_ascii_graphic()) {
            let how =
                "write `worker:ACTION` with at most 256 printable ASCII characters, or `worker:*` for all";
            return Err(format!("`{word}` does not name an action: {how}"));
        }
        self.actions.insert(action.to_owned());
        Ok(())
    }

    /// Returns the names of all grants, permissions first.
    pub fn words(&self) -> Vec<String> {
        let actions = self.actions.iter().map(|action| format!("{WORKER}{action}"));
        self.permissions.iter().map(ToString::to_string).chain(actions).collect()
    }
}

impl FromIterator<Permission> for Grants {
    fn from_iter<I: IntoIterator<Item = Permission>>(permissions: I) -> Self {
        Grants { permissions: permissions.into_iter().collect(), actions: BTreeSet::new() }
    }
}

impl<const N: usize> From<[Permission; N]> for Grants {
    fn from(permissions: [Permission; N]) -> Self {
        Grants::from_iter(permissions)
    }
}

impl TryFrom<Vec<String>> for Grants {
    type Error = String;

    fn try_from(words: Vec<String>) -> Result<Self, String> {
        let mut grants = Grants::default();
        words.iter().try_for_each(|word| grants.add(word))?;
        Ok(grants)
    }
}

impl From<Grants> for Vec<String> {
    fn from(grants: Grants) -> Self {
        grants.words()
    }
}

/// A caller: a person or program with grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The id that the audit trail records.
    pub id: String,
    #[serde(rename = "permissions")]
    pub grants: Grants,
    /// Roles, which waits name as `role:NAME`. A role grants no permission.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
    /// Id of the user, which waits name as `user:ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl Actor {
    /// Creates a caller with these permissions.
    pub fn new(id: impl Into<String>, permissions: impl IntoIterator<Item = Permission>) -> Self {
        Actor::granted(id, permissions.into_iter().collect())
    }

    /// Creates a caller with these grants.
    pub fn granted(id: impl Into<String>, grants: Grants) -> Self {
        Actor { id: id.into(), grants, roles: BTreeSet::new(), user: None }
    }

    /// Sets the id of the user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Adds a role, which waits name as `role:NAME`.
    #[must_use]
    pub fn with_role(mut self, role: impl Into<String>) -> Self {
        self.roles.insert(role.into());
        self
    }

    /// Returns the answerers that name this caller: the user and each role.
    pub fn answerers(&self) -> Vec<Answerer> {
        let user = self.user.iter().cloned().map(Answerer::User);
        user.chain(self.roles.iter().cloned().map(Answerer::Role)).collect()
    }

    /// Returns true if the caller has this permission.
    pub fn may(&self, permission: Permission) -> bool {
        self.grants.may(permission)
    }
}

#[cfg(test)]
mod tests {
    use super::{Grants, Permission};

    #[test]
    fn grants_parse_and_name_what_is_missing() {
        let words = |grants: &Grants| grants.words().join(" ");
        let read: Grants = serde_json::from_str(r#"["worker:b","workflow:view","worker:a"]"#).unwrap();
        assert_eq!(words(&read), "workflow:view worker:a worker:b");
        assert!(read.may(Permission::View) && !read.may(Permission::Admin));
        assert!(read.may_work_on("a") && !read.may_work_on("c") && !read.may_work_on("*"));
        assert_eq!(Grants::all().lacking(&read), None);
        assert_eq!(read.lacking(&Grants::all()).as_deref(), Some("workflow:read"));
        let every = Grants::default().worker("*");
        assert_eq!(read.lacking(&every).as_deref(), Some("worker:*"));
        assert_eq!(every.lacking(&Grants::default().worker("c")), None);
        for wrong in ["worker:", "worker:a b", "worker:ä", "workflow:all", "a"] {
            assert!(Grants::try_from(vec![wrong.to_owned()]).unwrap_err().contains(wrong));
        }
    }
}
