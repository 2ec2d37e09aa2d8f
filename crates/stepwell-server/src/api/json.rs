//! Strict JSON parser of the API. It rejects duplicate names in an object and deep nesting.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::routes::problem::Problem;

/// Maximum nesting depth of a body.
pub(crate) const MAX_DEPTH: usize = 64;

/// Parses a request body strictly.
pub(crate) fn read(body: &[u8]) -> Result<Value, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Strict { left: MAX_DEPTH }.deserialize(&mut reader);
    value
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| Problem::bad("malformedJson", format!("The body is not valid JSON: {error}.")))
}

/// Parser of a value that may contain this many nested levels.
#[derive(Clone, Copy)]
struct Strict {
    left: usize,
}

impl Strict {
    fn below<E: Error>(self) -> Result<Self, E> {
        let left = self.left.checked_sub(1);
        let too_deep = || E::custom(format!("nested deeper than {MAX_DEPTH} levels"));
        left.map(|left| Strict { left }).ok_or_else(too_deep)
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).map(Value::Number);
        number.ok_or_else(|| E::custom("a number is too large"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(below)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("duplicate name `{name}`")));
            }
            let value = fields.next_value_seed(below)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{MAX_DEPTH, read};

    #[test]
    fn valid_json_is_parsed() {
        let text = r#" {"a": [1, -2, 18446744073709551615, 0.5, null, true, "x\u00e9"], "b": {}} "#;
        let value = json!({"a": [1, -2, u64::MAX, 0.5, null, true, "x\u{e9}"], "b": {}});
        assert_eq!(read(text.as_bytes()).unwrap(), value);
    }

    #[test]
    fn duplicate_names_are_refused_at_any_depth() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "\u0061": 2}}]"#] {
            let problem = read(text.as_bytes()).unwrap_err();
            assert!(problem.detail.contains("duplicate name `a`"), "{problem:?}");
            assert_eq!(problem.status.as_u16(), 400);
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(nested(MAX_DEPTH).as_bytes()).is_ok());
        let problem = read(nested(MAX_DEPTH + 1).as_bytes()).unwrap_err();
        assert!(problem.detail.contains("nested deeper than 64"), "{problem:?}");
    }

    #[test]
    fn invalid_json_is_refused() {
        for text in ["", "{", "{} {}", "nul", "{\"a\":1e999}", "\u{feff}{}"] {
            assert_eq!(read(text.as_bytes()).unwrap_err().code, "malformedJson", "{text}");
        }
    }
}
