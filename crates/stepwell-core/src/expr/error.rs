//! What can be wrong with an expression, and how it is shown.

use std::ops::Range;

/// What is wrong with an expression, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at {} of `{}`)", position(.expr, .span.start), excerpt(.expr, .span.start))]
pub struct ExprError {
    /// What sort of problem it is.
    pub kind: ExprErrorKind,
    /// A stable name for it: JSONata's own code where JSONata has one (`T2001`), a word of ours where it has
    /// none (`unsupported`, `budget`, `tooDeep`, `tooLong`, `noClock`).
    pub code: &'static str,
    /// The problem, for a person.
    pub message: Box<str>,
    /// The bytes of the expression it is about.
    pub span: Range<usize>,
    /// The expression; of one that is too long to be parsed, its beginning.
    pub expr: Box<str>,
}

/// The sorts of problem an expression can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExprErrorKind {
    /// It does not parse, or calls what is not there.
    Syntax,
    /// It uses something that is not part of the dialect.
    Unsupported,
    /// A value is of a type that an operator or function cannot take.
    Type,
    /// An overflow, or a division by zero.
    Arithmetic,
    /// A function was called with a value it cannot work with, or the expression itself said `$error`.
    Value,
    /// It costs more than its budget.
    Budget,
}

impl ExprError {
    pub(super) fn new(
        kind: ExprErrorKind,
        code: &'static str,
        message: impl Into<String>,
        span: Range<usize>,
        expr: &str,
    ) -> Self {
        ExprError { kind, code, message: message.into().into_boxed_str(), span, expr: expr.into() }
    }
}

/// The part of the source at `span`, on one line and shortened, for messages.
pub(super) fn quoted(source: &str, span: &Range<usize>) -> String {
    const LONGEST: usize = 60;
    let text = source.get(span.clone()).unwrap_or_default();
    let mut shown: String = text.chars().take(LONGEST).map(one_line).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

fn position(expr: &str, at: usize) -> String {
    let before = expr.get(..at).unwrap_or(expr);
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    match before.matches('\n').count() {
        0 => format!("character {column}"),
        breaks => format!("line {}, character {column}", breaks + 1),
    }
}

/// The surroundings of `at`: an expression can be 8 KiB long, a message should not be.
pub(crate) fn excerpt(expr: &str, at: usize) -> String {
    const BEFORE: usize = 40;
    const LONGEST: usize = 100;
    let total = expr.chars().count();
    let before = expr.get(..at).unwrap_or(expr).chars().count();
    let start = if total <= LONGEST { 0 } else { before.saturating_sub(BEFORE) };
    let mut shown = String::from(if start > 0 { "…" } else { "" });
    shown.extend(expr.chars().skip(start).take(LONGEST).map(one_line));
    if total > start + LONGEST {
        shown.push('…');
    }
    shown
}

fn one_line(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}
