//! Configuration. Precedence: flag, environment, file, default.
//!
//! Every setting has one name, `section.key`, in `stepwell.toml`, in errors and in `stepwell config show`. Its
//! environment variable is `STEPWELL_SECTION__KEY`, or `STEPWELL_SECTION__KEY_FILE` for a file that contains the value.

mod bounds;
mod settings;
mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use stepwell::core::near::did_you_mean;

use crate::exit::{Code, Failure};
pub(crate) use bounds::of as bounds_of;
pub(crate) use settings::{
    Database, EmailOutlet, Flows, Lifetime, Limits, Log, LogFormat, MailSecurity, MailTemplate, Oidc,
    OutletSettings, Settings, StrategySettings, Telemetry, WebhookOutlet,
};
pub(crate) use show::{Verb, run};

/// File that is read if no other is named and this one exists.
const FILE: &str = "stepwell.toml";
/// Prefix of our environment variables.
const PREFIX: &str = "STEPWELL_";
/// Separator of section and key in their names.
const BETWEEN: &str = "__";
/// Suffix of variables that name a file with the value.
const IN_FILE: &str = "_FILE";
/// Standard variables and the settings they set. Our own variables override them.
const USUAL: [(&str, &str); 11] = [
    ("DATABASE_URL", "database.url"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.endpoint"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "telemetry.traces_endpoint"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "telemetry.protocol"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "telemetry.headers"),
    (TIMEOUT_MS, "telemetry.timeout"),
    ("OTEL_SERVICE_NAME", "telemetry.service_name"),
    ("OTEL_RESOURCE_ATTRIBUTES", "telemetry.resource"),
    ("OTEL_TRACES_SAMPLER", "telemetry.sampler"),
    ("OTEL_TRACES_SAMPLER_ARG", "telemetry.sampler_arg"),
    ("OTEL_SDK_DISABLED", "telemetry.disabled"),
];
/// The standard variable whose value is a number of milliseconds.
const TIMEOUT_MS: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
/// Text that is shown in place of a secret.
const HIDDEN: &str = "***";

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// The effective configuration, with the origin of each value.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    values: BTreeMap<String, (Value, Origin)>,
}

/// Setting, flag and the flag's value, if it was given.
pub(crate) type Flag = (&'static str, &'static str, Option<String>);

/// Sources of the configuration.
pub(crate) struct Sources<'a> {
    /// The file named by `--config`. `None` reads `stepwell.toml` if it exists.
    pub(crate) file: Option<&'a Path>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) flags: Vec<Flag>,
}

impl Sources<'_> {
    /// Takes the environment of the process and the given file and flags.
    pub(crate) fn of(file: Option<&Path>, flags: Vec<Flag>) -> Sources<'_> {
        let environment = std::env::vars_os();
        let environment = environment
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Sources { file, environment: environment.collect(), flags }
    }
}

fn invalid(why: impl Into<String>) -> Failure {
    Failure::new(Code::Invalid, why)
}

impl Config {
    /// Reads and checks the configuration. An unknown setting is an error.
    pub(crate) fn read(sources: &Sources<'_>) -> Result<Self, Failure> {
        let default = serde_json::to_value(Settings::default()).map_err(Failure::unexpected)?;
        let mut values = BTreeMap::new();
        flatten(&default, &mut |name, value| drop(values.insert(name, (value.clone(), Origin::Default))));
        debug_assert!(bounds::names().all(|name| values.contains_key(name)), "bounds of an unknown setting");
        let is_known = |name: &str| values.contains_key(name);
        for (name, value, origin) in given_settings(sources, is_known)? {
            if !values.contains_key(&name) {
                let names = values.keys().map(String::as_str);
                return Err(invalid(format!(
                    "{origin}: unknown setting `{name}`{}",
                    did_you_mean(&name, names)
                )));
            }
            let value = match (&value, &origin) {
                (Value::String(text), Origin::Environment(_) | Origin::Flag(_)) => {
                    typed(&default, &name, text)
                }
                _ => value,
            };
            values.insert(name, (value, origin));
        }
        let settings = settings(&values)?;
        for (name, (value, origin)) in &values {
            if let Some(why) = bounds::refuses(name, value) {
                return Err(invalid(format!("{origin}: `{name}` has the invalid value {value}: {why}")));
            }
        }
        settings.limits.0.check().map_err(|why| invalid(format!("limits: {why}")))?;
        Ok(Config { settings, values })
    }

