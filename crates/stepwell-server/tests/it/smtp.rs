//! A mail server for tests: it stores the mails it gets, and rejects them or stops responding on request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::until;

/// A failure that the server simulates for one connection.
#[derive(Debug, Clone)]
pub(crate) enum SmtpFailure {
    /// Sends this reply to the recipient command (`RCPT`).
    Says(&'static str),
    /// Sends this reply as the greeting of the connection.
    Greets(&'static str),
    /// Stops responding after the recipient command (`RCPT`).
    Hangs,
}

/// A received mail. `from` and `to` are the lines of the SMTP commands.
#[derive(Debug, Clone)]
pub(crate) struct Mail {
    pub(crate) from: String,
    pub(crate) to: Vec<String>,
    pub(crate) text: String,
}

impl Mail {
    /// Returns the unfolded values of the headers with this name.
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        let head = self.text.split("\r\n\r\n").next().unwrap().replace("\r\n ", " ");
        let lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).collect()
    }

    /// Decodes the quoted-printable text of the mail.
    pub(crate) fn decoded(&self) -> String {
        let bytes = self.text.replace("=\r\n", "").into_bytes();
        let (mut plain, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
            match hex.filter(|_| bytes[at] == b'=').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => {
                    plain.push(byte);
                    at += 3;
                }
                None => {
                    plain.push(bytes[at]);
                    at += 1;
                }
            }
        }
        String::from_utf8(plain).unwrap()
    }

    /// Returns the path of the first answer link in the mail.
    pub(crate) fn link(&self) -> String {
        let text = self.decoded();
        let at = text.find("https://flows.example.com/l/").unwrap_or_else(|| panic!("{text}"));
        let link = text[at..].split(|c: char| c.is_whitespace() || c == '"').next().unwrap();
        link.trim_start_matches("https://flows.example.com").to_owned()
    }
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) port: u16,
    mails: Arc<Mutex<Vec<Mail>>>,
    moods: Arc<Mutex<VecDeque<SmtpFailure>>>,
    asked: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server {
            port: listener.local_addr().unwrap().port(),
            mails: Arc::default(),
            moods: Arc::default(),
            asked: Arc::default(),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = serving.clone();
                tokio::spawn(async move {
                    // An error means that the client has disconnected.
                    let _ = server.serve(stream).await;
                });
            }
        });
        server
    }

    /// Adds failures for the next connections, one for each.
    pub(crate) fn moods(&self, moods: impl IntoIterator<Item = SmtpFailure>) {
        self.moods.lock().unwrap().extend(moods);
    }

    pub(crate) fn mails(&self) -> Vec<Mail> {
        self.mails.lock().unwrap().clone()
    }

    /// Waits for the first mail and returns it.
    pub(crate) async fn mail(&self) -> Mail {
        until("a mail arrives", async || self.mails().first().cloned()).await
    }

    /// Returns the number of connections so far.
    pub(crate) fn connection_count(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mood = self.moods.lock().unwrap().pop_front();
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (reading, mut writing) = stream.split();
        let mut lines = BufReader::new(reading).lines();
        let greeting = match mood {
            Some(SmtpFailure::Greets(greeting)) => greeting,
            _ => "220 mail.example.com",
        };
        writing.write_all(format!("{greeting}\r\n").as_bytes()).await?;
        let mut mail = Mail { from: String::new(), to: Vec::new(), text: String::new() };
        while let Some(line) = lines.next_line().await? {
            let answer = match line.split([' ', ':']).next().unwrap_or_default() {
                "EHLO" => "250-mail.example.com\r\n250 8BITMIME",
                "MAIL" => {
                    mail.from = line;
                    "250 ok"
                }
                "RCPT" => {
                    mail.to.push(line);
                    match mood {
                        Some(SmtpFailure::Says(answer)) => answer,
                        Some(SmtpFailure::Hangs) => std::future::pending().await,
                        _ => "250 ok",
                    }
                }
                "DATA" => {
                    writing.write_all(b"354 go on\r\n").await?;
                    while let Some(line) = lines.next_line().await?.filter(|line| line != ".") {
                        mail.text.push_str(line.strip_prefix("..").map_or(&line, |_| &line[1..]));
                        mail.text.push_str("\r\n");
                    }
                    self.mails.lock().unwrap().push(mail.clone());
                    "250 taken"
                }
                "QUIT" => {
                    writing.write_all(b"221 bye\r\n").await?;
                    return Ok(());
                }
                _ => "500 what?",
            };
            writing.write_all(format!("{answer}\r\n").as_bytes()).await?;
        }
        Ok(())
    }
}
