//! Parses operands: literals, names, variables, calls, and expressions in brackets.

use std::ops::Range;

use serde_json::Value;

use super::Parser;
use crate::expr::ast::{Item, Kind, Node, Pair, Path};
use crate::expr::error::{ExprError, ExprErrorKind, quoted};
use crate::expr::function::Function;
use crate::expr::lex::Token;
use crate::expr::refuse;

/// The binding power of unary `-`: it applies to a path, but not to a calculation.
const NEGATION: u8 = 70;

impl Parser<'_> {
    pub(super) fn operand(&mut self) -> Result<Node, ExprError> {
        let span = self.span.clone();
        match self.token.clone() {
            Token::Null => self.literal(Value::Null),
            Token::True => self.literal(Value::Bool(true)),
            Token::False => self.literal(Value::Bool(false)),
            Token::Text(text) => self.literal(Value::String(text)),
            Token::Decimal(number) => self.literal(Value::from(number)),
            Token::Integer(number) => match i64::try_from(number) {
                Ok(number) => self.literal(Value::from(number)),
                Err(_) => Err(self.syntax("S0102", "the integer does not fit in 64 bits")),
            },
            Token::Variable(name) => {
                self.advance()?;
                self.variable(name, span)
            }
            Token::Name(name) => {
                self.advance()?;
                self.name(name, span)
            }
            Token::QuotedName(name) => {
                self.advance()?;
                self.field(name, span)
            }
            Token::Symbol(symbol) => self.bracketed(symbol),
            Token::End => {
                let code = if self.open > 0 { "S0203" } else { "S0207" };
                Err(self.misplaced(code, "a value"))
            }
        }
    }

    /// Parses an operand that starts with a symbol.
    fn bracketed(&mut self, symbol: &'static str) -> Result<Node, ExprError> {
        let span = self.span.clone();
        match symbol {
            "-" => self.negative(),
            "(" => self.block(),
            "[" => self.list(),
            "{" => self.object(),
            "*" | "**" => {
                self.advance()?;
                let kind = if symbol == "*" { Kind::Wildcard } else { Kind::Descendants };
                self.node(kind, span, None)
            }
            "%" => Err(self.unsupported(refuse::PARENT, span)),
            "/" => Err(self.unsupported(refuse::REGEX, span)),
            "|" => Err(self.unsupported(refuse::TRANSFORM, span)),
            _ => Err(self.misplaced("S0211", "a value")),
        }
    }

    /// Returns the error for a symbol that is not an operator.
    pub(super) fn refused(&self, symbol: &str) -> Option<ExprError> {
        refuse::foreign(symbol).map(|(code, message)| self.syntax(code, message))
    }

    fn literal(&mut self, value: Value) -> Result<Node, ExprError> {
        let span = self.span.clone();
        self.advance()?;
        self.node(Kind::Literal(value), span, None)
    }

    /// Parses `-` and its operand. A number directly after it is one literal, because the smallest integer has no
    /// positive counterpart.
    fn negative(&mut self) -> Result<Node, ExprError> {
        let start = self.span.start;
        self.advance()?;
        let literal = match self.token {
            Token::Integer(number) => Some(Value::from(0i64.wrapping_sub_unsigned(number))),
            Token::Decimal(number) => Some(Value::from(0.0 - number)),
            _ => None,
        };
        if let Some(value) = literal {
            let span = start..self.span.end;
            self.advance()?;
            return self.node(Kind::Literal(value), span, None);
        }
        let inner = self.expression(NEGATION)?;
        let (span, height) = (start..inner.span.end, inner.height);
        self.node(Kind::Negate(Box::new(inner)), span, Some(height))
    }

    /// Parses a block: `( …; … )`.
    fn block(&mut self) -> Result<Node, ExprError> {
        let start = self.span.start;
        self.advance()?;
        let mut nodes = Vec::new();
        while self.token != Token::Symbol(")") {
            nodes.push(self.inside(|parser| parser.expression(0))?);
            if !self.take(";")? {
                break;
            }
        }
        self.expect(")", start)?;
        let is_written = nodes.iter().any(|node| match &node.kind {
            Kind::Path(path) => path.steps[0].is_written_list(),
            _ => node.is_written_list(),
        });
        let height = nodes.iter().map(|node| node.height).max();
        self.node(Kind::Block { nodes, is_written }, start..self.end, height)
    }

    fn list(&mut self) -> Result<Node, ExprError> {
        let start = self.span.start;
        self.advance()?;
        let items = self.comma_separated("]", start, |parser| {
            let item = parser.expression(0)?;
            if parser.take("..")? {
                Ok(Item::Range(item, parser.expression(0)?))
            } else {
                Ok(Item::One(item))
            }
        })?;
        let height = items.iter().map(|item| match item {
            Item::One(node) => node.height,
            Item::Range(from, to) => from.height.max(to.height),
        });
        let height = height.max();
        self.node(Kind::List { items, is_written: false }, start..self.end, height)
    }

    fn object(&mut self) -> Result<Node, ExprError> {
        let start = self.span.start;
        let pairs = self.pairs()?;
        let height = pairs.iter().map(|(key, value)| key.height.max(value.height)).max();
        self.node(Kind::Object(pairs), start..self.end, height)
    }

    /// Parses the pairs of an object: `{ key: value, … }`.
    pub(super) fn pairs(&mut self) -> Result<Vec<Pair>, ExprError> {
        let start = self.span.start;
        self.advance()?;
        self.comma_separated("}", start, |parser| {
            let key = parser.expression(0)?;
            if !parser.take(":")? {
                let code = if parser.token == Token::End { "S0203" } else { "S0202" };
                return Err(parser.misplaced(code, "`:` and a value after the key"));
            }
            Ok((key, parser.expression(0)?))
        })
    }

    /// Parses a bare name: a field, or a function if a parenthesis follows.
    fn name(&mut self, name: String, span: Range<usize>) -> Result<Node, ExprError> {
        if self.token != Token::Symbol("(") || matches!(name.as_str(), "and" | "or" | "in") {
            return self.field(name, span);
        }
        if matches!(name.as_str(), "function" | "λ") {
            return Err(self.unsupported(refuse::LAMBDA, span));
        }
        self.named_call(&name, span)
    }

    fn field(&mut self, name: String, span: Range<usize>) -> Result<Node, ExprError> {
        let step = Node { kind: Kind::Name(name), span: span.clone(), height: 0, more: None };
        let path = Path { steps: vec![step], keeps_list: false, is_plain: true };
        self.node(Kind::Path(path), span, None)
    }

    fn variable(&mut self, name: String, span: Range<usize>) -> Result<Node, ExprError> {
        if self.token == Token::Symbol("(") {
            return self.named_call(&name, span);
        }
        let kind = match name.as_str() {
            "" => Kind::Here,
            "$" => Kind::Top,
            _ => {
                let is_free = !self.bound.contains(&name) && self.token != Token::Symbol(":=");
                if let Some(refusal) = refuse::function_value(&name).filter(|_| is_free) {
                    return Err(self.unsupported(refusal, span));
                }
                Kind::Variable(name)
            }
        };
        self.node(kind, span, None)
    }

    /// Parses a function call. The current token is its opening parenthesis.
    fn named_call(&mut self, name: &str, span: Range<usize>) -> Result<Node, ExprError> {
        let Some(function) = Function::named(name) else {
            let (is_refused, message) = refuse::function(name);
            if is_refused {
                return Err(self.unsupported(message, span));
            }
            self.arguments()?;
            return self.too_early(self.error(ExprErrorKind::Syntax, "T1006", message, span));
        };
        let arguments = self.arguments()?;
        self.call(function, arguments, span.start)
    }

    pub(super) fn arguments(&mut self) -> Result<Vec<Node>, ExprError> {
        let open = self.span.start;
        self.advance()?;
        self.comma_separated(")", open, |parser| {
            let span = parser.span.clone();
            if !parser.take("?")? {
                return parser.expression(0);
            }
            Err(match parser.token {
                Token::Symbol("," | ")") => parser.unsupported(refuse::PARTIAL, span),
                _ => parser.misplaced("S0202", "`,` or `)`"),
            })
        })
    }

    /// Creates a call. A wrong number of arguments is an error here already, because no data could make the call
    /// valid.
    pub(super) fn call(
        &mut self,
        function: Function,
        arguments: Vec<Node>,
        start: usize,
    ) -> Result<Node, ExprError> {
        let span = start..self.end;
        let (fewest, most) = function.arity();
        if !(fewest..=most).contains(&arguments.len()) {
            let message =
                format!("`${}` takes {}, not {}", function.name(), takes(fewest, most), arguments.len());
            return self.too_early(self.error(ExprErrorKind::Type, "T0410", message, span));
        }
        let height = arguments.iter().map(|node| node.height).max();
        self.node(Kind::Call { function, arguments }, span, height)
    }

    /// Creates the error for a literal that cannot be a step of a path.
    pub(super) fn no_step(&self, node: &Node) -> ExprError {
        let message = format!(
            "{} is not the name of a field: put the name in back-quotes",
            quoted(self.source, &node.span)
        );
        self.error(ExprErrorKind::Syntax, "S0213", message, node.span.clone())
    }
}

/// Returns the number of arguments in words.
fn takes(fewest: usize, most: usize) -> String {
    let arguments = |count: usize| match count {
        0 => "no argument".to_owned(),
        1 => "one argument".to_owned(),
        _ => format!("{count} arguments"),
    };
    match (fewest, most) {
        _ if fewest == most => arguments(most),
        (_, usize::MAX) => format!("at least {}", arguments(fewest)),
        _ => format!("{fewest} to {}", arguments(most)),
    }
}
