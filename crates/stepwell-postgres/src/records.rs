//! Encodes rows as an array of composite values, in PostgreSQL's binary format.

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// Rows that are passed as one array parameter.
// One array per column takes a third more time in the server, and each array costs two microseconds. The
// function `commit_runs` also needs one message instead of the three of a transaction. With Citus, one array
// per column is used (`commit_spread.sql`), because its nodes may not know our types.
#[derive(Debug, Default)]
pub(crate) struct Records {
    rows: Vec<u8>,
    count: i32,
}

impl Records {
    /// Adds a row. `put` must write this many fields.
    pub(crate) fn add(&mut self, fields: i32, put: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.rows.len();
        self.rows.extend([0; 4]);
        self.rows.extend(fields.to_be_bytes());
        put(&mut self.rows);
        let length = (self.rows.len() - begin - 4) as i32;
        self.rows[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
        self.count += 1;
    }
}

impl ToSql for Records {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Kind::Array(member) = kind.kind() else { return Err("rows are passed as an array".into()) };
        // The array header: one dimension, no NULL elements, the element type, the length, and the lower bound 1.
        for number in [1, 0, member.oid() as i32, self.count, 1] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.rows);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        matches!(kind.kind(), Kind::Array(member) if matches!(member.kind(), Kind::Composite(_)))
    }

    to_sql_checked!();
}

/// A value in a row that is passed as a composite value.
pub(crate) trait Field {
    /// The type on the server.
    const TYPE: Type;

    /// Writes the length and the value. NULL has the length -1.
    fn put(&self, out: &mut Vec<u8>);
}

fn put(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as i32).to_be_bytes());
    out.extend(bytes);
}

impl Field for Uuid {
    const TYPE: Type = Type::UUID;
    fn put(&self, out: &mut Vec<u8>) {
        put(self.as_bytes(), out);
    }
}

impl Field for i64 {
    const TYPE: Type = Type::INT8;
    fn put(&self, out: &mut Vec<u8>) {
        put(&self.to_be_bytes(), out);
    }
}

impl Field for i16 {
    const TYPE: Type = Type::INT2;
    fn put(&self, out: &mut Vec<u8>) {
        put(&self.to_be_bytes(), out);
    }
}

impl Field for &str {
    const TYPE: Type = Type::TEXT;
    fn put(&self, out: &mut Vec<u8>) {
        put(self.as_bytes(), out);
    }
}

impl Field for String {
    const TYPE: Type = Type::TEXT;
    fn put(&self, out: &mut Vec<u8>) {
        put(self.as_bytes(), out);
    }
}

impl Field for &[u8] {
    const TYPE: Type = Type::BYTEA;
    fn put(&self, out: &mut Vec<u8>) {
        put(self, out);
    }
}

impl<T: Field> Field for Option<T> {
    const TYPE: Type = T::TYPE;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.put(out),
            None => out.extend((-1_i32).to_be_bytes()),
        }
    }
}

/// Writes the type of a field and its value.
pub(crate) fn field<F: Field>(value: &F, out: &mut Vec<u8>) {
    out.extend((F::TYPE.oid() as i32).to_be_bytes());
    value.put(out);
}
