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

/// What a word for the right to work on remote tasks begins with: `worker:mail.send`, or `worker:*` for every action.
const WORKER: &str = "worker:";
/// Letters, digits and signs of an action's name that can be granted.
const MOST_CHARS: usize = 256;
/// Every action.
const EVERY: &str = "*";

/// What somebody may do: permissions, each given by itself, and the remote actions whose tasks they may work on.
///
/// Written, it is a list of words: `["workflow:view", "worker:mail.send"]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Grants {
    permissions: BTreeSet<Permission>,
    actions: BTreeSet<String>,
}

impl Grants {
    /// Everything: every permission, and the tasks of every action.
    pub fn all() -> Self {
        Grants::from_iter(Permission::ALL).worker(EVERY)
    }

    /// These and the tasks of an action; `*` stands for every action.
    #[must_use]
    pub fn worker(mut self, action: impl Into<String>) -> Self {
        self.actions.insert(action.into());
        self
    }

    /// They include this permission.
    pub fn may(&self, permission: Permission) -> bool {
        self.permissions.contains(&permission)
    }

    /// They include the tasks of this action.
    pub fn may_work_on(&self, action: &str) -> bool {
        self.actions.contains(EVERY) || self.actions.contains(action)
    }

    /// They include the tasks of some action.
    pub fn is_worker(&self) -> bool {
        !self.actions.is_empty()
    }

    /// There is nothing in them.
    pub fn is_empty(&self) -> bool {
        self.permissions.is_empty() && self.actions.is_empty()
    }

    /// The first word of others that these do not include.
    pub fn lacking(&self, others: &Grants) -> Option<String> {
        let permission = others.permissions.iter().find(|one| !self.may(**one)).map(ToString::to_string);
        permission.or_else(|| {
            let action = others.actions.iter().find(|action| !self.may_work_on(action))?;
            Some(format!("{WORKER}{action}"))
        })
    }

    /// These and others.
    pub fn extend(&mut self, others: &Grants) {
        self.permissions.extend(&others.permissions);
        self.actions.extend(others.actions.iter().cloned());
    }

    /// Adds what a word stands for.
    pub fn add(&mut self, word: &str) -> Result<(), String> {
        let Some(action) = word.strip_prefix(WORKER) else {
            self.permissions.insert(word.parse()?);
            return Ok(());
        };
        if !(1..=MOST_CHARS).contains(&action.len()) || !action.bytes().all(|byte| byte.is_ascii_graphic()) {
            let how = "write `worker:ACTION` in up to 256 letters, digits and signs of ASCII, or `worker:*` for all";
            return Err(format!("`{word}` names no action: {how}"));
        }
        self.actions.insert(action.to_owned());
        Ok(())
    }

    /// The words for them.
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

/// Somebody who asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Who, for the audit trail.
    pub id: String,
    /// What they may do.
    #[serde(rename = "permissions")]
    pub grants: Grants,
}

impl Actor {
    /// Somebody who has these permissions.
    pub fn new(id: impl Into<String>, permissions: impl IntoIterator<Item = Permission>) -> Self {
        Actor::granted(id, permissions.into_iter().collect())
    }

    /// Somebody who may do this much.
    pub fn granted(id: impl Into<String>, grants: Grants) -> Self {
        Actor { id: id.into(), grants }
    }

    /// They may do this.
    pub fn may(&self, permission: Permission) -> bool {
        self.grants.may(permission)
    }
}

#[cfg(test)]
mod tests {
    use super::{Grants, Permission};

    #[test]
    fn grants_are_words_and_nobody_includes_what_they_do_not_have() {
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
