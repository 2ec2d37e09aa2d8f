//! Target paths of results: a path of fields in the context, or in the locals of one activation.

use serde_json::{Map, Value};

/// The first field of a path into the locals of one activation.
const LOCALS: &str = "locals";

/// A parsed target path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Save {
    /// True if the path leads into the locals of the activation instead of the context.
    pub(crate) is_local: bool,
    pub(crate) path: Vec<String>,
}

impl Save {
    /// Parses a path, or returns what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Save, String> {
        let mut path: Vec<String> = text.split('.').map(str::to_owned).collect();
        let bad =
            |part: &String| part.is_empty() || part.trim() != part || part.chars().any(char::is_control);
        if path.iter().any(bad) {
            return Err(format!(
                "`{text}` is not a valid path: write field names separated by dots, such as `total` or `vars.order.total`"
            ));
        }
        let is_local = path.len() > 1 && path[0] == LOCALS;
        if is_local {
            path.remove(0);
        }
        Ok(Save { is_local, path })
    }

    /// Returns the path as a JSON pointer.
    pub(crate) fn pointer(&self) -> String {
        self.path.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
    }

    /// Writes a value at this path. Missing objects on the way are created. Any other value on the way is an error.
    pub(crate) fn put(&self, root: &mut Map<String, Value>, value: Value) -> Result<(), String> {
        let Some((last, way)) = self.path.split_last() else { return Ok(()) };
        let mut fields = root;
        for (depth, part) in way.iter().enumerate() {
            let next = fields.entry(part.clone()).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = next else {
                let what = self.path[..=depth].join(".");
                return Err(format!("cannot write into `{what}`: it is not an object"));
            };
            fields = inner;
        }
        fields.insert(last.clone(), value);
        Ok(())
    }
}
