//! The `http.request` action in workflows: requests that are sent, their results, and inputs that are refused.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::retry::{Backoff, Retry};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Failure, Spec, WorkflowSource};
use stepwell::host::BoxFuture;
use stepwell::store::{HistoryQuery, Status, TenantScope};
use stepwell::testing::TestEngine;
use stepwell::{Builder, Permission, RunError, Secrets, Signal, Start};
use stepwell_server::actions::{self, HttpOptions};

use crate::kit::until;
use crate::web::{Asked, Says, Web, says};

/// A workflow with one `http.request`, whose input is the `input` of the run.
fn once() -> Definition {
    Spec::new("once")
        .step("begin")
        .end_with("done", json!({"$expr": "context.answer"}))
        .transition(
            Transition::new("ask", "begin", "done")
                .action("http.request")
                .input(json!({"$expr": "context.input"}))
                .save_as("answer"),
        )
        .initial("begin")
        .build()
        .unwrap()
}

fn here() -> HttpOptions {
    HttpOptions { allow: vec!["127.0.0.1".to_owned()], ..HttpOptions::default() }
}

async fn engine(options: HttpOptions, build: impl FnOnce(Builder) -> Builder) -> TestEngine {
    let http = options.build().unwrap();
    TestEngine::start(|engine| build(actions::http(engine, http))).await.unwrap()
}

async fn asking(options: HttpOptions) -> TestEngine {
    engine(options, |engine| engine.workflow(once())).await
}