    /// Returns every setting with its value and origin. Secrets and passwords are replaced by `***`.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&str, Value, &Origin)> {
        self.values.iter().map(|(name, (value, origin))| {
            let value = match value {
                Value::String(text) if settings::is_url(name) => without_password(text).into(),
                Value::String(_) if settings::is_secret(name) => HIDDEN.into(),
                value => without_secrets(value),
            };
            (name.as_str(), value, origin)
        })
    }
}

/// Collects the values of file, environment and flags, in ascending precedence.
fn given_settings(
    sources: &Sources<'_>,
    is_known: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Value, Origin)>, Failure> {
    let mut given_settings = Vec::new();
    let file = sources.file.map_or_else(|| PathBuf::from(FILE), Path::to_path_buf);
    if sources.file.is_some() || file.exists() {
        let text = std::fs::read_to_string(&file).map_err(|error| {
            Failure::new(
                Code::NotFound,
                format!("cannot read the configuration file {}: {error}", file.display()),
            )
        })?;
        let table: toml::Table = text
            .parse()
            .map_err(|error| invalid(format!("{} is not valid TOML: {error}", file.display())))?;
        let table = serde_json::to_value(table).map_err(Failure::unexpected)?;
        flatten(&table, &mut |name, value| {
            given_settings.push((name, value.clone(), Origin::File(file.clone())));
        });
    }
    let environment: BTreeMap<_, _> = sources.environment.iter().cloned().collect();
    for (variable, name) in USUAL {
        if let Some(value) = environment.get(variable).filter(|value| !value.is_empty()) {
            let value = if variable == TIMEOUT_MS { format!("{value}ms") } else { value.clone() };
            given_settings.push((name.to_owned(), value.into(), Origin::Environment(variable.to_owned())));
        }
    }
    for (variable, value) in &environment {
        let Some(name) = variable.strip_prefix(PREFIX).filter(|name| name.contains(BETWEEN)) else {
            continue;
        };
        let origin = Origin::Environment(variable.clone());
        let (name, value) = match name.strip_suffix(IN_FILE) {
            // A setting whose own name ends in `_file` is not a file with the value.
            Some(name) if !is_known(&setting(variable)) => {
                let text = std::fs::read_to_string(value)
                    .map_err(|error| invalid(format!("{variable}: cannot read {value}: {error}")))?;
                (name, text.trim_end_matches(['\n', '\r']).to_owned())
            }
            _ => (name, value.clone()),
        };
        given_settings.push((setting(name), value.into(), origin));
    }
    for (name, flag, value) in &sources.flags {
        if let Some(value) = value {
            given_settings.push(((*name).to_owned(), value.as_str().into(), Origin::Flag(flag)));
        }
    }
    Ok(given_settings)
}

/// Returns the name of the setting that a variable sets.
fn setting(variable: &str) -> String {
    let name = variable.strip_prefix(PREFIX).unwrap_or(variable);
    name.replacen(BETWEEN, ".", 1).to_ascii_lowercase()
}

/// Calls `each` with the full name of every value. Lists are values and are not descended into.
fn flatten(value: &Value, each: &mut impl FnMut(String, &Value)) {
    let Some(sections) = value.as_object() else { return };
    for (section, inside) in sections {
        match inside.as_object() {
            Some(keys) => keys.iter().for_each(|(key, value)| each(format!("{section}.{key}"), value)),
            None => each(section.clone(), inside),
        }
    }
}

