//! Mail over SMTP: what resumes a flow is a link in it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lettre::message::{Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParametersBuilder};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use stepwell::flow::{Message, Outlet, OutletError};
use stepwell::host::BoxFuture;
use stepwell::{Clock, SystemClock};

use super::template::{Read, Written};
use super::{Links, SetupError, Template, USUAL, checked};

/// Answers of a mail server that say that our credentials are wrong: the message is not to blame, and is tried again.
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

/// Puts a mail outlet together.
#[derive(Clone)]
pub struct EmailBuilder {
    host: String,
    port: Option<u16>,
    security: Security,
    is_plain_allowed: bool,
    credentials: Option<(String, String)>,
    root: Option<Vec<u8>>,
    from: String,
    links: String,
    timeout: Duration,
    templates: BTreeMap<String, Template>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for EmailBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmailBuilder")
            .field("host", &self.host)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl EmailBuilder {
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

    /// Links may go over the network in the clear, for everybody on the way to read and use.
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

    /// The words of messages that ask for a template of this name. One called `default` is for those that ask for none.
    #[must_use]
    pub fn template(mut self, name: impl Into<String>, template: Template) -> Self {
        self.templates.insert(name.into(), template);
        self
    }

    /// The clock by which mails are dated.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Checks everything. The server is not asked yet.
    pub fn build(self) -> Result<Email, SetupError> {
        if self.security == Security::None && !self.is_plain_allowed && !is_here(&self.host) {
            return Err(SetupError::new(format!(
                "mail to `{}` would go over the network in the clear: use `Security::StartTls` or `Security::Tls`, or allow it",
                self.host
            )));
        }
        let from = mailbox(&self.from)
            .map_err(|why| SetupError(format!("mail cannot come from `{}`: {why}", self.from)))?;
        let templates =
            self.templates.iter().map(|(name, template)| Ok((name.clone(), template.read(name)?)));
        let templates = templates.collect::<Result<BTreeMap<_, _>, SetupError>>()?;
        let (links, timeout) = (Links::new(&self.links)?, checked(self.timeout)?);
        let transport = self.transport(&from)?;
        let usual = [Template::usual(false).read("default")?, Template::usual(true).read("default")?];
        let clock = self.clock;
        Ok(Email(Arc::new(Inner { transport, from, links, timeout, templates, usual, clock })))
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

/// Mail over SMTP. Each message is one mail to one address, with the message's id in its `Message-ID`, so that a mail that was
/// sent twice can be told. Clones are the same outlet.
#[derive(Clone)]
pub struct Email(Arc<Inner>);

impl fmt::Debug for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Email").field("from", &self.0.from).finish_non_exhaustive()
    }
}

struct Inner {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    links: Links,
    timeout: Duration,
    templates: BTreeMap<String, Read>,
    /// The words of whoever has none: for what does not expire, and for what does.
    usual: [Read; 2],
    clock: Arc<dyn Clock>,
}

impl Email {
    /// Mail through this server, from this address, with links to this one: `https://flows.example.com/l` for a page at
    /// `https://flows.example.com/l/{token}`.
    pub fn builder(
        host: impl Into<String>,
        from: impl Into<String>,
        links: impl Into<String>,
    ) -> EmailBuilder {
        EmailBuilder {
            host: host.into(),
            port: None,
            security: Security::Tls,
            is_plain_allowed: false,
            credentials: None,
            root: None,
            from: from.into(),
            links: links.into(),
            timeout: USUAL,
            templates: BTreeMap::new(),
            clock: Arc::new(SystemClock::default()),
        }
    }
}

impl Outlet for Email {
    fn send(&self, message: Message) -> BoxFuture<Result<(), OutletError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let mail = inner.mail(&message)?;
            match tokio::time::timeout(inner.timeout, inner.transport.send(mail)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(not_sent(&error)),
                Err(_) => Err(OutletError::new(format!(
                    "the mail server did not take the mail within {} ms",
                    inner.timeout.as_millis()
                ))),
            }
        })
    }
}

