//! Configuration: a flag goes before the environment, that before the file, that before the default.
//!
//! Every setting has one name, `section.key`: so it stands in `stepwell.toml`, as `STEPWELL_SECTION__KEY` in the environment
//! (`…_FILE` names a file that has the value), and so an error and `stepwell config show` call it.

mod settings;
mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use stepwell::core::near::did_you_mean;

use crate::exit::{Code, Failure};
pub(crate) use settings::{Log, LogFormat, MailSecurity, Oidc, Settings, Span, Telemetry};
pub(crate) use show::{Verb, run};

/// The file that is read if none is named, and if it is there.
const FILE: &str = "stepwell.toml";
/// What the names of our variables begin with.
const PREFIX: &str = "STEPWELL_";
/// What stands between section and key in them.
const BETWEEN: &str = "__";
/// What is behind the name of a variable that names a file.
const IN_FILE: &str = "_FILE";
/// Variables that other programs know too, and which settings they are for. Ours go before them.
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
/// The one of them that is a number of milliseconds.
const TIMEOUT_MS: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
/// What a secret is shown as.
const HIDDEN: &str = "***";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Nobody has said anything.
    Default,
    /// This file.
    File(PathBuf),
    /// This variable.
    Environment(String),
    /// This flag.
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

/// The configuration in force, and where each value came from.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    values: BTreeMap<String, (Value, Origin)>,
}

/// A value that a flag gives.
pub(crate) type Flag = (&'static str, &'static str, Option<String>);

/// What is looked at.
pub(crate) struct Sources<'a> {
    /// The file, if one is named.
    pub(crate) file: Option<&'a Path>,
    /// The environment.
    pub(crate) environment: Vec<(String, String)>,
    /// Setting, flag, and value.
    pub(crate) flags: Vec<Flag>,
}

impl Sources<'_> {
    /// The process's own environment and these flags.
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
    /// Reads the configuration.
    pub(crate) fn read(sources: &Sources<'_>) -> Result<Self, Failure> {
        let default = serde_json::to_value(Settings::default()).map_err(Failure::unexpected)?;
        let mut values = BTreeMap::new();
        flatten(&default, &mut |name, value| drop(values.insert(name, (value.clone(), Origin::Default))));
        for (name, value, origin) in said(sources)? {
            let known = values.get(&name).map(|(known, _)| known.clone());
            let Some(known) = known else {
                let names = values.keys().map(String::as_str);
                return Err(invalid(format!(
                    "{origin}: there is no setting `{name}`{}",
                    did_you_mean(&name, names)
                )));
            };
            let default = default.pointer(&format!("/{}", name.replace('.', "/"))).unwrap_or(&known);
            values.insert(name, (as_type_of(value, default), origin));
        }
        let settings = settings(&values)?;
        Ok(Config { settings, values })
    }

    /// Every setting with its value, secrets hidden, and where it came from.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&str, Value, &Origin)> {
        self.values.iter().map(|(name, (value, origin))| {
            let value = match value {
                Value::String(text) if settings::is_url(name) => without_password(text).into(),
                Value::String(_) if settings::is_secret(name) => HIDDEN.into(),
                value => value.clone(),
            };
            (name.as_str(), value, origin)
        })
    }
}

