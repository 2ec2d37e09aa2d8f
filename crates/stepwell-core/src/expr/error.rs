//! Errors of expressions and their display.

use std::ops::Range;

/// An error in an expression and its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at {} of `{}`)", position(.expr, .span.start), excerpt(.expr, .span.start))]
pub struct ExprError {
    pub kind: ExprErrorKind,
    /// Stable code of the error: the JSONata code if there is one (`T2001`), or else a word of Stepwell
    /// (`unsupported`, `budget`, `tooDeep`, `tooLong`, `noClock`).
    pub code: &'static str,
    /// Human-readable description of the error, without its position.
    pub message: Box<str>,
    /// The byte range in the expression.
    pub span: Range<usize>,
    /// The expression. Of an expression that is too long to be parsed, only the beginning.
    pub expr: Box<str>,
}

/// The kind of an expression error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExprErrorKind {
    /// The expression does not parse, or calls an unknown function.
    Syntax,
    /// The expression uses something that is not part of the dialect.
    Unsupported,
    /// A value has a type that an operator or function does not accept.
    Type,
    /// An overflow, or a division by zero.
    Arithmetic,
    /// A function was called with a value that it cannot process, or the expression called `$error` or `$assert`.
    Value,
    /// The evaluation exceeds its budget.
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

/// Returns the source at `span` for messages, on one line and shortened.
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

/// Returns the surroundings of `at` for messages. An expression can be 8 KiB long, which is too long for a message.
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
