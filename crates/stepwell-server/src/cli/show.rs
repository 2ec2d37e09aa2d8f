//! Output of responses: as tables for people, or as the API's own JSON for programs.

use std::io::IsTerminal;

use clap::ValueEnum;
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use serde_json::{Map, Value};
use stepwell::core::document;

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

/// Maximum number of characters of a table cell. Longer text is cut.
const CELL: usize = 80;

impl Shown {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// Prints a response in the chosen format.
    pub(crate) fn show(&self, value: &Value, columns: &[&str]) -> Result<(), Failure> {
        if value.is_null() {
            return Ok(());
        }
        let items = value.get("items").and_then(Value::as_array);
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
            (Format::Table, Some(items)) => table(items, columns),
            (Format::Table, None) => fields(value),
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

/// Returns the heading of a column: `detail.updatedAt` becomes `UPDATED-AT`.
fn heading(column: &str) -> String {
    super::args::kebab(column.rsplit('.').next().unwrap_or(column)).to_uppercase()
}

/// Returns the fields, without empty lists.
fn shown_fields(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(_, value)| !value.as_array().is_some_and(Vec::is_empty))
}

/// Returns bold text if colours are enabled.
pub(super) fn bold(text: &str) -> String {
    coloured(text, 1)
}

/// Returns text with an ANSI code if colours are enabled.
pub(super) fn coloured(text: &str, code: u8) -> String {
    if has_colour() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Returns true if standard output is a terminal and `NO_COLOR` is not set.
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
