//! Reads connection strings: the driver's part, and the TLS parameters of libpq that the driver does not know.

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::error::OpenError;

/// Parameters that are read here. The driver knows only three values of the first one.
const OWN: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

/// The database and the role of a connection string, and the encryption that it asks for.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) ssl: Ssl,
}

/// The TLS parameters of a connection string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ssl {
    pub(crate) check: Check,
    /// File with the trusted authorities. `None` = the authorities of the system.
    pub(crate) root_cert: Option<String>,
    /// Files with the client's certificate and its private key.
    pub(crate) client: Option<(String, String)>,
}

/// The check of the server's certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Check {
    /// Any certificate is accepted: the connection is encrypted, but may end at another server.
    #[default]
    Nothing,
    /// A trusted authority has signed the certificate.
    Authority,
    /// The certificate also names the host of the connection string.
    Host,
}

/// Returns the role that a connection string names.
pub fn role_of(connection: &str) -> Option<String> {
    Target::read(connection).ok()?.config.get_user().map(str::to_owned)
}

impl Target {
    /// Parses a URL or a list of `name=value`, as libpq accepts them.
    pub(crate) fn read(connection: &str) -> Result<Self, OpenError> {
        let is_url = connection.starts_with("postgres://") || connection.starts_with("postgresql://");
        let (rest, own) = if is_url { of_url(connection)? } else { of_words(connection)? };
        let mut config = Config::from_str(&rest).map_err(|error| {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            OpenError::Config(format!("{error} {why}"))
        })?;
        let ssl = ssl(&mut config, own)?;
        // The name is needed for TLS. The driver connects to the address.
        if config.get_hosts().is_empty() {
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        // As in libpq: a socket of this machine is never encrypted.
        if config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) {
            config.ssl_mode(SslMode::Disable);
        }
        Ok(Target { config, ssl })
    }
}

/// The remaining text and the parameters that were taken out of it.
type Split = (String, Vec<(String, String)>);

fn wrong(why: String) -> OpenError {
    OpenError::Config(why)
}

fn of_url(url: &str) -> Result<Split, OpenError> {
    // A password may contain a question mark.
    let after = url.find('@').map_or(0, |at| at + 1);
    let Some(mark) = url[after..].find('?').map(|at| after + at) else {
        return Ok((url.to_owned(), Vec::new()));
    };
    let (mut kept, mut own) = (Vec::new(), Vec::new());
    for pair in url[mark + 1..].split('&') {
        match pair.split_once('=').filter(|(name, _)| OWN.contains(name)) {
            Some((name, value)) => {
                let value = percent_decode_str(value).decode_utf8();
                let value = value.map_err(|_| wrong(format!("`{name}` is not valid UTF-8")))?;
                own.push((name.to_owned(), value.into_owned()));
            }
            None => kept.push(pair),
        }
    }
    let between = if kept.is_empty() { "" } else { "?" };
    Ok((format!("{}{between}{}", &url[..mark], kept.join("&")), own))
}

fn of_words(text: &str) -> Result<Split, OpenError> {
    let (mut kept, mut own, mut rest) = (String::new(), Vec::new(), text.trim_start());
    while let Some((name, after)) = rest.split_once('=') {
        let (value, length) = value(after)?;
        let end = rest.len() - after.len() + length;
        let name = name.trim();
        if OWN.contains(&name) {
            own.push((name.to_owned(), value));
        } else {
            kept.push_str(&rest[..end]);
            kept.push(' ');
        }
        rest = rest[end..].trim_start();
    }
    kept.push_str(rest);
    Ok((kept, own))
}

/// Returns the value at the beginning of a text, and its length there. A backslash escapes the next character.
fn value(text: &str) -> Result<(String, usize), OpenError> {
    let start = text.len() - text.trim_start().len();
    let is_quoted = text[start..].starts_with('\'');
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, found) in text[start..].char_indices().skip(usize::from(is_quoted)) {
        match found {
            _ if is_escaped => is_escaped = false,
            '\\' => {
                is_escaped = true;
                continue;
            }
            '\'' if is_quoted => return Ok((value, start + at + 1)),
            _ if !is_quoted && found.is_whitespace() => return Ok((value, start + at)),
            _ => {}
        }
        value.push(found);
    }
    if is_quoted { Err(wrong("a quoted value has no end".to_owned())) } else { Ok((value, text.len())) }
}

