//! Quotas of tenants: counts what a tenant has before one more is created, and stops counting at the limit.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::EngineError;
use stepwell::catalogue::CatalogueError;
use stepwell::data::KeyList;
use stepwell::store::{CountQuery, Record, RecordQuery, Store, StoreError, TenantId, TenantScope};

use super::Server;
use crate::routes::problem::Problem;

/// Rows read per page while counting.
const PAGE: u32 = 200;

/// Time for which a check that found room for more runs stays valid.
const BELOW_LIMIT_TTL: Duration = Duration::from_secs(1);

/// Tenants that were recently below their limit of runs: the time of the check and the limit.
#[derive(Default)]
pub(super) struct BelowLimitCache(Mutex<HashMap<TenantId, (Instant, u32)>>);

impl BelowLimitCache {
    fn has(&self, tenant: TenantId, limit: u32) -> bool {
        let below_limit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        below_limit.get(&tenant).is_some_and(|(at, of)| at.elapsed() < BELOW_LIMIT_TTL && *of == limit)
    }

    fn note(&self, tenant: TenantId, limit: u32) {
        let mut below_limit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        below_limit.insert(tenant, (Instant::now(), limit));
    }
}

/// Maximum number of objects a tenant may have, by kind. 0 = unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Maximum number of API keys. Expired keys count.
    pub api_keys: u32,
    /// Maximum number of workflows. Drafts and archived workflows count.
    pub workflows: u32,
    /// Maximum number of schedules. Those that are switched off do not count.
    pub schedules: u32,
    /// Maximum number of runs that have not ended. Schedules and undelivered events are runs and count too.
    pub runs: u32,
}

/// Limits of a tenant that override the server's. 0 = unlimited; an absent limit is the server's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TenantQuota {
    /// Maximum number of API keys. Expired keys count. 0 = unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_keys: Option<u32>,
    /// Maximum number of workflows. Drafts and archived workflows count. 0 = unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    workflows: Option<u32>,
    /// Maximum number of schedules. Those that are switched off do not count. 0 = unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedules: Option<u32>,
    /// Maximum number of runs that have not ended. 0 = unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<u32>,
}

/// Kind of object that a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuotaKind {
    ApiKeys,
    Workflows,
    Schedules,
    Runs,
}

impl QuotaKind {
    /// Returns the name used in quotas and in problems.
    fn name(self) -> &'static str {
        match self {
            QuotaKind::ApiKeys => "apiKeys",
            QuotaKind::Workflows => "workflows",
            QuotaKind::Schedules => "schedules",
            QuotaKind::Runs => "runs",
        }
    }

    fn limit(self, usual: &Quota, own: &TenantQuota) -> u32 {
        match self {
            QuotaKind::ApiKeys => own.api_keys.unwrap_or(usual.api_keys),
            QuotaKind::Workflows => own.workflows.unwrap_or(usual.workflows),
            QuotaKind::Schedules => own.schedules.unwrap_or(usual.schedules),
            QuotaKind::Runs => own.runs.unwrap_or(usual.runs),
        }
    }
}

impl Server {
    /// Rejects the request if the tenant has reached its limit. Concurrent requests may exceed the limit slightly.
    pub(super) async fn check_quota(&self, scope: TenantScope, of: QuotaKind) -> Result<(), Problem> {
        match self.limit(scope, of).await? {
            0 => Ok(()),
            limit => self.check_limit(limit, scope, of).await,
        }
    }

    /// Returns the tenant's limit; 0 = unlimited.
    async fn limit(&self, scope: TenantScope, of: QuotaKind) -> Result<u32, Problem> {
        let own = self.tenants.quota(scope.tenant()).await?;
        Ok(of.limit(&self.options.quota, &own))
    }

