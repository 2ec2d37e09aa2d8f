//! Parses infix operators, suffixes and variable bindings.

use super::Parser;
use crate::expr::ast::{DefaultRule, Kind, Node, Op};
use crate::expr::error::{ExprError, ExprErrorKind};
use crate::expr::function::Function;
use crate::expr::lex::Token;
use crate::expr::refuse;

/// The constructs that can follow an expression.
#[derive(Clone, Copy)]
enum Infix {
    Op(Op),
    Conditional,
    Default(DefaultRule),
    Bind,
    Apply,
    Step,
    Predicate,
    Call,
    Group,
    Sort,
}

impl Infix {
    /// Returns the binding power. It is that of JSONata, except for `??` and `?:`, which are kept apart from the
    /// operators they would be ambiguous with.
    fn strength(self) -> u8 {
        match self {
            Infix::Op(op) => op.strength(),
            Infix::Bind => 10,
            Infix::Conditional | Infix::Default(_) => 20,
            Infix::Apply | Infix::Sort => 40,
            Infix::Group => 70,
            Infix::Step => 75,
            Infix::Predicate | Infix::Call => 80,
        }
    }
}

impl Parser<'_> {
    /// Parses everything after `left` that binds stronger than `floor`.
    pub(super) fn continued(&mut self, mut left: Node, floor: u8) -> Result<Node, ExprError> {
        while let Some(infix) = self.infix()? {
            if infix.strength() <= floor {
                break;
            }
            left = match infix {
                Infix::Op(op) => self.chain(left, op)?,
                Infix::Conditional => self.conditional(left)?,
                Infix::Default(rule) => self.default(left, rule)?,
                Infix::Bind => self.bind(left)?,
                Infix::Apply => self.apply(left)?,
                Infix::Step => self.step(left)?,
                Infix::Predicate => self.predicate(left)?,
                Infix::Group => self.group(left)?,
                Infix::Sort => self.sort(left)?,
                Infix::Call => {
                    self.arguments()?;
                    let message = "only a named function can be called";
                    self.too_early(self.error(ExprErrorKind::Syntax, "T1006", message, left.span))?
                }
            };
        }
        Ok(left)
    }

    /// Returns the operator at the current token, or `None` at the end of an expression.
    fn infix(&self) -> Result<Option<Infix>, ExprError> {
        let text = match &self.token {
            Token::Symbol(symbol) => *symbol,
            Token::Name(name) => name.as_str(),
            _ => return Ok(None),
        };
        if let Some(op) = Op::spelt(text) {
            return Ok(Some(Infix::Op(op)));
        }
        Ok(Some(match text {
            "?" => Infix::Conditional,
            "??" => Infix::Default(DefaultRule::Undefined),
            "?:" => Infix::Default(DefaultRule::Falsy),
            ":=" => Infix::Bind,
            "~>" => Infix::Apply,
            "." => Infix::Step,
            "[" => Infix::Predicate,
            "(" => Infix::Call,
            "{" => Infix::Group,
            "^" => Infix::Sort,
            "@" => return Err(self.unsupported(refuse::FOCUS, self.span.clone())),
            "#" => return Err(self.unsupported(refuse::POSITION, self.span.clone())),
            _ => return Ok(None),
        }))
    }

    /// Parses `left op right`. Operators of the same binding power extend the same node.
    fn chain(&mut self, left: Node, op: Op) -> Result<Node, ExprError> {
        self.advance()?;
        let right = self.expression(op.strength())?;
        let span = left.span.start..right.span.end;
        let (first, mut rest, height) = match left {
            Node { kind: Kind::Chain { first, rest }, height, more: None, .. }
                if rest[0].0.strength() == op.strength() =>
            {
                (first, rest, height - 1)
            }
            left => {
                let height = left.height;
                (Box::new(left), Vec::new(), height)
            }
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

    /// Parses `left ?? right` and `left ?: right`.
    ///
    /// JSONata's precedence of these operators is surprising: it reads `a ?? b = c` as `a ?? (b = c)`, and `a and b
    /// ?? c` as `a and (b ?? c)`. The parser requires parentheses in such cases.
    fn default(&mut self, left: Node, rule: DefaultRule) -> Result<Node, ExprError> {
        let at = self.span.clone();
        self.advance()?;
        let right = self.expression(0)?;
        if let Some(beside) = ambiguous_beside(rule, &left).or(ambiguous_beside(rule, &right)) {
            let message =
                format!("`{}` next to {beside} is ambiguous: put one of them in parentheses", rule.text());
            return Err(self.error(ExprErrorKind::Syntax, "S0202", message, at));
        }
        let span = left.span.start..right.span.end;
        let height = left.height.max(right.height);
        let kind = Kind::Default { rule, left: Box::new(left), right: Box::new(right) };
        self.node(kind, span, Some(height))
    }

    /// Parses `$name := value`.
    fn bind(&mut self, left: Node) -> Result<Node, ExprError> {
        let (Kind::Variable(name), None) = (left.kind, left.more) else {
            let message = "only a variable (`$name`) can be on the left of `:=`";
            return Err(self.error(ExprErrorKind::Syntax, "S0212", message, left.span));
        };
        self.advance()?;
        // The variable is available from here on, but not in its own value.
        let value = self.expression(9)?;
        self.bound.insert(name.clone());
        let (span, height) = (left.span.start..value.span.end, value.height);
        self.node(Kind::Bind { name, value: Box::new(value) }, span, Some(height))
    }

    /// Parses `left ~> function(…)`, a call with `left` as its first argument.
    fn apply(&mut self, left: Node) -> Result<Node, ExprError> {
        self.advance()?;
        let Some(function) = self.applied() else {
            let right = self.expression(40)?;
            let message = "`~>` needs a function of the dialect on its right";
            return self.too_early(self.error(ExprErrorKind::Type, "T2006", message, right.span));
        };
        let is_bare = matches!(self.token, Token::Name(_));
        self.advance()?;
        let start = left.span.start;
        let arguments = match self.token {
            Token::Symbol("(") => self.arguments()?,
            _ if is_bare => {
                let error = self.misplaced("T2006", "`(` and arguments after the function");
                return self.too_early(error);
            }
            _ => Vec::new(),
        };
        let mut call = self.call(function, std::iter::once(left).chain(arguments).collect(), start)?;
        while self.token == Token::Symbol("[") {
            call = self.predicate(call)?;
        }
        if !call.predicates().is_empty() || self.token == Token::Symbol("{") {
            return Err(self.unsupported(refuse::BEHIND_APPLY, self.span.clone()));
        }
        if self.infix()?.is_some_and(|infix| infix.strength() > Infix::Apply.strength()) {
            let message = "the operator after the function binds stronger than `~>`, so that the right side is \
                not a function: put the chain in parentheses";
            return self.too_early(self.error(ExprErrorKind::Type, "T2006", message, self.span.clone()));
        }
        Ok(call)
    }

    /// Returns the function at the current token, if it is the name of one.
    fn applied(&self) -> Option<Function> {
        match &self.token {
            Token::Variable(name) if !self.bound.contains(name) => Function::named(name),
            Token::Name(name) => Function::named(name),
            _ => None,
        }
    }
}

/// Returns the construct in `node` that is ambiguous next to `??` or `?:` without parentheses, for the message.
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
