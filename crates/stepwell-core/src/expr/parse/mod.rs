//! Parses an expression into a syntax tree.
//!
//! Operators are parsed by precedence climbing with JSONata's binding powers. Where JSONata's interpretation of two
//! adjacent operators is surprising, the parser requires parentheses.

mod operand;
mod operator;
mod suffix;

use std::collections::BTreeSet;
use std::ops::Range;

use super::ast::{Kind, Node};
use super::error::{ExprError, ExprErrorKind, quoted};
use super::lex::{Lexer, Token};
use super::{MAX_DEPTH, MAX_SOURCE_BYTES};

/// Parses a whole expression.
pub(super) fn parse(source: &str) -> Result<Node, ExprError> {
    if source.len() > MAX_SOURCE_BYTES {
        let message = format!("the expression is longer than {MAX_SOURCE_BYTES} bytes");
        let beginning: String = source.chars().take(100).collect();
        return Err(ExprError::new(
            ExprErrorKind::Syntax,
            "tooLong",
            message,
            0..beginning.len(),
            &beginning,
        ));
    }
    let mut parser = Parser::new(source)?;
    if parser.token == Token::End {
        return Err(parser.syntax("S0207", "the expression is empty"));
    }
    let root = parser.expression(0)?;
    match parser.token {
        Token::End => parser.misstep.or(parser.early).map_or(Ok(root), Err),
        Token::Symbol(")" | "]" | "}" | "," | ";" | ":" | "..") => {
            Err(parser.syntax("S0201", format!("unexpected {}", parser.found())))
        }
        _ => Err(parser.misplaced("S0201", "an operator")),
    }
}

pub(super) struct Parser<'s> {
    source: &'s str,
    lexer: Lexer<'s>,
    /// The next token and its range.
    token: Token,
    span: Range<usize>,
    /// End of the previous token.
    end: usize,
    depth: u32,
    /// Number of open brackets.
    open: u32,
    /// The variables bound so far.
    bound: BTreeSet<String>,
    /// The error for the first invalid step of a path. It is reported at the end, because other syntax errors have
    /// priority.
    misstep: Option<ExprError>,
    /// The first error that JSONata reports only when it evaluates the part, such as an unknown function. Every syntax
    /// error has priority.
    early: Option<ExprError>,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str) -> Result<Self, ExprError> {
        let mut lexer = Lexer::new(source);
        let (token, span) = lexer.next()?;
        Ok(Parser {
            source,
            lexer,
            token,
            span,
            end: 0,
            depth: 0,
            open: 0,
            bound: BTreeSet::new(),
            misstep: None,
            early: None,
        })
    }

    /// Parses an expression up to an operator that binds no stronger than `floor`.
    fn expression(&mut self, floor: u8) -> Result<Node, ExprError> {
        self.nested(|parser| {
            let left = parser.operand()?;
            parser.continued(left, floor)
        })
    }

    /// Parses the content of brackets, up to the closing token.
    fn inside<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, ExprError>) -> Result<T, ExprError> {
        self.open += 1;
        let parsed = parse(self)?;
        self.open -= 1;
        Ok(parsed)
    }

    /// Parses items with `one`, separated by commas, up to the symbol that closes the bracket at `start`.
    fn comma_separated<T>(
        &mut self,
        close: &'static str,
        start: usize,
        one: impl Fn(&mut Self) -> Result<T, ExprError>,
    ) -> Result<Vec<T>, ExprError> {
        let mut items = Vec::new();
        if self.take(close)? {
            return Ok(items);
        }
        loop {
            items.push(self.inside(&one)?);
            if !self.take(",")? {
                self.expect(close, start)?;
                return Ok(items);
            }
        }
    }

    fn node(&self, kind: Kind, span: Range<usize>, below: Option<u32>) -> Result<Node, ExprError> {
        let height = below.unwrap_or(0) + 1;
        if height > MAX_DEPTH {
            return Err(self.too_deep(span));
        }
        Ok(Node { kind, span, height, more: None })
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, ExprError>) -> Result<T, ExprError> {
        if self.depth == MAX_DEPTH {
            return Err(self.too_deep(self.span.clone()));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn advance(&mut self) -> Result<(), ExprError> {
        self.end = self.span.end;
        (self.token, self.span) = self.lexer.next()?;
        Ok(())
    }

    /// Consumes the current token if it is `symbol`. Returns true if it was.
    fn take(&mut self, symbol: &'static str) -> Result<bool, ExprError> {
        let is_it = self.token == Token::Symbol(symbol);
        if is_it {
            self.advance()?;
        }
        Ok(is_it)
    }

    /// Consumes the symbol that closes the bracket at `start`, or returns an error.
    fn expect(&mut self, close: &'static str, start: usize) -> Result<(), ExprError> {
        if self.take(close)? {
            return Ok(());
        }
        if let Token::Symbol(symbol) = self.token
            && let Some(error) = self.refused(symbol)
        {
            return Err(error);
        }
        let opened = quoted(self.source, &(start..start + 1));
        let code = if self.token == Token::End { "S0203" } else { "S0202" };
        Err(self.syntax(code, format!("expected `{close}` to close {opened}, found {}", self.found())))
    }

    /// Creates the error for the current token: the specific error for an unsupported symbol, or the expected
    /// alternative.
    fn misplaced(&self, code: &'static str, expected: &str) -> ExprError {
        if let Token::Symbol(symbol) = self.token
            && let Some(error) = self.refused(symbol)
        {
            return error;
        }
        self.syntax(code, format!("expected {expected}, found {}", self.found()))
    }

    fn too_deep(&self, span: Range<usize>) -> ExprError {
        let message = format!("the expression is nested deeper than {MAX_DEPTH} levels");
        self.error(ExprErrorKind::Syntax, "tooDeep", message, span)
    }

    /// Returns the current token for messages.
    fn found(&self) -> String {
        let is_behind_zero = self.end == self.span.start && self.source[..self.end].ends_with('0');
        match self.token {
            Token::End => "the end".to_owned(),
            Token::Integer(_) | Token::Decimal(_) if is_behind_zero => {
                format!("{}: a number cannot start with a zero", quoted(self.source, &self.span))
            }
            _ => quoted(self.source, &self.span),
        }
    }

    /// Records the error for an invalid step of a path.
    fn wrong_step(&mut self, error: ExprError) {
        self.misstep.get_or_insert(error);
    }

    /// Records an early error and returns an empty block in place of the wrong part.
    fn too_early(&mut self, error: ExprError) -> Result<Node, ExprError> {
        let span = error.span.clone();
        self.early.get_or_insert(error);
        self.node(Kind::Block { nodes: Vec::new(), is_written: false }, span, None)
    }

    fn unsupported(&self, message: impl Into<String>, span: Range<usize>) -> ExprError {
        self.error(ExprErrorKind::Unsupported, "unsupported", message, span)
    }

    fn syntax(&self, code: &'static str, message: impl Into<String>) -> ExprError {
        self.error(ExprErrorKind::Syntax, code, message, self.span.clone())
    }

    fn error(
        &self,
        kind: ExprErrorKind,
        code: &'static str,
        message: impl Into<String>,
        span: Range<usize>,
    ) -> ExprError {
        ExprError::new(kind, code, message, span, self.source)
    }
}
