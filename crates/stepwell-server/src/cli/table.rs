//! Tables for people: aligned columns, which fit the terminal if there is one.

use serde_json::Value;

use super::show::{Colour, painted, text};
use crate::exit::Failure;
use crate::output;

/// Number of spaces between two columns.
const GAP: usize = 2;
/// Width to which a column is cut before a less important one is hidden.
const NARROW: usize = 14;
/// Fields that come first in tables without a fixed set of columns.
const FIRST: [&str; 9] = ["id", "name", "key", "namespace", "number", "version", "at", "workflow", "status"];

/// A column with the cells of all rows.
struct Column {
    path: String,
    heading: String,
    cells: Vec<String>,
}

/// Prints rows as a table. Without `columns`, it has a column for every field of every row. A terminal that is too
/// narrow gets shorter cells, and then fewer columns; the hidden ones are named on standard error.
pub(super) fn print(items: &[Value], columns: &[&str], is_quiet: bool) -> Result<(), Failure> {
    if !items.iter().any(Value::is_object) {
        return items.iter().try_for_each(|item| output::line(&one_line(&text(item))));
    }
    let columns: Vec<_> = paths(items, columns).into_iter().map(|path| Column::of(path, items)).collect();
    let widths = fitted(&columns, output::width());
    let (shown, hidden) = columns.split_at(widths.len());
    let line = |cell: &dyn Fn(&Column) -> String| {
        let padded = shown.iter().zip(&widths).map(|(column, &width)| {
            let cell = cut(&cell(column), width);
            let space = " ".repeat(width.saturating_sub(width_of(&cell)));
            format!("{}{space}", painted(&cell, Colour::of(&column.path, &cell)))
        });
        output::line(padded.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end())
    };
    line(&|column| column.heading.clone())?;
    for row in 0..items.len() {
        line(&|column| column.cells[row].clone())?;
    }
    if !hidden.is_empty() && !is_quiet {
        let names: Vec<_> = hidden.iter().map(|column| column.heading.as_str()).collect();
        output::print_message(&format!(
            "hidden columns: {}; use a wider terminal, or `--output json`",
            names.join(", ")
        ));
    }
    Ok(())
}

/// Returns the paths of the columns, the most important first.
fn paths(items: &[Value], columns: &[&str]) -> Vec<String> {
    if !columns.is_empty() {
        let mut paths: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
        // Shadow columns are in the rows if the request asks for them.
        for name in
            items.iter().filter_map(|item| item["columns"].as_object()).flat_map(|fields| fields.keys())
        {
            let path = format!("columns.{name}");
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        return paths;
    }
    let mut names: Vec<&String> =
        items.iter().filter_map(Value::as_object).flat_map(|item| item.keys()).collect();
    names.sort_unstable();
    names.dedup();
    names.sort_by_key(|name| {
        let is_nested = items.iter().any(|item| item[name.as_str()].is_object());
        (FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()), is_nested)
    });
    names.into_iter().cloned().collect()
}

impl Column {
    fn of(path: String, items: &[Value]) -> Self {
        let cell = |item: &Value| {
            // The name of a shadow column may contain a dot.
            let parts: Vec<_> = path.splitn(2, '.').collect();
            let found = parts.iter().try_fold(item, |value, part| value.get(part));
            one_line(&found.map(text).unwrap_or_default())
        };
        let cells = items.iter().map(cell).collect();
        let last = path.split_once('.').map_or(path.as_str(), |(_, last)| last);
        Column { heading: super::args::kebab(last).to_uppercase(), cells, path }
    }

    /// Returns the width of the widest cell.
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| width_of(cell));
        cells.max().unwrap_or(0).max(width_of(&self.heading))
    }

    /// Returns the width to which the column may be cut. Ids are not cut, because a part of one is useless.
    fn least(&self) -> usize {
        let is_id = matches!(self.path.as_str(), "id" | "run" | "parent");
        if is_id { self.width() } else { self.width().min(width_of(&self.heading).max(NARROW)) }
    }
}

/// Returns the widths of the columns that fit; the others are hidden.
fn fitted(columns: &[Column], terminal: Option<usize>) -> Vec<usize> {
    let mut widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let Some(terminal) = terminal else { return widths };
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    let least: Vec<usize> = columns.iter().map(Column::least).collect();
    while widths.len() > 1 && total(&least[..widths.len()]) > terminal {
        widths.pop();
    }
    while total(&widths) > terminal {
        let cuttable = (0..widths.len()).filter(|&at| widths[at] > least[at]);
        let Some(widest) = cuttable.max_by_key(|&at| widths[at]) else { break };
        widths[widest] -= 1;
    }
    widths
}

/// Cuts a text that is wider than a column, and ends it with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut used = 0;
    let fits = text.chars().take_while(|c| {
        used += width_of_char(*c);
        used < width
    });
    format!("{}…", fits.collect::<String>())
}

/// Escapes control characters: a cell is one line, and stored text must not control the terminal.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

fn width_of(text: &str) -> usize {
    text.chars().map(width_of_char).sum()
}

/// Returns the number of terminal columns of a character: 2 for East Asian wide characters and emoji.
fn width_of_char(c: char) -> usize {
    match u32::from(c) {
        0x300..=0x36f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}
