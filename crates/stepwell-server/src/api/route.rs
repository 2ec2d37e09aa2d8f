//! One thing that can be asked for over HTTP: where, by whom, with what, and what comes of it.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use futures_util::future::BoxFuture;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell::Permission;

use super::call::{Asked, Call, Fields, OwnSchema, Reads, own_schema};
use super::reply::{Content, Reply};
use crate::routes::problem::Problem;

/// What whoever asks needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: what is asked for is for everybody, or brings its own proof.
    Nothing,
    /// To be known, whatever they may do.
    Credential,
    /// This permission in their tenant.
    Permission(Permission),
    /// To work on the tasks of some remote action; of which, the engine looks at.
    Worker,
    /// To administer the server itself, with all its tenants.
    Host,
    /// To see how the server itself is doing: `workflow:view` in its own tenant, unless that is for everybody.
    HostView,
}

type Handler = Arc<dyn Fn(Asked) -> BoxFuture<'static, Result<Reply, Problem>> + Send + Sync>;
type SchemaIn = Box<dyn Fn(&mut SchemaGenerator) -> Value + Send + Sync>;
type ContentsIn = Box<dyn Fn(&mut SchemaGenerator) -> Vec<(&'static str, Value)> + Send + Sync>;

/// A route of the API.
pub struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) id: &'static str,
    pub(crate) needs: Needs,
    pub(crate) about: &'static str,
    pub(crate) notes: &'static str,
    pub(crate) gives: Vec<Gives>,
    /// The request may bring an idempotency key.
    pub(crate) is_keyed: bool,
    /// It costs next to nothing, and whoever asks without a credential may do so as often as they like.
    pub(crate) is_free: bool,
    /// The request may, or has to, name the revision it was made for.
    pub(crate) tag: Tag,
    /// Bytes that a body has at most, if that is not the server's usual limit.
    pub(crate) body_bytes: Option<usize>,
    /// Headers that are read besides, each with what it is.
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    /// What others take of its answers.
    pub(crate) leads: Vec<Lead>,
    /// Problems are answered with pages too.
    pub(crate) has_problem_pages: bool,
    pub(crate) takes: Takes,
    handler: Handler,
}

/// Something in an answer that other routes take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lead {
    /// What the paths of those others begin with.
    pub(crate) to: &'static str,
    /// Their parameter.
    pub(crate) parameter: &'static str,
    /// A JSON pointer into the answer.
    pub(crate) pointer: &'static str,
}

/// What a route does with the revision that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    /// It is not looked at.
    Ignored,
    /// It has to be the current one if it is named.
    Checked,
    /// It has to be the current one if it is named, and `If-None-Match: *` asks that there be nothing yet.
    CheckedOrNew,
}

/// What a route takes.
pub(crate) struct Takes {
    pub(crate) path: SchemaIn,
    pub(crate) query: SchemaIn,
    pub(crate) body: ContentsIn,
    pub(crate) is_body_optional: bool,
    pub(crate) has_body: bool,
}

/// What a route may answer with.
pub(crate) struct Gives {
    pub(crate) status: StatusCode,
    pub(crate) about: &'static str,
    pub(crate) kind: Option<&'static str>,
    pub(crate) schema: Option<SchemaIn>,
    /// Answers are held against it where mistakes are to be found.
    checked: Option<OwnSchema>,
}

/// A route that is being described.
pub(crate) struct Describing {
    method: Method,
    path: &'static str,
    id: &'static str,
    needs: Needs,
    about: &'static str,
    notes: &'static str,
    gives: Vec<Gives>,
    is_keyed: bool,
    is_free: bool,
    tag: Tag,
    body_bytes: Option<usize>,
    headers: Vec<(&'static str, &'static str)>,
    leads: Vec<Lead>,
    has_problem_pages: bool,
}