/// Converts text from the environment or a flag to the type of the setting: the text itself, JSON, TOML, or a list with
/// commas. The first that the setting accepts is taken. Text that cannot be converted is reported by [`settings`].
fn typed(default: &Value, name: &str, text: &str) -> Value {
    let json = serde_json::from_str::<Value>(text).ok();
    let value = format!("value = {text}").parse::<toml::Table>().ok().and_then(|mut of| of.remove("value"));
    let table = text.parse::<toml::Table>().ok().filter(|table| !table.is_empty());
    let toml = [value, table.map(toml::Value::Table)].into_iter().flatten();
    let list = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect::<Value>();
    let readings = [Some(Value::from(text)), json.clone()].into_iter().flatten();
    let readings = readings.chain(toml.filter_map(|toml| serde_json::to_value(toml).ok())).chain([list]);
    let (section, key) = name.split_once('.').unwrap_or((name, ""));
    let fits = |value: &Value| {
        let mut one = default.clone();
        one[section][key] = value.clone();
        serde_json::from_value::<Settings>(one).is_ok()
    };
    // If nothing fits, the error for a number says more than the one for its text.
    readings.into_iter().find(fits).or(json.filter(|json| !json.is_string())).unwrap_or_else(|| text.into())
}

/// Reads the settings from the values. If that fails, the error names the setting.
fn settings(values: &BTreeMap<String, (Value, Origin)>) -> Result<Settings, Failure> {
    let nested = |values: &mut dyn Iterator<Item = (&String, &Value)>| {
        let mut sections = Map::new();
        for (name, value) in values {
            let (section, key) = name.split_once('.').unwrap_or((name, ""));
            let keys = sections.entry(section).or_insert_with(|| Value::Object(Map::new()));
            keys[key] = value.clone();
        }
        Value::Object(sections)
    };
    let all = nested(&mut values.iter().map(|(name, (value, _))| (name, value)));
    serde_json::from_value(all).map_err(|error| {
        // Find the wrong value: try each one alone, with the defaults for all others.
        let wrong = values.iter().find(|(name, (value, _))| {
            let mut one = serde_json::to_value(Settings::default()).unwrap_or_default();
            let (section, key) = name.split_once('.').unwrap_or((name, ""));
            one[section][key] = value.clone();
            serde_json::from_value::<Settings>(one).is_err()
        });
        match wrong {
            Some((name, (value, origin))) => {
                let why = in_words(&error.to_string());
                invalid(format!("{origin}: `{name}` has the invalid value {value}: {why}"))
            }
            None => invalid(format!("invalid configuration: {error}")),
        }
    })
}

/// Replaces the names of Rust types in an error by the words of the reference.
fn in_words(error: &str) -> String {
    let words = [
        ("expected u16", "expected an integer from 0 to 65535"),
        ("expected u32", "expected an integer"),
        ("expected u64", "expected an integer"),
        ("expected usize", "expected an integer"),
        ("expected f64", "expected a number"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected a table"),
    ];
    words.iter().fold(error.to_owned(), |text, (rust, word)| text.replace(rust, word))
}

/// Replaces the secrets and the passwords in URLs of nested tables and lists.
fn without_secrets(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let shown = fields.iter().map(|(name, value)| {
                let value = match value {
                    Value::String(_) if settings::is_secret_field(name) => HIDDEN.into(),
                    Value::String(text) => without_password(text).into(),
                    value => without_secrets(value),
                };
                (name.clone(), value)
            });
            Value::Object(shown.collect())
        }
        Value::Array(items) => items.iter().map(without_secrets).collect(),
        value => value.clone(),
    }
}

