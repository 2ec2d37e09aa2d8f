//! Where a result goes: a path of fields in the run's data, or in what only one activation can see.

use serde_json::{Map, Value};

/// The beginning of a path into what only one activation can see.
const LOCALS: &str = "locals";

/// Fields one inside the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Save {
    /// It is the activation's own, not the run's.
    pub(crate) is_local: bool,
    pub(crate) path: Vec<String>,
}

impl Save {
    /// Reads a path, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Save, String> {
        let mut path: Vec<String> = text.split('.').map(str::to_owned).collect();
        let bad =
            |part: &String| part.is_empty() || part.trim() != part || part.chars().any(char::is_control);
        if path.iter().any(bad) {
            return Err(format!("`{text}` is not a path of fields, such as `total` or `vars.order.total`"));
        }
        let is_local = path.len() > 1 && path[0] == LOCALS;
        if is_local {
            path.remove(0);
        }
        Ok(Save { is_local, path })
    }

    /// A JSON pointer to it in the context.
    pub(crate) fn pointer(&self) -> String {
        self.path.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
    }

    /// Puts a value there. Objects on the way are made if they are missing; something else on the way is an error.
    pub(crate) fn put(&self, root: &mut Map<String, Value>, value: Value) -> Result<(), String> {
        let Some((last, way)) = self.path.split_last() else { return Ok(()) };
        let mut fields = root;
        for (depth, part) in way.iter().enumerate() {
            let next = fields.entry(part.clone()).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = next else {
                let what = self.path[..=depth].join(".");
                return Err(format!("`{what}` is not an object, so nothing can be put into it"));
            };
            fields = inner;
        }
        fields.insert(last.clone(), value);
        Ok(())
    }
}
