//! A cache of cells for the duration of the writer's transaction. A cell that many commits of a batch change is read
//! once and written once, with its final value.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, params};
use stepwell_core::RunId;
use stepwell_store::{Cell, CellKey, TenantId};

use crate::rows;
use crate::statements::Session;

/// Cells with the changes of the current batch.
#[derive(Debug, Default)]
pub(crate) struct CellCache(HashMap<(TenantId, CellKey), Row>);

#[derive(Debug)]
struct Row {
    cell: Option<Cell>,
    is_changed: bool,
}

impl CellCache {
    /// Empties the cache, because the transaction has ended or was rolled back.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Session<'_> {
    /// Returns a cell with the changes of this batch. It may be a tombstone.
    pub(crate) fn cell(&mut self, tenant: TenantId, key: &CellKey) -> rusqlite::Result<Option<Cell>> {
        if let Some(row) = self.cell_cache.0.get(&(tenant, key.clone())) {
            return Ok(row.cell.clone());
        }
        let which = params![tenant.uuid().into_bytes(), key.space.as_str(), key.owner, key.key];
        let cell = self.cell_get.query_row(which, |row| rows::cell(row, key.space, &key.owner)).optional()?;
        let row = Row { cell: cell.clone(), is_changed: false };
        self.cell_cache.0.insert((tenant, key.clone()), row);
        Ok(cell)
    }

    /// Changes a cell in the cache; [`Session::flush`] writes it.
    pub(crate) fn put_cell(&mut self, tenant: TenantId, cell: Cell) {
        self.cell_cache.0.insert((tenant, cell.key.clone()), Row { cell: Some(cell), is_changed: true });
    }

    /// Writes the changed cells. Must be called before the transaction ends and before other code reads the table.
    pub(crate) fn flush(&mut self) -> rusqlite::Result<()> {
        let Session { cell_cache, cell_put, .. } = self;
        for ((tenant, _), row) in &mut cell_cache.0 {
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
