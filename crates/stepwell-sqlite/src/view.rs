//! A workflow's runs, and its flows that rest behind handles, as views with their shadow columns as columns.

use stepwell_core::Definition;
use stepwell_store::TenantScope;
use stepwell_store::shadow::{self, Dialect, Viewed};

/// The statements that make the view `runs_of_` and the workflow's name, for whoever looks into the file with SQL: a
/// tenant's runs, each with its shadow columns. The newest edition says which there are; a view of the same name is replaced.
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
    made(definition, Viewed::Runs, &shown, scope)
}

/// The same for the view `flows_of_` and the workflow's name: a tenant's flows that rest behind handles.
pub fn flow_view_of(definition: &Definition, scope: TenantScope) -> String {
    let shown = format!(
        "{} as tenant, {} as flow, r.created_by, r.updated_by, {}, {}, {}",
        id("tenant"),
        id("run"),
        at("expires_at"),
        at("created_at"),
        at("updated_at")
    );
    made(definition, Viewed::Flows, &shown, scope)
}

fn made(definition: &Definition, of: Viewed, shown: &str, scope: TenantScope) -> String {
    let tenant = format!("x'{}'", scope.tenant().uuid().simple());
    // The plus keeps the index on it out: by that, all runs of the workflow would be walked to find some.
    shadow::view(definition, of, Dialect { shown, tenant: &tenant, workflow: "+r.workflow" })
}

/// An id as it is usually written.
fn id(column: &str) -> String {
    let hex = format!("hex(r.{column})");
    let part = |from: u8, length: u8| format!("substr({hex}, {from}, {length})");
    let parts = [part(1, 8), part(9, 4), part(13, 4), part(17, 4), part(21, 12)];
    format!("lower({})", parts.join(" || '-' || "))
}

/// A time as it is usually written.
fn at(column: &str) -> String {
    format!("strftime('%Y-%m-%dT%H:%M:%fZ', r.{column} / 1000000.0, 'unixepoch') as {column}")
}
