//! Timeouts of requests: a request ends when its time is over or its caller loses access.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::HeaderValue;
use axum::http::{HeaderMap, Method, StatusCode};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;

use super::reply::{Content, Reply};
use super::route::{Needs, Route};
use super::shapes::span;
use super::{Caller, Server, auth};
use crate::routes::problem::Problem;

/// Interval between checks that the caller of a waiting or streaming request still has access.
const ACCESS_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// An admitted caller with the credential and the access that was checked.
#[derive(Clone)]
pub(super) struct Admitted {
    pub(super) caller: Caller,
    /// The `Authorization` header; `None` = the embedding program authenticated the caller, or no credential is
    /// needed.
    pub(super) credential: Option<HeaderValue>,
    pub(super) needs: Needs,
}

/// Returns the wait requested by the `wait` parameter or the `Prefer` header, at most `max`. Default: zero.
pub(super) fn wait_of(query: Option<&str>, headers: &HeaderMap, max: Duration) -> Duration {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let asked = pairs.into_iter().find(|(name, _)| name == "wait").and_then(|(_, text)| span(&text).ok());
    asked.or_else(|| preferred_wait(headers)).unwrap_or_default().min(max)
}

/// Returns the wait of the `Prefer: wait=SECONDS` header.
pub(super) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let prefer = headers.get("prefer")?.to_str().ok()?;
    let wait = prefer.split(',').find_map(|one| one.trim().strip_prefix("wait="))?;
    wait.trim().parse().map(Duration::from_secs).ok()
}

impl Server {
    /// Returns the result of the work, or a problem after the answer timeout plus the requested wait.
    ///
    /// Work that outlives the timeout or its caller's access continues in the background, so that nothing is left
    /// half done.
    pub(super) async fn answer_in_time(
        self: &Arc<Self>,
        route: &Route,
        admitted: &Admitted,
        wait: Duration,
        mut work: BoxFuture<'static, Result<Reply, Problem>>,
    ) -> Result<Reply, Problem> {
        let problem = tokio::select! {
            biased;
            answer = &mut work => return answer.map(|reply| self.while_admitted(admitted, reply)),
            problem = self.access_lost(admitted) => problem,
            () = tokio::time::sleep(self.options.answer_timeout.saturating_add(wait)) => too_late(route),
        };
        tokio::spawn(work);
        Err(problem)
    }

    /// Ends a streamed reply when its caller loses access.
    fn while_admitted(self: &Arc<Self>, admitted: &Admitted, mut reply: Reply) -> Reply {
        if let Content::Stream(kind, body) = reply.content {
            let (server, admitted) = (self.clone(), admitted.clone());
            let over = Box::pin(async move { drop(server.access_lost(&admitted).await) });
            reply.content =
                Content::Stream(kind, Body::from_stream(body.into_data_stream().take_until(over)));
        }
        reply
    }

    /// Returns when the caller loses access: the credential became invalid, lost the permission, or the tenant is
    /// suspended.
    async fn access_lost(&self, admitted: &Admitted) -> Problem {
        if admitted.needs == Needs::Nothing {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(ACCESS_CHECK_INTERVAL).await;
            match self.check_access(admitted).await {
                Err(problem)
                    if matches!(problem.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
                {
                    return problem;
                }
                // An error of the check itself, such as an unavailable store, does not revoke access.
                Ok(()) | Err(_) => {}
            }
        }
    }

    async fn check_access(&self, admitted: &Admitted) -> Result<(), Problem> {
        if let Some(credential) = &admitted.credential {
            let text = auth::credential(credential).ok_or_else(auth::invalid)?;
            let now = self.known(text).await?;
            if now.scope().tenant() != admitted.caller.scope().tenant() {
                return Err(auth::invalid());
            }
            now.may(admitted.needs)?;
        }
        self.tenants.admit(admitted.caller.scope().tenant()).await.map(drop)
    }
}

fn too_late(route: &Route) -> Problem {
    let detail = match (route.method == Method::GET, route.is_keyed) {
        (true, _) => "The request timed out. Retry later.",
        (false, true) => {
            "The request timed out, but it may still complete. Send it again with the same idempotency key."
        }
        (false, false) => "The request timed out, but may still complete. Check before you send it again.",
    };
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "answerTimeout", detail).later(5);
    Problem { is_retryable: route.method == Method::GET || route.is_keyed, ..problem }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderMap;

    use super::wait_of;

    #[test]
    fn wait_is_read_from_query_or_prefer_header() {
        let (none, mut prefers) = (HeaderMap::new(), HeaderMap::new());
        prefers.insert("prefer", "respond-async, wait=7".parse().unwrap());
        let max = Duration::from_secs(10);
        let seconds = |query, headers: &HeaderMap| wait_of(query, headers, max).as_secs();
        assert_eq!((seconds(None, &none), seconds(Some("wait=3s&a=b"), &none)), (0, 3));
        assert_eq!((seconds(None, &prefers), seconds(Some("wait=3s"), &prefers)), (7, 3));
        assert_eq!((seconds(Some("wait=1h"), &none), seconds(Some("wait=x"), &none)), (10, 0));
    }
}
