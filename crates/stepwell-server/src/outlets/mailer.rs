//! The SMTP client that the mail outlet and the action `email.send` share.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lettre::message::{Mailbox, MessageBuilder, MultiPart, SinglePart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParametersBuilder};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use stepwell::core::Timestamp;

use super::{SetupError, USUAL, checked};

/// SMTP status codes for rejected credentials. The mail itself may be valid, so sending is retried.
const NOT_LET_IN: [u16; 4] = [530, 534, 535, 538];

/// Encryption of the connection to an SMTP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// No encryption, for a server on a loopback address.
    None,
    /// Starts unencrypted and switches to TLS before any mail is sent. A server without STARTTLS is not used.
    StartTls,
    /// TLS from the first byte.
    Tls,
}

impl Security {
    fn port(self) -> u16 {
        match self {
            Security::None => 25,
            Security::StartTls => 587,
            Security::Tls => 465,
        }
    }
}

/// Builder of a mailer.
#[derive(Clone)]
pub struct MailerBuilder {
    host: String,
    port: Option<u16>,
    security: Security,
    is_plain_allowed: bool,
    credentials: Option<(String, String)>,
    root: Option<Vec<u8>>,
    from: String,
    timeout: Duration,
}

impl fmt::Debug for MailerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailerBuilder")
            .field("host", &self.host)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl MailerBuilder {
    /// Sets the port (default: 465 for `Tls`, 587 for `StartTls`, 25 for `None`).
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets the encryption of the connection (default: `Tls`).
    #[must_use]
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// Allows unencrypted connections to other machines. Anyone on the network path can then read the mails.
    #[must_use]
    pub fn allow_plain(mut self) -> Self {
        self.is_plain_allowed = true;
        self
    }

    /// Sets user name and password for authentication at the SMTP server.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// Trusts an additional certificate authority, in PEM format.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root = Some(pem.into());
        self
    }

    /// Sets the timeout for sending one mail (default: 20 s, at most 50 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Checks the options and builds the mailer. Does not connect to the server.
    pub fn build(self) -> Result<Mailer, SetupError> {
        if self.security == Security::None && !self.is_plain_allowed && !is_here(&self.host) {
            return Err(SetupError::new(format!(
                "mail to `{}` would be sent unencrypted over the network: use `Security::StartTls` or `Security::Tls`, or call `allow_plain`",
                self.host
            )));
        }
        let from = mailbox(&self.from).map_err(|why| {
            SetupError(format!("the sender `{}` is not a valid mail address: {why}", self.from))
        })?;
        let timeout = checked(self.timeout)?;
        let transport = self.transport(&from)?;
        Ok(Mailer(Arc::new(Inner { transport, from, timeout })))
    }

    fn transport(&self, from: &Mailbox) -> Result<AsyncSmtpTransport<Tokio1Executor>, SetupError> {
        let wrong = |error: lettre::transport::smtp::Error| SetupError(error.to_string());
        let tls = || {
            let mut parameters = TlsParametersBuilder::new(self.host.clone());
            if let Some(root) = &self.root {
                parameters = parameters.add_root_certificate(Certificate::from_pem(root).map_err(wrong)?);
            }
            parameters.build().map_err(wrong)
        };
        let tls = match self.security {
            Security::None => Tls::None,
            Security::StartTls => Tls::Required(tls()?),
            Security::Tls => Tls::Wrapper(tls()?),
        };
        let mut transport = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&self.host)
            .port(self.port.unwrap_or(self.security.port()))
            .tls(tls)
            .timeout(Some(self.timeout))
            .hello_name(ClientId::Domain(from.email.domain().to_owned()));
        if let Some((user, password)) = self.credentials.clone() {
            transport = transport.credentials(Credentials::new(user, password));
        }
        Ok(transport.build())
    }
}

/// Sends mails through one SMTP server. Clones share the mailer.
#[derive(Clone)]
pub struct Mailer(Arc<Inner>);

struct Inner {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    timeout: Duration,
}

impl fmt::Debug for Mailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailer").field("from", &self.0.from).finish_non_exhaustive()
    }
}

impl Mailer {
    /// Starts a builder with the SMTP host and the default sender address.
    pub fn builder(host: impl Into<String>, from: impl Into<String>) -> MailerBuilder {
        MailerBuilder {
            host: host.into(),
            port: None,
            security: Security::Tls,
            is_plain_allowed: false,
            credentials: None,
            root: None,
            from: from.into(),
            timeout: USUAL,
        }
    }

    /// Returns the default sender address.
    pub(crate) fn from(&self) -> &Mailbox {
        &self.0.from
    }

    /// Returns the `Message-ID` for a key. The same key always gives the same id.
    pub(crate) fn id(&self, key: &str) -> String {
        let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let key: String = key.chars().filter(fits).collect();
        format!("<{key}@{}>", self.0.from.email.domain())
    }