/// What file, environment and flags say, in the order in which they count.
fn said(sources: &Sources<'_>) -> Result<Vec<(String, Value, Origin)>, Failure> {
    let mut said = Vec::new();
    let file = sources.file.map_or_else(|| PathBuf::from(FILE), Path::to_path_buf);
    if sources.file.is_some() || file.exists() {
        let text = std::fs::read_to_string(&file).map_err(|error| {
            Failure::new(
                Code::NotFound,
                format!("the configuration {} cannot be read: {error}", file.display()),
            )
        })?;
        let table: toml::Table =
            text.parse().map_err(|error| invalid(format!("{} is not TOML: {error}", file.display())))?;
        let table = serde_json::to_value(table).map_err(Failure::unexpected)?;
        flatten(&table, &mut |name, value| said.push((name, value.clone(), Origin::File(file.clone()))));
    }
    let environment: BTreeMap<_, _> = sources.environment.iter().cloned().collect();
    for (variable, name) in USUAL {
        if let Some(value) = environment.get(variable).filter(|value| !value.is_empty()) {
            let value = if variable == TIMEOUT_MS { format!("{value}ms") } else { value.clone() };
            said.push((name.to_owned(), value.into(), Origin::Environment(variable.to_owned())));
        }
    }
    for (variable, value) in &environment {
        let Some(name) = variable.strip_prefix(PREFIX).filter(|name| name.contains(BETWEEN)) else {
            continue;
        };
        let origin = Origin::Environment(variable.clone());
        let (name, value) = match name.strip_suffix(IN_FILE) {
            Some(name) if !settings::is_file(&setting(variable)) => {
                let text = std::fs::read_to_string(value)
                    .map_err(|error| invalid(format!("{variable}: {value} cannot be read: {error}")))?;
                (name, text.trim_end_matches(['\n', '\r']).to_owned())
            }
            _ => (name, value.clone()),
        };
        said.push((setting(name), value.into(), origin));
    }
    for (name, flag, value) in &sources.flags {
        if let Some(value) = value {
            said.push(((*name).to_owned(), value.as_str().into(), Origin::Flag(flag)));
        }
    }
    Ok(said)
}

/// The setting that a variable is for.
fn setting(variable: &str) -> String {
    let name = variable.strip_prefix(PREFIX).unwrap_or(variable);
    name.replacen(BETWEEN, ".", 1).to_ascii_lowercase()
}

/// Gives every value in sections its whole name. A list is a value.
fn flatten(value: &Value, each: &mut impl FnMut(String, &Value)) {
    let Some(sections) = value.as_object() else { return };
    for (section, inside) in sections {
        match inside.as_object() {
            Some(keys) => keys.iter().for_each(|(key, value)| each(format!("{section}.{key}"), value)),
            None => each(section.clone(), inside),
        }
    }
}

/// A text from the environment or a flag, as the type that the setting has; what cannot be read stays as it is.
fn as_type_of(value: Value, default: &Value) -> Value {
    let Value::String(text) = &value else { return value };
    match default {
        Value::Number(_) | Value::Bool(_) => serde_json::from_str(text).unwrap_or(value),
        // A list of more than texts is written as JSON.
        Value::Array(_) if text.trim_start().starts_with('[') => serde_json::from_str(text).unwrap_or(value),
        Value::Array(_) => text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect(),
        _ => value,
    }
}

/// The values as settings. Each section is read by itself, so that an error names the setting.
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
        // Which one it was shows when it is the only one that is not the default.
        let wrong = values.iter().find(|(name, (value, _))| {
            let mut one = serde_json::to_value(Settings::default()).unwrap_or_default();
            let (section, key) = name.split_once('.').unwrap_or((name, ""));
            one[section][key] = value.clone();
            serde_json::from_value::<Settings>(one).is_err()
        });
        match wrong {
            Some((name, (value, origin))) => {
                invalid(format!("{origin}: `{name}` cannot be {value}: {error}"))
            }
            None => invalid(format!("the configuration cannot be used: {error}")),
        }
    })
}

/// The text of a URL with its password hidden.
fn without_password(text: &str) -> String {
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
    fn a_flag_goes_before_the_environment_before_the_file_before_the_default() {
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
        assert_eq!(origin("server.drain"), Origin::Default);
    }

    #[test]
    fn what_is_wrong_is_named_with_where_it_stands() {
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
        let wrong = read(Some("[server]\ndrain = \"soon\"\n"), &[], vec![]).unwrap_err();
        assert!(wrong.contains("`server.drain`") && wrong.contains("soon"), "{wrong}");
        assert!(read(Some("[server\n"), &[], vec![]).unwrap_err().contains("is not TOML"));
    }

    #[test]
    fn issuers_are_a_list_of_tables_with_known_names() {
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
    fn the_usual_names_of_telemetry_are_known_and_ours_go_before_them() {
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
    fn secrets_come_from_files_too_and_are_not_shown() {
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
}
