//! The tree an expression is parsed into.
//!
//! Runs of operators of one strength are one node, and so are the steps of a path: the tree is only as high
//! as the expression is nested, and whoever walks it may recurse.

use std::ops::Range;

use serde_json::Value;

use super::function::Function;

#[derive(Debug, PartialEq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) span: Range<usize>,
    /// Levels of nodes from here down, this one included; never above `MAX_DEPTH`.
    pub(super) height: u32,
    /// What is written behind it; most nodes have nothing there.
    pub(super) more: Option<Box<More>>,
}

/// What can be written behind a value.
#[derive(Debug, Default, PartialEq)]
pub(super) struct More {
    /// `[…]` applied to the value as it comes, before a sequence of one becomes its item.
    pub(super) predicates: Vec<Node>,
    /// `[…]` behind a step of a path, applied to what the step gives for each item.
    pub(super) stages: Vec<Node>,
    /// `{…}`
    pub(super) group: Option<Vec<Pair>>,
    /// `[]`
    pub(super) keeps_list: bool,
}

/// A key and a value of an object.
pub(super) type Pair = (Node, Node);

#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Literal(Value),
    /// A field; always a step of a path, and of the scope if that is the first step at the top.
    Name(String),
    /// `*`
    Wildcard,
    /// `**`
    Descendants,
    /// `$`
    Here,
    /// `$$`
    Top,
    Variable(String),
    Path(Path),
    /// `( …; … )`
    Block {
        nodes: Vec<Node>,
        /// A part of it begins with a list that is written out and must not be mapped over.
        is_written: bool,
    },
    List {
        items: Vec<Item>,
        /// The first or last step of a path: not flattened into it.
        is_written: bool,
    },
    Object(Vec<Pair>),
    /// `^(…)`; always a step of a path.
    Sort(Vec<Term>),
    Negate(Box<Node>),
    /// Left-associative operators of one strength: `first op node op node …`.
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
    /// `$name := …`
    Bind {
        name: String,
        value: Box<Node>,
    },
    /// Also `first ~> function(…)`.
    Call {
        function: Function,
        arguments: Vec<Node>,
    },
}

#[derive(Debug, PartialEq)]
pub(super) struct Path {
    pub(super) steps: Vec<Node>,
    /// `[]` is written behind one of its steps.
    pub(super) keeps_list: bool,
    /// Nothing but names, so that most paths can be walked without making a list.
    pub(super) is_plain: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Item {
    One(Node),
    /// `from..to`
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

    /// A list written out that a path must take as it is.
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
    /// The operator spelt so, if it is one.
    pub(super) fn spelt(text: &str) -> Option<Op> {
        Some(match text {
            "*" => Op::Multiply,
            "/" => Op::Divide,
            "%" => Op::Remainder,
            "+" => Op::Add,
            "-" => Op::Subtract,
            "&" => Op::Concat,
            "=" | "==" => Op::Equal,
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

    /// How it is written in messages.
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

    /// JSONata's binding power.
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
    /// `??`: the right side if the left is undefined.
    Undefined,
    /// `?:`: the right side if the left is not true.
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
