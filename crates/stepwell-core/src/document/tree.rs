//! The tree of a workflow document, with the position of every value. The text is YAML, of which JSON is a subset.
//!
//! Only values that JSON can represent are accepted: no tags, no merge keys, no infinite numbers, and keys must be
//! text. Anything else is reported with its position.

use std::borrow::Cow;
use std::collections::BTreeMap;

// `granit-parser` is the parser below `serde-saphyr`. It is used directly, because its events have the
// position of every value. `serde-saphyr` only writes YAML.
use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

use super::problem::{Position, SourceProblem, SourceProblems};

/// Maximum size of a workflow document, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Maximum nesting depth of a workflow document.
pub const MAX_DEPTH: usize = 64;
/// Maximum number of values in a workflow document, with aliases expanded.
pub const MAX_NODES: usize = 100_000;
/// Maximum total size of the texts in a workflow document, in bytes, with aliases expanded.
pub const MAX_TEXT: usize = 4 * MAX_BYTES;
/// Factor by which the size limits of a bundle are larger than those of one workflow document.
pub const BUNDLE_TIMES: usize = 8;
/// Maximum length of a field's name, in characters. YAML requires the colon within this distance.
pub const MAX_NAME: usize = 1_000;

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: Position,
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

/// The name of a field and its position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) at: Position,
    pub(crate) text: String,
}

