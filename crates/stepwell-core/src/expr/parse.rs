//! Makes the tree of an expression.
//!
//! Operators are climbed by JSONata's binding powers. Where JSONata's reading of two operators side by side
//! is not the one people expect, parentheses are asked for instead of choosing one.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

use super::ast::{DefaultRule, Function, Kind, Node, Op, Step, StepKind};
use super::lex::{Lexer, Token};
use super::{ExprError, ExprErrorKind, MAX_DEPTH, MAX_SOURCE_BYTES, quoted, refuse};

/// The tree, and the root names it reads, sorted.
pub(super) fn parse(source: &str) -> Result<(Node, Vec<String>), ExprError> {
    if source.len() > MAX_SOURCE_BYTES {
        let message = format!("the expression is longer than {MAX_SOURCE_BYTES} bytes");
        let beginning: String = source.chars().take(100).collect();
        return Err(ExprError::new(ExprErrorKind::Syntax, message, 0..beginning.len(), &beginning));
    }
    let mut parser = Parser::new(source)?;
    if parser.token == Token::End {
        return Err(parser.syntax("the expression is empty"));
    }
    let root = parser.expression(0)?;
    match parser.token {
        Token::End => Ok((root, parser.roots.into_iter().collect())),
        _ => Err(parser.syntax(format!("{} is not expected here", parser.found()))),
    }
}

/// How strongly `?` binds its left side.
const CONDITIONAL: u8 = 20;

