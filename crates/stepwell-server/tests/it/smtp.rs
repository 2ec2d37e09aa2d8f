//! A mail server that keeps what it is sent, and says no or nothing at all if it is told to.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::until;

/// What the server does with the next mail, instead of taking it.
#[derive(Debug, Clone)]
pub(crate) enum Mood {
    /// It answers so when it is told the recipient.
    Says(&'static str),
    /// It answers so to whoever connects.
    Greets(&'static str),
    /// It says nothing more.
    Hangs,
}

/// A mail as it came.
#[derive(Debug, Clone)]
pub(crate) struct Mail {
    pub(crate) from: String,
    pub(crate) to: Vec<String>,
    pub(crate) text: String,
}

impl Mail {
    /// The header lines of a name, unfolded.
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        let head = self.text.split("\r\n\r\n").next().unwrap().replace("\r\n ", " ");
        let lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).collect()
    }

    /// The mail as it reads once its lines are whole again.
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

    /// The path of the first link in it.
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
    moods: Arc<Mutex<VecDeque<Mood>>>,
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
                    // Whoever hangs up has said enough.
                    let _ = server.serve(stream).await;
                });
            }
        });
        server
    }

    /// What becomes of the next mails.
    pub(crate) fn moods(&self, moods: impl IntoIterator<Item = Mood>) {
        self.moods.lock().unwrap().extend(moods);
    }

    pub(crate) fn mails(&self) -> Vec<Mail> {
        self.mails.lock().unwrap().clone()
    }

    /// Waits for the first mail.
    pub(crate) async fn mail(&self) -> Mail {
        until("a mail arrives", async || self.mails().first().cloned()).await
    }

    /// How often it was connected to.
    pub(crate) fn times_asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mood = self.moods.lock().unwrap().pop_front();
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (reading, mut writing) = stream.split();
        let mut lines = BufReader::new(reading).lines();
        let greeting = match mood {
            Some(Mood::Greets(greeting)) => greeting,
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
                        Some(Mood::Says(answer)) => answer,
                        Some(Mood::Hangs) => std::future::pending().await,
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