impl Node {
    /// Returns the type of the value, as it is named in messages.
    pub(crate) fn word(&self) -> &'static str {
        match self.kind {
            Kind::Null => "null",
            Kind::Bool(_) => "a boolean",
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

    /// Sets a field of an object, replacing a field of the same name. Any other value becomes an object.
    pub(crate) fn put(&mut self, name: &str, value: Node) {
        if !matches!(self.kind, Kind::Map(_)) {
            self.kind = Kind::Map(Vec::new());
        }
        if let Kind::Map(fields) = &mut self.kind {
            fields.retain(|(key, _)| key.text != name);
            fields.push((Key { at: value.at, text: name.to_owned() }, value));
        }
    }

    /// Returns the object at this position.
    pub(crate) fn at(&self, place: Position) -> Option<&Node> {
        let mut open = vec![self];
        while let Some(node) = open.pop() {
            match &node.kind {
                Kind::Map(_) if node.at == place => return Some(node),
                Kind::Map(fields) => open.extend(fields.iter().map(|(_, node)| node)),
                Kind::List(items) => open.extend(items),
                _ => {}
            }
        }
        None
    }

    /// Returns the value at a JSON pointer, or its closest existing parent.
    pub(crate) fn below(&self, pointer: &str) -> &Node {
        let mut node = self;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            let next = match &node.kind {
                Kind::List(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
                _ => node.field(&part),
            };
            let Some(next) = next else { break };
            node = next;
        }
        node
    }

    /// Converts the node to a JSON value, without positions.
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

    /// Converts a JSON value to a node without positions. The limits for texts apply here too.
    pub(crate) fn of_value(value: &Value) -> Result<Node, SourceProblems> {
        let mut reader = Reader::default();
        let read = reader.value(value).and_then(|()| reader.root.ok_or_else(empty));
        read.map_err(refused)
    }

    /// Returns the size of the value: number of values, bytes of text, and nesting depth.
    fn weight(&self) -> Weight {
        let mut weight = Weight { nodes: 1, text: 0, depth: 0 };
        match &self.kind {
            Kind::Text(text) => weight.text = text.len(),
            Kind::List(items) => items.iter().for_each(|item| weight.hold(item.weight())),
            Kind::Map(fields) => {
                for (key, node) in fields {
                    weight.nodes += 1;
                    weight.text += key.text.len();
                    weight.hold(node.weight());
                }
            }
            Kind::Null | Kind::Bool(_) | Kind::Number(_) => {}
        }
        if let Kind::List(_) | Kind::Map(_) = self.kind {
            weight.depth += 1;
        }
        weight
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    nodes: usize,
    text: usize,
    depth: usize,
}

impl Weight {
    fn hold(&mut self, inner: Weight) {
        self.nodes += inner.nodes;
        self.text += inner.text;
        self.depth = self.depth.max(inner.depth);
    }
}

/// Parses a workflow document, or reports the position of the error.
pub(crate) fn read(text: &str) -> Result<Node, SourceProblems> {
    read_times(text, 1)
}

/// Parses a bundle of workflow documents, or reports the position of the error.
pub(crate) fn read_bundle(text: &str) -> Result<Node, SourceProblems> {
    read_times(text, BUNDLE_TIMES)
}

fn read_times(text: &str, times: usize) -> Result<Node, SourceProblems> {
    let most = MAX_BYTES * times;
    if text.len() > most {
        let message = format!("the document has {} bytes; at most {most} are allowed", text.len());
        return Err(refused((TOP, message)));
    }
    Reader { times, ..Reader::default() }.read(&escaped(text)).map_err(refused)
}

/// Escapes characters that may occur in JSON texts but must be escaped in YAML.
fn escaped(text: &str) -> Cow<'_, str> {
    let is_odd = |c: char| matches!(c, '\u{7f}'..='\u{84}' | '\u{86}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}');
    if !text.contains(is_odd) || serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        match is_odd(c) {
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

type Fault = (Position, String);

const TOP: Position = Position { line: 1, column: 1 };

fn refused((at, message): Fault) -> SourceProblems {
    SourceProblems(vec![SourceProblem::new("unreadable", at, message)])
}

fn empty() -> Fault {
    (TOP, "the document is empty".to_owned())
}

/// A list or an object that is not complete yet.
struct Open {
    at: Position,
    anchor: usize,
    is_map: bool,
    items: Vec<Node>,
    fields: Vec<(Key, Node)>,
    key: Option<Key>,
    /// The names of the fields and the line of each.
    names: BTreeMap<String, usize>,
}

struct Reader {
    /// Factor for the size limits; 1 for a single workflow document.
    times: usize,
    open: Vec<Open>,
    anchored: BTreeMap<usize, (Node, Weight)>,
    weight: Weight,
    root: Option<Node>,
    /// True if the last text is too long for the name of a field.
    was_long: bool,
}

impl Default for Reader {
    fn default() -> Self {
        let (open, anchored) = (Vec::new(), BTreeMap::new());
        Reader { times: 1, open, anchored, weight: Weight::default(), root: None, was_long: false }
    }
}

impl Reader {
    fn read(mut self, text: &str) -> Result<Node, Fault> {
        let mut documents = 0;
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| {
                let at = place(error.marker());
                match self.was_long {
                    true => (at, too_long()),
                    false => (at, format!("invalid YAML: {}", error.info())),
                }
            })?;
            let at = place(&span.start);
            match event {
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents > 1 {
                        return Err((
                            at,
                            "the file contains a second document: write only one workflow per file"
                                .to_owned(),
                        ));
                    }
                }
                Event::Scalar(text, style, anchor, tag) => {
                    if let Some(tag) = tag {
                        return Err((
                            at,
                            format!(
                                "the tag `{tag}` is not supported: only values that JSON can represent are allowed"
                            ),
                        ));
                    }
                    let kind = scalar(&text, style).map_err(|message| (at, message))?;
                    self.was_long = text.chars().nth(MAX_NAME).is_some();
                    let is_name = matches!(self.open.last(), Some(Open { is_map: true, key: None, .. }));
                    if is_name && text == "<<" && style == ScalarStyle::Plain {
                        return Err((
                            at,
                            "merge keys (`<<`) are not supported: write out the fields".to_owned(),
                        ));
                    }
                    self.put(Node { at, kind }, anchor)?;
                }
                Event::SequenceStart(_, anchor, tag) => self.begin(at, anchor, tag.is_some(), false)?,
                Event::MappingStart(_, anchor, tag) => self.begin(at, anchor, tag.is_some(), true)?,
                Event::SequenceEnd | Event::MappingEnd => self.end(at)?,
                Event::Alias(anchor) => {
                    let Some((node, weight)) = self.anchored.get(&anchor) else {
                        return Err((
                            at,
                            "the alias refers to a value that contains the alias itself".to_owned(),
                        ));
                    };
                    self.weight.nodes += weight.nodes;
                    self.weight.text += weight.text;
                    self.weight.depth = self.open.len() + weight.depth;
                    self.check(at)?;
                    self.put(node.clone(), 0)?;
                }
                _ => {}
            }
        }
        self.root.ok_or_else(empty)
    }