    /// Sends a mail and waits until the server has accepted it.
    pub(crate) async fn send(&self, mail: Message) -> Result<(), NotSent> {
        let Inner { transport, timeout, .. } = &*self.0;
        let is_ascii = mail.envelope().to().iter().all(|address| address.to_string().is_ascii());
        match tokio::time::timeout(*timeout, transport.send(mail)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(NotSent::of(&error, is_ascii)),
            Err(_) => {
                let why =
                    format!("the mail server did not accept the mail within {} ms", timeout.as_millis());
                Err(NotSent { why, is_final: false })
            }
        }
    }
}

/// Reason why a mail was not sent.
#[derive(Debug)]
pub(crate) struct NotSent {
    pub(crate) why: String,
    /// A retry would fail too.
    pub(crate) is_final: bool,
}

impl NotSent {
    /// Converts an SMTP error. Permanent errors are final, except rejected credentials, which an operator can correct.
    fn of(error: &lettre::transport::smtp::Error, is_ascii: bool) -> Self {
        let code = error.status().map(u16::from);
        let is_ours = code.is_some_and(|code| NOT_LET_IN.contains(&code));
        // The server does not support addresses that are not ASCII, so a retry would fail too.
        let cannot_be_said = error.is_client() && !is_ascii;
        let is_final = (error.is_permanent() && !is_ours) || cannot_be_said;
        NotSent { why: format!("the mail was not accepted: {error}"), is_final }
    }
}

/// Starts a mail with this date.
pub(crate) fn dated(at: Timestamp) -> MessageBuilder {
    let at = u64::try_from(at.micros()).unwrap_or_default();
    Message::builder().date(SystemTime::UNIX_EPOCH + Duration::from_micros(at))
}

/// Adds the content: plain text, HTML, or both as alternatives.
pub(crate) fn worded(
    mail: MessageBuilder,
    text: Option<String>,
    html: Option<String>,
) -> Result<Message, lettre::error::Error> {
    match (text, html) {
        (Some(text), Some(html)) => mail.multipart(MultiPart::alternative_plain_html(text, html)),
        (None, Some(html)) => mail.singlepart(SinglePart::html(html)),
        (text, None) => mail.singlepart(SinglePart::plain(text.unwrap_or_default())),
    }
}

/// Parses exactly one address, plain or as `Name <address>`.
pub(crate) fn mailbox(text: &str) -> Result<Mailbox, String> {
    let text = text.trim();
    if text.chars().any(char::is_control) {
        return Err("it contains a line break or another control character".to_owned());
    }
    let (name, address) = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) => (Some(name.trim()), address),
        None => (None, text),
    };
    let quoted = name.and_then(|name| name.strip_prefix('"')?.strip_suffix('"'));
    // In an unquoted name these characters would separate addresses.
    let ends = if quoted.is_some() { "\"" } else { "<>,;\"" };
    let name = quoted.or(name);
    if name.is_some_and(|name| name.contains(|c| ends.contains(c)))
        || address.contains(|c: char| c.is_whitespace() || "<>,;\"\\".contains(c))
    {
        return Err("it must be a single address such as `ann@example.com`".to_owned());
    }
    let address: Address = address.parse().map_err(|error| format!("{error}"))?;
    Ok(Mailbox::new(name.filter(|name| !name.is_empty()).map(str::to_owned), address))
}

/// Returns true if the host is `localhost` or a loopback address.
pub(super) fn is_here(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{Mailer, mailbox};

    #[test]
    fn only_a_single_address_is_accepted() {
        assert_eq!(mailbox(" ann@example.com ").unwrap().to_string(), "ann@example.com");
        let named = mailbox("\"Ann, of Example\" <ann@example.com>").unwrap();
        assert_eq!(named.name.as_deref(), Some("Ann, of Example"));
        assert_eq!(named.email.to_string(), "ann@example.com");
        for wrong in [
            "",
            "ann",
            "ann@",
            "@example.com",
            "ann@example.com\r\nBcc: eve@example.com",
            "Ann\nX: y <ann@example.com>",
            "ann@example.com,eve@example.com",
            "ann@example.com> <eve@example.com",
            "Ann <ann@example.com>, Eve <eve@example.com, x@example.com>",
            "Ann <ann@example.com>, Eve <eve@example.com>",
            "ann@example.com, Eve <eve@example.com>",
            "\"Ann\" <ann@example.com>, \"Eve\" <eve@example.com>",
            "\"Ann <ann@example.com>",
            "<<ann@example.com>",
            "ann eve@example.com",
            "\"ann eve\"@example.com",
        ] {
            assert!(mailbox(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn message_id_is_safe_for_any_key() {
        let mailer = Mailer::builder("smtp.example.com", "Ann <ann@example.com>").build().unwrap();
        assert_eq!(mailer.id("018f-1"), "<018f-1@example.com>");
        assert_eq!(mailer.id("a>\r\nBcc: b@c"), "<aBccbc@example.com>");
    }
}