/// Describes a route.
pub(crate) fn route(
    method: Method,
    path: &'static str,
    id: &'static str,
    needs: impl Into<Needs>,
    about: &'static str,
) -> Describing {
    Describing {
        method,
        path,
        id,
        needs: needs.into(),
        about,
        notes: "",
        gives: Vec::new(),
        is_keyed: false,
        is_free: false,
        tag: Tag::Ignored,
        body_bytes: None,
        headers: Vec::new(),
        leads: Vec::new(),
        has_problem_pages: false,
    }
}

pub(crate) fn get(
    path: &'static str,
    id: &'static str,
    needs: impl Into<Needs>,
    about: &'static str,
) -> Describing {
    route(Method::GET, path, id, needs, about)
}

pub(crate) fn post(
    path: &'static str,
    id: &'static str,
    needs: impl Into<Needs>,
    about: &'static str,
) -> Describing {
    route(Method::POST, path, id, needs, about)
}

pub(crate) fn put(
    path: &'static str,
    id: &'static str,
    needs: impl Into<Needs>,
    about: &'static str,
) -> Describing {
    route(Method::PUT, path, id, needs, about)
}

pub(crate) fn delete(
    path: &'static str,
    id: &'static str,
    needs: impl Into<Needs>,
    about: &'static str,
) -> Describing {
    route(Method::DELETE, path, id, needs, about)
}

impl From<Permission> for Needs {
    fn from(permission: Permission) -> Self {
        Needs::Permission(permission)
    }
}

impl Describing {
    /// More about it.
    pub(crate) fn notes(mut self, notes: &'static str) -> Self {
        self.notes = notes;
        self
    }

    /// It answers with this status and JSON of a type.
    pub(crate) fn gives<T: JsonSchema>(mut self, status: StatusCode, about: &'static str) -> Self {
        let schema: SchemaIn = Box::new(|schemas| schemas.subschema_for::<T>().to_value());
        let checked = cfg!(debug_assertions).then(own_schema::<T>);
        let kind = Some(super::reply::JSON);
        self.gives.push(Gives { status, about, kind, schema: Some(schema), checked });
        self
    }

    /// It answers with 200 and JSON of a type.
    pub(crate) fn ok<T: JsonSchema>(self, about: &'static str) -> Self {
        self.gives::<T>(StatusCode::OK, about)
    }

    /// It answers with something else than JSON.
    pub(crate) fn gives_text(mut self, kind: &'static str, about: &'static str) -> Self {
        let schema: SchemaIn = Box::new(|_| serde_json::json!({"type": "string"}));
        let status = StatusCode::OK;
        self.gives.push(Gives { status, about, kind: Some(kind), schema: Some(schema), checked: None });
        self
    }

    /// It answers with the same as YAML, if that is asked for.
    pub(crate) fn or_yaml<T: JsonSchema>(mut self, about: &'static str) -> Self {
        let schema: SchemaIn = Box::new(|schemas| schemas.subschema_for::<T>().to_value());
        let (status, kind) = (StatusCode::OK, Some(super::reply::YAML));
        self.gives.push(Gives { status, about, kind, schema: Some(schema), checked: None });
        self
    }

    /// It answers with 204: it is done.
    pub(crate) fn gives_nothing(mut self, about: &'static str) -> Self {
        let status = StatusCode::NO_CONTENT;
        self.gives.push(Gives { status, about, kind: None, schema: None, checked: None });
        self
    }

    /// The request may bring an idempotency key.
    pub(crate) fn keyed(mut self) -> Self {
        self.is_keyed = true;
        self
    }

    /// It costs next to nothing, and may be asked for as often as anybody likes.
    pub(crate) fn free(mut self) -> Self {
        self.is_free = true;
        self
    }

    /// The request may name the revision that has to be the current one, or ask that there be nothing yet.
    pub(crate) fn checks_tag_or_new(mut self) -> Self {
        self.tag = Tag::CheckedOrNew;
        self
    }

    /// The request may name the revision that has to be the current one.
    pub(crate) fn checks_tag(mut self) -> Self {
        self.tag = Tag::Checked;
        self
    }

