//! The webhook outlet, which sends the tokens and answer links of flows to programs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use stepwell::flow::{Message, Outlet};
use stepwell_server::outlets::{Webhook, WebhookBuilder};
use stepwell_server::routes::FlowRoutes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::flows::world_with;
use crate::kit::{self, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A receiver of webhooks. It answers with the last of `statuses` and removes it; with 204 if there is none.
#[derive(Clone)]
struct Receiver {
    address: String,
    came: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    statuses: Arc<Mutex<Vec<u16>>>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let receiver = Receiver { address, came: Arc::default(), statuses: Arc::default() };
        let router = Router::new().route("/hook", post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    fn came(&self) -> Vec<(HeaderMap, Bytes)> {
        self.came.lock().unwrap().clone()
    }
}

async fn take(
    State(receiver): State<Receiver>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, [(&'static str, String); 1]) {
    receiver.came.lock().unwrap().push((headers, body));
    let status = receiver.statuses.lock().unwrap().pop().unwrap_or(204);
    (StatusCode::from_u16(status).unwrap(), [("location", format!("{}/hook", receiver.address))])
}

fn webhook() -> WebhookBuilder {
    Webhook::builder(SECRET).allow_private_host("127.0.0.1").links("https://flows.example.com/l")
}

fn message(to: &str) -> Message {
    let flow: stepwell::core::RunId = "018f0000-0000-7000-8000-000000000000".parse().unwrap();
    Message {
        id: format!("{flow}-1"),
        tenant: stepwell::store::TenantScope::single().tenant(),
        flow,
        workflow: "invite".into(),
        place: "accept".into(),
        outcomes: vec!["ACCEPT".into()],
        to: to.to_owned(),
        template: None,
        data: json!({"name": "Ann"}),
        token: "handle.abc".to_owned(),
        expires_at: None,
    }
}

/// Verifies the signature of a message as its receiver would, and returns the body.
#[track_caller]
fn verified(headers: &HeaderMap, body: &[u8]) -> Value {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let signed =
        [header("webhook-id").as_bytes(), b".", header("webhook-timestamp").as_bytes(), b".", body].concat();
    let secret = STANDARD.decode(SECRET.trim_start_matches("whsec_")).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).unwrap();
    mac.update(&signed);
    let signature = header("webhook-signature");
    let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
    mac.verify_slice(&signature).unwrap();
    serde_json::from_slice(body).unwrap()
}

#[tokio::test]
async fn webhook_receiver_answers_the_flow() {
    let receiver = Receiver::start().await;
    let outlet = webhook().build().unwrap();
    let world = world_with("handle", FlowRoutes::new(), |flows| flows.outlet("hook", outlet)).await;
    let input = json!({"outlet": "hook", "to": format!("{}/hook", receiver.address), "data": {"a": 1}});
    let begun = world.start("invite", input).await.json();
    let (headers, body) = until("the webhook arrives", async || receiver.came().pop()).await;
    let message = verified(&headers, &body);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["webhook-id"].to_str().unwrap(), message["id"].as_str().unwrap());
    assert_eq!((&message["flow"], &message["data"]), (&begun["flow"], &json!({"a": 1})));
    assert_eq!((message["place"].as_str(), &message["outcomes"]), (Some("accept"), &json!(["ACCEPT"])));
    let token = message["token"].as_str().unwrap();
    assert_eq!(message["link"].as_str().unwrap(), format!("https://flows.example.com/l/{token}"));
    let answer = json!({"token": token, "input": {"name": "Ann", "age": 30}});
    let ended = kit::post("/v1/flows/resume").json(&answer).to(&world.router).await;
    assert_eq!(ended.json()["status"], "completed", "{ended:?}");
    world.engine.advance(Duration::from_secs(600)).await;
    assert_eq!(receiver.came().len(), 1);
}

#[tokio::test]
async fn webhook_status_decides_between_retry_and_failure() {
    let receiver = Receiver::start().await;
    let webhook = webhook().url(format!("{}/hook", receiver.address)).build().unwrap();
    for (status, is_final) in
        [(500, false), (503, false), (408, false), (429, false), (404, true), (307, true)]
    {
        receiver.statuses.lock().unwrap().push(status);
        let error = webhook.send(message("anything")).await.unwrap_err();
        assert_eq!(error.is_final(), is_final, "{error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
    assert_eq!(receiver.came().len(), 6, "a redirect is not followed");
    webhook.send(message("anything")).await.unwrap();
    let came = receiver.came();
    let ids: Vec<_> = came.iter().map(|(headers, _)| headers["webhook-id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "a message that is sent again has the same id");
    assert!(came.iter().all(|(_, body)| *body == came[0].1));
}

#[tokio::test]
async fn private_and_plaintext_targets_must_be_allowed() {
    let receiver = Receiver::start().await;
    let url = format!("{}/hook", receiver.address);
    let by_name = url.replace("127.0.0.1", "localhost");
    let strict = Webhook::builder(SECRET).build().unwrap();
    for to in [
        url.as_str(),
        &by_name,
        "http://hooks.example.com/",
        "https://10.0.0.1/",
        "ftp://example.com/",
        "ann",
    ] {
        let error = strict.send(message(to)).await.unwrap_err();
        assert!(error.is_final(), "{to}: {error}");
    }
    assert!(Webhook::builder(SECRET).url(&url).build().is_err());
    let only = webhook().allow_host("hooks.example.com").build().unwrap();
    assert!(only.send(message("https://other.example.com/")).await.unwrap_err().is_final());
    only.send(message(&url)).await.unwrap();
    assert_eq!(receiver.came().len(), 1);
}

#[tokio::test]
async fn unreachable_receiver_is_retryable() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let webhook = webhook().timeout(Duration::from_millis(100)).build().unwrap();
    let error = webhook.send(message(&url)).await.unwrap_err();
    assert!(!error.is_final() && error.to_string().contains("100 ms"), "{error}");
    drop(silent);
    let error = webhook.send(message(&url)).await.unwrap_err();
    assert!(!error.is_final() && error.to_string().contains("cannot reach"), "{error}");
}

/// Over HTTPS, nothing is sent to a server whose certificate is not from a known authority.
#[tokio::test]
async fn certificate_is_checked_before_sending() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(key).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/hook", listener.local_addr().unwrap().port());
    let came = Arc::new(Mutex::new(String::new()));
    let taking = came.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut bytes = vec![0; 64 * 1024];
            let count = stream.read(&mut bytes).await.unwrap();
            taking.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
            let _ = stream.shutdown().await;
        }
    });
    let unknown = webhook().allow_private_host("localhost").build().unwrap();
    let error = unknown.send(message(&url)).await.unwrap_err();
    assert!(!error.is_final() && error.to_string().contains("cannot reach"), "{error}");
    assert_eq!(*came.lock().unwrap(), "");

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let known = webhook().allow_private_host("localhost").tls(config).build().unwrap();
    known.send(message(&url)).await.unwrap();
    let came = came.lock().unwrap().to_lowercase();
    assert!(came.starts_with("post /hook http/1.1") && came.contains("webhook-signature: v1,"), "{came}");
}
