//! Secrets: what `{ "$secret": "NAME" }` in an action's input stands for. They are looked up when the action runs, and
//! are in nothing that is stored or shown: not in the snapshot, not in the history, not in an error.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};
use stepwell_core::Failure;
use stepwell_store::{TenantId, TenantScope};

use crate::host::BoxFuture;
use crate::spelled::Spelled;

/// The marker of a secret.
const MARKER: &str = "$secret";

/// Where secrets come from.
pub trait Secrets: Send + Sync {
    /// The secret of this name, if the tenant has one; an error is why it cannot be told now.
    fn secret(&self, scope: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>>;
}

/// The tenants that have the secrets of a source.
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

/// Secrets out of the environment: `STEPWELL_SECRET_<NAME>`, or a file that `STEPWELL_SECRET_<NAME>_FILE` names. They are for
/// one tenant, that of programs without tenants unless another is named.
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
    /// Variables that begin otherwise.
    pub fn with_prefix(prefix: impl Into<String>) -> Self {
        EnvironmentSecrets { prefix: prefix.into(), tenants: For::One(TenantScope::SINGLE) }
    }

    /// They are another tenant's.
    #[must_use]
    pub fn for_tenant(mut self, tenant: TenantId) -> Self {
        self.tenants = For::One(tenant);
        self
    }

    /// Every tenant may use every one of them, and so learn it: a workflow can send it anywhere.
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

/// Secrets out of files: `<folder>/<tenant>/<name>`. `<folder>/<name>` is for one tenant, that of programs without tenants
/// unless another is named.
#[derive(Debug, Clone)]
pub struct FileSecrets {
    folder: PathBuf,
    tenants: For,
}

impl FileSecrets {
    /// Files of this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        FileSecrets { folder: folder.into(), tenants: For::One(TenantScope::SINGLE) }
    }

    /// Files that are in no tenant's folder are another tenant's.
    #[must_use]
    pub fn for_tenant(mut self, tenant: TenantId) -> Self {
        self.tenants = For::One(tenant);
        self
    }

    /// Every tenant may use files that are in no tenant's folder.
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

/// A file's text without the line break at its end; nothing if there is no file.
fn read(file: &std::path::Path) -> Result<Option<String>, String> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.kind().to_string()),
    }
}

/// Secrets that an input was given, which may come back: the longest first, because one may be a part of another.
#[derive(Debug, Default)]
pub(crate) struct Revealed(Vec<Spelled>);

/// The secrets of an input: where each stands, and its name.
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

/// The names of the secrets in an input.
pub(crate) fn named(input: &Value) -> Vec<String> {
    let mut names: Vec<_> = found(input).into_iter().map(|(_, name)| name).collect();
    names.sort();
    names.dedup();
    names
}

/// Refuses a secret where an action does not take one.
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

/// Something that can be the name of a secret: nothing that leads elsewhere.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn name(fields: &Map<String, Value>) -> Option<&str> {
    if fields.len() == 1 { fields.get(MARKER)?.as_str() } else { None }
}

/// Looks up every secret of an input and puts it in its place, if the action takes secrets there. A name becomes part of a
/// file's or variable's: it is letters, digits and `_`.
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
        admitted(action, fields, &pointer).map_err(|why| fail(&name, why).finally())?;
    }
    for name in named(input) {
        let fail = |why: String| fail(&name, why);
        if !is_name(&name) {
            return Err(fail("a name is letters, digits and `_`".to_owned()).finally());
        }
        let source =
            source.ok_or_else(|| fail("the engine has no source of secrets".to_owned()).finally())?;
        let secret =
            source.secret(scope, &name).await.map_err(|why| fail(format!("it cannot be read: {why}")))?;
        let secret = secret.ok_or_else(|| fail("there is none of this name".to_owned()).finally())?;
        if secret.is_empty() {
            return Err(fail("it is empty".to_owned()).finally());
        }
        put(input, &name, &secret);
        secrets.push(secret);
    }
    Ok(Revealed::of(&secrets))
}

/// What secrets of these names are now: to be hidden in what somebody gives back who was given them. One that is no more
/// hides nothing.
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
        let mut all: Vec<_> = secrets.iter().filter_map(|secret| Spelled::of(secret)).collect();
        all.sort_by_key(|secret| std::cmp::Reverse(secret.length()));
        all.dedup();
        Revealed(all)
    }

    /// Takes the secrets out of what an action gives back.
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

    /// Takes the secrets out of what went wrong.
    pub(crate) fn hide_failure(&self, failure: &mut Failure) {
        self.hide_in(&mut failure.code);
        self.hide_in(&mut failure.message);
        for misfit in &mut failure.errors {
            self.hide_in(&mut misfit.pointer);
            self.hide_in(&mut misfit.message);
        }
    }

    /// Says whether there was one.
    fn hide_in(&self, text: &mut String) -> bool {
        // All of them, not only the first that is there.
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
    fn a_secret_is_hidden_in_every_spelling() {
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
    fn short_ones_and_numbers_are_hidden_too() {
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
    fn secrets_stand_only_where_an_action_takes_them() {
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
