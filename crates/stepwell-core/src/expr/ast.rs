//! The syntax tree of an expression.
//!
//! A chain of operators with the same binding power is one node, and so is a path with all its steps. So the tree is
//! only as high as the expression is nested, and recursion over it is safe.

use std::ops::Range;

use serde_json::Value;

use super::function::Function;

#[derive(Debug, PartialEq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) span: Range<usize>,
    /// Height of the subtree, including this node; at most `MAX_DEPTH`.
    pub(super) height: u32,
    /// The suffixes of the node; most nodes have none.
    pub(super) more: Option<Box<More>>,
}

/// The suffixes that can follow a value.
#[derive(Debug, Default, PartialEq)]
pub(super) struct More {
    /// `[…]` applied to the sequence, before a sequence of one item is reduced to the item.
    pub(super) predicates: Vec<Node>,
    /// `[…]` after a step of a path, applied to the result of the step for each item.
    pub(super) stages: Vec<Node>,
    /// `{…}` after the value: groups its items into an object.
    pub(super) group: Option<Vec<Pair>>,
    /// `[]` after the value: a sequence of one item stays a list.
    pub(super) keeps_list: bool,
}

/// A key and a value of an object.
pub(super) type Pair = (Node, Node);

#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Literal(Value),
    /// A field; always a step of a path. As the first step at the top level, a root of the scope.
    Name(String),
    /// `*`: all fields of an object, or all items of a list.
    Wildcard,
    /// `**`: the value and all values in it.
    Descendants,
    /// `$`: the current item.
    Here,
    /// `$$`: the whole input.
    Top,
    Variable(String),
    Path(Path),
    /// `( …; … )`, a block of expressions.
    Block {
        nodes: Vec<Node>,
        /// True if a part starts with a list literal that must not be mapped over.
        is_written: bool,
    },
    List {
        items: Vec<Item>,
        /// True for the first or last step of a path, which is not flattened into the path.
        is_written: bool,
    },
    Object(Vec<Pair>),
    /// `^(…)`; always a step of a path.
    Sort(Vec<Term>),
    Negate(Box<Node>),
    /// Left-associative operators of the same binding power: `first op node op node …`.
    Chain {
        first: Box<Node>,
        rest: Vec<(Op, Node)>,
    },
    Conditional {
        test: Box<Node>,
        then: Box<Node>,
        otherwise: Option<Box<Node>>,
    },
    Default {
        rule: DefaultRule,
        left: Box<Node>,
        right: Box<Node>,
    },
    /// `$name := …`, which binds a variable.
    Bind {
        name: String,
        value: Box<Node>,
    },
    /// A function call; also `first ~> function(…)`.
    Call {
        function: Function,
        arguments: Vec<Node>,
    },
}

#[derive(Debug, PartialEq)]
pub(super) struct Path {
    pub(super) steps: Vec<Node>,
    /// True if `[]` follows one of the steps.
    pub(super) keeps_list: bool,
    /// True if all steps are names. Such paths can be evaluated without building a list.
    pub(super) is_plain: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Item {
    One(Node),
    /// `from..to`, a range of whole numbers.
    Range(Node, Node),
}

#[derive(Debug, PartialEq)]
pub(super) struct Term {
    pub(super) node: Node,
    pub(super) is_descending: bool,
}

impl Node {
    pub(super) fn more(&mut self) -> &mut More {
        self.more.get_or_insert_with(Box::default)
    }

    pub(super) fn keeps_list(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.keeps_list)
    }

    pub(super) fn group(&self) -> Option<&[Pair]> {
        self.more.as_ref()?.group.as_deref()
    }

    pub(super) fn predicates(&self) -> &[Node] {
        self.more.as_ref().map_or(&[], |more| &more.predicates)
    }

    pub(super) fn stages(&self) -> &[Node] {
        self.more.as_ref().map_or(&[], |more| &more.stages)
    }

    /// Returns true for a list literal that a path must not flatten.
    pub(super) fn is_written_list(&self) -> bool {
        match &self.kind {
            Kind::List { is_written, .. } | Kind::Block { is_written, .. } => *is_written,
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Multiply,
    Divide,
    Remainder,
    Add,
    Subtract,
    Concat,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    And,
    Or,
}

impl Op {
    /// Returns the operator with this spelling, or `None`.
    pub(super) fn spelt(text: &str) -> Option<Op> {
        Some(match text {
            "*" => Op::Multiply,
            "/" => Op::Divide,
            "%" => Op::Remainder,
            "+" => Op::Add,
            "-" => Op::Subtract,
            "&" => Op::Concat,
            "=" => Op::Equal,
            "!=" => Op::NotEqual,
            "<" => Op::Less,
            "<=" => Op::LessOrEqual,
            ">" => Op::Greater,
            ">=" => Op::GreaterOrEqual,
            "in" => Op::In,
            "and" => Op::And,
            "or" => Op::Or,
            _ => return None,
        })
    }

    /// Returns the operator as text for messages.
    pub(super) fn text(self) -> &'static str {
        match self {
            Op::Multiply => "*",
            Op::Divide => "/",
            Op::Remainder => "%",
            Op::Add => "+",
            Op::Subtract => "-",
            Op::Concat => "&",
            Op::Equal => "=",
            Op::NotEqual => "!=",
            Op::Less => "<",
            Op::LessOrEqual => "<=",
            Op::Greater => ">",
            Op::GreaterOrEqual => ">=",
            Op::In => "in",
            Op::And => "and",
            Op::Or => "or",
        }
    }

    /// Returns JSONata's binding power of the operator.
    pub(super) fn strength(self) -> u8 {
        match self {
            Op::Multiply | Op::Divide | Op::Remainder => 60,
            Op::Add | Op::Subtract | Op::Concat => 50,
            Op::Equal
            | Op::NotEqual
            | Op::Less
            | Op::LessOrEqual
            | Op::Greater
            | Op::GreaterOrEqual
            | Op::In => 40,
            Op::And => 30,
            Op::Or => 25,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DefaultRule {
    /// `??`: gives the right side if the left side is undefined.
    Undefined,
    /// `?:`: gives the right side if the left side is not true.
    Falsy,
}

impl DefaultRule {
    pub(super) fn text(self) -> &'static str {
        match self {
            DefaultRule::Undefined => "??",
            DefaultRule::Falsy => "?:",
        }
    }
}
