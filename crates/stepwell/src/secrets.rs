//! Secrets: the values of `{ "$secret": "NAME" }` in an action's input. They are looked up when the action runs. They
//! are never stored or shown: not in the snapshot, not in the history, not in an error.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};
use stepwell_core::Failure;
use stepwell_store::{TenantId, TenantScope};

use crate::host::BoxFuture;
use crate::redaction::Redaction;

/// The key that marks a secret in an input.
const MARKER: &str = "$secret";

/// A source of secrets.
pub trait Secrets: Send + Sync {
    /// Returns the tenant's secret of this name; `None` if there is none. Fails with a reason if the source is
    /// unavailable.
    fn secret(&self, scope: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>>;
}

/// The tenants that may use a source of secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    One(TenantId),
    All,
}

impl For {
    fn has(self, scope: TenantScope) -> bool {
        match self {
            For::One(tenant) => tenant == scope.tenant(),
            For::All => true,
        }
    }
}

/// Secrets from environment variables: `STEPWELL_SECRET_<NAME>`, or the file named in `STEPWELL_SECRET_<NAME>_FILE`.
/// They belong to one tenant. Default: the tenant of programs without tenants.
#[derive(Debug, Clone)]
pub struct EnvironmentSecrets {
    prefix: String,
    tenants: For,
}

impl Default for EnvironmentSecrets {
    fn default() -> Self {
        EnvironmentSecrets::with_prefix("STEPWELL_SECRET_")
    }
}

impl EnvironmentSecrets {
    /// Uses variables with another prefix.
    pub fn with_prefix(prefix: impl Into<String>) -> Self {
        EnvironmentSecrets { prefix: prefix.into(), tenants: For::One(TenantScope::SINGLE) }
    }

    /// Assigns the secrets to another tenant.
    #[must_use]
    pub fn for_tenant(mut self, tenant: TenantId) -> Self {
        self.tenants = For::One(tenant);
        self
    }

    /// Lets every tenant use all these secrets. A tenant can read them this way, because a workflow can send them
    /// anywhere.
    #[must_use]
    pub fn for_every_tenant(mut self) -> Self {
        self.tenants = For::All;
        self
    }
}

impl Secrets for EnvironmentSecrets {
    fn secret(&self, scope: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        if !self.tenants.has(scope) {
            return Box::pin(async { Ok(None) });
        }
        let variable = format!("{}{name}", self.prefix);
        let file = std::env::var_os(format!("{variable}_FILE")).map(PathBuf::from);
        let found = match (std::env::var(&variable), file) {
            (Ok(secret), _) => Ok(Some(secret)),
            (Err(_), Some(file)) => read(&file),
            (Err(_), None) => Ok(None),
        };
        Box::pin(async move { found })
    }
}

/// Secrets from files: `<folder>/<tenant>/<name>`. `<folder>/<name>` belongs to one tenant. Default: the tenant of
/// programs without tenants.
#[derive(Debug, Clone)]
pub struct FileSecrets {
    folder: PathBuf,
    tenants: For,
}

impl FileSecrets {
    /// Uses the files of this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        FileSecrets { folder: folder.into(), tenants: For::One(TenantScope::SINGLE) }
    }

    /// Assigns the files outside the tenants' folders to another tenant.
    #[must_use]
    pub fn for_tenant(mut self, tenant: TenantId) -> Self {
        self.tenants = For::One(tenant);
        self
    }

    /// Lets every tenant use the files outside the tenants' folders.
    #[must_use]
    pub fn for_every_tenant(mut self) -> Self {
        self.tenants = For::All;
        self
    }
}

impl Secrets for FileSecrets {
    fn secret(&self, scope: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let own = self.folder.join(scope.tenant().to_string()).join(name);
        let found = match read(&own) {
            Ok(None) if self.tenants.has(scope) => read(&self.folder.join(name)),
            other => other,
        };
        Box::pin(async move { found })
    }
}

/// Reads a file without the line break at its end; `None` if it does not exist.
fn read(file: &std::path::Path) -> Result<Option<String>, String> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.kind().to_string()),
    }
}

/// Secrets that were put into an input and may appear in the output. Sorted by length, longest first, because one may
/// contain another.
#[derive(Debug, Default)]
pub(crate) struct Revealed(Vec<Redaction>);