/// Applies `sslmode` to the configuration and returns the other parameters.
fn ssl(config: &mut Config, own: Vec<(String, String)>) -> Result<Ssl, OpenError> {
    let (mut ssl, mut mode) = (Ssl::default(), None);
    let (mut cert, mut key) = (None, None);
    for (name, value) in own {
        match name.as_str() {
            "sslmode" => mode = Some(value),
            "sslrootcert" => ssl.root_cert = Some(value).filter(|file| file != "system"),
            "sslcert" => cert = Some(value),
            _ => key = Some(value),
        }
    }
    let (driver, check) = match mode.as_deref() {
        Some("disable") => (SslMode::Disable, Check::Nothing),
        None | Some("prefer" | "allow") => (SslMode::Prefer, Check::Nothing),
        // As in libpq: an authority is named in order to be checked.
        Some("require") if ssl.root_cert.is_some() => (SslMode::Require, Check::Authority),
        Some("require") => (SslMode::Require, Check::Nothing),
        Some("verify-ca") => (SslMode::Require, Check::Authority),
        Some("verify-full") => (SslMode::Require, Check::Host),
        Some(other) => {
            let known = "`disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`";
            return Err(wrong(format!("`sslmode` is `{other}`: use {known}")));
        }
    };
    if check == Check::Nothing && ssl.root_cert.is_some() && driver == SslMode::Prefer {
        let why = "`sslrootcert` has no effect without `sslmode`: add `sslmode=verify-full`, or `verify-ca`";
        return Err(wrong(why.to_owned()));
    }
    config.ssl_mode(driver);
    ssl.check = check;
    ssl.client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(wrong("set both `sslcert` and `sslkey`, or neither".to_owned())),
    };
    Ok(ssl)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (SslMode, Ssl) {
        let target = Target::read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        (target.config.get_ssl_mode(), target.ssl)
    }

    #[test]
    fn ssl_parameters_are_read_from_urls_and_words() {
        let full = Ssl { check: Check::Host, root_cert: Some("/etc/a b.crt".to_owned()), client: None };
        for text in [
            "postgres://ann:p%40?w@db.example.com/shop?sslmode=verify-full&sslrootcert=%2Fetc%2Fa%20b.crt&application_name=x",
            "host=db.example.com user=ann password='it\\'s = me' sslmode=verify-full sslrootcert='/etc/a b.crt' dbname=shop",
            "sslmode = verify-full sslrootcert=/etc/a\\ b.crt host=db.example.com user=ann dbname=shop",
        ] {
            let target = Target::read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((target.config.get_ssl_mode(), &target.ssl), (SslMode::Require, &full), "{text}");
            let config = target.config;
            assert_eq!((config.get_user(), config.get_dbname()), (Some("ann"), Some("shop")), "{text}");
        }
        let password = Target::read("host=x password='it\\'s = me' sslmode=disable").unwrap().config;
        assert_eq!(password.get_password(), Some(&b"it's = me"[..]));
        assert_eq!(role_of("postgres://ann@db.example.com/x?sslmode=verify-ca").as_deref(), Some("ann"));
    }

    #[test]
    fn modes_mean_what_libpq_means() {
        let url = |query: &str| read(&format!("postgres://db.example.com/shop{query}"));
        let check = |query: &str| (url(query).0, url(query).1.check);
        for (query, mode, wanted) in [
            ("", SslMode::Prefer, Check::Nothing),
            ("?sslmode=disable", SslMode::Disable, Check::Nothing),
            ("?sslmode=prefer", SslMode::Prefer, Check::Nothing),
            ("?sslmode=require", SslMode::Require, Check::Nothing),
            ("?sslmode=require&sslrootcert=ca.crt", SslMode::Require, Check::Authority),
            ("?sslmode=verify-ca", SslMode::Require, Check::Authority),
            ("?sslmode=verify-full&sslrootcert=system", SslMode::Require, Check::Host),
        ] {
            assert_eq!(check(query), (mode, wanted), "{query}");
        }
        // A socket is never encrypted.
        assert_eq!(read("host=/run/postgresql sslmode=verify-full").0, SslMode::Disable);
        let client = url("?sslmode=require&sslcert=a.crt&sslkey=a.key").1.client;
        assert_eq!(client, Some(("a.crt".to_owned(), "a.key".to_owned())));
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (query, named) in [
            ("sslmode=on", "`sslmode` is `on`"),
            ("sslrootcert=ca.crt", "`sslrootcert` has no effect"),
            ("sslmode=require&sslcert=a.crt", "both `sslcert` and `sslkey`"),
            ("sslcrl=a.crl", "sslcrl"),
        ] {
            let error = Target::read(&format!("postgres://db.example.com/x?{query}")).unwrap_err();
            assert!(error.to_string().contains(named), "{query}: {error}");
        }
        assert!(Target::read("host='x").unwrap_err().to_string().contains("no end"));
    }
}
