//! A document as a tree that knows where everything stands. YAML is read, and with it JSON, which is a part of it.
//!
//! Only what JSON can say too is read: no tags, no merge keys, no infinite numbers, and keys are text. What is refused is
//! refused with its line, so that nobody has to guess.

use std::collections::BTreeMap;

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

use super::problem::{Place, Problem, Problems};

/// The longest document that is read, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// The deepest nesting that is read.
pub const MAX_DEPTH: usize = 64;
/// The most values a document may have, those that its aliases stand for included.
pub const MAX_NODES: usize = 100_000;

/// A value, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: Place,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A field's name, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) at: Place,
    pub(crate) text: String,
}

impl Node {
    /// What it is called in messages.
    pub(crate) fn word(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "true or false",
            Kind::Number(_) => "a number",
            Kind::Text(_) => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "an object",
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn fields(&self) -> Option<&[(Key, Node)]> {
        match &self.kind {
            Kind::Map(fields) => Some(fields),
            _ => None,
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Node> {
        self.fields()?.iter().find(|(key, _)| key.text == name).map(|(_, node)| node)
    }

    /// The same without the places.
    pub(crate) fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(truth) => Value::Bool(*truth),
            Kind::Number(number) => Value::Number(number.clone()),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Kind::Map(fields) => {
                let fields = fields.iter().map(|(key, node)| (key.text.clone(), node.to_value()));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }

    /// A value that stands nowhere in particular.
    pub(crate) fn of_value(value: &Value) -> Node {
        let kind = match value {
            Value::Null => Kind::Null,
            Value::Bool(truth) => Kind::Bool(*truth),
            Value::Number(number) => Kind::Number(number.clone()),
            Value::String(text) => Kind::Text(text.clone()),
            Value::Array(items) => Kind::List(items.iter().map(Node::of_value).collect()),
            Value::Object(fields) => {
                let key = |text: &String| Key { at: Place::default(), text: text.clone() };
                Kind::Map(fields.iter().map(|(name, value)| (key(name), Node::of_value(value))).collect())
            }
        };
        Node { at: Place::default(), kind }
    }
}

/// Reads a document, or says where it cannot be read.
pub(crate) fn read(text: &str) -> Result<Node, Problems> {
    let refuse = |at: Place, message: String| Err(Problems(vec![Problem::new("unreadable", at, message)]));
    if text.len() > MAX_BYTES {
        let message = format!("the document has {} bytes; at most {MAX_BYTES} are read", text.len());
        return refuse(Place { line: 1, column: 1 }, message);
    }
    match Reader::default().read(text) {
        Ok(node) => Ok(node),
        Err((at, message)) => refuse(at, message),
    }
}

type Fault = (Place, String);

/// A list or an object whose end has not come yet.
struct Open {
    at: Place,
    anchor: usize,
    is_map: bool,
    items: Vec<Node>,
    fields: Vec<(Key, Node)>,
    key: Option<Key>,
}

#[derive(Default)]
struct Reader {
    open: Vec<Open>,
    anchored: BTreeMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

impl Reader {
    fn read(mut self, text: &str) -> Result<Node, Fault> {
        let mut documents = 0;
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| {
                let at = place(error.marker());
                (at, format!("this is not YAML: {}", error.info()))
            })?;
            let at = place(&span.start);
            match event {
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents > 1 {
                        return Err((at, "there is a second document: a file holds one workflow".to_owned()));
                    }
                }
                Event::Scalar(text, style, anchor, tag) => {
                    if let Some(tag) = tag {
                        return Err((
                            at,
                            format!("the tag `{tag}` is not read: a document says what JSON can say"),
                        ));
                    }
                    let kind = scalar(&text, style).map_err(|message| (at, message))?;
                    self.put(Node { at, kind }, anchor)?;
                }
                Event::SequenceStart(_, anchor, tag) => self.begin(at, anchor, tag.is_some(), false)?,
                Event::MappingStart(_, anchor, tag) => self.begin(at, anchor, tag.is_some(), true)?,
                Event::SequenceEnd | Event::MappingEnd => self.end(at)?,
                Event::Alias(anchor) => {
                    let Some(node) = self.anchored.get(&anchor).cloned() else {
                        return Err((at, "the alias stands for something that contains it".to_owned()));
                    };
                    self.nodes += count(&node);
                    self.put(node, 0)?;
                }
                _ => {}
            }
        }
        self.root.ok_or_else(|| (Place { line: 1, column: 1 }, "the document is empty".to_owned()))
    }

    fn begin(&mut self, at: Place, anchor: usize, tagged: bool, is_map: bool) -> Result<(), Fault> {
        if tagged {
            return Err((at, "tags are not read: a document says what JSON can say".to_owned()));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err((at, format!("the document is nested deeper than {MAX_DEPTH} levels")));
        }
        if let Some(Open { is_map: true, key: None, .. }) = self.open.last() {
            return Err((at, "a field's name is text, not a list or an object".to_owned()));
        }
        self.open.push(Open { at, anchor, is_map, items: Vec::new(), fields: Vec::new(), key: None });
        Ok(())
    }

    fn end(&mut self, at: Place) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else {
            return Err((at, "something ends that has not begun".to_owned()));
        };
        let kind = if open.is_map { Kind::Map(open.fields) } else { Kind::List(open.items) };
        self.put(Node { at: open.at, kind }, open.anchor)
    }

