//! How mails reach a mail server: one setup for the outlet and for the action that sends mail.

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

/// Answers of a mail server that say that our credentials are wrong: the mail is not to blame, and is tried again.
const NOT_LET_IN: [u16; 4] = [530, 534, 535, 538];

/// How a connection to a mail server is kept from being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// Not at all: for a server on this computer.
    None,
    /// It begins in the clear and is encrypted before anything is said; a server that cannot is not used.
    StartTls,
    /// It is encrypted from the first byte.
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

/// Puts a mailer together.
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
    /// The port; without this, the one that is usual for the security.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// How the connection is kept from being read; without this, encrypted from the first byte.
    #[must_use]
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// Mails may go over the network in the clear, for everybody on the way to read and use.
    #[must_use]
    pub fn allow_plain(mut self) -> Self {
        self.is_plain_allowed = true;
        self
    }

    /// Who we are to the server.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// A certificate authority in PEM that the server's certificate may be from, besides those of the system.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root = Some(pem.into());
        self
    }

    /// How long sending one mail may take, at most 50 seconds; without this, 20.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Checks everything. The server is not asked yet.
    pub fn build(self) -> Result<Mailer, SetupError> {
        if self.security == Security::None && !self.is_plain_allowed && !is_here(&self.host) {
            return Err(SetupError::new(format!(
                "mail to `{}` would go over the network in the clear: use `Security::StartTls` or `Security::Tls`, or allow it",
                self.host
            )));
        }
        let from = mailbox(&self.from)
            .map_err(|why| SetupError(format!("mail cannot come from `{}`: {why}", self.from)))?;
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

/// Sends mails through one server. Clones are the same mailer.
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
    /// Mail through this server, from this address where a mail names no other.
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

    /// Who mails are from where they name nobody else.
    pub(crate) fn from(&self) -> &Mailbox {
        &self.0.from
    }

    /// The `Message-ID` of a mail: the same for the same key, however often it is sent.
    pub(crate) fn id(&self, key: &str) -> String {
        let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let key: String = key.chars().filter(fits).collect();
        format!("<{key}@{}>", self.0.from.email.domain())
    }

    /// Has the server take a mail.
    pub(crate) async fn send(&self, mail: Message) -> Result<(), NotSent> {
        let Inner { transport, timeout, .. } = &*self.0;
        let is_ascii = mail.envelope().to().iter().all(|address| address.to_string().is_ascii());
        match tokio::time::timeout(*timeout, transport.send(mail)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(NotSent::of(&error, is_ascii)),
            Err(_) => {
                let why = format!("the mail server did not take the mail within {} ms", timeout.as_millis());
                Err(NotSent { why, is_final: false })
            }
        }
    }
}

/// Why a mail was not taken.
#[derive(Debug)]
pub(crate) struct NotSent {
    pub(crate) why: String,
    /// It would not be taken at another time either.
    pub(crate) is_final: bool,
}

impl NotSent {
    /// A server that says no for good is believed, unless it is us whom it does not let in.
    fn of(error: &lettre::transport::smtp::Error, is_ascii: bool) -> Self {
        let code = error.status().map(u16::from);
        let is_ours = code.is_some_and(|code| NOT_LET_IN.contains(&code));
        // A server that cannot be told such an address will not learn it between two tries.
        let cannot_be_said = error.is_client() && !is_ascii;
        let is_final = (error.is_permanent() && !is_ours) || cannot_be_said;
        NotSent { why: format!("the mail was not taken: {error}"), is_final }
    }
}

/// A mail that is dated so.
pub(crate) fn dated(at: Timestamp) -> MessageBuilder {
    let at = u64::try_from(at.micros()).unwrap_or_default();
    Message::builder().date(SystemTime::UNIX_EPOCH + Duration::from_micros(at))
}

/// The mail with its words: as text, as HTML, or as both for the reader to choose.
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

/// An address, alone or as `Name <address>`: one, and nothing else.
pub(crate) fn mailbox(text: &str) -> Result<Mailbox, String> {
    let text = text.trim();
    if text.chars().any(char::is_control) {
        return Err("it has a line end or another control character in it".to_owned());
    }
    let (name, address) = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) => (Some(name.trim()), address),
        None => (None, text),
    };
    let quoted = name.and_then(|name| name.strip_prefix('"')?.strip_suffix('"'));
    // In a name without quotes these are the end of one address and the beginning of another.
    let ends = if quoted.is_some() { "\"" } else { "<>,;\"" };
    let name = quoted.or(name);
    if name.is_some_and(|name| name.contains(|c| ends.contains(c)))
        || address.contains(|c: char| c.is_whitespace() || "<>,;\"\\".contains(c))
    {
        return Err("it is not one plain address such as `ann@example.com`".to_owned());
    }
    let address: Address = address.parse().map_err(|error| format!("{error}"))?;
    Ok(Mailbox::new(name.filter(|name| !name.is_empty()).map(str::to_owned), address))
}

/// The host is this computer.
pub(super) fn is_here(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{Mailer, mailbox};

    #[test]
    fn an_address_is_one_address_and_nothing_else() {
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
    fn a_key_is_made_an_id_that_is_one() {
        let mailer = Mailer::builder("smtp.example.com", "Ann <ann@example.com>").build().unwrap();
        assert_eq!(mailer.id("018f-1"), "<018f-1@example.com>");
        assert_eq!(mailer.id("a>\r\nBcc: b@c"), "<aBccbc@example.com>");
    }
}
