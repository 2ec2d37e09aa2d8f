//! Generates `docs/reference/config.md`: every setting with its type, default, environment variable and description.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::{cell, split_default};
use crate::config::{Limits, Settings, bounds_of};
use crate::exit::Failure;

/// Source of the settings. The doc comments of its fields are the descriptions on the page.
const SOURCE: &str = include_str!("../config/settings.rs");

/// Returns the page as Markdown.
pub(super) fn page() -> Result<String, Failure> {
    let defaults = serde_json::to_value(Settings::default()).map_err(Failure::unexpected)?;
    let structs = structs(SOURCE);
    let none = Struct::default();
    let sections = structs.get("Settings").unwrap_or(&none);
    let mut out = String::from(
        "# Configuration\n\nPrecedence: flag, environment variable, `stepwell.toml`, default. \
         A variable with the suffix `_FILE` names a file that contains the value. \
         A variable contains a list with commas or as JSON, and a table as JSON or TOML. \
         `never` and `unlimited` mean the same. \
         `stepwell config show --origin` shows the effective value and origin of every setting.\n\n",
    );
    for (section, keys) in defaults.as_object().into_iter().flatten() {
        let kind = sections.fields.get(section).map(|field| field.kind.as_str()).unwrap_or_default();
        let of = structs.get(kind).unwrap_or(&none);
        let _ = writeln!(out, "## [{section}]\n\n{}\n", of.about);
        let _ = writeln!(out, "| name | type | default | environment | description |\n|---|---|---|---|---|");
        for (key, default) in keys.as_object().into_iter().flatten() {
            let field = of.fields.get(key);
            let limit = Limits::all().find(|limit| section == "limits" && limit.name == key);
            let about = field.map(|field| field.about.as_str()).or(limit.map(|limit| limit.about.trim()));
            let (about, said) = split_default(about.unwrap_or_default());
            let kind = field.map(|field| type_of(&field.kind)).or(limit.map(|_| "integer"));
            let kind = kind.unwrap_or_default();
            let variable = format!("STEPWELL_{}__{}", section.to_uppercase(), key.to_uppercase());
            let default = match default {
                Value::Null => said.unwrap_or_default().to_owned(),
                value => format!("`{value}`"),
            };
            let bounds = bounds_of(&format!("{section}.{key}"));
            let bounds = bounds.map(|bounds| format!(" Bounds: {bounds}.")).unwrap_or_default();
            let about = format!("{}.{bounds}", cell(about));
            let _ = writeln!(out, "| `{key}` | {kind} | {} | `{variable}` | {about} |", cell(&default));
        }
        let _ = writeln!(out);
        for (_, heading, kind) in TABLES.iter().filter(|(of, ..)| of == section) {
            table(&mut out, heading, structs.get(*kind).unwrap_or(&none));
        }
    }
    Ok(format!("{}\n", out.trim_end()))
}

/// Returns the type of a setting as users write it. Empty for a Rust type that it does not know.
fn type_of(kind: &str) -> &'static str {
    let kind = kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>')).unwrap_or(kind);
    match kind {
        "String" => "text",
        "usize" | "u16" | "u32" => "integer",
        "f64" => "number",
        "bool" => "boolean",
        "Span" => "duration",
        "Vec<String>" | "BTreeSet<String>" | "OneOrMore" | "BTreeSet<Algorithm>" => "list of texts",
        "Uuid" => "UUID",
        "BTreeMap<String, String>" => "table of texts",
        "BTreeMap<String, usize>" => "table of integers",
        "BTreeMap<String, Grants>" => "table of lists",
        "BTreeMap<String, StrategySettings>"
        | "BTreeMap<String, OutletSettings>"
        | "BTreeMap<String, MailTemplate>" => "tables",
        "Lifetime" => "duration or `never`",
        "Quantity" => "integer or `unlimited`",
        "BTreeMap<String, Lifetime>" => "table of durations or `never`",
        "Vec<IpAddr>" => "list of addresses",
        "Vec<Oidc>" => "list of tables",
        "MailSecurity" => "`tls`, `starttls`, `none`",
        "LogFormat" => "`text`, `json`",
        _ => "",
    }
}

/// Tables inside a section: section, heading, and the struct that describes the fields.
const TABLES: [(&str, &str, &str); 7] = [
    ("auth", "[[auth.oidc]]", "Oidc"),
    ("flows", "[flows.strategies.NAME] of kind `sealed`", "SealedStrategy"),
    ("flows", "[flows.strategies.NAME] of kind `handle`", "HandleStrategy"),
    ("flows", "[flows.strategies.NAME] of kind `durable`", "DurableStrategy"),
    ("flows", "[flows.outlets.NAME] of kind `email`", "EmailOutlet"),
    ("flows", "[flows.outlets.NAME.templates.TEMPLATE]", "MailTemplate"),
    ("flows", "[flows.outlets.NAME] of kind `webhook`", "WebhookOutlet"),
];

/// Adds the description of a table inside a section.
fn table(out: &mut String, heading: &str, of: &Struct) {
    let _ = writeln!(out, "### {heading}\n\n{}\n", of.about);
    let _ = writeln!(out, "| name | type | default | description |\n|---|---|---|---|");
    for (name, field) in &of.fields {
        let (about, said) = split_default(&field.about);
        let (default, kind) = (cell(said.unwrap_or_default()), type_of(&field.kind));
        let _ = writeln!(out, "| `{name}` | {kind} | {default} | {}. |", cell(about));
    }
    let _ = writeln!(out);
}

/// A settings struct of the source, with its doc comments.
#[derive(Default)]
struct Struct {
    about: String,
    fields: BTreeMap<String, Field>,
}

struct Field {
    about: String,
    kind: String,
}

/// Parses the structs of a source file, with their fields and doc comments.
fn structs(source: &str) -> BTreeMap<String, Struct> {
    let (mut found, mut about, mut name) = (BTreeMap::<String, Struct>::new(), Vec::new(), None::<String>);
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            about.push(text.to_owned());
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        if let Some(rest) = line.strip_prefix("pub(crate) struct ") {
            let known: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            found.insert(known.clone(), Struct { about: about.join(" "), fields: BTreeMap::new() });
            name = line.ends_with('{').then_some(known);
        } else if line == "}" {
            name = None;
        } else if let (Some(of), Some((field, kind))) =
            (&name, line.strip_prefix("pub(crate) ").and_then(|line| line.split_once(": ")))
        {
            let field_of = Field { about: about.join(" "), kind: kind.trim_end_matches(',').to_owned() };
            found.entry(of.clone()).or_default().fields.insert(field.to_owned(), field_of);
        }
        about.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{page, structs};

    #[test]
    fn every_setting_has_a_description() {
        let structs = structs(super::SOURCE);
        for (name, section) in &structs["Settings"].fields {
            let of = structs.get(&section.kind).unwrap_or_else(|| panic!("`{name}` is a {}", section.kind));
            assert!(!of.about.is_empty(), "{name}");
        }
        let page = page().unwrap();
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert!(rows.len() > 25, "{page}");
        for row in rows {
            assert!(!row.ends_with("| . |"), "{row}: the description is missing");
            assert_ne!(row.split(" | ").nth(1), Some(""), "{row}: the type is missing");
        }
    }
}
