//! Secrets: what `{ "$secret": "NAME" }` in an action's input stands for. They are looked up when the action runs, and
//! are in nothing that is stored or shown: not in the snapshot, not in the history, not in an error.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};
use stepwell_core::Failure;
use stepwell_store::TenantScope;

use crate::host::BoxFuture;

/// The marker of a secret.
const MARKER: &str = "$secret";
/// What is shown in place of a secret.
const HIDDEN: &str = "***";
/// Shorter ones are not looked for in texts: they would be found everywhere.
const SHORTEST_HIDDEN: usize = 4;

/// Where secrets come from.
pub trait Secrets: Send + Sync {
    /// The secret of this name, if the tenant has one; an error is why it cannot be told now.
    fn secret(&self, scope: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>>;
}

/// Secrets out of the environment: `STEPWELL_SECRET_<NAME>`, or a file that `STEPWELL_SECRET_<NAME>_FILE` names. They are the
/// same for every tenant, so they are for programs that have one.
#[derive(Debug, Clone)]
pub struct EnvironmentSecrets {
    prefix: String,
}

impl Default for EnvironmentSecrets {
    fn default() -> Self {
        EnvironmentSecrets { prefix: "STEPWELL_SECRET_".to_owned() }
    }
}

impl EnvironmentSecrets {
    /// Variables that begin otherwise.
    pub fn with_prefix(prefix: impl Into<String>) -> Self {
        EnvironmentSecrets { prefix: prefix.into() }
    }
}

impl Secrets for EnvironmentSecrets {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
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

/// Secrets out of files: `<folder>/<tenant>/<name>`, or `<folder>/<name>` for all tenants.
#[derive(Debug, Clone)]
pub struct FileSecrets {
    folder: PathBuf,
}

impl FileSecrets {
    /// Files of this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        FileSecrets { folder: folder.into() }
    }
}

impl Secrets for FileSecrets {
    fn secret(&self, scope: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let own = self.folder.join(scope.tenant().to_string()).join(name);
        let found = match read(&own) {
            Ok(None) => read(&self.folder.join(name)),
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

/// Secrets that an input was given.
#[derive(Debug, Default)]
pub(crate) struct Revealed(Vec<String>);

/// The names of the secrets in an input.
pub(crate) fn named(input: &Value) -> Vec<String> {
    let (mut names, mut open) = (Vec::new(), vec![input]);
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => match name(fields) {
                Some(name) => names.push(name.to_owned()),
                None => open.extend(fields.values()),
            },
            _ => {}
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Something that can be the name of a secret: nothing that leads elsewhere.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn name(fields: &Map<String, Value>) -> Option<&str> {
    if fields.len() == 1 { fields.get(MARKER)?.as_str() } else { None }
}

/// Looks up every secret of an input and puts it in its place. A name becomes part of a file's or variable's: it is letters,
/// digits and `_`.
pub(crate) async fn reveal(
    source: Option<&Arc<dyn Secrets>>,
    scope: TenantScope,
    action: &str,
    input: &mut Value,
) -> Result<Revealed, Failure> {
    let mut revealed = Revealed::default();
    for name in named(input) {
        let fail = |why: String| Failure::new("secret", format!("secret `{name}`: {why}"));
        if is_kept(action) {
            return Err(fail(format!("`{action}` would store it, and secrets are never stored")).finally());
        }
        if !is_name(&name) {
            return Err(fail("a name is letters, digits and `_`".to_owned()).finally());
        }
        let source =
            source.ok_or_else(|| fail("the engine has no source of secrets".to_owned()).finally())?;
        let secret =
            source.secret(scope, &name).await.map_err(|why| fail(format!("it cannot be read: {why}")))?;
        let secret = secret.ok_or_else(|| fail("there is none of this name".to_owned()).finally())?;
        put(input, &name, &secret);
        revealed.0.push(secret);
    }
    // One may be a part of another: the longer ones are hidden first.
    revealed.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    Ok(revealed)
}

/// What secrets of these names are now: to be hidden in what somebody gives back who was given them. One that is no more
/// hides nothing.
pub(crate) async fn known(
    source: Option<&Arc<dyn Secrets>>,
    scope: TenantScope,
    names: &[String],
) -> Result<Revealed, String> {
    let mut revealed = Revealed::default();
    let Some(source) = source else { return Ok(revealed) };
    for name in names {
        let secret = source.secret(scope, name).await;
        revealed.0.extend(secret.map_err(|why| format!("secret `{name}` cannot be read: {why}"))?);
    }
    revealed.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    Ok(revealed)
}

/// What these actions are given is written down.
fn is_kept(action: &str) -> bool {
    let kept = ["store.", "links.", "workflow.", "flow."];
    kept.iter().any(|prefix| action.starts_with(prefix)) || matches!(action, "log" | "transform")
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
    /// Takes the secrets out of what an action gives back.
    pub(crate) fn hide(&self, value: &mut Value) {
        if self.0.is_empty() {
            return;
        }
        match value {
            Value::String(text) => self.hide_in(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(fields) => {
                let shown = |(mut name, mut field): (String, Value)| {
                    self.hide_in(&mut name);
                    self.hide(&mut field);
                    (name, field)
                };
                *fields = std::mem::take(fields).into_iter().map(shown).collect();
            }
            _ => {}
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

    fn hide_in(&self, text: &mut String) {
        for secret in self.0.iter().filter(|secret| secret.len() >= SHORTEST_HIDDEN) {
            if text.contains(secret.as_str()) {
                *text = text.replace(secret.as_str(), HIDDEN);
            }
        }
    }
}
