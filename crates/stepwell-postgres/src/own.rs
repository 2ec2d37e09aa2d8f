//! A commit inside a transaction of the caller's own: both are there afterwards, or neither.
//!
//! The commit is planned and written by the same statements as any other, one after the other on the caller's
//! connection, inside a savepoint: whatever becomes of it, the caller's transaction goes on.

use stepwell_store::{Commit, CommitError, Committed, Hint, StoreError, TenantId, TenantScope};
use tokio_postgres::{Row, Transaction};

use crate::apply::is_raced;
use crate::columns::Asked;
use crate::error::Failure;
use crate::migrate::quoted;
use crate::planned::{Gathered, Names};
use crate::statements as sql;
use crate::store::PostgresStore;

/// How often a commit is planned again because somebody else's rows came into being meanwhile.
const TRIES: u32 = 10;

/// A commit that stands or falls with the caller's transaction.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "tell the store when the transaction is committed, or others find out only by looking"]
pub struct Along {
    /// What the commit gives back, once the transaction is committed.
    pub committed: Committed,
    pub(crate) hints: Vec<Hint>,
}

impl PostgresStore {
    /// Makes a commit part of the caller's own transaction: both are there afterwards, or neither.
    ///
    /// A commit that is refused leaves the transaction as it was. The rows it writes stay locked until the transaction
    /// ends, and other commits on those runs wait for it, two seconds at most: end it at once. The caller's role needs the
    /// rights of the engine's. Settings that it makes are taken back, unless the future is dropped before it is done: then
    /// the transaction is to be rolled back. When the transaction is committed, [`PostgresStore::tell`] lets others know; without that they find out by
    /// looking, a moment later.
    ///
    /// ```no_run
    /// # use stepwell_postgres::{PostgresStore, tokio_postgres::Client};
    /// # use stepwell_store::{Commit, TenantScope};
    /// # async fn example(store: &PostgresStore, client: &mut Client, scope: TenantScope, start: Commit)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// transaction.execute("insert into shop_orders (id) values ($1)", &[&42_i64]).await?;
    /// let along = store.commit_in(&transaction, scope, start).await?;
    /// transaction.commit().await?;
    /// store.tell(&along);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn commit_in(
        &self,
        transaction: &Transaction<'_>,
        scope: TenantScope,
        commit: Commit,
    ) -> Result<Along, CommitError> {
        commit.check(&self.shared.applier.limits)?;
        let before = self.enter(transaction, scope.tenant()).await?;
        let mut tries = 0;
        let result = loop {
            tries += 1;
            command(transaction, "savepoint stepwell_own").await?;
            let result = self.planned_in(transaction, scope.tenant(), &commit).await;
            let end = if result.is_ok() { "release" } else { "rollback to" };
            command(transaction, &format!("{end} savepoint stepwell_own")).await?;
            match result {
                Err(Wrong::Sql(error)) if is_raced(&error) && tries < TRIES => {}
                other => break other,
            }
        };
        leave(transaction, &before).await?;
        Ok(result?)
    }

    /// Lets others know of a commit whose transaction is committed.
    pub fn tell(&self, along: &Along) {
        for hint in &along.hints {
            self.shared.outbox.tell(hint);
            self.shared.hints.send(hint.clone());
        }
    }

    /// Says whose rows are meant, and where they are; gives what was said before.
    async fn enter(&self, transaction: &Transaction<'_>, tenant: TenantId) -> Result<Settings, Wrong> {
        let row = transaction.query_one(sql::settings, &[]).await?;
        let before = Settings { tenant: row.get(0), path: row.get(1), has_citus: self.on.has_citus() };
        let path = self.in_schema.as_ref().map_or_else(|| before.path.clone(), |schema| quoted(schema));
        let now = Settings { tenant: tenant.to_string(), path, has_citus: before.has_citus };
        leave(transaction, &now).await?;
        Ok(before)
    }

    async fn planned_in(
        &self,
        transaction: &Transaction<'_>,
        tenant: TenantId,
        commit: &Commit,
    ) -> Result<Along, Wrong> {
        let id = tenant.uuid();
        let names = Names::of(&[commit], &self.shared.applier.limits);
        let found = one_by_one(transaction, &names.asked(&id)).await?;
        let mut gathered = Gathered::read(&names, &found)?;
        let (applied, written) = gathered.plan(tenant, &[commit], &self.shared.applier.limits);
        let columns = written.columns(&gathered);
        let applied = applied.into_iter().next().transpose()?;
        one_by_one(transaction, &columns.asked(&id, true)).await?;
        let (committed, hints) = applied.expect("there is an answer to every commit");
        Ok(Along { committed, hints })
    }
}

/// What a transaction says of itself.
struct Settings {
    tenant: String,
    path: String,
    has_citus: bool,
}

/// Says this of the transaction from here on.
async fn leave(transaction: &Transaction<'_>, settings: &Settings) -> Result<(), Wrong> {
    let Settings { tenant, path, has_citus } = settings;
    if *has_citus {
        command(transaction, crate::connection::PROPAGATE).await?;
    }
    let tenant = tenant.replace('\'', "''");
    command(transaction, &format!("set local app.current_tenant = '{tenant}'")).await?;
    // As a value: not every list that the server gives can be written as a command.
    transaction.execute(sql::search_path, &[path]).await?;
    Ok(())
}

async fn command(transaction: &Transaction<'_>, commands: &str) -> Result<(), Wrong> {
    Ok(transaction.batch_execute(commands).await?)
}

async fn one_by_one(transaction: &Transaction<'_>, asked: &[Asked<'_>]) -> Result<Vec<Vec<Row>>, Wrong> {
    let mut all = Vec::with_capacity(asked.len());
    for Asked { sql, params } in asked {
        all.push(transaction.query(*sql, params).await?);
    }
    Ok(all)
}

/// Why a commit is not part of a transaction.
enum Wrong {
    Sql(tokio_postgres::Error),
    Failed(Failure),
    Commit(CommitError),
}

impl From<tokio_postgres::Error> for Wrong {
    fn from(error: tokio_postgres::Error) -> Self {
        Wrong::Sql(error)
    }
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        Wrong::Failed(failure)
    }
}

impl From<CommitError> for Wrong {
    fn from(error: CommitError) -> Self {
        Wrong::Commit(error)
    }
}

impl From<Wrong> for CommitError {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Sql(error) => StoreError::from(Failure::from(error)).into(),
            Wrong::Failed(failure) => StoreError::from(failure).into(),
            Wrong::Commit(error) => error,
        }
    }
}