impl Inner {
    /// The message as a mail.
    fn mail(&self, message: &Message) -> Result<lettre::Message, OutletError> {
        let to = mailbox(&message.to).map_err(|why| {
            OutletError::new(format!("no mail can be sent to this address: {why}")).finally()
        })?;
        let Written { subject, text, html } = self.words(message)?;
        let at = u64::try_from(self.clock.now().micros()).unwrap_or_default();
        let mail = lettre::Message::builder()
            .from(self.from.clone())
            .to(to)
            .subject(subject)
            .date(SystemTime::UNIX_EPOCH + Duration::from_micros(at))
            .message_id(Some(self.id(message)));
        let mail = match html {
            Some(html) => mail.multipart(MultiPart::alternative_plain_html(text, html)),
            None => mail.singlepart(SinglePart::plain(text)),
        };
        mail.map_err(|error| {
            OutletError::new(format!("no mail can be made of the message: {error}")).finally()
        })
    }

    fn words(&self, message: &Message) -> Result<Written, OutletError> {
        let usual = &self.usual[usize::from(message.expires_at.is_some())];
        let template = match &message.template {
            None => self.templates.get("default").unwrap_or(usual),
            Some(name) => self.templates.get(name).ok_or_else(|| {
                let known: Vec<_> = self.templates.keys().map(|name| format!("`{name}`")).collect();
                OutletError::new(format!("there is no template `{name}`; there are: {}", known.join(", ")))
                    .finally()
            })?,
        };
        template.write(message, &self.links.to(&message.token))
    }

    /// The same for the same message, however often it is sent.
    fn id(&self, message: &Message) -> String {
        let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let id: String = message.id.chars().filter(fits).collect();
        format!("<{id}@{}>", self.from.email.domain())
    }
}

/// Why a mail was not taken. A server that says no for good is believed.
fn not_sent(error: &lettre::transport::smtp::Error) -> OutletError {
    let code = error.status().map(u16::from);
    let failed = OutletError::new(format!("the mail was not taken: {error}"));
    let is_ours = code.is_some_and(|code| NOT_LET_IN.contains(&code));
    if error.is_permanent() && !is_ours { failed.finally() } else { failed }
}

/// An address, alone or as `Name <address>`: one, and nothing else.
fn mailbox(text: &str) -> Result<Mailbox, String> {
    let text = text.trim();
    if text.chars().any(char::is_control) {
        return Err("it has a line end or another control character in it".to_owned());
    }
    let (name, address) = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) => (Some(name.trim().trim_matches('"').to_owned()), address),
        None => (None, text),
    };
    if address.contains(|c: char| c.is_whitespace() || "<>,;\"\\".contains(c)) {
        return Err("it is not one plain address such as `ann@example.com`".to_owned());
    }
    let address: Address = address.parse().map_err(|error| format!("{error}"))?;
    Ok(Mailbox::new(name.filter(|name| !name.is_empty()), address))
}

/// The host is this computer.
fn is_here(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Email, EmailBuilder, Security, is_here, mailbox};

    fn builder(host: &str) -> EmailBuilder {
        Email::builder(host, "Stepwell <noreply@example.com>", "https://flows.example.com/l")
    }

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
            "ann eve@example.com",
            "\"ann eve\"@example.com",
        ] {
            assert!(mailbox(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_this_computer_gets_mail_in_the_clear_unless_that_is_allowed() {
        for host in ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"] {
            assert!(is_here(host), "{host}");
            assert!(builder(host).security(Security::None).build().is_ok(), "{host}");
        }
        for host in ["smtp.example.com", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com"] {
            assert!(!is_here(host), "{host}");
            let error = builder(host).security(Security::None).build().unwrap_err();
            assert!(error.to_string().contains("in the clear"), "{error}");
        }
        assert!(builder("smtp.example.com").security(Security::None).allow_plain().build().is_ok());
    }

    #[test]
    fn what_cannot_work_is_refused_at_once() {
        assert!(builder("localhost").timeout(Duration::from_secs(51)).build().is_err());
        assert!(builder("localhost").timeout(Duration::ZERO).build().is_err());
        assert!(Email::builder("localhost", "nobody", "https://example.com/l").build().is_err());
        assert!(Email::builder("localhost", "a@example.com", "example.com/l").build().is_err());
    }

    #[test]
    fn a_password_is_not_shown() {
        let builder = builder("smtp.example.com").credentials("user", "hunter2");
        assert!(!format!("{builder:?}").contains("hunter2"));
        assert!(!format!("{:?}", builder.build().unwrap()).contains("hunter2"));
    }
}
