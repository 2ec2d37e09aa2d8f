//! Makes the tree of an expression.
//!
//! Operators are climbed by JSONata's binding powers. Where JSONata's reading of two operators side by side
//! is not the one people expect, parentheses are asked for instead of choosing one.

mod behind;
mod operand;
mod operator;

use std::collections::BTreeSet;
use std::ops::Range;

use super::ast::{Kind, Node};
use super::error::{ExprError, ExprErrorKind, quoted};
use super::lex::{Lexer, Token};
use super::{MAX_DEPTH, MAX_SOURCE_BYTES};

/// The tree.
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
        Token::End => parser.misstep.map_or(Ok(root), Err),
        Token::Symbol(")" | "]" | "}" | "," | ";" | ":" | "..") => {
            Err(parser.syntax("S0201", format!("{} is not expected here", parser.found())))
        }
        _ => Err(parser.misplaced("S0201", "an operator")),
    }
}

pub(super) struct Parser<'s> {
    source: &'s str,
    lexer: Lexer<'s>,
    /// The token to be looked at next, and where it is.
    token: Token,
    span: Range<usize>,
    /// Where the token before it ended.
    end: usize,
    depth: u32,
    /// How many brackets are open.
    open: u32,
    /// The variables bound so far.
    bound: BTreeSet<String>,
    /// The first step of a path that can be none.
    misstep: Option<ExprError>,
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
        })
    }

    /// An expression up to an operator that binds no stronger than `floor`.
    fn expression(&mut self, floor: u8) -> Result<Node, ExprError> {
        self.nested(|parser| {
            let left = parser.operand()?;
            parser.continued(left, floor)
        })
    }

    /// What stands between brackets, with the token behind it still to be looked at.
    fn inside<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, ExprError>) -> Result<T, ExprError> {
        self.open += 1;
        let parsed = parse(self)?;
        self.open -= 1;
        Ok(parsed)
    }

    /// What `one` parses, again and again between commas, up to the closing symbol of what was opened at
    /// `start`.
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

    /// Goes on if the current token is `symbol`, and says whether it was.
    fn take(&mut self, symbol: &'static str) -> Result<bool, ExprError> {
        let is_it = self.token == Token::Symbol(symbol);
        if is_it {
            self.advance()?;
        }
        Ok(is_it)
    }

    /// Goes on behind the symbol that closes what was opened at `start`.
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

    /// The error about the current token: a refusal if there is one, or that something else belongs here.
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

    /// The current token as messages name it.
    fn found(&self) -> String {
        match self.token {
            Token::End => "the end".to_owned(),
            _ => quoted(self.source, &self.span),
        }
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
