//! A server on a test engine with a manual clock, and keys of three tenants.

use std::sync::Arc;

use axum::Router;
use serde_json::Value;
use stepwell::testing::TestEngine;
use stepwell::{Builder, Grants};
use stepwell_server::api::{ApiOptions, Server};

use crate::kit::{Reply, TestRequest, delete, get, post, put};
use crate::table::granted;

/// A server, and keys with every permission.
pub(crate) struct Site {
    pub(crate) engine: TestEngine,
    pub(crate) server: Arc<Server>,
    pub(crate) router: Router,
    /// A key of the server's own tenant.
    pub(crate) host: String,
    /// A key of the tenant that most tests use.
    pub(crate) ours: String,
    /// A key of another tenant.
    pub(crate) theirs: String,
}

impl Site {
    pub(crate) async fn open() -> Self {
        Self::open_with(|builder| builder).await
    }

    pub(crate) async fn open_with(build: impl FnOnce(Builder) -> Builder) -> Self {
        let engine = TestEngine::start(build).await.unwrap();
        let server = Server::new((*engine).clone(), ApiOptions::default());
        Self::of(engine, server).await
    }

    pub(crate) async fn of(engine: TestEngine, server: Server) -> Self {
        let server = Arc::new(server);
        let key = async |tenant: u128| granted(&server, tenant, Grants::all()).await;
        let (host, ours, theirs) = (key(1).await, key(2).await, key(3).await);
        Site { router: server.clone().router(), engine, server, host, ours, theirs }
    }

    /// Sends a request with the key of our tenant.
    pub(crate) async fn ask(&self, ask: TestRequest) -> Reply {
        ask.by(&self.ours).to(&self.router).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.ask(get(path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(post(path).json(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.ask(put(path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.ask(delete(path)).await
    }

    /// Sends a request with the key of the other tenant.
    pub(crate) async fn as_other_tenant(&self, ask: TestRequest) -> Reply {
        ask.by(&self.theirs).to(&self.router).await
    }
}
