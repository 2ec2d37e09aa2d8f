//! Output of responses: as tables for people, or as the API's own JSON for programs.

use clap::ValueEnum;
use serde_json::{Map, Value};
use stepwell::core::document;

use super::table::{self, one_line};
use crate::exit::Failure;
use crate::output;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns for people.
    Table,
    /// JSON as the API returns it.
    Json,
    /// The same data as YAML.
    Yaml,
    /// One JSON object per line and row.
    Ndjson,
    /// Only the ids, one per line.
    Id,
}

/// The output options of every verb.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output options")]
pub(crate) struct Shown {
    /// Output format of the response.
    #[arg(short = 'o', long = "output", value_enum, default_value = "table", global = true)]
    output: Format,
    /// The same as `--output json`.
    #[arg(long, global = true)]
    json: bool,
    /// Print only data, no messages.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Do not ask for confirmation.
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
    /// Show the request without sending it; operations with a dry run of their own are sent and change nothing.
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Fetch all pages of a list, not only the first.
    #[arg(long, global = true)]
    pub(crate) all: bool,
}

impl Shown {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// Prints a response in the chosen format.
    pub(crate) fn show(&self, value: &Value, columns: &[&str]) -> Result<(), Failure> {
        if value.is_null() {
            return Ok(());
        }
        let items = value.get("items").and_then(Value::as_array).map(Vec::as_slice);
        // JSON and YAML contain the unreadable rows.
        if items.is_some() && !matches!(self.format(), Format::Json | Format::Yaml) {
            unreadable(value);
        }
        match (self.format(), items) {
            (Format::Json, _) => output::line(&value.to_string()),
            (Format::Yaml, _) => output::print(&document::yaml(value)),
            (Format::Ndjson, Some(items)) => {
                items.iter().try_for_each(|item| output::line(&item.to_string()))
            }
            (Format::Ndjson, None) => output::line(&value.to_string()),
            (Format::Id, Some(items)) => items.iter().try_for_each(|item| output::line(&id(item))),
            (Format::Id, None) => output::line(&id(value)),
            (Format::Table, Some([])) => Ok(()),
            (Format::Table, Some(items)) => table::print(items, columns, self.quiet),
            (Format::Table, None) => output::print(&fields(value)),
        }
    }
}

/// Prints a warning for each row of a page that cannot be read. It is printed with `--quiet` too, because the data is
/// incomplete.
fn unreadable(page: &Value) {
    for row in page.get("unreadable").and_then(Value::as_array).into_iter().flatten() {
        let field = |name: &str| row.get(name).map(text).unwrap_or_default();
        output::print_message(&format!(
            "warning: row `{}` of table `{}` is unreadable and left out: {}; see `stepwell doctor --deep`",
            field("key"),
            field("table"),
            field("why")
        ));
    }
}

/// Returns the field that identifies an item.
fn id(item: &Value) -> String {
    let known = ["id", "name", "key", "run", "namespace", "version"].iter().find_map(|field| item.get(field));
    text(known.unwrap_or(item))
}

/// Returns the fields of an object for people, one per line. Nested values follow as indented YAML.
pub(super) fn fields(value: &Value) -> String {
    let Some(fields) = value.as_object() else { return format!("{}\n", text(value)) };
    let rows: Vec<_> = shown_fields(fields).map(|(name, value)| (name.as_str(), value)).collect();
    rows_of(&rows)
}

/// Returns named values for people, one per line. Nested values follow as indented YAML.
pub(super) fn rows_of(rows: &[(&str, &Value)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().fold(String::new(), |lines, (name, value)| {
        let is_nested = match value {
            Value::Object(fields) => !fields.is_empty(),
            Value::Array(all) => !all.iter().all(is_simple),
            _ => false,
        };
        if is_nested {
            return format!("{lines}{name}\n{}", indented(&document::yaml(value), 2));
        }
        let text = text(value);
        // A text with several lines is shown as it is, below its name.
        match text.trim_end().contains('\n') {
            true => format!("{lines}{name}\n{}", indented(&text, 2)),
            false => {
                let colour = Colour::of(name, &text);
                format!(
                    "{lines}{}\n",
                    format!("{name:width$}  {}", painted(&one_line(&text), colour)).trim_end()
                )
            }
        }
    })
}

/// Indents every line of a text, and escapes control characters.
pub(super) fn indented(text: &str, spaces: usize) -> String {
    let space = " ".repeat(spaces);
    text.lines().map(|line| format!("{}\n", format!("{space}{}", one_line(line)).trim_end())).collect()
}

fn is_simple(value: &Value) -> bool {
    value.is_string() || value.is_number()
}

/// Returns the fields, without empty lists.
fn shown_fields(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(_, value)| !value.as_array().is_some_and(Vec::is_empty))
}

/// A colour of the terminal, as its ANSI code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
    Blue = 34,
    Cyan = 36,
}

impl Colour {
    /// Returns the colour of a value in this column, if it has one.
    pub(super) fn of(column: &str, text: &str) -> Option<Colour> {
        (column == "status").then_some(match text {
            "failed" => Colour::Red,
            "waiting" | "suspended" | "pending" => Colour::Yellow,
            "running" | "active" => Colour::Blue,
            "completed" => Colour::Green,
            _ => return None,
        })
    }
}

/// Returns the text in a colour, if it has one and colours are enabled.
pub(super) fn painted(text: &str, colour: Option<Colour>) -> String {
    match colour.filter(|_| output::has_colour()) {
        Some(colour) => format!("\u{1b}[{}m{text}\u{1b}[0m", colour as u8),
        None => text.to_owned(),
    }
}

/// Returns a value as text: strings without quotes, and simple lists with commas.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.iter().all(is_simple) => all.iter().map(text).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}
