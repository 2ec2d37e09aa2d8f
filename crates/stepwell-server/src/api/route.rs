//! Describes one route of the API: method, path, access, parameters, responses and handler.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use futures_util::future::BoxFuture;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell::Permission;

use super::call::{Call, Fields, OwnSchema, Reads, RequestContext, own_schema};
use super::reply::{Content, Reply};
use crate::routes::problem::Problem;

/// The access that a route requires of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// None: the route is public, or the request carries its own proof, such as a link's token.
    Nothing,
    /// A valid credential, with any permissions.
    Credential,
    /// This permission in the caller's tenant.
    Permission(Permission),
    /// At least one of these permissions in the caller's tenant. The engine checks the rest.
    Any(&'static [Permission]),
    /// A `worker:ACTION` permission for some action. The engine checks it against the task's action.
    Worker,
    /// `workflow:admin` in the server's own tenant, for administering all tenants.
    Host,
    /// `workflow:view` in the server's own tenant, or nothing if metrics are public.
    HostView,
}

type Handler = Arc<dyn Fn(RequestContext) -> BoxFuture<'static, Result<Reply, Problem>> + Send + Sync>;
type SchemaIn = Box<dyn Fn(&mut SchemaGenerator) -> Value + Send + Sync>;
type ContentsIn = Box<dyn Fn(&mut SchemaGenerator) -> Vec<(&'static str, Value)> + Send + Sync>;

/// A route of the API with its handler and its part of the contract.
pub struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) id: &'static str,
    pub(crate) needs: Needs,
    pub(crate) about: &'static str,
    pub(crate) notes: &'static str,
    pub(crate) responses: Vec<RouteResponse>,
    /// True if the route accepts an `Idempotency-Key`.
    pub(crate) is_keyed: bool,
    /// True if the route is cheap and exempt from the rate limit for requests without a credential.
    pub(crate) is_free: bool,
    /// Handling of the revision in `If-Match` and `If-None-Match`.
    pub(crate) tag: Tag,
    /// Maximum size of the body, in bytes; `None` = the server's limit.
    pub(crate) body_bytes: Option<usize>,
    /// Additional headers that the route reads, each with its description.
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    /// Values in its responses that other routes take as parameters.
    pub(crate) links: Vec<ResponseLink>,
    /// True if problems are also available as HTML pages.
    pub(crate) has_problem_pages: bool,
    pub(crate) input: RouteInput,
    handler: Handler,
}

/// A value in a response that other routes take as a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseLink {
    /// Prefix of the paths of the other routes.
    pub(crate) to: &'static str,
    /// Name of the parameter that takes the value.
    pub(crate) parameter: &'static str,
    /// JSON pointer to the value in the response.
    pub(crate) pointer: &'static str,
}

/// Handling of the revision that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    /// `If-Match` and `If-None-Match` are ignored.
    Ignored,
    /// `If-Match` is optional and must name the current revision.
    Checked,
    /// `If-Match` is optional and must name the current revision. `If-None-Match: *` requires that nothing exists
    /// yet.
    CheckedOrNew,
}

/// The input of a route: schemas of the path, the query and the body.
pub(crate) struct RouteInput {
    pub(crate) path: SchemaIn,
    pub(crate) query: SchemaIn,
    pub(crate) body: ContentsIn,
    pub(crate) is_body_optional: bool,
    pub(crate) has_body: bool,
}

/// A possible response of a route.
pub(crate) struct RouteResponse {
    pub(crate) status: StatusCode,
    pub(crate) about: &'static str,
    pub(crate) kind: Option<&'static str>,
    pub(crate) schema: Option<SchemaIn>,
    /// Schema that replies are validated against in debug builds.
    checked: Option<OwnSchema>,
}

/// Builder of a route.
pub(crate) struct Describing {
    method: Method,
    path: &'static str,
    id: &'static str,
    needs: Needs,
    about: &'static str,
    notes: &'static str,
    responses: Vec<RouteResponse>,
    is_keyed: bool,
    is_free: bool,
    tag: Tag,
    body_bytes: Option<usize>,
    headers: Vec<(&'static str, &'static str)>,
    links: Vec<ResponseLink>,
    has_problem_pages: bool,
}

