//! The tree an expression is parsed into.
//!
//! Runs of operators of one strength are one node, and so are the steps of a path: the tree is only as high
//! as the expression is nested, and whoever walks it may recurse.

use std::ops::Range;

use serde_json::Value;

#[derive(Debug, PartialEq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) span: Range<usize>,
    /// Levels of nodes from here down, this one included; never above `MAX_DEPTH`.
    pub(super) height: u32,
}

#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Literal(Value),
    /// A root name.
    Name(String),
    Path {
        head: Box<Node>,
        steps: Vec<Step>,
    },
    /// Parentheses stay in the tree: `[[1]]` keeps its inner list and `[([1])]` does not.
    Group(Box<Node>),
    List(Vec<Node>),
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
    Call {
        function: Function,
        arguments: Vec<Node>,
    },
}

#[derive(Debug, PartialEq)]
pub(super) struct Step {
    pub(super) kind: StepKind,
    pub(super) span: Range<usize>,
}

#[derive(Debug, PartialEq)]
pub(super) enum StepKind {
    Field(String),
    /// Negative counts from the end.
    Index(i64),
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Not,
    Exists,
    Count,
    Length,
    String,
    Number,
    Boolean,
    Lowercase,
    Uppercase,
    Contains,
    Coalesce,
}

impl Function {
    pub(super) const ALL: [Function; 11] = [
        Function::Not,
        Function::Exists,
        Function::Count,
        Function::Length,
        Function::String,
        Function::Number,
        Function::Boolean,
        Function::Lowercase,
        Function::Uppercase,
        Function::Contains,
        Function::Coalesce,
    ];

    /// Its name without the `$`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Function::Not => "not",
            Function::Exists => "exists",
            Function::Count => "count",
            Function::Length => "length",
            Function::String => "string",
            Function::Number => "number",
            Function::Boolean => "boolean",
            Function::Lowercase => "lowercase",
            Function::Uppercase => "uppercase",
            Function::Contains => "contains",
            Function::Coalesce => "coalesce",
        }
    }

    /// The fewest and the most arguments it takes. JSONata's optional arguments are not part of the dialect.
    pub(super) fn arity(self) -> (usize, usize) {
        match self {
            Function::Contains => (2, 2),
            Function::Coalesce => (1, usize::MAX),
            _ => (1, 1),
        }
    }
}