    /// Bytes that a body has at most.
    pub(crate) fn body_bytes(mut self, bytes: usize) -> Self {
        self.body_bytes = Some(bytes);
        self
    }

    /// It reads this header too.
    pub(crate) fn reads_header(mut self, name: &'static str, about: &'static str) -> Self {
        self.headers.push((name, about));
        self
    }

    /// What is at a pointer of its answers is a parameter of the routes whose paths begin so.
    pub(crate) fn leads(mut self, to: &'static str, parameter: &'static str, pointer: &'static str) -> Self {
        self.leads.push(Lead { to, parameter, pointer });
        self
    }

    /// Whoever reads pages is told on one what went wrong.
    pub(crate) fn problem_pages(mut self) -> Self {
        self.has_problem_pages = true;
        self
    }

    /// This answers it. What it takes is the contract: the types' schemas are published, and held against every request.
    pub(crate) fn to<P, Q, B, F, Fut>(self, handler: F) -> Route
    where
        P: DeserializeOwned + JsonSchema + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        B: Reads,
        F: Fn(Call<P, Q, B>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        let (path, query, body) = (Fields::<P>::new(), Fields::<Q>::new(), B::reader());
        let handler = Arc::new((path, query, body, handler));
        let answer = move |asked: Asked| -> BoxFuture<'static, Result<Reply, Problem>> {
            let handler = handler.clone();
            Box::pin(async move {
                let (path, query, body, handle) = &*handler;
                let Asked { server, caller, headers, .. } = asked;
                let path = path.read(asked.path)?;
                let pairs = form_urlencoded::parse(asked.query.as_deref().unwrap_or_default().as_bytes());
                let query = query.read(pairs.into_owned())?;
                let body = B::read(body, &headers, asked.body)?;
                handle(Call { server, caller, path, query, body, headers }).await
            })
        };
        let takes = Takes {
            path: Box::new(|schemas| P::json_schema(schemas).to_value()),
            query: Box::new(|schemas| Q::json_schema(schemas).to_value()),
            body: Box::new(B::contents),
            is_body_optional: B::is_optional(),
            has_body: !B::contents(&mut SchemaGenerator::default()).is_empty(),
        };
        Route {
            method: self.method,
            path: self.path,
            id: self.id,
            needs: self.needs,
            about: self.about,
            notes: self.notes,
            gives: self.gives,
            is_keyed: self.is_keyed,
            is_free: self.is_free,
            tag: self.tag,
            body_bytes: self.body_bytes,
            headers: self.headers,
            leads: self.leads,
            has_problem_pages: self.has_problem_pages,
            takes,
            handler: Arc::new(answer),
        }
    }
}

impl Route {
    /// Answers a request from somebody who may ask.
    pub(crate) async fn answer(&self, asked: Asked) -> Result<Reply, Problem> {
        let reply = (self.handler)(asked).await?;
        if cfg!(debug_assertions) {
            self.hold_to_contract(&reply);
        }
        Ok(reply)
    }

    /// An answer that the contract does not know is a mistake of ours: where mistakes are to be found, it is one at once.
    fn hold_to_contract(&self, reply: &Reply) {
        // What was made elsewhere, for people, says by itself what is wrong.
        if matches!(reply.content, Content::Whole(_)) {
            return;
        }
        let (status, kind) = (reply.status, reply.kind());
        let gives = self.gives.iter().find(|gives| gives.status == status && gives.kind == kind);
        let gives =
            gives.unwrap_or_else(|| unreachable!("{}: {status} {kind:?} is not in the contract", self.id));
        let (Content::Json(body), Some(schema)) = (&reply.content, &gives.checked) else { return };
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let misfits = schema.check(&value);
        assert!(misfits.is_empty(), "{}: {misfits:?} in {value}", self.id);
    }

    /// What whoever asks needs.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The path, with names in braces.
    pub fn path(&self) -> &'static str {
        self.path
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({:?})", self.method, self.path, self.needs)
    }
}