    async fn check_limit(&self, limit: u32, scope: TenantScope, of: QuotaKind) -> Result<(), Problem> {
        let (mut count, mut cursor) = (0, None);
        loop {
            let (more, next) = self.some(scope, of, limit, cursor).await?;
            count += more;
            if count >= limit as usize {
                let what = of.name();
                let detail =
                    format!("Your tenant has reached its limit of {limit} {what}: remove some first.");
                let problem = Problem::new(StatusCode::FORBIDDEN, "quotaExceeded", detail);
                let problem = problem.param("what", what).param("limit", limit);
                // Runs end by themselves, so a retry may succeed.
                return Err(if of == QuotaKind::Runs { problem.later(5) } else { problem });
            }
            cursor = next;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    /// Checks the limit of runs. A key that already started a run passes.
    ///
    /// A result below the limit is cached for a second, so runs started meanwhile are not counted.
    pub(super) async fn check_run_quota(&self, scope: TenantScope, key: Option<&str>) -> Result<(), Problem> {
        let limit = self.limit(scope, QuotaKind::Runs).await?;
        if limit == 0 || self.below_limit.has(scope.tenant(), limit) {
            return Ok(());
        }
        if let Err(problem) = self.check_limit(limit, scope, QuotaKind::Runs).await {
            // A repeated request creates no run: let it through, so that it gets the earlier result.
            let engine = self.engine.for_tenant(scope);
            return match key {
                Some(key) if engine.has_started(key).await? => Ok(()),
                _ => Err(problem),
            };
        }
        self.below_limit.note(scope.tenant(), limit);
        Ok(())
    }

    /// Checks the limit of workflows, unless a workflow of this name exists.
    pub(super) async fn check_workflow_quota(&self, scope: TenantScope, name: &str) -> Result<(), Problem> {
        let limit = self.limit(scope, QuotaKind::Workflows).await?;
        if limit == 0 {
            return Ok(());
        }
        match self.engine.for_tenant(scope).catalogue().workflow(name).await {
            Err(CatalogueError::NotFound { .. }) => {
                self.check_limit(limit, scope, QuotaKind::Workflows).await
            }
            // The next call on the catalogue reports an invalid name.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Checks the limit of schedules, unless a schedule of this name exists and is switched on.
    pub(super) async fn check_schedule_quota(&self, scope: TenantScope, name: &str) -> Result<(), Problem> {
        let limit = self.limit(scope, QuotaKind::Schedules).await?;
        if limit == 0 {
            return Ok(());
        }
        match self.engine.for_tenant(scope).schedule(name).await {
            Ok(Some(schedule)) if !schedule.is_off => Ok(()),
            // The new schedule replaces one that cannot be read.
            Err(EngineError::Unreadable { .. } | EngineError::Store(StoreError::Bad(_))) => Ok(()),
            Err(EngineError::UnknownDefinition { .. } | EngineError::Restore(_)) => Ok(()),
            found => {
                found?;
                self.check_limit(limit, scope, QuotaKind::Schedules).await
            }
        }
    }

    /// Counts the objects on one page and returns the cursor of the next page.
    async fn some(
        &self,
        scope: TenantScope,
        of: QuotaKind,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<(usize, Option<String>), Problem> {
        let engine = self.engine.for_tenant(scope);
        Ok(match of {
            QuotaKind::ApiKeys => {
                let page = self.keys.list(scope, PAGE, cursor).await?;
                (page.items.len(), page.next)
            }
            QuotaKind::Workflows => {
                let list = KeyList { prefix: String::new(), limit: Some(PAGE), cursor };
                let page = engine.catalogue().workflows(list).await.map_err(|error| match error {
                    CatalogueError::Engine(error) => error,
                    other => EngineError::Invalid(other.to_string()),
                })?;
                (page.items.len(), page.next)
            }
            QuotaKind::Schedules => {
                let page = engine.schedules_page(PAGE, cursor).await?;
                (page.items.iter().filter(|schedule| !schedule.is_off).count(), page.next)
            }
            QuotaKind::Runs => {
                let query =
                    RecordQuery::Count { of: CountQuery::Runs { max: limit }, limit: 1, cursor: None };
                let counted = engine.store().records(scope, query).await?.items.pop();
                match counted {
                    Some(Record::Count { count, .. }) => (usize::try_from(count).unwrap_or(usize::MAX), None),
                    _ => (0, None),
                }
            }
        })
    }
}