/// Returns the JSON pointer and the name of each secret in an input.
pub(crate) fn found(input: &Value) -> Vec<(String, String)> {
    let (mut all, mut open) = (Vec::new(), vec![(String::new(), input)]);
    while let Some((pointer, value)) = open.pop() {
        match value {
            Value::Array(items) => {
                open.extend(items.iter().enumerate().map(|(at, item)| (format!("{pointer}/{at}"), item)));
            }
            Value::Object(fields) => match name(fields) {
                Some(name) => all.push((pointer, name.to_owned())),
                None => open.extend(fields.iter().map(|(field, value)| {
                    (format!("{pointer}/{}", field.replace('~', "~0").replace('/', "~1")), value)
                })),
            },
            _ => {}
        }
    }
    all.sort();
    all
}

/// Returns the names of the secrets in an input, without duplicates.
pub(crate) fn named(input: &Value) -> Vec<String> {
    let mut names: Vec<_> = found(input).into_iter().map(|(_, name)| name).collect();
    names.sort();
    names.dedup();
    names
}

/// Rejects a secret at a place where the action does not allow one.
pub(crate) fn admitted(action: &str, fields: &[String], pointer: &str) -> Result<(), String> {
    let is_below = |field: &String| {
        pointer.strip_prefix(field.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match fields {
        [] => Err(format!("`{action}` takes no secrets")),
        fields if fields.iter().any(is_below) => Ok(()),
        fields => Err(format!("`{action}` takes secrets in {}, not in `{pointer}`", fields.join(", "))),
    }
}

/// Returns true for a valid name. Letters, digits and `_` cannot form a path to another file.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn name(fields: &Map<String, Value>) -> Option<&str> {
    if fields.len() == 1 { fields.get(MARKER)?.as_str() } else { None }
}

/// Replaces every secret in an input by its value, if the action allows secrets there. Names consist of letters,
/// digits and `_`, because they become part of a file or variable name.
pub(crate) async fn reveal(
    source: Option<&Arc<dyn Secrets>>,
    scope: TenantScope,
    action: &str,
    fields: &[String],
    input: &mut Value,
) -> Result<Revealed, Failure> {
    let mut secrets = Vec::new();
    let fail = |name: &str, why: String| Failure::new("secret", format!("secret `{name}`: {why}"));
    for (pointer, name) in found(input) {
        admitted(action, fields, &pointer).map_err(|why| fail(&name, why).non_retryable())?;
    }
    for name in named(input) {
        let fail = |why: String| fail(&name, why);
        if !is_name(&name) {
            return Err(fail("a name consists of letters, digits and `_`".to_owned()).non_retryable());
        }
        let source =
            source.ok_or_else(|| fail("the engine has no source of secrets".to_owned()).non_retryable())?;
        let secret =
            source.secret(scope, &name).await.map_err(|why| fail(format!("it cannot be read: {why}")))?;
        let secret = secret.ok_or_else(|| fail("no secret has this name".to_owned()).non_retryable())?;
        if secret.is_empty() {
            return Err(fail("it is empty".to_owned()).non_retryable());
        }
        put(input, &name, &secret);
        secrets.push(secret);
    }
    Ok(Revealed::of(&secrets))
}

/// Returns the current values of these secrets, to redact them in a worker's result. A secret that no longer exists is
/// skipped.
pub(crate) async fn known(
    source: Option<&Arc<dyn Secrets>>,
    scope: TenantScope,
    names: &[String],
) -> Result<Revealed, String> {
    let mut secrets = Vec::new();
    let Some(source) = source else { return Ok(Revealed::default()) };
    for name in names {
        let secret = source.secret(scope, name).await;
        secrets.extend(secret.map_err(|why| format!("secret `{name}` cannot be read: {why}"))?);
    }
    Ok(Revealed::of(&secrets))
}

fn put(value: &mut Value, wanted: &str, secret: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| put(item, wanted, secret)),
        Value::Object(fields) if name(fields) == Some(wanted) => *value = Value::String(secret.to_owned()),
        Value::Object(fields) => fields.values_mut().for_each(|field| put(field, wanted, secret)),
        _ => {}
    }
}

