//! Cells that the writer holds while its transaction lasts: a cell that many commits of a batch change is read once and written
//! once, with what the last of them has left.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, params};
use stepwell_core::RunId;
use stepwell_store::{Cell, CellKey, TenantId};

use crate::rows;
use crate::statements::Session;

/// Cells as the commits of a batch leave them.
#[derive(Debug, Default)]
pub(crate) struct Held(HashMap<(TenantId, CellKey), Row>);

#[derive(Debug)]
struct Row {
    cell: Option<Cell>,
    is_changed: bool,
}

impl Held {
    /// Forgets them: their transaction is over, or what was written is taken back.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Session<'_> {
    /// A cell, tombstones too, as the commits of this batch have left it.
    pub(crate) fn cell(&mut self, tenant: TenantId, key: &CellKey) -> rusqlite::Result<Option<Cell>> {
        if let Some(row) = self.held.0.get(&(tenant, key.clone())) {
            return Ok(row.cell.clone());
        }
        let which = params![tenant.uuid().into_bytes(), key.space.as_str(), key.owner, key.key];
        let cell = self.cell_get.query_row(which, |row| rows::cell(row, key.space, &key.owner)).optional()?;
        let row = Row { cell: cell.clone(), is_changed: false };
        self.held.0.insert((tenant, key.clone()), row);
        Ok(cell)
    }

    /// A cell is this from here on; it is written with the others.
    pub(crate) fn put_cell(&mut self, tenant: TenantId, cell: Cell) {
        self.held.0.insert((tenant, cell.key.clone()), Row { cell: Some(cell), is_changed: true });
    }

    /// Writes down what has changed: before the transaction ends, and before anybody else looks at the table.
    pub(crate) fn flush(&mut self) -> rusqlite::Result<()> {
        let Session { held, cell_put, .. } = self;
        for ((tenant, _), row) in &mut held.0 {
            let Some(cell) = row.cell.as_ref().filter(|_| row.is_changed) else { continue };
            cell_put.execute(params![
                tenant.uuid().into_bytes(),
                cell.key.space.as_str(),
                cell.key.owner,
                cell.key.key,
                cell.value.as_ref().map(ToString::to_string),
                cell.value_type.as_str(),
                rows::int(cell.revision),
                rows::time(cell.expires_at),
                cell.created_at.micros(),
                cell.updated_at.micros(),
                rows::id(cell.created_by.map(RunId::uuid)),
            ])?;
            row.is_changed = false;
        }
        Ok(())
    }
}
