//! A workflow's runs, and its flows that rest behind handles, as views with their shadow columns as columns.

use stepwell_core::Definition;
use stepwell_store::shadow::{self, Dialect, Viewed};

/// The statements that make the view `runs_of_` and the workflow's name, for whoever looks into the database with SQL: its
/// runs, each with its shadow columns. The newest edition says which there are; a view of the same name is replaced.
///
/// Whoever owns the tables runs them, in their schema. The view shows the runs of the tenant that `app.current_tenant`
/// says, and no others, also to those whom row-level security does not bind.
pub fn view_of(definition: &Definition) -> String {
    let shown = format!(
        "r.tenant, r.id as run, r.status, r.places, r.version, {}, {}",
        at("created_at"),
        at("updated_at")
    );
    made(definition, Viewed::Runs, &shown)
}

/// The same for the view `flows_of_` and the workflow's name: its flows that rest behind handles.
pub fn flow_view_of(definition: &Definition) -> String {
    let shown = format!(
        "r.tenant, r.run as flow, r.created_by, r.updated_by, {}, {}, {}",
        at("expires_at"),
        at("created_at"),
        at("updated_at")
    );
    made(definition, Viewed::Flows, &shown)
}

fn made(definition: &Definition, of: Viewed, shown: &str) -> String {
    let tenant = "(select nullif(current_setting('app.current_tenant', true), '')::uuid)";
    shadow::view(definition, of, Dialect { shown, tenant, workflow: "r.workflow" })
}

/// A time as the server shows it.
fn at(column: &str) -> String {
    format!("timestamptz 'epoch' + r.{column} * interval '1 microsecond' as {column}")
}
