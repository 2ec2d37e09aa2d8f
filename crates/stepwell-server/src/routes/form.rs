//! The form of a pause: fields from a JSON Schema, the typed values, and their errors.

use serde_json::{Map, Number, Value};
use stepwell::core::schema::SchemaViolation;

/// Maximum number of references and alternatives that are followed to a field's schema.
const MAX_HOPS: usize = 8;
/// Fields that allow more characters than this become a textarea.
const LINE_CHARS: u64 = 255;
/// Name of the only field, if the schema is a single value and not an object.
const ONLY: &str = "value";
/// Name of the form control with the chosen outcome.
const OUTCOME: &str = "outcome";
/// Prefix of controls whose property name would clash with `outcome` or with this prefix.
const PREFIX: &str = "input.";

/// The typed values, by name of the control.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Typed(Vec<(String, String)>);

impl Typed {
    pub(crate) fn read(body: &[u8]) -> Self {
        Typed(form_urlencoded::parse(body).into_owned().collect())
    }

    /// Returns the outcome of the pressed button.
    pub(crate) fn outcome(&self) -> Option<&str> {
        self.get(OUTCOME).filter(|outcome| !outcome.is_empty())
    }

    pub(crate) fn get(&self, control: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == control).map(|(_, value)| value.as_str())
    }
}

/// A form that is derived from a JSON Schema.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Form {
    pub(crate) title: Option<String>,
    pub(crate) about: Option<String>,
    pub(crate) fields: Vec<Field>,
    shape: Shape,
}

/// The shape of the value that the fields form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Shape {
    /// No value: the schema has no fields.
    #[default]
    Nothing,
    /// An object with one field per property.
    Object,
    /// A single value, in the field `value`.
    Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    /// Name of the property.
    pub(crate) name: String,
    /// Name of the form control.
    pub(crate) control: String,
    pub(crate) label: String,
    pub(crate) about: Option<String>,
    pub(crate) is_required: bool,
    pub(crate) initial: Option<Value>,
    pub(crate) kind: Kind,
}

/// The type of a form control.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// Text: an `<input>` of type `input`, or a `<textarea>` if `has_lines`.
    Text {
        input: &'static str,
        has_lines: bool,
        least: Option<u64>,
        most: Option<u64>,
    },
    Number {
        is_whole: bool,
    },
    Check,
    /// A selection of one of these values.
    Choice(Vec<Value>),
    /// A textarea for JSON, for all other types.
    Json,
}

/// The errors of the typed values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Errors {
    /// Index of the field, and message.
    pub(crate) fields: Vec<(usize, String)>,
    /// Messages that belong to no field.
    pub(crate) others: Vec<String>,
}

impl Form {
    pub(crate) fn of(schema: Option<&Value>) -> Self {
        let Some(root) = schema else { return Form::default() };
        let schema = resolved(root, root);
        let title = text(schema, "title");
        let about = text(schema, "description");
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return match schema.get("type").and_then(Value::as_str) {
                None | Some("object" | "null") => Form { title, about, ..Form::default() },
                Some(_) => {
                    let mut field = Field::of(root, ONLY, schema, true);
                    field.label = title.clone().unwrap_or_else(|| "Answer".to_owned());
                    Form { title, about, fields: vec![field], shape: Shape::Value }
                }
            };
        };
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .map(|names| {
                names.iter().filter_map(Value::as_str).filter(|name| properties.contains_key(*name)).collect()
            })
            .unwrap_or_default();
        // Properties have no order, but `required` is a list: its order is used for the required fields.
        let rest = properties.keys().map(String::as_str).filter(|name| !required.contains(name));
        let names = required.iter().copied().chain(rest);
        let fields = names.map(|name| Field::of(root, name, &properties[name], required.contains(&name)));
        Form { title, about, fields: fields.collect(), shape: Shape::Object }
    }

    /// Converts the typed values to the types of the schema. Text that cannot be converted stays text, so that the
    /// schema check reports it.
    pub(crate) fn value(&self, typed: &Typed) -> Value {
        if self.shape == Shape::Value {
            return self.fields.first().and_then(|field| field.value(typed)).unwrap_or_default();
        }
        let known = |name: &str| name == OUTCOME || self.fields.iter().any(|field| field.control == name);
        let others = typed.0.iter().filter(|(name, _)| !known(name));
        let others = others.map(|(name, value)| {
            (name.strip_prefix(PREFIX).unwrap_or(name).to_owned(), Value::from(value.as_str()))
        });
        let mut object: Map<String, Value> = others.collect();
        object.extend(self.fields.iter().filter_map(|field| Some((field.name.clone(), field.value(typed)?))));
        if self.shape == Shape::Nothing && object.is_empty() { Value::Null } else { object.into() }
    }

    /// Assigns the errors of the schema check to fields.
    pub(crate) fn errors(&self, violations: &[SchemaViolation], value: &Value) -> Errors {
        let mut errors = Errors::default();
        let is_missing = |field: &Field| field.is_required && value.get(&field.name).is_none();
        let missing: Vec<usize> = match self.shape {
            Shape::Object => (0..self.fields.len()).filter(|at| is_missing(&self.fields[*at])).collect(),
            Shape::Nothing | Shape::Value => Vec::new(),
        };
        let says_missing =
            |violation: &&SchemaViolation| violation.pointer.is_empty() && violation.keyword == "required";
        let are_all_here = violations.iter().filter(says_missing).count() == missing.len();
        for violation in violations {
            if are_all_here && says_missing(&violation) {
                continue;
            }
            match self.at(&violation.pointer) {
                Some(at) => errors.fields.push((at, violation.message.clone())),
                None => errors.others.push(violation.message.clone()),
            }
        }
        if are_all_here {
            errors.fields.extend(missing.into_iter().map(|at| (at, "this field is required".to_owned())));
        }
        errors.fields.sort_by_key(|(at, _)| *at);
        errors
    }

    /// Returns the index of the field that a JSON pointer leads to.
    fn at(&self, pointer: &str) -> Option<usize> {
        if self.shape == Shape::Value {
            return Some(0);
        }
        let name = pointer.strip_prefix('/')?.split('/').next()?.replace("~1", "/").replace("~0", "~");
        self.fields.iter().position(|field| field.name == name)
    }
}

