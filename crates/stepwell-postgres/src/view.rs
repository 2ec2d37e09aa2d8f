//! SQL views of the runs of a workflow, and of its flows behind handles, with their shadow columns as columns.

use stepwell_core::Definition;
use stepwell_store::shadow::{self, Dialect, ShadowView};

/// Returns the SQL that creates the view `runs_of_<workflow>`: the runs of a workflow with their shadow columns.
///
/// It is meant for reading the database with SQL. `definition` determines the columns, so pass the newest workflow
/// version. An existing view of the same name is replaced.
///
/// Run the SQL as the owner of the tables, in their schema. The view shows only the runs of the tenant in
/// `app.current_tenant`, even to roles that bypass row-level security.
pub fn view_of(definition: &Definition) -> String {
    let shown = format!(
        "r.tenant, r.id as run, r.status, r.places, r.version, {}, {}",
        at("created_at"),
        at("updated_at")
    );
    made(definition, ShadowView::Runs, &shown)
}

/// Returns the SQL that creates the view `flows_of_<workflow>`: the flows of a workflow whose state is kept behind
/// handles.
pub fn flow_view_of(definition: &Definition) -> String {
    let shown = format!(
        "r.tenant, r.run as flow, r.created_by, r.updated_by, {}, {}, {}",
        at("expires_at"),
        at("created_at"),
        at("updated_at")
    );
    made(definition, ShadowView::Flows, &shown)
}

fn made(definition: &Definition, of: ShadowView, shown: &str) -> String {
    let tenant = "(select nullif(current_setting('app.current_tenant', true), '')::uuid)";
    shadow::view(definition, of, Dialect { shown, tenant, workflow: "r.workflow" })
}

/// Returns an expression for a time column as `timestamptz`.
fn at(column: &str) -> String {
    format!("timestamptz 'epoch' + r.{column} * interval '1 microsecond' as {column}")
}
