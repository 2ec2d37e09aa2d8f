//! How long a request is worked on: until its time is over, or whoever asked may no longer ask.

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

/// How often is looked whether whoever waits or follows may still do so.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Somebody who was let in, and with what.
#[derive(Clone)]
pub(super) struct Pass {
    pub(super) caller: Caller,
    /// What proves who it is; `None` = the program that has the server knows them.
    pub(super) credential: Option<HeaderValue>,
    pub(super) needs: Needs,
}

/// How long a request asks to wait, in its query or as a preference, and no longer than allowed.
pub(super) fn wait_of(query: Option<&str>, headers: &HeaderMap, max: Duration) -> Duration {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let asked = pairs.into_iter().find(|(name, _)| name == "wait").and_then(|(_, text)| span(&text).ok());
    asked.or_else(|| preferred_wait(headers)).unwrap_or_default().min(max)
}

/// How long a request prefers to wait.
pub(super) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let prefer = headers.get("prefer")?.to_str().ok()?;
    let wait = prefer.split(',').find_map(|one| one.trim().strip_prefix("wait="))?;
    wait.trim().parse().map(Duration::from_secs).ok()
}

impl Server {
    /// What comes of the work within its time, waiting that was asked for not counted. Work that is not over by then, or whose
    /// asker may no longer ask, is finished without them: nothing is left half done.
    pub(super) async fn patiently(
        self: &Arc<Self>,
        route: &Route,
        pass: &Pass,
        wait: Duration,
        mut work: BoxFuture<'static, Result<Reply, Problem>>,
    ) -> Result<Reply, Problem> {
        let problem = tokio::select! {
            biased;
            answer = &mut work => return answer.map(|reply| self.while_admitted(pass, reply)),
            problem = self.dismissed(pass) => problem,
            () = tokio::time::sleep(self.options.answer_timeout.saturating_add(wait)) => too_late(route),
        };
        tokio::spawn(work);
        Err(problem)
    }

    /// A stream ends when whoever follows it may no longer do so.
    fn while_admitted(self: &Arc<Self>, pass: &Pass, mut reply: Reply) -> Reply {
        if let Content::Stream(kind, body) = reply.content {
            let (server, pass) = (self.clone(), pass.clone());
            let over = Box::pin(async move { drop(server.dismissed(&pass).await) });
            reply.content =
                Content::Stream(kind, Body::from_stream(body.into_data_stream().take_until(over)));
        }
        reply
    }

    /// Returns when somebody who was let in is no longer: their credential is not good any more, or their tenant is suspended.
    async fn dismissed(&self, pass: &Pass) -> Problem {
        if pass.needs == Needs::Nothing {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.still(pass).await {
                Err(problem)
                    if matches!(problem.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
                {
                    return problem;
                }
                // That nobody could tell is no reason to send them away.
                Ok(()) | Err(_) => {}
            }
        }
    }

    async fn still(&self, pass: &Pass) -> Result<(), Problem> {
        if let Some(credential) = &pass.credential {
            let text = auth::credential(credential).ok_or_else(auth::invalid)?;
            let now = self.known(text).await?;
            if now.scope().tenant() != pass.caller.scope().tenant() {
                return Err(auth::invalid());
            }
            now.may(pass.needs)?;
        }
        self.tenants.admit(pass.caller.scope().tenant()).await.map(drop)
    }
}

fn too_late(route: &Route) -> Problem {
    let detail = match (route.method == Method::GET, route.is_keyed) {
        (true, _) => "This took too long. Ask again later.",
        (false, true) => {
            "This took too long; it may still be done. Send it again with the same idempotency key, or look."
        }
        (false, false) => "This took too long; it may still be done. Look before you send it again.",
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
    fn waiting_is_asked_for_in_the_query_or_as_a_preference() {
        let (none, mut prefers) = (HeaderMap::new(), HeaderMap::new());
        prefers.insert("prefer", "respond-async, wait=7".parse().unwrap());
        let max = Duration::from_secs(10);
        let seconds = |query, headers: &HeaderMap| wait_of(query, headers, max).as_secs();
        assert_eq!((seconds(None, &none), seconds(Some("wait=3s&a=b"), &none)), (0, 3));
        assert_eq!((seconds(None, &prefers), seconds(Some("wait=3s"), &prefers)), (7, 3));
        assert_eq!((seconds(Some("wait=1h"), &none), seconds(Some("wait=x"), &none)), (10, 0));
    }
}