impl Field {
    fn of(root: &Value, name: &str, schema: &Value, is_required: bool) -> Self {
        // Keywords next to a reference have precedence over those of its target.
        let inner = resolved(root, schema);
        let said = |key: &str| text(schema, key).or_else(|| text(inner, key));
        let control = if name == OUTCOME || name.starts_with(PREFIX) {
            format!("{PREFIX}{name}")
        } else {
            name.to_owned()
        };
        Field {
            name: name.to_owned(),
            control,
            label: said("title").unwrap_or_else(|| in_words(name)),
            about: said("description"),
            is_required,
            initial: schema.get("default").or_else(|| inner.get("default")).cloned(),
            kind: Kind::of(inner),
        }
    }

    fn value(&self, typed: &Typed) -> Option<Value> {
        let text = typed.get(&self.control);
        if self.kind == Kind::Check {
            return Some(Value::Bool(text.is_some()));
        }
        let text = text.filter(|text| !text.trim().is_empty())?;
        let value = match &self.kind {
            Kind::Text { .. } | Kind::Check => None,
            Kind::Number { .. } => number(text.trim()),
            Kind::Choice(values) => values.iter().find(|value| plain(value) == text).cloned(),
            Kind::Json => serde_json::from_str(text).ok(),
        };
        Some(value.unwrap_or_else(|| text.replace("\r\n", "\n").into()))
    }

    /// Returns true for passwords. Typed values of such fields are never shown again.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Text { input: "password", .. })
    }
}

impl Kind {
    fn of(schema: &Value) -> Self {
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return Kind::Choice(values.clone());
        }
        for key in ["oneOf", "anyOf"] {
            let all = schema.get(key).and_then(Value::as_array);
            let values: Option<Vec<Value>> =
                all.and_then(|all| all.iter().map(|one| one.get("const").cloned()).collect());
            if let Some(values) = values {
                return Kind::Choice(values);
            }
        }
        match type_of(schema) {
            Some("boolean") => Kind::Check,
            Some("integer") => Kind::Number { is_whole: true },
            Some("number") => Kind::Number { is_whole: false },
            Some("string") => Kind::text(schema),
            None if schema.get("const").is_some_and(Value::is_boolean) => Kind::Check,
            _ => Kind::Json,
        }
    }

    fn text(schema: &Value) -> Self {
        let length = |key: &str| schema.get(key).and_then(Value::as_u64);
        let (least, most) = (length("minLength"), length("maxLength"));
        let is_secret = schema.get("writeOnly") == Some(&Value::Bool(true));
        let input = match schema.get("format").and_then(Value::as_str) {
            Some("password") => "password",
            _ if is_secret => "password",
            Some("email") => "email",
            Some("uri") => "url",
            Some("date") => "date",
            _ => "text",
        };
        Kind::Text {
            input,
            has_lines: input == "text" && most.is_some_and(|most| most > LINE_CHARS),
            least,
            most,
        }
    }
}

/// Follows references and optional types to the actual schema.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..MAX_HOPS {
        let is_null = |one: &&Value| one.get("type").and_then(Value::as_str) == Some("null");
        let only = |key: &str| -> Option<&'a Value> {
            let all = schema.get(key)?.as_array()?;
            let mut some = all.iter().filter(|one| !is_null(one));
            some.next().filter(|one| some.next().is_none() && one.get("const").is_none())
        };
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
        let next = reference
            .and_then(|path| root.pointer(path))
            .or_else(|| only("anyOf"))
            .or_else(|| only("oneOf"))
            .or_else(|| only("allOf"));
        match next {
            Some(next) => schema = next,
            None => break,
        }
    }
    schema
}

fn type_of(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(one) => Some(one),
        Value::Array(some) => some.iter().filter_map(Value::as_str).find(|one| *one != "null"),
        _ => None,
    }
}

