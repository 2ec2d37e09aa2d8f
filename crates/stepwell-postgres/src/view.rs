//! A workflow's runs as a view, with their shadow columns as columns.

use stepwell_core::Definition;
use stepwell_store::shadow::{self, Dialect};

/// The statements that make the view `runs_of_` and the workflow's name, for whoever looks into the database with SQL: its
/// runs, each with its shadow columns. The newest edition says which there are; a view of the same name is replaced.
///
/// Whoever owns the tables runs them, in their schema. The view shows the runs of the tenant that `app.current_tenant`
/// says, and no others, also to those whom row-level security does not bind.
pub fn view_of(definition: &Definition) -> String {
    let at =
        |column: &str| format!("timestamptz 'epoch' + r.{column} * interval '1 microsecond' as {column}");
    let shown = format!(
        "r.tenant, r.id as run, r.status, r.places, r.version, {}, {}",
        at("created_at"),
        at("updated_at")
    );
    let tenant = "(select nullif(current_setting('app.current_tenant', true), '')::uuid)";
    shadow::view(definition, Dialect { shown: &shown, tenant, workflow: "r.workflow" })
}
