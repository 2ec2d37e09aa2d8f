//! The people who may answer a wait, as a definition names them.

use std::fmt;
use std::str::FromStr;

/// Maximum length of the name of a user or a role, in characters.
const MAX_CHARS: usize = 256;

/// A user or a role that may answer a wait: `user:ID` or `role:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answerer {
    /// The user with this id.
    User(String),
    /// Everyone who has this role.
    Role(String),
}

impl FromStr for Answerer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("`{text}` is not an answerer: {why}"));
        let (to, name): (fn(String) -> Answerer, &str) = match text.split_once(':') {
            Some(("user", name)) => (Answerer::User, name),
            Some(("role", name)) => (Answerer::Role, name),
            _ => return wrong("write `user:ID` or `role:NAME`"),
        };
        match name_problem(name) {
            Some(why) => wrong(&why),
            None => Ok(to(name.to_owned())),
        }
    }
}

impl fmt::Display for Answerer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answerer::User(id) => write!(f, "user:{id}"),
            Answerer::Role(name) => write!(f, "role:{name}"),
        }
    }
}

/// Returns the reason why this cannot be the id of a user or the name of a role; `None` if it can.
pub fn name_problem(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the name is empty".to_owned());
    }
    if name.trim() != name || name.chars().any(char::is_control) {
        return Some("the name contains control characters, or starts or ends with white space".to_owned());
    }
    (name.chars().count() > MAX_CHARS).then(|| format!("the name has more than {MAX_CHARS} characters"))
}

#[cfg(test)]
mod tests {
    use super::Answerer;

    #[test]
    fn answerers_are_users_or_roles() {
        for text in ["user:ann", "role:head of finance", "user:oidc|7:x", "role:ä"] {
            assert_eq!(text.parse::<Answerer>().unwrap().to_string(), text);
        }
        for text in ["ann", "group:x", "user:", "role: x", "user:a\nb", "", "role", "User:ann"] {
            let error = text.parse::<Answerer>().unwrap_err();
            assert!(error.contains("is not an answerer"), "{error}");
        }
        assert!(format!("user:{}", "x".repeat(257)).parse::<Answerer>().is_err());
    }
}
