//! Mail over SMTP: what resumes a flow is a link in it.

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
use super::{Links, SetupError, Template};

/// Puts a mail outlet together.
#[derive(Clone)]
pub struct EmailBuilder {
    mailer: MailerBuilder,
    links: String,
    templates: BTreeMap<String, Template>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for EmailBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmailBuilder").field("mailer", &self.mailer).finish_non_exhaustive()
    }
}

impl EmailBuilder {
    /// The port; without this, the one that is usual for the security.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.mailer = self.mailer.port(port);
        self
    }

    /// How the connection is kept from being read; without this, encrypted from the first byte.
    #[must_use]
    pub fn security(mut self, security: Security) -> Self {
        self.mailer = self.mailer.security(security);
        self
    }

    /// Links may go over the network in the clear, for everybody on the way to read and use.
    #[must_use]
    pub fn allow_plain(mut self) -> Self {
        self.mailer = self.mailer.allow_plain();
        self
    }

    /// Who we are to the server.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.mailer = self.mailer.credentials(user, password);
        self
    }

    /// A certificate authority in PEM that the server's certificate may be from, besides those of the system.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.mailer = self.mailer.root_certificate(pem);
        self
    }

    /// How long sending one mail may take, at most 50 seconds; without this, 20.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.mailer = self.mailer.timeout(timeout);
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
        let mailer = self.mailer.build()?;
        let templates =
            self.templates.iter().map(|(name, template)| Ok((name.clone(), template.read(name)?)));
        let templates = templates.collect::<Result<BTreeMap<_, _>, SetupError>>()?;
        let links = Links::new(&self.links)?;
        let usual = [Template::usual(false).read("default")?, Template::usual(true).read("default")?];
        let clock = self.clock;
        Ok(Email(Arc::new(Inner { mailer, links, templates, usual, clock })))
    }
}

/// Mail over SMTP. Each message is one mail to one address, with the message's id in its `Message-ID`, so that a mail that was
/// sent twice can be told. Clones are the same outlet.
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
            mailer: Mailer::builder(host, from),
            links: links.into(),
            templates: BTreeMap::new(),
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// What the mails go through, for other mails to go the same way.
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
                if not_sent.is_final { failed.finally() } else { failed }
            })
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
        let mail = dated(self.clock.now())
            .from(self.mailer.from().clone())
            .to(to)
            .subject(subject)
            .message_id(Some(self.mailer.id(&message.id)));
        worded(mail, Some(text), html).map_err(|error| {
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
