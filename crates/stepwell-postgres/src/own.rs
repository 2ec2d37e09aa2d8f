//! Applies a commit inside a transaction of the caller: both are stored, or neither.
//!
//! The commit is planned and written by the same statements as any other, one after the other on the caller's
//! connection. They run inside a savepoint, so that the caller's transaction can continue whatever the outcome.

use stepwell_store::{Commit, CommitError, Committed, Hint, StoreError, TenantId, TenantScope};
use tokio_postgres::{Row, Transaction};

use crate::apply::{is_missing_tenant, is_raced, missing_tenant};
use crate::columns::BoundStatement;
use crate::error::Failure;
use crate::migrate::quoted;
use crate::planned::{Gathered, Names};
use crate::statements as sql;
use crate::store::PostgresStore;

/// Attempts to plan a commit again after another transaction has inserted one of its rows.
const MAX_ATTEMPTS: u32 = 10;

/// A commit that is stored if and only if the caller's transaction is committed.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "pass it to `PostgresStore::tell` after the commit, or other processes find out only by polling"]
pub struct TransactionalCommit {
    /// The result of the commit. It is valid once the transaction is committed.
    pub committed: Committed,
    pub(crate) hints: Vec<Hint>,
}

impl PostgresStore {
    /// Applies a commit inside the caller's transaction: both are stored, or neither.
    ///
    /// A refused commit leaves the transaction unchanged. The written rows stay locked until the transaction ends.
    /// Other commits on those runs wait for it for at most two seconds, so end the transaction soon. The caller's role
    /// needs the rights of the engine's role.
    ///
    /// The settings of the transaction are restored afterwards. If the future is dropped before it is done, they are
    /// not: roll the transaction back then. After the transaction is committed, call [`PostgresStore::notify`] to notify
    /// other processes. Without that they find out by polling, a moment later.
    ///
    /// ```no_run
    /// # use stepwell_postgres::{PostgresStore, tokio_postgres::Client};
    /// # use stepwell_store::{Commit, TenantScope};
    /// # async fn example(store: &PostgresStore, client: &mut Client, scope: TenantScope, start: Commit)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// transaction.execute("insert into shop_orders (id) values ($1)", &[&42_i64]).await?;
    /// let pending = store.commit_in(&transaction, scope, start).await?;
    /// transaction.commit().await?;
    /// store.notify(&pending);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn commit_in(
        &self,
        transaction: &Transaction<'_>,
        scope: TenantScope,
        commit: Commit,
    ) -> Result<TransactionalCommit, CommitError> {
        commit.check(&self.shared.applier.limits)?;
        let before = self.replace_settings(transaction, scope.tenant()).await?;
        let mut attempts = 0;
        let result = loop {
            attempts += 1;
            command(transaction, "savepoint stepwell_own").await?;
            let result = self.planned_in(transaction, scope.tenant(), &commit).await;
            let end = if result.is_ok() { "release" } else { "rollback to" };
            command(transaction, &format!("{end} savepoint stepwell_own")).await?;
            match result {
                Err(CommitInError::Sql(error)) if is_raced(&error) && attempts < MAX_ATTEMPTS => {}
                other => break other,
            }
        };
        apply_settings(transaction, &before).await?;
        Ok(result?)
    }

    /// Notifies other processes of a commit whose transaction is committed.
    pub fn notify(&self, pending: &TransactionalCommit) {
        for hint in &pending.hints {
            self.shared.outbox.notify(hint);
            self.shared.hints.send(hint.clone());
        }
    }

    /// Sets the tenant and the search path of the transaction. Returns the previous settings.
    async fn replace_settings(
        &self,
        transaction: &Transaction<'_>,
        tenant: TenantId,
    ) -> Result<Settings, CommitInError> {
        let row = transaction.query_one(sql::settings, &[]).await?;
        let before = Settings { tenant: row.get(0), path: row.get(1), has_citus: self.on.has_citus() };
        let path = self.in_schema.as_ref().map_or_else(|| before.path.clone(), |schema| quoted(schema));
        let now = Settings { tenant: tenant.to_string(), path, has_citus: before.has_citus };
        apply_settings(transaction, &now).await?;
        Ok(before)
    }

    async fn planned_in(
        &self,
        transaction: &Transaction<'_>,
        tenant: TenantId,
        commit: &Commit,
    ) -> Result<TransactionalCommit, CommitInError> {
        let id = tenant.uuid();
        let names = Names::of(&[commit], &self.shared.applier.limits);
        let found = one_by_one(transaction, &names.bound(&id)).await?;
        let mut gathered = Gathered::read(&names, &found)?;
        let (applied, written) = gathered.plan(tenant, &[commit], &self.shared.applier.limits);
        let columns = written.columns(&gathered);
        let applied = applied.into_iter().next().transpose()?;
        one_by_one(transaction, &columns.bound(&id, true)).await?;
        let (committed, hints) = applied.expect("there is an answer to every commit");
        Ok(TransactionalCommit { committed, hints })
    }
}

/// The settings of a transaction that a commit needs.
struct Settings {
    tenant: String,
    path: String,
    has_citus: bool,
}

/// Applies settings to the transaction.
async fn apply_settings(transaction: &Transaction<'_>, settings: &Settings) -> Result<(), CommitInError> {
    let Settings { tenant, path, has_citus } = settings;
    if *has_citus {
        command(transaction, crate::connection::PROPAGATE).await?;
    }
    let tenant = tenant.replace('\'', "''");
    command(transaction, &format!("set local app.current_tenant = '{tenant}'")).await?;
    // Passed as a parameter, because not every value that the server returns can be written in a `set` command.
    transaction.execute(sql::search_path, &[path]).await?;
    Ok(())
}

async fn command(transaction: &Transaction<'_>, commands: &str) -> Result<(), CommitInError> {
    Ok(transaction.batch_execute(commands).await?)
}

async fn one_by_one(
    transaction: &Transaction<'_>,
    bound: &[BoundStatement<'_>],
) -> Result<Vec<Vec<Row>>, CommitInError> {
    let mut all = Vec::with_capacity(bound.len());
    for BoundStatement { sql, params } in bound {
        let rows =
            transaction.query(*sql, params).await.map_err(|error| match is_missing_tenant(sql, &error) {
                true => CommitInError::Failed(missing_tenant().into()),
                false => CommitInError::Sql(error),
            })?;
        all.push(rows);
    }
    Ok(all)
}

/// The reason that a commit was not applied in the caller's transaction.
enum CommitInError {
    Sql(tokio_postgres::Error),
    Failed(Failure),
    Commit(CommitError),
}

impl From<tokio_postgres::Error> for CommitInError {
    fn from(error: tokio_postgres::Error) -> Self {
        CommitInError::Sql(error)
    }
}

impl From<Failure> for CommitInError {
    fn from(failure: Failure) -> Self {
        CommitInError::Failed(failure)
    }
}

impl From<CommitError> for CommitInError {
    fn from(error: CommitError) -> Self {
        CommitInError::Commit(error)
    }
}

impl From<CommitInError> for CommitError {
    fn from(wrong: CommitInError) -> Self {
        match wrong {
            CommitInError::Sql(error) => StoreError::from(Failure::from(error)).into(),
            CommitInError::Failed(failure) => StoreError::from(failure).into(),
            CommitInError::Commit(error) => error,
        }
    }
}