    /// A whole value: an item, a field's name or its value, or the document itself.
    fn put(&mut self, node: Node, anchor: usize) -> Result<(), Fault> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err((node.at, format!("the document has more than {MAX_NODES} values")));
        }
        if anchor > 0 {
            self.anchored.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        if !open.is_map {
            open.items.push(node);
            return Ok(());
        }
        match open.key.take() {
            Some(key) => open.fields.push((key, node)),
            None => open.key = Some(key(node, &open.fields)?),
        }
        Ok(())
    }
}

fn key(node: Node, known: &[(Key, Node)]) -> Result<Key, Fault> {
    let at = node.at;
    let Kind::Text(text) = node.kind else {
        return Err((at, format!("a field's name is text, and this is {}: put it in quotes", node.word())));
    };
    if text == "<<" {
        return Err((at, "merge keys (`<<`) are not read: write the fields out".to_owned()));
    }
    if let Some((first, _)) = known.iter().find(|(key, _)| key.text == text) {
        return Err((at, format!("the field `{text}` is there twice, first in line {}", first.at.line)));
    }
    Ok(Key { at, text })
}

fn count(node: &Node) -> usize {
    match &node.kind {
        Kind::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Kind::Map(fields) => 1 + fields.iter().map(|(_, node)| count(node)).sum::<usize>(),
        _ => 1,
    }
}

fn place(marker: &granit_parser::Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}

/// A scalar by YAML's core schema; in quotes or a block it is text.
fn scalar(text: &str, style: ScalarStyle) -> Result<Kind, String> {
    if style != ScalarStyle::Plain {
        return Ok(Kind::Text(text.to_owned()));
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
        "true" | "True" | "TRUE" => Kind::Bool(true),
        "false" | "False" | "FALSE" => Kind::Bool(false),
        _ => match number(text)? {
            Some(number) => Kind::Number(number),
            None => Kind::Text(text.to_owned()),
        },
    })
}

fn number(text: &str) -> Result<Option<Number>, String> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned.to_ascii_lowercase().as_str(), ".inf" | ".nan") {
        return Err(format!("`{text}` is not a number that JSON has"));
    }
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let too_large = || format!("`{text}` does not fit in 64 bits: put it in quotes to keep it as text");
    let radix = [("0x", 16), ("0o", 8)];
    for (prefix, radix) in radix {
        let Some(rest) = text.strip_prefix(prefix) else { continue };
        if !rest.is_empty() && rest.chars().all(|c| c.is_digit(radix)) {
            let number = u64::from_str_radix(rest, radix).map_err(|_| too_large())?;
            return Ok(Some(number.into()));
        }
    }
    if digits(unsigned) {
        let plain = text.strip_prefix('+').unwrap_or(text);
        let number =
            plain.parse::<i64>().map(Number::from).or_else(|_| plain.parse::<u64>().map(Number::from));
        return number.map(Some).map_err(|_| too_large());
    }
    let (mantissa, exponent) =
        unsigned.split_once(['e', 'E']).map_or((unsigned, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    let has_digits = digits(whole) && fraction.is_none_or(|f| f.is_empty() || digits(f))
        || whole.is_empty() && fraction.is_some_and(digits);
    let has_exponent = exponent.is_none_or(|e| digits(e.strip_prefix(['-', '+']).unwrap_or(e)));
    if !has_digits || !has_exponent {
        return Ok(None);
    }
    let number = text.parse::<f64>().ok().and_then(Number::from_f64);
    number.map(Some).ok_or_else(|| format!("`{text}` is too large for a number"))
}