/// Runs one request and returns its result. Panics after 60 seconds.
async fn ask(engine: &TestEngine, input: Value) -> Result<Value, Failure> {
    let run = engine.start(Start::new("once").input(&json!({"input": input}))).await.unwrap();
    let result = tokio::time::timeout(Duration::from_secs(60), run.result()).await;
    match result.unwrap_or_else(|_| panic!("no result within 60 seconds: {input}")) {
        Ok(output) => Ok(output),
        Err(RunError::Failed { error, .. }) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

/// Asserts the code of a failure and whether it is final. Returns its message.
#[track_caller]
fn is(result: Result<Value, Failure>, code: &str, is_final: bool) -> String {
    let error = result.expect_err(code);
    assert_eq!((error.code.as_str(), error.is_final), (code, is_final), "{error:?}");
    error.message
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn response_body_is_json_text_or_bytes() {
    let web = Web::start(|asked| match asked.path.as_str() {
        "/json" => says(200, &[("Content-Type", "Application/JSON; charset=utf-8")], r#"{"a": [1, null]}"#),
        "/problem" => says(200, &[("content-type", "application/vnd.api+json")], "\u{feff}[1.50]"),
        "/broken" => says(200, &[JSON], "{\"a\": "),
        "/deep" => says(200, &[JSON], "[".repeat(100_000)),
        "/empty" => says(200, &[JSON], ""),
        "/text" => says(201, &[("content-type", "text/html"), ("x-a", "1"), ("X-A", "2")], "<b>ä</b>"),
        "/number" => says(200, &[], "12"),
        "/bytes" => says(200, &[JSON, ("x-latin", "\u{e9}")], [0xff, 0xfe, 0x00]),
        _ => says(204, &[], ""),
    })
    .await;
    let engine = asking(here()).await;
    let get = async |path: &str| ask(&engine, json!({"url": web.url(path)})).await.unwrap();
    for (path, body) in [
        ("/json", json!({"a": [1, null]})),
        ("/problem", json!([1.5])),
        ("/broken", json!("{\"a\": ")),
        ("/deep", json!("[".repeat(100_000))),
        ("/empty", json!(null)),
        ("/text", json!("<b>ä</b>")),
        ("/number", json!("12")),
        ("/none", json!("")),
    ] {
        let output = get(path).await;
        assert_eq!((&output["body"], output.get("body_base64")), (&body, None), "{path}");
        assert_eq!(output["url"], web.url(path));
    }
    let text = get("/text").await;
    assert_eq!((&text["status"], &text["headers"]["x-a"]), (&json!(201), &json!("1, 2")));
    assert!(text["duration_ms"].as_u64().is_some_and(|ms| ms < 20_000), "{text}");
    let bytes = get("/bytes").await;
    assert_eq!((&bytes["body"], &bytes["body_base64"]), (&json!(null), &json!("//4A")));
}

#[tokio::test]
async fn a_request_is_sent_as_it_was_written() {
    let web = Web::start(|_| says(200, &[], "")).await;
    let engine = asking(here()).await;
    let send = async |input: Value| {
        ask(&engine, input).await.unwrap();
        web.asked().pop().unwrap()
    };
    let plain = send(json!({"url": web.url("/a b/ä?x=1#part")})).await;
    assert_eq!((plain.method.as_str(), plain.path.as_str()), ("GET", "/a%20b/%C3%A4?x=1"));
    assert_eq!(plain.header("host"), format!("127.0.0.1:{}", web.port));
    assert_eq!((plain.header("accept"), plain.header("idempotency-key")), ("*/*", ""));
    assert!(plain.header("user-agent").starts_with("stepwell/"));
    assert!(plain.header("content-type").is_empty() && plain.body.is_empty(), "{plain:?}");

    let query = json!({"q": "a b&c=d/é", "n": 1.5, "yes": true, "none": null, "many": [1, "two"], "no": []});
    let asked = send(json!({"url": web.url("/?x=1"), "query": query, "headers": {"User-Agent": "me"}})).await;
    assert_eq!(asked.path, "/?x=1&many=1&many=two&n=1.5&q=a+b%26c%3Dd%2F%C3%A9&yes=true");
    assert_eq!(asked.header("user-agent"), "me");

    let form = "application/x-www-form-urlencoded; charset=utf-8";
    for (body, kind, sent, said) in [
        (json!({"a": [1, "ä"]}), None, r#"{"a":[1,"ä"]}"#, "application/json"),
        (json!([]), None, "[]", "application/json"),
        (json!(false), None, "false", "application/json"),
        (json!("a\r\nb"), None, "a\r\nb", "text/plain; charset=utf-8"),
        (json!("<a/>"), Some("text/xml"), "<a/>", "text/xml"),
        (json!({"a": 1}), Some("application/merge-patch+json"), r#"{"a":1}"#, "application/merge-patch+json"),
        (json!({"grant": "x y", "n": [1, 2]}), Some(form), "grant=x+y&n=1&n=2", form),
        (json!("a=b"), Some(form), "a=b", form),
        (json!(null), None, "", ""),
    ] {
        let mut input = json!({"method": "POST", "url": web.url("/"), "body": body});
        if let Some(kind) = kind {
            input["headers"] = json!({"content-TYPE": kind});
        }
        let asked = send(input).await;
        assert_eq!((asked.body.as_str(), asked.header("content-type")), (sent, said));
    }
}

/// Requests that may change something carry an idempotency key. `GET`, `HEAD` and `OPTIONS` need none.
#[tokio::test]
async fn idempotency_key_is_sent_with_unsafe_methods() {
    let web = Web::start(|_| says(200, &[], "")).await;
    let engine = asking(here()).await;
    for (method, has_key) in [
        ("GET", false),
        ("HEAD", false),
        ("OPTIONS", false),
        ("POST", true),
        ("PUT", true),
        ("PATCH", true),
        ("DELETE", true),
    ] {
        ask(&engine, json!({"method": method, "url": web.url("/")})).await.unwrap();
        let asked = web.asked().pop().unwrap();
        assert_eq!((asked.method.as_str(), asked.headers.contains_key("idempotency-key")), (method, has_key));
    }
    let post = async |more: Value| {
        let mut input = json!({"method": "POST", "url": web.url("/")});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&engine, input).await.unwrap();
        web.asked().pop().unwrap()
    };
    let other = post(json!({"idempotency_header": "X-Request"})).await;
    assert!(other.header("x-request").len() > 30 && other.header("idempotency-key").is_empty());
    assert!(post(json!({"idempotency_header": ""})).await.header("idempotency-key").is_empty());
    let own = post(json!({"headers": {"idempotency-key": "mine"}})).await;
    assert_eq!(own.header("idempotency-key"), "mine");
}

#[tokio::test]
async fn response_is_not_read_beyond_its_limit() {
    let web = Web::start(|asked| match asked.path.as_str() {
        "/endless" => Says::Endless(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
            [b"400\r\n".as_slice(), &[b'a'; 1024], b"\r\n"].concat(),
        ),
        // Announces a length and never sends the body.
        "/long" => Says::Begins(b"HTTP/1.1 200 OK\r\ncontent-length: 1048577\r\n\r\n".to_vec()),
        "/until-closed" => Says::All([b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[b'a'; 2000]].concat()),
        "/head" => Says::All(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n".to_vec()),
        "/refused" => Says::Endless(b"HTTP/1.1 500 No\r\n\r\n".to_vec(), vec![b'n'; 1024]),
        path => says(200, &[], "a".repeat(path[1..].parse().unwrap())),
    })
    .await;
    let engine = asking(here()).await;
    let get = async |path: &str, most: u64| {
        ask(&engine, json!({"url": web.url(path), "max_response_bytes": most})).await
    };
    let message = is(get("/endless", 100_000).await, "tooLarge", true);
    assert!(message.contains("100000"), "{message}");
    until("the client has disconnected", async || web.was_hung_up().then_some(())).await;
    is(ask(&engine, json!({"url": web.url("/long")})).await, "tooLarge", true);
    is(get("/until-closed", 1_999).await, "tooLarge", true);
    is(get("/1001", 1_000).await, "tooLarge", true);
    is(get("/1", 0).await, "tooLarge", true);
    assert_eq!(get("/1000", 1_000).await.unwrap()["body"], "a".repeat(1_000));
    assert_eq!(get("/until-closed", 2_000).await.unwrap()["body"], "a".repeat(2_000));
    assert_eq!(get("/0", 0).await.unwrap()["body"], "");
    let head = json!({"method": "HEAD", "url": web.url("/head"), "max_response_bytes": 0});
    assert_eq!(ask(&engine, head).await.unwrap()["headers"]["content-length"], "999999999999");
    // The limit does not apply to the body of an error status, which is cut for the message.
    let message = is(get("/refused", 0).await, "httpStatus", false);
    assert!(message.len() < 700, "{message}");
}

#[tokio::test]
async fn timeouts_and_broken_responses_are_retryable() {
    let web = Web::start(|asked| match asked.path.as_str() {
        "/silent" => Says::Begins(Vec::new()),
        "/drips" => Says::Begins(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_vec()),
        "/refuses" => Says::Begins(b"HTTP/1.1 404 No\r\ncontent-length: 10\r\n\r\nabc".to_vec()),
        "/loops" => Says::Begins(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
        "/breaks" => Says::All(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_vec()),
        "/chunks" => Says::All(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc".to_vec()),
        "/both" => Says::All(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".to_vec()),
        "/head" => {
            Says::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), [b"x".repeat(60), b": y\r\n".to_vec()].concat())
        }
        _ => Says::All(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()),
    })
    .await;
    let engine = asking(here()).await;
    let get = async |path: &str| ask(&engine, json!({"url": web.url(path), "timeout_seconds": 1})).await;
    for path in ["/silent", "/drips", "/loops"] {
        let began = Instant::now();
        let message = is(get(path).await, "timeout", false);
        assert!(message.contains("1 seconds") && began.elapsed() < Duration::from_secs(60), "{message}");
    }
    let message = is(get("/refuses").await, "httpStatus", true);
    assert!(message.contains("404: abc"), "the received part is shown: {message}");
    for path in ["/breaks", "/chunks", "/both", "/head", "/other"] {
        is(get(path).await, "connect", false);
    }
    let nobody = ask(&engine, json!({"url": "http://127.0.0.1:1/"})).await;
    assert!(is(nobody, "connect", false).contains("cannot reach `127.0.0.1`"));
}

#[tokio::test]
async fn expected_status_succeeds_and_client_errors_are_final() {
    let web = Web::start(|asked| match &asked.path[1..] {
        "later" => says(429, &[("retry-after", "30")], "slow down"),
        "date" => says(503, &[("retry-after", "Fri, 31 Dec 2027 23:59:59 GMT")], ""),
        "bytes" => says(500, &[], [0xff; 3]),
        "long" => says(500, &[], "ä".repeat(3_000)),
        status => says(status.parse().unwrap(), &[("retry-after", "9")], r#"{"why": "because"}"#),
    })
    .await;
    let engine = asking(here()).await;
    let get = async |path: &str| ask(&engine, json!({"url": web.url(path)})).await;
    for status in [400, 401, 403, 404, 405, 409, 410, 418, 422, 451] {
        let message = is(get(&format!("/{status}")).await, "httpStatus", true);
        let body = r#"{"why": "because"}"#;
        assert_eq!(message, format!("`127.0.0.1` answered with status {status}: {body}"));
    }
    for status in [408, 425, 429, 500, 501, 502, 503, 504, 599] {
        let message = is(get(&format!("/{status}")).await, "httpStatus", false);
        assert!(message.contains(&status.to_string()), "{message}");
        assert_eq!(message.contains("Retry-After"), matches!(status, 429 | 503), "{message}");
    }
    let message = is(get("/later").await, "httpStatus", false);
    assert!(message.contains("after 30 seconds (Retry-After): slow down"), "{message}");
    let message = is(get("/date").await, "httpStatus", false);
    assert!(message.ends_with("after Fri, 31 Dec 2027 23:59:59 GMT (Retry-After)"), "{message}");
    assert!(is(get("/bytes").await, "httpStatus", false).ends_with("(3 bytes of binary data)"));
    let message = is(get("/long").await, "httpStatus", false);
    assert_eq!(message.matches('ä').count(), 500, "{message}");

    let expecting = async |status: u16, expected: Value| {
        ask(&engine, json!({"url": web.url(&format!("/{status}")), "expect_status": expected})).await
    };
    for (status, expected) in
        [(404, json!([404])), (404, json!(["4xx"])), (200, json!([404, "2XX"])), (503, json!(["503"]))]
    {
        assert_eq!(expecting(status, expected).await.unwrap()["status"], status);
    }
    is(expecting(200, json!([201])).await, "httpStatus", false);
    is(expecting(404, json!(["5xx", 403])).await, "httpStatus", true);
    for wrong in [
        json!([]),
        json!([99]),
        json!([600]),
        json!(["6xx"]),
        json!(["xx"]),
        json!(["2x"]),
        json!([""]),
        json!(["+20"]),
        json!(["20xx"]),
        json!([-1]),
        json!("2xx "),
    ] {
        is(expecting(200, wrong).await, "invalidInput", true);
    }
}

#[tokio::test]
async fn redirects_are_followed_only_within_the_same_origin() {
    let other = Web::start(|_| says(200, &[], "secret")).await;
    let elsewhere = other.port;
    let web = Web::start(move |asked| {
        let to = |status: u16, location: &str| says(status, &[("location", location)], "");
        let here = asked.header("host").to_owned();
        match asked.path.as_str() {
            "/a/relative" => to(302, "end?x=1#part"),
            "/path" => to(301, "/a/end"),
            "/full" => to(308, &format!("http://{here}/a/end")),
            "/noscheme" => to(307, &format!("//{here}/a/end")),
            "/see" => to(303, "/a/end"),
            "/port" => to(302, &format!("http://127.0.0.1:{elsewhere}/")),
            "/host" => to(302, &format!("http://localhost:{elsewhere}/")),
            "/private" => to(302, "http://169.254.169.254/latest/meta-data/"),
            "/scheme" => to(302, &format!("https://{here}/a/end")),
            "/file" => to(302, "file:///etc/passwd"),
            "/script" => to(302, "javascript:alert(1)"),
            "/user" => to(302, &format!("http://ann:secret@{here}/a/end")),
            "/trick" => to(302, &format!("http://{here}@localhost:{elsewhere}/")),
            "/slashes" => to(302, &format!("/\\127.0.0.1:{elsewhere}/")),
            "/bad" => to(302, "http://[::1"),
            "/nowhere" => says(302, &[], "no location"),
            "/loop" => to(302, "/loop"),
            path if path.starts_with("/n/") => match path[3..].parse::<u32>().unwrap() {
                0 => says(200, &[], "end"),
                left => to(302, &format!("/n/{}", left - 1)),
            },
            _ => says(200, &[], "end"),
        }
    })
    .await;
    let engine = asking(HttpOptions {
        allow: vec!["127.0.0.0/8".to_owned(), "localhost".to_owned(), "169.254.169.254".to_owned()],
        ..HttpOptions::default()
    })
    .await;
    let get = async |path: &str| ask(&engine, json!({"url": web.url(path)})).await;
    for path in ["/a/relative", "/path", "/full", "/noscheme", "/see", "/n/5"] {
        assert_eq!(get(path).await.unwrap()["body"], "end", "{path}");
    }
    let output = get("/a/relative").await.unwrap();
    assert_eq!(output["url"], web.url("/a/end"), "the query may contain secrets");
    assert_eq!(web.asked().last().unwrap().path, "/a/end?x=1");
    for path in [
        "/port", "/host", "/private", "/scheme", "/file", "/script", "/user", "/trick", "/slashes", "/bad",
        "/loop", "/n/6",
    ] {
        let message = is(get(path).await, "redirectRefused", true);
        assert!(!message.contains("secret@"), "{message}");
    }
    assert!(other.asked().is_empty());
    is(get("/nowhere").await, "httpStatus", false);
    let stays = json!({"url": web.url("/path"), "follow_redirects": false, "expect_status": ["3xx"]});
    assert_eq!(ask(&engine, stays).await.unwrap()["headers"]["location"], "/a/end");

    // A 303 turns every method but `HEAD` into `GET`, and 301 and 302 turn `POST` into `GET`. Otherwise the method and
    // the body are sent again.
    for (method, path, then, body) in [
        ("POST", "/see", "GET", ""),
        ("POST", "/path", "GET", ""),
        ("POST", "/full", "POST", "hi"),
        ("DELETE", "/path", "DELETE", "hi"),
        ("PUT", "/noscheme", "PUT", "hi"),
        ("PUT", "/see", "GET", ""),
        ("HEAD", "/see", "HEAD", "hi"),
    ] {
        ask(&engine, json!({"method": method, "url": web.url(path), "body": "hi"})).await.unwrap();
        let asked = web.asked().pop().unwrap();
        assert_eq!((asked.method.as_str(), asked.body.as_str()), (then, body), "{method} {path}");
        assert_eq!(asked.headers.contains_key("content-type"), !body.is_empty(), "{method} {path}");
        let changes = !matches!(then, "GET" | "HEAD");
        assert_eq!(asked.headers.contains_key("idempotency-key"), changes, "{method} {path}");
    }
}

/// Requests cannot reach a private network, however the address is spelled.
#[tokio::test]
async fn private_addresses_are_refused_in_every_spelling() {
    let web = Web::start(|_| says(200, &[], "secret")).await;
    let engine = asking(HttpOptions::default()).await;
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.255.255.254",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "%31%32%37.0.0.1",
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "localhost",
        "LOCALHOST",
        "0.0.0.0",
        "0",
        "10.0.0.1",
        "167772161",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "2852039166",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:a9fe:a9fe]",
        "[::ffff:8.8.8.8]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[ff02::1]",
    ] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{host}:{}/", web.port);
            let message = is(ask(&engine, json!({"url": url})).await, "refusedAddress", true);
            assert!(message.contains("private network"), "{url}: {message}");
        }
    }
    // The error depends on the resolver; in any case no request is sent.
    let url = format!("http://localhost.:{}/", web.port);
    assert!(ask(&engine, json!({"url": url, "timeout_seconds": 1})).await.is_err());
    // These are not valid addresses, so no request is sent.
    for host in ["[fe80::1%25eth0]", "[::1", "256.0.0.1", "127.0.0.1.1.1", "1.2.3.4.5", "0x100000000"] {
        is(ask(&engine, json!({"url": format!("http://{host}/")})).await, "invalidInput", true);
    }
    assert!(web.asked().is_empty());
}

#[tokio::test]
async fn allowed_hosts_follow_the_options() {
    let web = Web::start(|_| says(200, &[], "ok")).await;
    let asks = async |options: HttpOptions, host: &str| {
        let url = format!("http://{host}:{}/", web.port);
        ask(&asking(options).await, json!({"url": url})).await.map(|output| output["body"].clone())
    };
    let allow = |entry: &str| HttpOptions { allow: vec![entry.to_owned()], ..HttpOptions::default() };
    for (entry, host, is_allowed) in [
        ("127.0.0.1", "127.0.0.1", true),
        ("127.0.0.1", "2130706433", true),
        ("127.0.0.0/8", "127.0.0.1", true),
        ("127.0.0.2", "127.0.0.1", false),
        ("10.0.0.0/8", "127.0.0.1", false),
        ("localhost", "127.0.0.1", false),
        // An allowed address also allows names that resolve to it, but not its IPv4-mapped IPv6 form.
        ("127.0.0.1", "[::ffff:127.0.0.1]", false),
        ("::/0", "127.0.0.1", false),
    ] {
        let result = asks(allow(entry), host).await;
        match is_allowed {
            true => assert_eq!(result.unwrap(), "ok", "{entry} {host}"),
            false => drop(is(result, "refusedAddress", true)),
        }
    }
    assert_eq!(asks(allow("LocalHost."), "localhost").await.unwrap(), "ok");
    let only = HttpOptions { only: vec!["api.example.com".to_owned()], ..here() };
    assert_eq!(asks(only.clone(), "127.0.0.1").await.unwrap(), "ok");
    let public = HttpOptions { only: vec!["[2606:4700:0::1111]".to_owned()], ..HttpOptions::default() };
    is(asks(public, "[2606:4700::1112]").await, "refusedAddress", true);
    let other = ask(&asking(only).await, json!({"url": "https://example.com/"})).await;
    assert!(is(other, "refusedAddress", true).contains("not one of the allowed hosts"));
    let https = HttpOptions { https_only: true, ..HttpOptions::default() };
    let plain = ask(&asking(https).await, json!({"url": "http://example.com/"})).await;
    assert!(is(plain, "refusedAddress", true).contains("https"));
    for wrong in ["", "http://a", "10.0.0.0/99", "a b"] {
        assert!(allow(wrong).build().is_err(), "{wrong:?}");
        let only = HttpOptions { only: vec![wrong.to_owned()], ..HttpOptions::default() };
        assert!(only.build().is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn invalid_requests_are_refused_before_sending() {
    let web = Web::start(|_| says(200, &[], "")).await;
    let engine = asking(here()).await;
    let url = web.url("/");
    let with = |field: &str, value: Value| {
        let mut input = json!({"url": url, "method": "POST"});
        input[field] = value;
        input
    };
    let mut wrong = vec![json!({}), json!({"url": 1}), json!(null), json!("https://example.com")];
    for bad in [
        "",
        " ",
        "/path",
        "example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://",
        "http:///",
        "http://a b/",
        "http://ann@127.0.0.1/",
        "http://ann:secret@127.0.0.1/",
        "http://:secret@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1/\r\nX: y",
        "http://127.0.0.1/\t",
    ] {
        wrong.push(with("url", json!(bad)));
    }
    wrong.push(with("url", json!(format!("{url}{}", "a".repeat(70_000)))));
    for name in [
        "Host",
        "host",
        "Content-Length",
        "TRANSFER-ENCODING",
        "Connection",
        "Upgrade",
        "TE",
        "Expect",
        "",
        "a b",
        "a:b",
        "a\r\nb",
        "ä",
    ] {
        wrong.push(with("headers", json!({ name: "x" })));
        if !name.is_empty() {
            wrong.push(with("idempotency_header", json!(name)));
        }
    }
    for value in ["a\r\nX-Evil: 1", "a\nb", "a\0b", "\u{7f}"] {
        wrong.push(with("headers", json!({ "x-a": value })));
    }
    wrong.extend([
        with("headers", json!({"X-A": "1", "x-a": "2"})),
        with("headers", json!({"x": 1})),
        with("headers", json!(["x"])),
        with("query", json!({"a": {}})),
        with("query", json!({"a": [[1]]})),
        with("query", json!("a=b")),
        with("timeout_seconds", json!(0)),
        with("timeout_seconds", json!(301)),
        with("timeout_seconds", json!(-1)),
        with("timeout_seconds", json!(1.5)),
        with("max_response_bytes", json!(16 * 1024 * 1024 + 1)),
        with("max_response_bytes", json!(-1)),
        with("method", json!("TRACE")),
        with("method", json!("CONNECT")),
        with("method", json!("GET / HTTP/1.1\r\nX: y")),
        with("follow_redirects", json!("no")),
        with("retries", json!(3)),
        json!({"url": url, "method": "POST", "body": {"a": {}},
            "headers": {"content-type": "application/x-www-form-urlencoded"}}),
    ]);
    for input in wrong {
        let text: String = input.to_string().chars().take(200).collect();
        let error = ask(&engine, input).await.expect_err(&text);
        assert_eq!((error.code.as_str(), error.is_final), ("invalidInput", true), "{text}: {error:?}");
        assert!(!error.message.contains("secret"), "{error:?}");
    }
    assert!(web.asked().is_empty(), "{:?}", web.asked());
}

fn keys(asked: &[Asked]) -> Vec<(String, String)> {
    asked.iter().map(|asked| (asked.body.clone(), asked.header("idempotency-key").to_owned())).collect()
}

/// Starts a web server that answers every second request with 503, the first one included.
async fn moody() -> Web {
    let seen: Arc<Mutex<u32>> = Arc::default();
    Web::start(move |_| {
        let mut seen = seen.lock().unwrap();
        *seen += 1;
        says(if *seen % 2 == 1 { 503 } else { 200 }, &[], "")
    })
    .await
}

#[tokio::test]
async fn retries_share_one_key_and_each_firing_gets_a_new_one() {
    let web = moody().await;
    let request = Transition::new("post", "begin", "begin")
        .on_signal("GO")
        .action("http.request")
        .input(json!({"method": "POST", "url": web.url("/"), "body": {"$expr": "event.n"}}))
        .retry(Retry { attempts: 3, delay_ms: 1_000, backoff: Backoff::Fixed, ..Retry::default() });
    let definition = Spec::new("again")
        .step("begin")
        .end("done")
        .signal("GO")
        .signal("STOP")
        .transition(request)
        .transition(Transition::new("stop", "begin", "done").on_signal("STOP"))
        .initial("begin")
        .build()
        .unwrap();
    let engine = engine(here(), |engine| engine.workflow(definition)).await;
    let run = engine.start(Start::new("again")).await.unwrap();
    for pass in 0..2 {
        run.signal(Signal::new("GO").with(&json!({"n": pass}))).await.unwrap();
        until("the first attempt has failed", async || {
            let tried = run.view().await.unwrap().ledger.failures.len();
            (web.asked().len() == 2 * pass + 1 && tried > pass).then_some(())
        })
        .await;
        engine.advance(Duration::from_secs(2)).await;
        until("the request is retried", async || (web.asked().len() == 2 * pass + 2).then_some(())).await;
        engine.settle().await;
    }
    let keys = keys(&web.asked());
    let (first, second) = (keys[0].1.clone(), keys[2].1.clone());
    assert!(first.contains(&run.id().to_string()) && first != second, "{keys:?}");
    let expected = [("0", &first), ("0", &first), ("1", &second), ("1", &second)];
    assert_eq!(keys, expected.map(|(body, key)| (body.to_owned(), key.clone())));
}

/// The same for a workflow document: retries of a step share one key, and each iteration of a loop has its own.
#[tokio::test]
async fn document_step_keeps_its_key_across_retries() {
    let web = moody().await;
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2]
    itemVar: n
    body:
      - id: post
        type: action.call
        action: http.request
        retry: { attempts: 3, delay: 0s }
        input: { method: POST, url: { $expr: payload.url }, body: { $expr: n } }
";
    let document =
        WorkflowSource::read(text, Some("written")).unwrap_or_else(|problems| panic!("{problems}"));
    let engine = engine(here(), |engine| engine.workflow(document.definition().clone())).await;
    let run = engine.start(Start::new("written").input(&json!({"url": web.url("/")}))).await.unwrap();
    until("all is sent", async || (run.view().await.unwrap().status == Status::Completed).then_some(()))
        .await;
    let keys = keys(&web.asked());
    let bodies: Vec<_> = keys.iter().map(|(body, _)| body.as_str()).collect();
    assert_eq!(bodies, ["1", "1", "2", "2"]);
    assert!(keys[0].1 == keys[1].1 && keys[2].1 == keys[3].1 && keys[1].1 != keys[2].1, "{keys:?}");
}

/// Provides the secrets of these tests.
struct Known;

const TOKEN: &str = "Bearer hunter2/+hunter2==";

/// A secret of more than 5,000 characters, which contains another secret.
fn long() -> String {
    format!("Hunter2 {TOKEN} {}", "hunter2 ".repeat(700))
}

impl Secrets for Known {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let found = match name {
            "TOKEN" => Some(TOKEN.to_owned()),
            "LONG" => Some(long()),
            name => name
                .strip_prefix("URL_")
                .map(|port| format!("HTTP://127.0.0.1:{port}/hook/hunter2?k=hunter2/+")),
        };
        Box::pin(async move { Ok(found) })
    }
}

#[tokio::test]
async fn secret_reaches_the_server_and_is_not_stored() {
    let web = Web::start(|asked| {
        let echo = format!("{} {}", asked.header("authorization"), asked.body);
        match asked.path.split('?').next().unwrap() {
            // Both answers are cut inside a secret. The second secret is longer than the part that is shown.
            "/cut" => says(500, &[], format!("{}{TOKEN}{}", "a".repeat(490), "b".repeat(500))),
            "/long" => says(500, &[], format!("{}{}", "a".repeat(490), long())),
            "/no" => says(403, &[], format!("not with {echo}")),
            "/on" => says(302, &[("location", "/end?k=hunter2%2F%2B")], ""),
            _ => says(200, &[("x-echo", asked.header("authorization"))], echo),
        }
    })
    .await;
    let hidden = json!({"$secret": "TOKEN"});
    let request = |id: &str, url: Value, method: &str| {
        json!({"id": id, "type": "action.call", "action": "http.request", "onError": "continue",
            "input": {"url": url, "method": method, "headers": {"Authorization": hidden},
                "query": {"key": hidden}, "body": {"password": hidden}}})
    };
    let steps = json!({"steps": [
        request("ok", json!(web.url("/ok")), "POST"),
        request("no", json!(web.url("/no")), "POST"),
        request("cut", json!(web.url("/cut")), "GET"),
        request("on", json!(web.url("/on")), "GET"),
        json!({"id": "long", "type": "action.call", "action": "http.request", "onError": "continue",
            "input": {"url": web.url("/long"), "method": "POST", "body": {"$secret": "LONG"},
                "headers": {"Authorization": hidden}}}),
        request("whole", json!({"$secret": format!("URL_{}", web.port)}), "GET"),
    ]});
    let document =
        WorkflowSource::read(&steps.to_string(), Some("secret")).unwrap_or_else(|wrong| panic!("{wrong}"));
    let engine = engine(here(), |engine| engine.workflow(document.definition().clone()).secrets(Known)).await;
    let run = engine.start(Start::new("secret")).await.unwrap();
    until("all is sent", async || (run.view().await.unwrap().status == Status::Completed).then_some(()))
        .await;
    let asked = web.asked();
    assert_eq!(asked.len(), 7, "{asked:?}");
    let others = ["/end", "/long"];
    for asked in asked.iter().filter(|asked| !others.iter().any(|path| asked.path.starts_with(path))) {
        assert_eq!(asked.header("authorization"), TOKEN);
        assert!(asked.body.contains(TOKEN), "{asked:?}");
        assert!(asked.path.contains("key=Bearer+hunter2%2F%2Bhunter2%3D%3D"), "{asked:?}");
    }
    let query = HistoryQuery { run: run.id(), from: 0, with_state: true, limit: 100 };
    let rows = engine.store().history(engine.scope(), query).await.unwrap().items;
    assert!(rows.len() > 4);
    for row in rows {
        let kept = [row.state.as_deref().unwrap_or_default(), &row.entry[..]].concat();
        let kept = String::from_utf8_lossy(&kept);
        assert!(!kept.contains("nter2") && !kept.contains("Bearer"), "{kept}");
    }
    let view = format!("{:?}", run.view().await.unwrap());
    assert!(!view.contains("nter2") && view.contains("***"), "{view}");
}

#[tokio::test]
async fn http_action_is_described_for_editors() {
    let engine = asking(here()).await;
    let info = engine.actions().into_iter().find(|info| info.name.as_str() == "http.request").unwrap();
    assert_eq!((info.group.as_str(), info.icon.as_str(), info.version), ("http", "globe", 1));
    assert_eq!((info.permission, info.has_side_effects), (Some(Permission::Manage), true));
    assert_eq!(info.input["additionalProperties"], false);
    assert_eq!(info.input["required"], json!(["url"]));
    let fields = info.input["properties"].as_object().unwrap();
    assert_eq!(fields.len(), 10);
    for (name, field) in fields {
        assert!(field["description"].as_str().is_some_and(|text| text.len() > 10), "{name}: {field}");
        assert!(field.get("x-workflow-editor").is_some(), "{name}: {field}");
    }
    for (name, default) in [
        ("method", json!("GET")),
        ("timeout_seconds", json!(30)),
        ("max_response_bytes", json!(1024 * 1024)),
        ("expect_status", json!(["2xx"])),
        ("follow_redirects", json!(true)),
    ] {
        assert_eq!(fields[name]["default"], default, "{name}");
    }
    for field in ["status", "headers", "body", "body_base64", "url", "duration_ms"] {
        assert!(info.output["properties"][field]["description"].is_string(), "{field}");
    }
}
