//! Arguments with a fixed set of values: an unknown value is answered with all of them, before a request is sent.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use serde_json::Value;
use stepwell::core::near::near;

use super::args::resolved;

/// The allowed values of an argument.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    /// Name of the argument in words, such as `value type`.
    name: String,
    values: Vec<String>,
}

impl Choice {
    pub(super) fn new(name: &str, values: Vec<String>) -> Self {
        Choice { name: name.replace('-', " "), values }
    }

    /// Returns the message for a value that is not allowed, as a line.
    fn unknown(&self, given: &str) -> String {
        let near = near(given, self.values.iter().map(String::as_str));
        let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_else(|| ".".to_owned());
        format!("unknown {} `{given}`{near} Allowed: {}\n", self.name, self.values.join(", "))
    }
}

impl TypedValueParser for Choice {
    type Value = String;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        let given = value.to_string_lossy();
        if self.values.iter().any(|allowed| *allowed == given) {
            return Ok(given.into_owned());
        }
        Err(clap::Error::raw(ErrorKind::InvalidValue, self.unknown(&given)).with_cmd(command))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().map(PossibleValue::new)))
    }
}

/// Returns the values that a schema allows; empty if it allows others too.
pub(super) fn of(contract: &Value, schema: &Value) -> Vec<String> {
    values(contract, schema).unwrap_or_default()
}

fn values(contract: &Value, schema: &Value) -> Option<Vec<String>> {
    let schema = resolved(contract, schema);
    if let Some(constant) = schema.get("const") {
        return Some(vec![constant.as_str()?.to_owned()]);
    }
    if let Some(all) = schema.get("enum").and_then(Value::as_array) {
        let texts = all.iter().filter(|value| !value.is_null());
        return texts.map(|value| value.as_str().map(str::to_owned)).collect();
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(options) = schema.get(several).and_then(Value::as_array) {
            let options = options.iter().filter(|option| option["type"] != "null");
            let all: Option<Vec<_>> = options.map(|option| values(contract, option)).collect();
            return all.map(|all| all.concat());
        }
    }
    schema.get("items").and_then(|items| values(contract, items))
}
