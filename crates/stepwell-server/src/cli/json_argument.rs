//! JSON arguments. They have one meaning in every command: JSON text, `@FILE`, or `-` for standard input.

use std::path::Path;

use serde_json::Value;
use stepwell::core::document;

use crate::exit::{Code, Failure};

/// End of the help text of a JSON argument.
pub(crate) const HELP: &str = "Write JSON, `@FILE`, or `-` for standard input";

/// Reads the JSON argument `name`. Text that is not JSON is an error, never a string.
pub(crate) fn json(name: &str, text: &str) -> Result<Value, Failure> {
    let wrong = |why: String| Failure::new(Code::Invalid, format!("`{name}` must be JSON: {why}"));
    let file = if text == "-" { Some("-") } else { text.strip_prefix('@') };
    let Some(file) = file else {
        return serde_json::from_str(text)
            .map_err(|error| wrong(format!("{error} (got `{}`). {}", beginning(text), advice(text))));
    };
    let content = crate::workflow::read(Path::new(file))?;
    let shown = if file == "-" { "standard input" } else { file };
    match Path::new(file).extension().is_some_and(|kind| kind == "yaml" || kind == "yml") {
        true => document::to_json(&content).map_err(|error| wrong(format!("{shown}: {error}"))),
        false => serde_json::from_str(&content).map_err(|error| wrong(format!("{shown}: {error}"))),
    }
}

/// Returns the correction of text that is not JSON.
fn advice(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    match text {
        _ if Path::new(text).is_file() => format!("To read the file, write `@{text}`."),
        "" => "Write `null` or `'\"\"'`.".to_owned(),
        _ if !text.starts_with(['{', '[', '"']) && text.chars().count() <= 40 => {
            format!("Write text in JSON quotes and shell quotes: `'{quoted}'`.")
        }
        _ => "`@FILE` reads a file, and `-` standard input.".to_owned(),
    }
}

/// Returns the beginning of a text, for an error message.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
