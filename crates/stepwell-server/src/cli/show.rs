//! How answers are shown: as tables for people, as the API's own JSON for programs.

use std::io::IsTerminal;

use clap::ValueEnum;
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use serde_json::{Map, Value};
use stepwell::core::document;

use crate::exit::Failure;
use crate::output;

/// How an answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// The API's own JSON.
    Json,
    /// The same as YAML.
    Yaml,
    /// One line of JSON per row.
    Ndjson,
    /// Only ids, one per line.
    Id,
}

/// What is said besides who is asked.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "How it is shown")]
pub(crate) struct Shown {
    /// How the answer is shown.
    #[arg(short = 'o', long = "output", value_enum, default_value = "table", global = true)]
    output: Format,
    /// The same as `--output json`.
    #[arg(long, global = true)]
    json: bool,
    /// Say nothing that is not data.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Ask nothing before something is done.
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
    /// Only show the request that would be sent; where the server can try it out, what would come of it.
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Every page of a listing, not only the first.
    #[arg(long, global = true)]
    pub(crate) all: bool,
}

/// Characters of a cell at most.
const CELL: usize = 80;

impl Shown {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// Shows an answer.
    pub(crate) fn show(&self, value: &Value, columns: &[&str]) -> Result<(), Failure> {
        if value.is_null() {
            return Ok(());
        }
        let items = value.get("items").and_then(Value::as_array);
        match (self.format(), items) {
            (Format::Json, _) => output::line(&value.to_string()),
            (Format::Yaml, _) => output::print(&document::yaml(value)),
            (Format::Ndjson, Some(items)) => {
                items.iter().try_for_each(|item| output::line(&item.to_string()))
            }
            (Format::Ndjson, None) => output::line(&value.to_string()),
            (Format::Id, Some(items)) => items.iter().try_for_each(|item| output::line(&id(item))),
            (Format::Id, None) => output::line(&id(value)),
            (Format::Table, Some(items)) => table(items, columns),
            (Format::Table, None) => fields(value),
        }
    }
}

/// What something is known by.
fn id(item: &Value) -> String {
    let known = ["id", "name", "key", "run", "namespace", "version"].iter().find_map(|field| item.get(field));
    text(known.unwrap_or(item))
}

fn table(items: &[Value], columns: &[&str]) -> Result<(), Failure> {
    let every: Vec<&str> = match (columns, items.first().and_then(Value::as_object)) {
        ([], Some(first)) => first.keys().map(String::as_str).collect(),
        (columns, _) => columns.to_vec(),
    };
    if items.is_empty() {
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(every.iter().map(|column| heading(column)));
    let has_colour = has_colour();
    for item in items {
        table.add_row(every.iter().map(|column| {
            let value = column.split('.').try_fold(item, |value, part| value.get(part));
            let text = cut(&value.map(text).unwrap_or_default());
            match colour(column, &text).filter(|_| has_colour) {
                Some(colour) => Cell::new(text).fg(colour),
                None => Cell::new(text),
            }
        }));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.into_iter().try_for_each(|line| output::line(&line))
}

fn fields(value: &Value) -> Result<(), Failure> {
    let Some(fields) = value.as_object() else { return output::line(&text(value)) };
    let width = fields.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    let has_colour = has_colour();
    shown_fields(fields).try_for_each(|(name, value)| {
        let text = text(value);
        match colour(name, &text).filter(|_| has_colour) {
            Some(colour) => output::line(&format!("{name:width$}  \u{1b}[{}m{text}\u{1b}[0m", ansi(colour))),
            None => output::line(&format!("{name:width$}  {text}")),
        }
    })
}

/// `detail.updatedAt` as `UPDATED-AT`.
fn heading(column: &str) -> String {
    super::args::kebab(column.rsplit('.').next().unwrap_or(column)).to_uppercase()
}

/// What is empty says nothing.
fn shown_fields(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(_, value)| !value.as_array().is_some_and(Vec::is_empty))
}

/// A text that stands out, for people at a terminal.
pub(super) fn bold(text: &str) -> String {
    coloured(text, 1)
}

/// A text in a colour, for people at a terminal who want it.
pub(super) fn coloured(text: &str, code: u8) -> String {
    if has_colour() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Colour is for people at a terminal who want it.
fn has_colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn colour(column: &str, text: &str) -> Option<Color> {
    (column == "status").then_some(match text {
        "failed" => Color::Red,
        "waiting" | "suspended" | "pending" => Color::Yellow,
        "running" => Color::Blue,
        "completed" => Color::Green,
        _ => return None,
    })
}

fn ansi(colour: Color) -> u8 {
    match colour {
        Color::Red => 31,
        Color::Yellow => 33,
        Color::Blue => 34,
        _ => 32,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.iter().all(|one| one.is_string() || one.is_number()) => {
            all.iter().map(text).collect::<Vec<_>>().join(", ")
        }
        value => value.to_string(),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CELL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