    fn value(&mut self, value: &Value) -> Result<(), Fault> {
        let at = Position::default();
        let kind = match value {
            Value::Null => Kind::Null,
            Value::Bool(truth) => Kind::Bool(*truth),
            Value::Number(number) => Kind::Number(number.clone()),
            Value::String(text) => Kind::Text(text.clone()),
            Value::Array(items) => {
                self.begin(at, 0, false, false)?;
                items.iter().try_for_each(|item| self.value(item))?;
                return self.end(at);
            }
            Value::Object(fields) => {
                self.begin(at, 0, false, true)?;
                for (name, value) in fields {
                    self.put(Node { at, kind: Kind::Text(name.clone()) }, 0)?;
                    self.value(value)?;
                }
                return self.end(at);
            }
        };
        self.put(Node { at, kind }, 0)
    }

    /// Checks the size limits, with aliases expanded.
    fn check(&self, at: Position) -> Result<(), Fault> {
        let Weight { nodes, text, depth } = self.weight;
        let (most_nodes, most_text) = (MAX_NODES * self.times, MAX_TEXT * self.times);
        if nodes > most_nodes {
            return Err((at, format!("the document has more than {most_nodes} values")));
        }
        if text > most_text {
            return Err((at, format!("the document has more than {most_text} bytes of text")));
        }
        if depth > MAX_DEPTH {
            return Err((at, format!("the document is nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(())
    }

    fn begin(&mut self, at: Position, anchor: usize, tagged: bool, is_map: bool) -> Result<(), Fault> {
        if tagged {
            return Err((
                at,
                "tags are not supported: only values that JSON can represent are allowed".to_owned(),
            ));
        }
        self.weight.depth = self.open.len() + 1;
        self.check(at)?;
        if let Some(Open { is_map: true, key: None, .. }) = self.open.last() {
            return Err((at, "the name of a field must be text, not a list or an object".to_owned()));
        }
        let (items, fields) = (Vec::new(), Vec::new());
        self.open.push(Open { at, anchor, is_map, items, fields, key: None, names: BTreeMap::new() });
        Ok(())
    }

    fn end(&mut self, at: Position) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else {
            return Err((at, "unexpected end of a list or an object".to_owned()));
        };
        let kind = if open.is_map { Kind::Map(open.fields) } else { Kind::List(open.items) };
        self.put(Node { at: open.at, kind }, open.anchor)
    }

    /// Adds a complete value: an item, the name or the value of a field, or the document itself.
    fn put(&mut self, node: Node, anchor: usize) -> Result<(), Fault> {
        self.weight.nodes += 1;
        self.weight.text += node.text().map_or(0, str::len);
        self.check(node.at)?;
        if anchor > 0 {
            // The copies that are kept for aliases count too, because anchors may be nested.
            let weight = node.weight();
            self.weight.text += weight.text;
            self.check(node.at)?;
            self.anchored.insert(anchor, (node.clone(), weight));
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
            None => open.key = Some(key(node, &mut open.names)?),
        }
        Ok(())
    }
}

fn too_long() -> String {
    format!("the name of a field may have at most {MAX_NAME} characters")
}

fn key(node: Node, known: &mut BTreeMap<String, usize>) -> Result<Key, Fault> {
    let at = node.at;
    let Kind::Text(text) = node.kind else {
        return Err((at, format!("the name of a field must be text, not {}: put it in quotes", node.word())));
    };
    if text.chars().nth(MAX_NAME).is_some() {
        return Err((at, too_long()));
    }
    if let Some(line) = known.insert(text.clone(), at.line) {
        return Err((at, format!("duplicate field `{text}`, first used in line {line}")));
    }
    Ok(Key { at, text })
}

fn place(marker: &granit_parser::Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

/// Parses a scalar by YAML's core schema. In quotes or in a block it is text.
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
        return Err(format!("JSON cannot represent the number `{text}`"));
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
    number
        .map(Some)
        .ok_or_else(|| format!("the number `{text}` is too large: put it in quotes to keep it as text"))
}
