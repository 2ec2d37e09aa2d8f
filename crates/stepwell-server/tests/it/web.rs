//! A web server for tests: it records requests and answers with the bytes that the test chooses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Values by lower-case header name.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(String::as_str).unwrap_or_default()
    }
}

/// The bytes of a response, and what follows them.
pub(crate) enum Says {
    /// Sends these bytes and closes the connection.
    All(Vec<u8>),
    /// Sends these bytes and keeps the connection open.
    Begins(Vec<u8>),
    /// Sends the first bytes once, then repeats the second until the client disconnects.
    Endless(Vec<u8>, Vec<u8>),
}

/// A complete response with a status, headers, a body and its `content-length`.
pub(crate) fn says(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Says {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    Says::All([bytes.as_bytes(), b"\r\n", body].concat())
}

#[derive(Clone)]
pub(crate) struct Web {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
    was_hung_up: Arc<AtomicBool>,
}

impl Web {
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Says + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let web = Web { port, asked: Arc::default(), was_hung_up: Arc::default() };
        let (serving, answer) = (web.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (web, answer) = (serving.clone(), answer.clone());
                tokio::spawn(async move {
                    // An error means that the client has disconnected.
                    let _ = web.serve(stream, &*answer).await;
                });
            }
        });
        web
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Returns true if a client has disconnected during an endless response.
    pub(crate) fn was_hung_up(&self) -> bool {
        self.was_hung_up.load(Ordering::SeqCst)
    }

    async fn serve(
        &self,
        mut stream: TcpStream,
        answer: &(dyn Fn(&Asked) -> Says + Send + Sync),
    ) -> std::io::Result<()> {
        let asked = read(&mut stream).await?;
        self.asked.lock().unwrap().push(asked.clone());
        match answer(&asked) {
            Says::All(bytes) => stream.write_all(&bytes).await,
            Says::Begins(bytes) => {
                stream.write_all(&bytes).await?;
                stream.read_u8().await.map(drop)
            }
            Says::Endless(first, more) => {
                stream.write_all(&first).await?;
                while stream.write_all(&more).await.is_ok() {}
                self.was_hung_up.store(true, Ordering::SeqCst);
                Ok(())
            }
        }
    }
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Asked> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        bytes.push(stream.read_u8().await?);
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap().split(' ');
    let (method, path) = (first.next().unwrap().to_owned(), first.next().unwrap().to_owned());
    let fields = lines.map(|line| line.split_once(": ").unwrap());
    let headers: BTreeMap<_, _> =
        fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Asked { method, path, headers, body: String::from_utf8(body).unwrap() })
}
