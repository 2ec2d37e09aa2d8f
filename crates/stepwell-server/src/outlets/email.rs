//! The mail outlet: sends a link that resumes a flow, over SMTP.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stepwell::flow::{Message, Outlet, OutletError};
use stepwell::host::BoxFuture;
use stepwell::{Clock, SystemClock};

pub use super::mailer::Security;
use super::mailer::{Mailer, MailerBuilder, dated, mailbox, worded};
use super::template::{Read, Written};
use super::{Links, MessageTemplate, SetupError};

/// Name of the template of messages that name none.
const DEFAULT: &str = "default";

/// Builder of a mail outlet.
#[derive(Clone)]
pub struct EmailBuilder {
    mailer: MailerBuilder,
    links: String,
    templates: BTreeMap<String, MessageTemplate>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for EmailBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmailBuilder").field("mailer", &self.mailer).finish_non_exhaustive()
    }
}

impl EmailBuilder {
    /// Sets the port (default: 465 for `Tls`, 587 for `StartTls`, 25 for `None`).
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.mailer = self.mailer.port(port);
        self
    }

    /// Sets the encryption of the connection (default: `Tls`).
    #[must_use]
    pub fn security(mut self, security: Security) -> Self {
        self.mailer = self.mailer.security(security);
        self
    }

    /// Allows unencrypted connections to other machines. Anyone on the network path can then read and use the links.
    #[must_use]
    pub fn allow_plain(mut self) -> Self {
        self.mailer = self.mailer.allow_plain();
        self
    }

    /// Sets user name and password for authentication at the SMTP server.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.mailer = self.mailer.credentials(user, password);
        self
    }

    /// Trusts an additional certificate authority, in PEM format.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.mailer = self.mailer.root_certificate(pem);
        self
    }

    /// Sets the timeout for sending one mail (default: 20 s, at most 50 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.mailer = self.mailer.timeout(timeout);
        self
    }

    /// Registers a template under a name. The template `default` is for messages that name none.
    #[must_use]
    pub fn template(mut self, name: impl Into<String>, template: MessageTemplate) -> Self {
        self.templates.insert(name.into(), template);
        self
    }

    /// Sets the clock for the date of mails.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Checks the options and builds the outlet. Does not connect to the server.
    pub fn build(self) -> Result<Email, SetupError> {
        let mailer = self.mailer.build()?;
        let templates =
            self.templates.iter().map(|(name, template)| Ok((name.clone(), template.read(name)?)));
        let templates = templates.collect::<Result<BTreeMap<_, _>, SetupError>>()?;
        let links = Links::new(&self.links)?;
        let usual =
            [MessageTemplate::usual(false).read("default")?, MessageTemplate::usual(true).read("default")?];
        let clock = self.clock;
        Ok(Email(Arc::new(Inner { mailer, links, templates, usual, clock })))
    }
}

/// The mail outlet.
///
/// Each message is one mail to one address. The message's id is part of the `Message-ID`, so that duplicates can be
/// recognised. Clones share the outlet.
#[derive(Clone)]
pub struct Email(Arc<Inner>);

impl fmt::Debug for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Email").field("mailer", &self.0.mailer).finish_non_exhaustive()
    }
}

struct Inner {
    mailer: Mailer,
    links: Links,
    templates: BTreeMap<String, Read>,
    /// Built-in templates: without and with an expiry time.
    usual: [Read; 2],
    clock: Arc<dyn Clock>,
}

impl Email {
    /// Starts a builder with the SMTP host, the sender address and the base URL of links.
    ///
    /// For pages at `https://flows.example.com/l/{token}` the base URL is `https://flows.example.com/l`.
    pub fn builder(
        host: impl Into<String>,
        from: impl Into<String>,
        links: impl Into<String>,
    ) -> EmailBuilder {
        Email::through(Mailer::builder(host, from), links)
    }

    /// Starts a builder with an SMTP client and the base URL of links.
    pub fn through(mailer: MailerBuilder, links: impl Into<String>) -> EmailBuilder {
        EmailBuilder {
            mailer,
            links: links.into(),
            templates: BTreeMap::new(),
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// Returns the mailer of this outlet, for example for the action `email.send`.
    pub fn mailer(&self) -> Mailer {
        self.0.mailer.clone()
    }
}

impl Outlet for Email {
    fn send(&self, message: Message) -> BoxFuture<Result<(), OutletError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let mail = inner.mail(&message)?;
            inner.mailer.send(mail).await.map_err(|not_sent| {
                let failed = OutletError::new(not_sent.why);
                if not_sent.is_final { failed.non_retryable() } else { failed }
            })
        })
    }

    fn check_template(&self, name: &str) -> Result<(), String> {
        if name == DEFAULT { Ok(()) } else { self.0.template(name).map(drop) }
    }
}

impl Inner {
    /// Builds the mail for a message.
    fn mail(&self, message: &Message) -> Result<lettre::Message, OutletError> {
        let to = mailbox(&message.to).map_err(|why| {
            OutletError::new(format!("the recipient is not a valid mail address: {why}")).non_retryable()
        })?;
        let Written { subject, text, html } = self.words(message)?;
        let mail = dated(self.clock.now())
            .from(self.mailer.from().clone())
            .to(to)
            .subject(subject)
            .message_id(Some(self.mailer.id(&message.id)));
        worded(mail, Some(text), html)
            .map_err(|error| OutletError::new(format!("cannot build the mail: {error}")).non_retryable())
    }

    fn words(&self, message: &Message) -> Result<Written, OutletError> {
        let usual = &self.usual[usize::from(message.expires_at.is_some())];
        let template = match message.template.as_deref() {
            None | Some(DEFAULT) => self.templates.get(DEFAULT).unwrap_or(usual),
            Some(name) => self.template(name).map_err(|why| OutletError::new(why).non_retryable())?,
        };
        template.write(message, &self.links.to(&message.token))
    }

    fn template(&self, name: &str) -> Result<&Read, String> {
        self.templates.get(name).ok_or_else(|| {
            let known: Vec<_> = self.templates.keys().map(|name| format!("`{name}`")).collect();
            format!("unknown template `{name}`; registered templates: {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Email, EmailBuilder, Security};
    use crate::outlets::mailer::is_here;

    fn builder(host: &str) -> EmailBuilder {
        Email::builder(host, "Stepwell <noreply@example.com>", "https://flows.example.com/l")
    }

    #[test]
    fn plain_smtp_is_for_loopback_unless_allowed() {
        for host in ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"] {
            assert!(is_here(host), "{host}");
            assert!(builder(host).security(Security::None).build().is_ok(), "{host}");
        }
        for host in ["smtp.example.com", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com"] {
            assert!(!is_here(host), "{host}");
            let error = builder(host).security(Security::None).build().unwrap_err();
            assert!(error.to_string().contains("unencrypted"), "{error}");
        }
        assert!(builder("smtp.example.com").security(Security::None).allow_plain().build().is_ok());
    }

    #[test]
    fn invalid_mail_options_are_rejected() {
        assert!(builder("localhost").timeout(Duration::from_secs(51)).build().is_err());
        assert!(builder("localhost").timeout(Duration::ZERO).build().is_err());
        assert!(Email::builder("localhost", "noreply", "https://example.com/l").build().is_err());
        assert!(Email::builder("localhost", "a@example.com", "example.com/l").build().is_err());
    }

    #[test]
    fn password_is_not_in_debug_output() {
        let builder = builder("smtp.example.com").credentials("user", "hunter2");
        assert!(!format!("{builder:?}").contains("hunter2"));
        assert!(!format!("{:?}", builder.build().unwrap()).contains("hunter2"));
    }
}
