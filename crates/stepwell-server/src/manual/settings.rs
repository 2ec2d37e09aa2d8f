//! The reference of the settings: every one with its default, its name in the environment, and what its field is commented with.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::cell;
use crate::config::Settings;
use crate::exit::Failure;

/// Where the settings are said: the comments there are what people read here.
const SOURCE: &str = include_str!("../config/settings.rs");

/// The page.
pub(super) fn page() -> Result<String, Failure> {
    let defaults = serde_json::to_value(Settings::default()).map_err(Failure::unexpected)?;
    let structs = structs(SOURCE);
    let none = Struct::default();
    let sections = structs.get("Settings").unwrap_or(&none);
    let mut out = String::from(
        "# Configuration\n\nA flag goes before the environment, that before `stepwell.toml`, that before the default. \
         `…_FILE` behind a variable's name names a file that has the value. `stepwell config show --origin` says what is in force and why.\n\n",
    );
    for (section, keys) in defaults.as_object().into_iter().flatten() {
        let kind = sections.fields.get(section).map(|field| field.kind.as_str()).unwrap_or_default();
        let of = structs.get(kind).unwrap_or(&none);
        let _ = writeln!(out, "## [{section}]\n\n{}\n", of.about);
        let _ = writeln!(out, "| setting | default | environment | |\n|---|---|---|---|");
        for (key, default) in keys.as_object().into_iter().flatten() {
            let about = of.fields.get(key).map(|field| field.about.as_str()).unwrap_or_default();
            let variable = format!("STEPWELL_{}__{}", section.to_uppercase(), key.to_uppercase());
            let default = match default {
                Value::Null => String::new(),
                value => format!("`{value}`"),
            };
            let _ = writeln!(out, "| `{key}` | {} | `{variable}` | {} |", cell(&default), cell(about));
        }
        let _ = writeln!(out);
    }
    Ok(format!("{}\n", out.trim_end()))
}

/// A section, as the source says it.
#[derive(Default)]
struct Struct {
    about: String,
    fields: BTreeMap<String, Field>,
}

struct Field {
    about: String,
    kind: String,
}

/// Reads structs, their fields, and what stands above them.
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
    fn every_setting_has_a_word_on_what_it_is() {
        let structs = structs(super::SOURCE);
        for (name, section) in &structs["Settings"].fields {
            let of = structs.get(&section.kind).unwrap_or_else(|| panic!("`{name}` is a {}", section.kind));
            assert!(!of.about.is_empty(), "{name}");
        }
        let page = page().unwrap();
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert!(rows.len() > 25, "{page}");
        for row in rows {
            assert!(!row.ends_with("|  |"), "{row}: what is it for?");
        }
    }
}