/// Starts the description of a route. `about` is its summary in the contract.
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
        responses: Vec::new(),
        is_keyed: false,
        is_free: false,
        tag: Tag::Ignored,
        body_bytes: None,
        headers: Vec::new(),
        links: Vec::new(),
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
    /// Sets the longer description in the contract.
    pub(crate) fn notes(mut self, notes: &'static str) -> Self {
        self.notes = notes;
        self
    }

    /// Adds a response with this status and a JSON body of type `T`.
    pub(crate) fn gives<T: JsonSchema>(mut self, status: StatusCode, about: &'static str) -> Self {
        let schema: SchemaIn = Box::new(|schemas| schemas.subschema_for::<T>().to_value());
        let checked = cfg!(debug_assertions).then(own_schema::<T>);
        let kind = Some(super::reply::JSON);
        self.responses.push(RouteResponse { status, about, kind, schema: Some(schema), checked });
        self
    }

    /// Adds a response with status 200 and a JSON body of type `T`.
    pub(crate) fn ok<T: JsonSchema>(self, about: &'static str) -> Self {
        self.gives::<T>(StatusCode::OK, about)
    }

    /// Adds a response with status 200 and a text body of this content type.
    pub(crate) fn gives_text(mut self, kind: &'static str, about: &'static str) -> Self {
        let schema: SchemaIn = Box::new(|_| serde_json::json!({"type": "string"}));
        let status = StatusCode::OK;
        self.responses.push(RouteResponse {
            status,
            about,
            kind: Some(kind),
            schema: Some(schema),
            checked: None,
        });
        self
    }

    /// Adds a response with status 200 and a YAML body of type `T`, for requests that ask for YAML.
    pub(crate) fn or_yaml<T: JsonSchema>(mut self, about: &'static str) -> Self {
        let schema: SchemaIn = Box::new(|schemas| schemas.subschema_for::<T>().to_value());
        let (status, kind) = (StatusCode::OK, Some(super::reply::YAML));
        self.responses.push(RouteResponse { status, about, kind, schema: Some(schema), checked: None });
        self
    }

    /// Adds an empty response with status 204.
    pub(crate) fn gives_nothing(mut self, about: &'static str) -> Self {
        let status = StatusCode::NO_CONTENT;
        self.responses.push(RouteResponse { status, about, kind: None, schema: None, checked: None });
        self
    }

    /// Accepts the header `Idempotency-Key`.
    pub(crate) fn keyed(mut self) -> Self {
        self.is_keyed = true;
        self
    }

    /// Exempts the route from the rate limit for requests without a credential. Only for cheap routes.
    pub(crate) fn free(mut self) -> Self {
        self.is_free = true;
        self
    }

    /// Accepts `If-Match` with the current revision, or `If-None-Match: *` to require that nothing exists yet.
    pub(crate) fn checks_tag_or_new(mut self) -> Self {
        self.tag = Tag::CheckedOrNew;
        self
    }

    /// Accepts `If-Match` with the current revision.
    pub(crate) fn checks_tag(mut self) -> Self {
        self.tag = Tag::Checked;
        self
    }

    /// Sets the maximum size of the body, in bytes.
    pub(crate) fn body_bytes(mut self, bytes: usize) -> Self {
        self.body_bytes = Some(bytes);
        self
    }

    /// Declares an additional header that the route reads.
    pub(crate) fn reads_header(mut self, name: &'static str, about: &'static str) -> Self {
        self.headers.push((name, about));
        self
    }

    /// Declares that routes below the path `to` take the value at this pointer of the response as a parameter.
    pub(crate) fn links_to(
        mut self,
        to: &'static str,
        parameter: &'static str,
        pointer: &'static str,
    ) -> Self {
        self.links.push(ResponseLink { to, parameter, pointer });
        self
    }

    /// Offers problems as HTML pages too, for browsers.
    pub(crate) fn problem_pages(mut self) -> Self {
        self.has_problem_pages = true;
        self
    }

    /// Sets the handler and completes the route. The schemas of `P`, `Q` and `B` are published, and every request is
    /// validated against them.
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
        let answer = move |asked: RequestContext| -> BoxFuture<'static, Result<Reply, Problem>> {
            let handler = handler.clone();
            Box::pin(async move {
                let (path, query, body, handle) = &*handler;
                let RequestContext { server, caller, headers, .. } = asked;
                let path = path.read(asked.path)?;
                let pairs = form_urlencoded::parse(asked.query.as_deref().unwrap_or_default().as_bytes());
                let query = query.read(pairs.into_owned())?;
                let body = B::read(body, &headers, asked.body)?;
                handle(Call { server, caller, path, query, body, headers }).await
            })
        };
        let input = RouteInput {
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
            responses: self.responses,
            is_keyed: self.is_keyed,
            is_free: self.is_free,
            tag: self.tag,
            body_bytes: self.body_bytes,
            headers: self.headers,
            links: self.links,
            has_problem_pages: self.has_problem_pages,
            input,
            handler: Arc::new(answer),
        }
    }
}

impl Route {
    /// Runs the handler for an admitted request.
    pub(crate) async fn answer(&self, asked: RequestContext) -> Result<Reply, Problem> {
        let reply = (self.handler)(asked).await?;
        if cfg!(debug_assertions) {
            self.validate_against_contract(&reply);
        }
        Ok(reply)
    }

    /// Panics if a reply does not match the contract. Called in debug builds only.
    fn validate_against_contract(&self, reply: &Reply) {
        // Complete responses, such as pages for people, are not part of the JSON contract.
        if matches!(reply.content, Content::Whole(_)) {
            return;
        }
        let (status, kind) = (reply.status, reply.kind());
        let response =
            self.responses.iter().find(|response| response.status == status && response.kind == kind);
        let response =
            response.unwrap_or_else(|| unreachable!("{}: {status} {kind:?} is not in the contract", self.id));
        let (Content::Json(body), Some(schema)) = (&reply.content, &response.checked) else { return };
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let violations = schema.check(&value);
        assert!(violations.is_empty(), "{}: {violations:?} in {value}", self.id);
    }

    /// Returns the access that the route requires.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Returns the HTTP method of the route.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Returns the path, with parameters in braces.
    pub fn path(&self) -> &'static str {
        self.path
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({:?})", self.method, self.path, self.needs)
    }
}
