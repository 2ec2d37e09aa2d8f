//! SQL views of the runs of a workflow, and of its flows behind handles, with their shadow columns as columns.

use stepwell_core::Definition;
use stepwell_store::TenantScope;
use stepwell_store::shadow::{self, Dialect, ShadowView};

/// Returns the SQL that creates the view `runs_of_<workflow>`: a tenant's runs with their shadow columns.
///
/// It is meant for reading the file with SQL. `definition` determines the columns, so pass the newest workflow version.
/// An existing view of the same name is replaced.
///
/// ```
/// use stepwell_core::Spec;
/// use stepwell_core::shadow::Shadow;
/// use stepwell_store::TenantScope;
///
/// let invite = Spec::new("invite").shadow("email", Shadow::string("to.email"));
/// let invite = invite.step("sent").end("done").auto("finish", "sent", "done").build()?;
/// assert!(stepwell_sqlite::view_of(&invite, TenantScope::single()).contains(r#"create view "runs_of_invite""#));
/// # Ok::<(), stepwell_core::Problems>(())
/// ```
pub fn view_of(definition: &Definition, scope: TenantScope) -> String {
    let shown = format!(
        "{} as tenant, {} as run, r.status, r.places, r.version, {}, {}",
        id("tenant"),
        id("id"),
        at("created_at"),
        at("updated_at")
    );
    made(definition, ShadowView::Runs, &shown, scope)
}

/// Returns the SQL that creates the view `flows_of_<workflow>`: a tenant's flows whose state is kept behind handles.
pub fn flow_view_of(definition: &Definition, scope: TenantScope) -> String {
    let shown = format!(
        "{} as tenant, {} as flow, r.created_by, r.updated_by, {}, {}, {}",
        id("tenant"),
        id("run"),
        at("expires_at"),
        at("created_at"),
        at("updated_at")
    );
    made(definition, ShadowView::Flows, &shown, scope)
}

fn made(definition: &Definition, of: ShadowView, shown: &str, scope: TenantScope) -> String {
    let tenant = format!("x'{}'", scope.tenant().uuid().simple());
    // The plus disables the index on the workflow, by which SQLite would read all runs of the workflow to find a few.
    shadow::view(definition, of, Dialect { shown, tenant: &tenant, workflow: "+r.workflow" })
}

/// Returns an expression for an id in the usual UUID notation.
fn id(column: &str) -> String {
    let hex = format!("hex(r.{column})");
    let part = |from: u8, length: u8| format!("substr({hex}, {from}, {length})");
    let parts = [part(1, 8), part(9, 4), part(13, 4), part(17, 4), part(21, 12)];
    format!("lower({})", parts.join(" || '-' || "))
}

/// Returns an expression for a time in ISO 8601 notation.
fn at(column: &str) -> String {
    format!("strftime('%Y-%m-%dT%H:%M:%fZ', r.{column} / 1000000.0, 'unixepoch') as {column}")
}
