//! How much a tenant may have: counted where somebody asks for one more, up to the limit and no further.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::EngineError;
use stepwell::catalogue::CatalogueError;
use stepwell::data::List;
use stepwell::store::{Record, RecordQuery, Store, Tally, TenantId, TenantScope};

use super::Server;
use crate::routes::problem::Problem;

/// Rows that are read at a time.
const PAGE: u32 = 200;

/// How long it holds that a tenant has room for runs.
const ROOM_FOR: Duration = Duration::from_secs(1);

/// Tenants that had room for runs a moment ago, and under which limit.
#[derive(Default)]
pub(super) struct Rooms(Mutex<HashMap<TenantId, (Instant, u32)>>);

impl Rooms {
    fn has(&self, tenant: TenantId, limit: u32) -> bool {
        let rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.get(&tenant).is_some_and(|(at, of)| at.elapsed() < ROOM_FOR && *of == limit)
    }

    fn note(&self, tenant: TenantId, limit: u32) {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.insert(tenant, (Instant::now(), limit));
    }
}

/// How much a tenant may have of each; 0 = any number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// API keys, those that have expired too.
    pub api_keys: u32,
    /// Workflows, with or without a version, those in the archive too.
    pub workflows: u32,
    /// Schedules that are on.
    pub schedules: u32,
    /// Runs that have not ended, however they were started; schedules and events on their way are runs too.
    pub runs: u32,
}

/// How much a tenant may have, as far as that is another number than for others; 0 = any number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TenantQuota {
    /// API keys, those that have expired too.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_keys: Option<u32>,
    /// Workflows, with or without a version, those in the archive too.
    #[serde(skip_serializing_if = "Option::is_none")]
    workflows: Option<u32>,
    /// Schedules that are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedules: Option<u32>,
    /// Runs that have not ended, however they were started.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<u32>,
}

/// What there may be so many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    ApiKeys,
    Workflows,
    Schedules,
    Runs,
}

impl Counted {
    /// What it is called in problems, and in quotas.
    fn name(self) -> &'static str {
        match self {
            Counted::ApiKeys => "apiKeys",
            Counted::Workflows => "workflows",
            Counted::Schedules => "schedules",
            Counted::Runs => "runs",
        }
    }

    fn limit(self, usual: &Quota, own: &TenantQuota) -> u32 {
        match self {
            Counted::ApiKeys => own.api_keys.unwrap_or(usual.api_keys),
            Counted::Workflows => own.workflows.unwrap_or(usual.workflows),
            Counted::Schedules => own.schedules.unwrap_or(usual.schedules),
            Counted::Runs => own.runs.unwrap_or(usual.runs),
        }
    }
}

impl Server {
    /// There is room for one more of a tenant's. Several who ask at the same moment may all find it.
    pub(super) async fn room(&self, scope: TenantScope, of: Counted) -> Result<(), Problem> {
        match self.limit(scope, of).await? {
            0 => Ok(()),
            limit => self.below(limit, scope, of).await,
        }
    }

    /// How many a tenant may have; 0 = any number.
    async fn limit(&self, scope: TenantScope, of: Counted) -> Result<u32, Problem> {
        let own = self.tenants.quota(scope.tenant()).await?;
        Ok(of.limit(&self.options.quota, &own))
    }

    async fn below(&self, limit: u32, scope: TenantScope, of: Counted) -> Result<(), Problem> {
        let (mut count, mut cursor) = (0, None);
        loop {
            let (more, next) = self.some(scope, of, limit, cursor).await?;
            count += more;
            if count >= limit as usize {
                let what = of.name();
                let detail =
                    format!("Your tenant may have {limit} {what} and has them: take some away first.");
                let problem = Problem::new(StatusCode::FORBIDDEN, "quotaExceeded", detail);
                let problem = problem.param("what", what).param("limit", limit);
                // Runs end by themselves.
                return Err(if of == Counted::Runs { problem.later(5) } else { problem });
            }
            cursor = next;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    /// The same for a run, if none was begun with this key. That there was room holds for a moment: runs that are started
    /// meanwhile are not counted.
    pub(super) async fn room_for_run(&self, scope: TenantScope, key: Option<&str>) -> Result<(), Problem> {
        let limit = self.limit(scope, Counted::Runs).await?;
        if limit == 0 || self.rooms.has(scope.tenant(), limit) {
            return Ok(());
        }
        if let Err(problem) = self.below(limit, scope, Counted::Runs).await {
            // What was done before is answered as before.
            let engine = self.engine.for_tenant(scope);
            return match key {
                Some(key) if engine.has_started(key).await? => Ok(()),
                _ => Err(problem),
            };
        }
        self.rooms.note(scope.tenant(), limit);
        Ok(())
    }

    /// The same for a workflow, if there is none of this name.
    pub(super) async fn room_for_workflow(&self, scope: TenantScope, name: &str) -> Result<(), Problem> {
        let limit = self.limit(scope, Counted::Workflows).await?;
        if limit == 0 {
            return Ok(());
        }
        match self.engine.for_tenant(scope).catalogue().workflow(name).await {
            Err(CatalogueError::NotFound { .. }) => self.below(limit, scope, Counted::Workflows).await,
            // What is wrong with the name is said by whoever is asked next.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The same for a schedule, if there is none of this name that is on.
    pub(super) async fn room_for_schedule(&self, scope: TenantScope, name: &str) -> Result<(), Problem> {
        let limit = self.limit(scope, Counted::Schedules).await?;
        if limit == 0 {
            return Ok(());
        }
        match self.engine.for_tenant(scope).schedule(name).await? {
            Some(schedule) if !schedule.is_off => Ok(()),
            _ => self.below(limit, scope, Counted::Schedules).await,
        }
    }

    /// How many are on a page, and where the next begins.
    async fn some(
        &self,
        scope: TenantScope,
        of: Counted,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<(usize, Option<String>), Problem> {
        let engine = self.engine.for_tenant(scope);
        Ok(match of {
            Counted::ApiKeys => {
                let page = self.keys.list(scope, PAGE, cursor).await?;
                (page.items.len(), page.next)
            }
            Counted::Workflows => {
                let list = List { prefix: String::new(), limit: Some(PAGE), cursor };
                let page = engine.catalogue().workflows(list).await.map_err(|error| match error {
                    CatalogueError::Engine(error) => error,
                    other => EngineError::Invalid(other.to_string()),
                })?;
                (page.items.len(), page.next)
            }
            Counted::Schedules => {
                let page = engine.schedules_page(PAGE, cursor).await?;
                (page.items.iter().filter(|schedule| !schedule.is_off).count(), page.next)
            }
            Counted::Runs => {
                let query = RecordQuery::Tally { of: Tally::Runs { max: limit }, limit: 1, cursor: None };
                let counted = engine.store().records(scope, query).await?.items.pop();
                match counted {
                    Some(Record::Tally { count, .. }) => (usize::try_from(count).unwrap_or(usize::MAX), None),
                    _ => (0, None),
                }
            }
        })
    }
}
