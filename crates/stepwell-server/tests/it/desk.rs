//! A server on a store in memory, and somebody of each of two tenants who may do everything there.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use serde_json::Value;
use stepwell::store::MemoryStore;
use stepwell::{Builder, Engine, Grants};
use stepwell_server::api::{ApiOptions, Server};
use uuid::Uuid;

use crate::kit::{Ask, Reply, ask};
use crate::table::granted;

/// Whose server it is asked as.
pub(crate) const OURS: u128 = 1;

pub(crate) struct Desk {
    pub(crate) router: Router,
    pub(crate) server: Arc<Server>,
    ours: String,
    theirs: String,
}

impl Desk {
    pub(crate) async fn open() -> Desk {
        Desk::with(|engine| engine).await
    }

    /// With an engine that is put together like this.
    pub(crate) async fn with(build: impl FnOnce(Builder) -> Builder) -> Desk {
        let engine = build(Engine::builder(Arc::new(MemoryStore::new()))).start().await.unwrap();
        let server = Arc::new(Server::new(engine, ApiOptions::default()));
        let ours = granted(&server, OURS, Grants::all()).await;
        let theirs = granted(&server, 2, Grants::all()).await;
        Desk { router: server.clone().router(), server, ours, theirs }
    }

    /// A request of ours.
    pub(crate) fn ask(&self, method: Method, path: &str) -> Ask {
        ask(method, path).header("authorization", &self.ours)
    }

    /// The same request of somebody of another tenant.
    pub(crate) async fn elsewhere(&self, method: Method, path: &str, body: Option<&Value>) -> Reply {
        let asked = ask(method, path).header("authorization", &self.theirs);
        let asked = body.into_iter().fold(asked, Ask::json);
        asked.to(&self.router).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.ask(Method::GET, path).to(&self.router).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(Method::POST, path).json(body).to(&self.router).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.ask(Method::PUT, path).json(body).to(&self.router).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.ask(Method::DELETE, path).to(&self.router).await
    }

    /// Posts a text as YAML.
    pub(crate) async fn post_yaml(&self, path: &str, text: &str) -> Reply {
        let asked = self.ask(Method::POST, path).header("content-type", "application/yaml");
        asked.body(text.to_owned()).to(&self.router).await
    }

    /// Publishes a document and activates it.
    pub(crate) async fn publish(&self, name: &str, text: &str) -> Value {
        let path = format!("/v1/workflows/{name}/versions?activate=true");
        let published = self.post_yaml(&path, text).await;
        assert!(published.status.is_success(), "{published:?}");
        published.json()
    }

    /// Runs a workflow, and gives the run when it has ended or stands still.
    pub(crate) async fn run(&self, workflow: &str, input: Value) -> Value {
        let body = serde_json::json!({"workflow": workflow, "input": input});
        let started = self.post("/v1/runs?wait=20s", &body).await;
        assert_eq!(started.status, 201, "{started:?}");
        started.json()["run"].clone()
    }
}

/// Our tenant, in a path.
pub(crate) fn our_tenant() -> String {
    Uuid::from_u128(OURS).to_string()
}