/// Replaces the password of a URL by `***`.
pub(crate) fn without_password(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return text.to_owned() };
    if url.password().is_none() || url.set_password(Some(HIDDEN)).is_err() {
        return text.to_owned();
    }
    url.to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Config, Origin, Sources};

    fn read(
        file: Option<&str>,
        environment: &[(&str, &str)],
        flags: Vec<super::Flag>,
    ) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stepwell.toml");
        std::fs::write(&path, file.unwrap_or_default()).unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let sources = Sources { file: Some(&path), environment: environment.collect(), flags };
        Config::read(&sources).map_err(|failure| failure.message)
    }

    #[test]
    fn flag_overrides_environment_file_and_default() {
        let file = "[server]\nlisten = \"127.0.0.1:1\"\nburst = 7\nhead_timeout = \"3s\"\n";
        let environment =
            [("STEPWELL_SERVER__LISTEN", "127.0.0.1:2"), ("STEPWELL_SERVER__MAX_CONNECTIONS", "9")];
        let flags = vec![("server.listen", "--listen", Some("127.0.0.1:3".to_owned()))];
        let config = read(Some(file), &environment, flags).unwrap();
        let server = &config.settings.server;
        assert_eq!((server.listen.as_str(), server.burst, server.max_connections), ("127.0.0.1:3", 7, 9));
        assert_eq!(server.head_timeout.0, Duration::from_secs(3));
        let origin = |name: &str| config.shown().find(|(known, ..)| *known == name).unwrap().2.clone();
        assert_eq!(origin("server.listen"), Origin::Flag("--listen"));
        assert!(matches!(origin("server.burst"), Origin::File(_)));
        assert_eq!(
            origin("server.max_connections"),
            Origin::Environment("STEPWELL_SERVER__MAX_CONNECTIONS".to_owned())
        );
        assert_eq!(origin("server.shutdown_timeout"), Origin::Default);
    }

    #[test]
    fn invalid_settings_are_reported_with_origin() {
        let unknown = read(Some("[server]\nlissen = \"x\"\n"), &[], vec![]).unwrap_err();
        assert!(
            unknown.contains("stepwell.toml")
                && unknown.contains("`server.lissen`")
                && unknown.contains("listen"),
            "{unknown}"
        );
        let unknown = read(None, &[("STEPWELL_SERVER__NOTHING", "1")], vec![]).unwrap_err();
        assert!(unknown.contains("environment STEPWELL_SERVER__NOTHING"), "{unknown}");
        let wrong = read(None, &[("STEPWELL_SERVER__BURST", "many")], vec![]).unwrap_err();
        assert!(wrong.contains("`server.burst`") && wrong.contains("many"), "{wrong}");
        let wrong = read(Some("[server]\nshutdown_timeout = \"soon\"\n"), &[], vec![]).unwrap_err();
        assert!(wrong.contains("`server.shutdown_timeout`") && wrong.contains("soon"), "{wrong}");
        assert!(read(Some("[server\n"), &[], vec![]).unwrap_err().contains("is not valid TOML"));
    }

    #[test]
    fn oidc_issuers_are_read_and_validated() {
        let file = "[[auth.oidc]]\nname = \"main\"\nissuer = \"https://id.example.com\"\naudience = \"stepwell\"\n\
                    tenant_claim = \"org\"\nalgorithms = [\"ES256\"]\nroles = { ops = [\"workflow:view\"] }\n";
        let config = read(Some(file), &[], vec![]).unwrap();
        let oidc = &config.settings.auth.oidc[0];
        assert_eq!((oidc.name.as_str(), oidc.audience.all().len(), oidc.roles.len()), ("main", 1, 1));
        let shown = config.shown().find(|(name, ..)| *name == "auth.oidc").unwrap().1;
        assert_eq!(shown[0]["issuer"], "https://id.example.com");
        for (wrong, why) in [
            ("clams = \"x\"\n", "clams"),
            ("leeway = \"soon\"\n", "soon"),
            ("permissions_claim = 1\n", "auth.oidc"),
        ] {
            let error = read(Some(&format!("{file}{wrong}")), &[], vec![]).unwrap_err();
            assert!(error.contains("`auth.oidc`") && error.contains(why), "{error}");
        }
        for algorithm in ["none", "HS256"] {
            let error = read(Some(&file.replace("ES256", algorithm)), &[], vec![]).unwrap_err();
            assert!(error.contains(algorithm), "{error}");
        }
        let json = r#"[{"name": "a", "issuer": "https://id.example.com", "audience": ["x", "y"]}]"#;
        let config = read(None, &[("STEPWELL_AUTH__OIDC", json)], vec![]).unwrap();
        assert_eq!(config.settings.auth.oidc[0].audience.all().len(), 2);
    }

    #[test]
    fn own_variables_override_standard_otel_variables() {
        let file = "[telemetry]\nservice_name = \"file\"\nendpoint = \"http://file.example.com\"\n";
        let environment = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel.example.com:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hush"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_SERVICE_NAME", "otel"),
            ("STEPWELL_TELEMETRY__SERVICE_NAME", "ours"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_RESOURCE_ATTRIBUTES", ""),
        ];
        let config = read(Some(file), &environment, vec![]).unwrap();
        let telemetry = &config.settings.telemetry;
        assert_eq!(telemetry.endpoint.as_deref(), Some("http://otel.example.com:4318"));
        assert_eq!((telemetry.service_name.as_str(), telemetry.sampler_arg), ("ours", 0.25));
        assert_eq!(telemetry.timeout.0, Duration::from_millis(1_500));
        assert!(telemetry.disabled && telemetry.resource.is_none());
        let shown: Vec<_> = config.shown().map(|(name, value, _)| format!("{name}={value}")).collect();
        assert!(!shown.join("\n").contains("hush"), "{shown:?}");
    }

    #[test]
    fn secrets_are_read_from_files_and_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("url");
        std::fs::write(&secret, "postgres://me:hush@db.example.com/x\n").unwrap();
        let environment = [
            ("DATABASE_URL", "postgres://other.example.com/y"),
            ("STEPWELL_DATABASE__URL_FILE", secret.to_str().unwrap()),
            ("STEPWELL_MAIL__PASSWORD", "hush"),
        ];
        let config = read(None, &environment, vec![]).unwrap();
        assert_eq!(config.settings.database.url, "postgres://me:hush@db.example.com/x");
        let shown: Vec<_> = config.shown().map(|(name, value, _)| format!("{name}={value}")).collect();
        assert!(!shown.join("\n").contains("hush"), "{shown:?}");
    }

    #[test]
    fn nested_tables_are_read_and_their_secrets_hidden() {
        let file = "[flows]\nworkflows = { login = \"sealed\" }\n\
                    [flows.strategies.quick]\nkind = \"handle\"\nttl = \"never\"\n\
                    [flows.outlets.hook]\nkind = \"webhook\"\nsecret_file = \"hook.secret\"\n\
                    url = \"https://me:hush@hook.example.com/in\"\n";
        let config = read(Some(file), &[], vec![]).unwrap();
        let flows = &config.settings.flows;
        assert_eq!(
            (flows.workflows["login"].as_str(), flows.strategies.len(), flows.outlets.len()),
            ("sealed", 1, 1)
        );
        let shown: Vec<_> = config.shown().map(|(name, value, _)| format!("{name}={value}")).collect();
        let shown = shown.join("\n");
        assert!(!shown.contains("hush") && shown.contains("hook.example.com/in"), "{shown}");
        for (wrong, why) in [
            ("[flows.strategies.quick]\nkind = \"handle\"\nonce = true\n", "once"),
            ("[flows.strategies.quick]\nkind = \"row\"\n", "row"),
            ("[flows.outlets.mail]\nkind = \"email\"\nurl = \"x\"\n", "url"),
            ("[flows]\nstrategys = {}\n", "flows.strategies"),
        ] {
            let error = read(Some(wrong), &[], vec![]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let json = r#"{"quick": {"kind": "sealed", "ttl": "5m", "once": true}}"#;
        let config = read(None, &[("STEPWELL_FLOWS__STRATEGIES", json)], vec![]).unwrap();
        assert_eq!(config.settings.flows.strategies.len(), 1);
    }
}