fn text(schema: &Value, key: &str) -> Option<String> {
    schema.get(key).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn number(text: &str) -> Option<Value> {
    let whole = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
    match whole {
        Ok(number) => Some(number.into()),
        Err(_) => text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::from),
    }
}

/// Formats a value as it is shown and typed in a form.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Converts a name to words: `firstName`, `first_name` and `FIRST_NAME` become "First name".
pub(crate) fn in_words(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 4);
    let (mut was_small, is_loud) = (false, !name.chars().any(char::is_lowercase));
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let begins = c.is_uppercase() && was_small;
        let is_alone = !chars.peek().is_some_and(|next| next.is_uppercase());
        match c {
            '_' | '-' | '.' => words.push(' '),
            c if is_loud => words.extend(c.to_lowercase()),
            // A sequence of capitals is an abbreviation and stays as it is.
            c if begins && is_alone => words.extend([' '].into_iter().chain(c.to_lowercase())),
            c if begins => words.extend([' ', c]),
            c => words.push(c),
        }
        was_small = c.is_lowercase() || c.is_numeric();
    }
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stepwell::core::schema::Schema;

    use super::{Form, Kind, Typed, in_words};

    fn schema() -> Value {
        json!({
            "type": "object",
            "title": "About you",
            "required": ["name", "age", "color"],
            "$defs": {"color": {"enum": ["red", "green", 3], "description": "Any will do."}},
            "properties": {
                "agreed": {"type": "boolean"},
                "age": {"type": "integer"},
                "color": {"$ref": "#/$defs/color", "title": "Favourite colour"},
                "name": {"type": "string", "minLength": 2},
                "note": {"anyOf": [{"type": "string", "maxLength": 2000}, {"type": "null"}]},
                "outcome": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "weight": {"type": ["number", "null"]},
            },
        })
    }

    #[test]
    fn schema_becomes_fields() {
        let form = Form::of(Some(&schema()));
        let names: Vec<_> = form.fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["name", "age", "color", "agreed", "note", "outcome", "tags", "weight"]);
        assert_eq!(form.title.as_deref(), Some("About you"));
        let color = &form.fields[2];
        assert_eq!(
            (color.label.as_str(), color.about.as_deref()),
            ("Favourite colour", Some("Any will do."))
        );
        assert!(matches!(&color.kind, Kind::Choice(values) if values.len() == 3));
        assert!(matches!(form.fields[4].kind, Kind::Text { has_lines: true, .. }));
        assert_eq!(form.fields[5].control, "input.outcome");
        assert_eq!(form.fields[6].kind, Kind::Json);
        assert_eq!(form.fields[7].kind, Kind::Number { is_whole: false });
    }

    #[test]
    fn typed_values_get_the_types_of_the_schema() {
        let form = Form::of(Some(&schema()));
        let body = b"outcome=GO&name=Ann+%C3%84&age=41&color=3&agreed=on&note=a%0D%0Ab&input.outcome=x&tags=%5B%22a%22%5D&weight=1.5";
        let typed = Typed::read(body);
        assert_eq!(typed.outcome(), Some("GO"));
        let value = form.value(&typed);
        let expected = json!({
            "name": "Ann Ä", "age": 41, "color": 3, "agreed": true, "note": "a\nb", "outcome": "x", "tags": ["a"],
            "weight": 1.5,
        });
        assert_eq!(value, expected);
        assert!(Schema::compile(&schema()).unwrap().fits(&value));
    }

    #[test]
    fn errors_are_assigned_to_fields() {
        let form = Form::of(Some(&schema()));
        let value = form.value(&Typed::read(b"name=A&age=old&weight=heavy"));
        assert_eq!(value, json!({"name": "A", "age": "old", "agreed": false, "weight": "heavy"}));
        let errors = form.errors(&Schema::compile(&schema()).unwrap().check(&value), &value);
        let wrong: Vec<_> = errors.fields.iter().map(|(at, _)| form.fields[*at].name.as_str()).collect();
        assert_eq!(wrong, ["name", "age", "color", "weight"], "{errors:?}");
        assert!(errors.others.is_empty(), "{errors:?}");
    }

    #[test]
    fn form_may_have_no_field_or_a_single_value() {
        let none = Form::of(None);
        assert_eq!(none.value(&Typed::read(b"outcome=GO")), Value::Null);
        assert_eq!(none.value(&Typed::read(b"by=ann")), json!({"by": "ann"}));
        let number = Form::of(Some(&json!({"type": "integer", "title": "How many?"})));
        assert_eq!(number.value(&Typed::read(b"value=3")), json!(3));
        assert_eq!(number.fields[0].label, "How many?");
        assert_eq!(Form::of(Some(&json!({"type": "object"}))).value(&Typed::default()), Value::Null);
    }

    #[test]
    fn names_become_words() {
        for (name, words) in [
            ("firstName", "First name"),
            ("first_name", "First name"),
            ("FIRST_NAME", "First name"),
            ("APPROVE", "Approve"),
            ("userID", "User ID"),
            ("a", "A"),
            ("", ""),
        ] {
            assert_eq!(in_words(name), words);
        }
    }
}