impl Revealed {
    fn of(secrets: &[String]) -> Self {
        Revealed(secrets.iter().filter_map(|secret| Redaction::of(secret)).collect()).sorted()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the secrets of another input.
    pub(crate) fn with(mut self, other: &Revealed) -> Self {
        self.0.extend(other.0.iter().cloned());
        self.sorted()
    }

    fn sorted(mut self) -> Self {
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.length()));
        self.0.dedup();
        self
    }

    /// Redacts the secrets in an action's output.
    pub(crate) fn hide(&self, value: &mut Value) {
        if self.0.is_empty() {
            return;
        }
        match value {
            Value::String(text) => drop(self.hide_in(text)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(fields) => {
                let shown = |(mut name, mut field): (String, Value)| {
                    self.hide_in(&mut name);
                    self.hide(&mut field);
                    (name, field)
                };
                *fields = std::mem::take(fields).into_iter().map(shown).collect();
            }
            Value::Number(_) | Value::Bool(_) => {
                let mut text = value.to_string();
                if self.hide_in(&mut text) {
                    *value = Value::String(text);
                }
            }
            Value::Null => {}
        }
    }

    /// Redacts the secrets in a failure.
    pub(crate) fn hide_failure(&self, failure: &mut Failure) {
        self.hide_in(&mut failure.code);
        self.hide_in(&mut failure.message);
        for violation in &mut failure.errors {
            self.hide_in(&mut violation.pointer);
            self.hide_in(&mut violation.message);
        }
    }

    /// Redacts the secrets in a text and returns true if there was one.
    fn hide_in(&self, text: &mut String) -> bool {
        // Do not stop at the first match: redact all of them.
        self.0.iter().filter(|secret| secret.hide(text)).count() > 0
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use serde_json::{Value, json};
    use stepwell_core::Failure;

    use super::{Revealed, admitted, found};

    #[test]
    fn secret_is_redacted_in_every_encoding() {
        let secret = "s3cr\"et/ with+späce??>>";
        let revealed = Revealed::of(&[secret.to_owned()]);
        for before in ["", "u", "us", "user:", "users:"] {
            for text in [format!("{before}{secret}"), format!("{before}{secret} and more")] {
                for written in [STANDARD.encode(&text), URL_SAFE.encode(&text)] {
                    let mut hidden = json!(written);
                    revealed.hide(&mut hidden);
                    assert!(hidden.as_str().unwrap().contains("***"), "{text}: {written}");
                }
            }
        }
        let url = "https://example.com/?key=s3cr%22et%2F+with%2Bsp%C3%A4ce%3F%3F%3E%3E&more=1";
        let mut texts =
            json!({"json": json!([secret]).to_string(), "plain": format!("x{secret}x"), "url": url});
        revealed.hide(&mut texts);
        let hidden = "https://example.com/?key=***&more=1";
        assert_eq!(texts, json!({"json": "[\"***\"]", "plain": "x***x", "url": hidden}));
    }

    #[test]
    fn short_and_numeric_secrets_are_redacted() {
        let revealed = Revealed::of(&["7".to_owned(), "12345".to_owned(), "true".to_owned()]);
        let mut value = json!({"a": 12_345, "b": [7, 8, -12_345.5], "c": true, "d": null, "7": "x7"});
        revealed.hide(&mut value);
        assert_eq!(
            value,
            json!({"a": "***", "b": ["***", 8, "-***.5"], "c": "***", "d": null, "***": "x***"})
        );
        let mut failure = Failure::new("e7", "12345 is wrong");
        revealed.hide_failure(&mut failure);
        assert_eq!((failure.code.as_str(), failure.message.as_str()), ("e***", "*** is wrong"));
        let mut nothing = json!([1]);
        Revealed::of(&[String::new()]).hide(&mut nothing);
        assert_eq!(nothing, json!([1]));
    }

    #[test]
    fn secrets_are_allowed_only_in_declared_fields() {
        let input: Value = json!({"headers": {"a/b": {"$secret": "A"}}, "to": [{"$secret": "B"}], "x": 1});
        let all = found(&input);
        assert_eq!(all, [("/headers/a~1b".into(), "A".into()), ("/to/0".into(), "B".into())]);
        let fields = ["/headers".to_owned()];
        assert!(admitted("http.request", &fields, "/headers/a~1b").is_ok());
        assert!(admitted("http.request", &fields, "/headersx").is_err());
        assert!(admitted("http.request", &fields, "/to/0").unwrap_err().contains("/headers"));
        assert!(admitted("event.emit", &[], "/to/0").unwrap_err().contains("takes no secrets"));
        assert!(admitted("any", &[String::new()], "/to/0").is_ok());
    }
}