struct Parser<'s> {
    source: &'s str,
    lexer: Lexer<'s>,
    /// The token to be looked at next, and where it is.
    token: Token,
    span: Range<usize>,
    /// Where the token before it ended.
    end: usize,
    depth: u32,
    roots: BTreeSet<String>,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str) -> Result<Self, ExprError> {
        let mut lexer = Lexer::new(source);
        let (token, span) = lexer.next()?;
        Ok(Parser { source, lexer, token, span, end: 0, depth: 0, roots: BTreeSet::new() })
    }

    /// An expression up to an operator that binds no stronger than `floor`.
    fn expression(&mut self, floor: u8) -> Result<Node, ExprError> {
        self.nested(|parser| {
            let mut left = parser.operand()?;
            while let Some(infix) = parser.infix()? {
                if infix.strength() <= floor {
                    break;
                }
                left = parser.continued(left, infix)?;
            }
            Ok(left)
        })
    }

    /// The operator at the current token; `None` at what ends an expression.
    fn infix(&self) -> Result<Option<Infix>, ExprError> {
        let text = match &self.token {
            Token::End => return Ok(None),
            Token::Symbol(symbol) => symbol,
            Token::Name(name) => name.as_str(),
            _ => return Err(self.misplaced(None, "an operator")),
        };
        if let Some(op) = Op::spelt(text) {
            return Ok(Some(Infix::Op(op)));
        }
        match text {
            "?" => Ok(Some(Infix::Conditional)),
            "??" => Ok(Some(Infix::Default(DefaultRule::Undefined))),
            "?:" => Ok(Some(Infix::Default(DefaultRule::Falsy))),
            ")" | "]" | "," | ":" => Ok(None),
            _ => Err(self.misplaced(refuse::as_operator(text), "an operator")),
        }
    }

    fn continued(&mut self, left: Node, infix: Infix) -> Result<Node, ExprError> {
        match infix {
            Infix::Op(op) => self.chain(left, op),
            Infix::Conditional => self.conditional(left),
            Infix::Default(rule) => self.default(left, rule),
        }
    }

    /// `left op right`; onto the same node as long as the operators bind equally strongly.
    fn chain(&mut self, left: Node, op: Op) -> Result<Node, ExprError> {
        self.advance()?;
        let right = self.expression(op.strength())?;
        let span = left.span.start..right.span.end;
        let (first, mut rest, height) = match left.kind {
            Kind::Chain { first, rest } if rest[0].0.strength() == op.strength() => {
                (first, rest, left.height - 1)
            }
            kind => (Box::new(Node { kind, ..left }), Vec::new(), left.height),
        };
        let height = height.max(right.height);
        rest.push((op, right));
        self.node(Kind::Chain { first, rest }, span, Some(height))
    }

    fn conditional(&mut self, test: Node) -> Result<Node, ExprError> {
        self.advance()?;
        let then = self.expression(0)?;
        let otherwise = if self.take(":")? { Some(Box::new(self.expression(0)?)) } else { None };
        let span = test.span.start..self.end;
        let below = [test.height, then.height, otherwise.as_ref().map_or(0, |node| node.height)];
        let kind = Kind::Conditional { test: Box::new(test), then: Box::new(then), otherwise };
        self.node(kind, span, below.into_iter().max())
    }

    /// `left ?? right` and `left ?: right`. JSONata binds their left side like a comparison and their right
    /// side not at all: it reads `a ?? b = c` as `a ?? (b = c)` and `a and b ?? c` as `a and (b ?? c)`.
    /// Nobody should have to know.
    fn default(&mut self, left: Node, rule: DefaultRule) -> Result<Node, ExprError> {
        let at = self.span.clone();
        self.advance()?;
        let right = self.expression(0)?;
        if let Some(beside) = ambiguous_beside(rule, &left).or(ambiguous_beside(rule, &right)) {
            let message = format!("`{}` beside {beside} needs parentheses around one of them", rule.text());
            return Err(self.error(ExprErrorKind::Syntax, message, at));
        }
        let span = left.span.start..right.span.end;
        let height = left.height.max(right.height);
        let kind = Kind::Default { rule, left: Box::new(left), right: Box::new(right) };
        self.node(kind, span, Some(height))
    }

    /// A value with the steps of a path behind it, or its negative.
    fn operand(&mut self) -> Result<Node, ExprError> {
        let span = self.span.clone();
        match self.token.clone() {
            Token::Null => self.literal(Value::Null),
            Token::True => self.literal(Value::Bool(true)),
            Token::False => self.literal(Value::Bool(false)),
            Token::Text(text) => self.literal(Value::String(text)),
            Token::Decimal(number) => self.literal(Value::from(number)),
            Token::Integer(number) => match i64::try_from(number) {
                Ok(number) => self.literal(Value::from(number)),
                Err(_) => Err(self.syntax("the integer does not fit in 64 bits")),
            },
            Token::Symbol("-") => self.negative(),
            Token::Symbol("(") => self.group().and_then(|head| self.path(head)),
            Token::Symbol("[") => self.list().and_then(|head| self.path(head)),
            Token::Variable(name) => {
                self.advance()?;
                self.variable(&name, span).and_then(|head| self.path(head))
            }
            Token::Name(name) => {
                self.advance()?;
                self.name(name, span).and_then(|head| self.path(head))
            }
            Token::QuotedName(name) => {
                self.advance()?;
                self.root(name, span).and_then(|head| self.path(head))
            }
            Token::Symbol(symbol) => Err(self.misplaced(refuse::as_operand(symbol), "a value")),
            Token::End => Err(self.misplaced(None, "a value")),
        }
    }

    fn literal(&mut self, value: Value) -> Result<Node, ExprError> {
        let span = self.span.clone();
        self.advance()?;
        self.node(Kind::Literal(value), span, None)
    }

    /// `-` and what it negates. A number right behind it is one literal: the smallest integer has no
    /// positive.
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
        let inner = self.nested(Self::operand)?;
        let (span, height) = (start..inner.span.end, inner.height);
        self.node(Kind::Negate(Box::new(inner)), span, Some(height))
    }

    fn group(&mut self) -> Result<Node, ExprError> {
        let start = self.span.start;
        self.advance()?;
        if self.token == Token::Symbol(")") {
            return Err(self.syntax("there is nothing between the parentheses"));
        }
        let inner = self.expression(0)?;
        self.expect(")", start)?;
        let height = inner.height;
        self.node(Kind::Group(Box::new(inner)), start..self.end, Some(height))
    }

    fn list(&mut self) -> Result<Node, ExprError> {
        let start = self.span.start;
        self.advance()?;
        let items = self.comma_separated("]", start)?;
        let height = items.iter().map(|node| node.height).max();
        self.node(Kind::List(items), start..self.end, height)
    }

    /// Expressions up to the closing symbol of what was opened at `start`.
    fn comma_separated(&mut self, close: &'static str, start: usize) -> Result<Vec<Node>, ExprError> {
        let mut items = Vec::new();
        if self.take(close)? {
            return Ok(items);
        }
        loop {
            items.push(self.expression(0)?);
            if !self.take(",")? {
                self.expect(close, start)?;
                return Ok(items);
            }
        }
    }

    /// A bare name: a root of the scope, or a function if a parenthesis follows.
    fn name(&mut self, name: String, span: Range<usize>) -> Result<Node, ExprError> {
        if matches!(name.as_str(), "and" | "or" | "in") {
            let message = format!("`{name}` has nothing on its left; a name spelt so goes in back-quotes");
            return Err(self.error(ExprErrorKind::Syntax, message, span));
        }
        if self.token != Token::Symbol("(") {
            return self.root(name, span);
        }
        if matches!(name.as_str(), "function" | "λ") {
            return Err(self.error(ExprErrorKind::Unsupported, refuse::LAMBDA, span));
        }
        self.call(&name, span)
    }

    fn root(&mut self, name: String, span: Range<usize>) -> Result<Node, ExprError> {
        self.roots.insert(name.clone());
        self.node(Kind::Name(name), span, None)
    }

    fn variable(&mut self, name: &str, span: Range<usize>) -> Result<Node, ExprError> {
        let message = match self.token {
            Token::Symbol("(") if !name.is_empty() => return self.call(name, span),
            Token::Symbol(":=") => refuse::BINDING.to_owned(),
            _ if name.is_empty() => refuse::CONTEXT.to_owned(),
            _ => format!("variables (`${name}`) are not supported: a function needs its arguments behind it"),
        };
        Err(self.error(ExprErrorKind::Unsupported, message, span))
    }

    fn call(&mut self, name: &str, span: Range<usize>) -> Result<Node, ExprError> {
        let function = Function::ALL.into_iter().find(|function| function.name() == name);
        let Some(function) = function else {
            return Err(self.error(ExprErrorKind::Unsupported, refuse::function(name), span));
        };
        let open = self.span.start;
        self.advance()?;
        let arguments = self.comma_separated(")", open)?;
        let (fewest, most) = function.arity();
        if !(fewest..=most).contains(&arguments.len()) {
            let needs = match (fewest, most) {
                (1, 1) => "one argument".to_owned(),
                (1, _) => "at least one argument".to_owned(),
                _ => format!("{fewest} arguments"),
            };
            let message = format!("`${}` takes {needs}, not {}", function.name(), arguments.len());
            return Err(self.error(ExprErrorKind::Syntax, message, span.start..self.end));
        }
        let height = arguments.iter().map(|node| node.height).max();
        self.node(Kind::Call { function, arguments }, span.start..self.end, height)
    }

    /// The steps behind `head`, if there are any.
    fn path(&mut self, head: Node) -> Result<Node, ExprError> {
        let mut steps = Vec::new();
        loop {
            let start = self.span.start;
            let kind = match self.token {
                Token::Symbol(".") => self.field()?,
                Token::Symbol("[") => self.index()?,
                _ => break,
            };
            steps.push(Step { kind, span: start..self.end });
        }
        if steps.is_empty() {
            return Ok(head);
        }
        let (span, height) = (head.span.start..self.end, head.height);
        self.node(Kind::Path { head: Box::new(head), steps }, span, Some(height))
    }

    fn field(&mut self) -> Result<StepKind, ExprError> {
        self.advance()?;
        let name = match self.token.clone() {
            Token::Name(name) | Token::QuotedName(name) => name,
            Token::Text(_) => {
                return Err(self.unsupported(refuse::STRING_STEP));
            }
            Token::Null | Token::True | Token::False => {
                let message = format!("{} is not a field's name: use back-quotes", self.found());
                return Err(self.syntax(message));
            }
            Token::Symbol("(" | "[" | "{") | Token::Variable(_) => {
                return Err(self.unsupported(refuse::EXPRESSION_STEP));
            }
            Token::Symbol(symbol) => return Err(self.misplaced(refuse::as_operand(symbol), "a field's name")),
            _ => return Err(self.misplaced(None, "a field's name")),
        };
        self.advance()?;
        if self.token == Token::Symbol("(") {
            return Err(self.unsupported(refuse::FUNCTION_STEP));
        }
        Ok(StepKind::Field(name))
    }

    fn index(&mut self) -> Result<StepKind, ExprError> {
        let start = self.span.start;
        self.advance()?;
        if self.token == Token::Symbol("]") {
            return Err(self.error(ExprErrorKind::Unsupported, refuse::KEEP_LIST, start..self.span.end));
        }
        let negative = self.take("-")?;
        if let Token::Integer(number) = self.token {
            self.advance()?;
            if self.take("]")? {
                let index = i64::try_from(number).unwrap_or(i64::MAX);
                return Ok(StepKind::Index(if negative { -index } else { index }));
            }
        }
        Err(self.error(ExprErrorKind::Unsupported, refuse::PREDICATE, start..self.span.end))
    }

    fn node(&self, kind: Kind, span: Range<usize>, below: Option<u32>) -> Result<Node, ExprError> {
        let height = below.unwrap_or(0) + 1;
        if height > MAX_DEPTH {
            return Err(self.too_deep(span));
        }
        Ok(Node { kind, span, height })
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

    fn expect(&mut self, close: &'static str, start: usize) -> Result<(), ExprError> {
        if self.take(close)? {
            return Ok(());
        }
        let opened = quoted(self.source, &(start..start + 1));
        Err(self.syntax(format!("expected `{close}` to close {opened}, found {}", self.found())))
    }

    /// The error about the current token: a refusal if there is one, or that something else belongs here.
    fn misplaced(&self, refusal: Option<(ExprErrorKind, &'static str)>, expected: &str) -> ExprError {
        match refusal {
            Some((kind, message)) => self.error(kind, message, self.span.clone()),
            None => self.syntax(format!("expected {expected}, found {}", self.found())),
        }
    }

    fn too_deep(&self, span: Range<usize>) -> ExprError {
        let message = format!("the expression is nested deeper than {MAX_DEPTH} levels");
        self.error(ExprErrorKind::Syntax, message, span)
    }

    /// The current token as messages name it.
    fn found(&self) -> String {
        match self.token {
            Token::End => "the end".to_owned(),
            _ => quoted(self.source, &self.span),
        }
    }

    fn unsupported(&self, message: &str) -> ExprError {
        self.error(ExprErrorKind::Unsupported, message, self.span.clone())
    }

    fn syntax(&self, message: impl Into<String>) -> ExprError {
        self.error(ExprErrorKind::Syntax, message, self.span.clone())
    }

    fn error(&self, kind: ExprErrorKind, message: impl Into<String>, span: Range<usize>) -> ExprError {
        ExprError::new(kind, message, span, self.source)
    }
}

/// What can stand between two expressions.
#[derive(Clone, Copy)]
enum Infix {
    Op(Op),
    Conditional,
    Default(DefaultRule),
}

impl Infix {
    fn strength(self) -> u8 {
        match self {
            Infix::Op(op) => op.strength(),
            Infix::Conditional | Infix::Default(_) => CONDITIONAL,
        }
    }
}

/// What must not stand beside `??` or `?:` without parentheses, for the message.
fn ambiguous_beside(rule: DefaultRule, node: &Node) -> Option<String> {
    match &node.kind {
        Kind::Conditional { .. } => Some("a conditional".to_owned()),
        Kind::Default { rule: other, .. } if *other != rule => Some(format!("`{}`", other.text())),
        Kind::Chain { rest, .. } if rest[0].0.strength() <= Op::Equal.strength() => {
            Some(format!("`{}`", rest[0].0.text()))
        }
        _ => None,
    }
}
