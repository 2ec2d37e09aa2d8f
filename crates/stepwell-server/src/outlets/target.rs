//! Allowed targets of outgoing requests: hosts, schemes and IP addresses.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

use super::SetupError;

/// Rules for the targets of outgoing requests. The default allows https to public addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allowed {
    /// If not empty, requests may go only to these hosts and to private hosts and networks that are allowed.
    pub(crate) hosts: BTreeSet<String>,
    /// Hosts that may resolve to private addresses.
    pub(crate) private: BTreeSet<String>,
    /// Networks whose addresses are allowed even if they are private.
    pub(crate) networks: Vec<Network>,
    /// Allows plain HTTP to hosts other than loopback.
    pub(crate) plain: bool,
    /// The settings that allow a target, for the reasons of refusals.
    pub(crate) settings: AllowSettings,
}

/// The names of the settings that allow targets. Without them, a refusal names no setting.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllowSettings {
    /// List of hosts, besides which no other is allowed.
    pub(crate) hosts: Option<String>,
    /// List of hosts that may be in private networks.
    pub(crate) private: Option<String>,
    /// Advice on plain HTTP.
    pub(crate) plain: Option<String>,
}

impl AllowSettings {
    /// The settings of `http.request`.
    pub(crate) fn of_requests() -> Self {
        AllowSettings {
            hosts: Some("http.only".to_owned()),
            private: Some("http.allow".to_owned()),
            plain: Some("the setting `http.https_only` forbids it".to_owned()),
        }
    }

    /// The settings of a webhook outlet, from the name of its table.
    pub(crate) fn of_outlet(table: &str) -> Self {
        AllowSettings {
            hosts: Some(format!("{table}.allow_hosts")),
            private: Some(format!("{table}.allow_private_hosts")),
            plain: Some(format!("or set `{table}.allow_plain_http = true`")),
        }
    }
}

/// Returns the advice to add a host to a setting.
fn add_to(setting: Option<&String>, host: &str) -> String {
    setting
        .map(|setting| format!("; to allow it, add \"{host}\" to the setting `{setting}`"))
        .unwrap_or_default()
}

/// A target that is not allowed, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Forbidden(String);

impl Allowed {
    /// Parses and checks a URL. The addresses behind a host name are checked later, by the [`Resolver`].
    pub(crate) fn target(&self, url: &str) -> Result<Uri, Forbidden> {
        let uri: Uri = url.parse().map_err(|_| Forbidden("this is not a valid URL".to_owned()))?;
        self.check(&uri)?;
        Ok(uri)
    }

    /// Checks scheme and host of a URL, and its IP address if the host is one.
    pub(crate) fn check(&self, uri: &Uri) -> Result<(), Forbidden> {
        let no = |why: String| Err(Forbidden(why));
        let Some(host) = uri.host().map(plain_host) else {
            return no("this is not a URL such as `https://example.com/hook`".to_owned());
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return no(format!("the URL for `{host}` contains a user name, which is not supported"));
        }
        let ip = host.parse::<IpAddr>().ok();
        let is_named = self.hosts.contains(&host) || self.private.contains(&host);
        if !self.hosts.is_empty() && !is_named && !ip.is_some_and(|ip| self.is_in_network(ip)) {
            let advice = add_to(self.settings.hosts.as_ref(), &host);
            return no(format!("`{host}` is not one of the allowed hosts{advice}"));
        }
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") if self.plain || is_loopback(&host) => {}
            Some("http") => {
                let advice =
                    self.settings.plain.iter().map(|advice| format!("; {advice}")).collect::<String>();
                return no(format!("plain http to `{host}` is not allowed: use https{advice}"));
            }
            _ => return no(format!("the URL for `{host}` must use https")),
        }
        ip.map_or(Ok(()), |ip| self.address(&host, ip))
    }

    /// Allows a private host, address or network, such as `db.internal`, `10.1.2.3` or `10.0.0.0/8`.
    pub(crate) fn allow(&mut self, entry: &str) -> Result<(), SetupError> {
        if let Some(network) = Network::parse(entry) {
            self.networks.push(network);
            return Ok(());
        }
        self.private.insert(named(entry)?);
        Ok(())
    }

    /// Allows a host, and restricts requests to the allowed hosts.
    pub(crate) fn only(&mut self, host: &str) -> Result<(), SetupError> {
        self.hosts.insert(named(host)?);
        Ok(())
    }

    /// Rejects a private address, unless it or its host is allowed.
    fn address(&self, host: &str, ip: IpAddr) -> Result<(), Forbidden> {
        if is_public(ip) || self.private.contains(host) || self.is_in_network(ip) {
            return Ok(());
        }
        let advice = add_to(self.settings.private.as_ref(), host);
        Err(Forbidden(format!(
            "`{host}` is in a private network; requests there must be allowed explicitly{advice}"
        )))
    }

    fn is_in_network(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|network| network.has(ip))
    }
}

/// An IP network in CIDR notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    first: IpAddr,
    bits: u32,
}

impl Network {
    /// Parses a network such as `10.0.0.0/8`, or one address.
    fn parse(text: &str) -> Option<Self> {
        let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let first: IpAddr = ip.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
        (bits <= most).then_some(Network { first, bits })
    }

    fn has(&self, ip: IpAddr) -> bool {
        // Addresses may differ only after the prefix. A prefix of 0 bits overflows the shift and matches everything.
        let is_same = match (self.first, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(32 - self.bits) == Some(0)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(128 - self.bits) == Some(0)
            }
            _ => return false,
        };
        is_same || self.bits == 0
    }
}

/// Checks and normalises the name of an allowed host.
fn named(host: &str) -> Result<String, SetupError> {
    let name = plain_host(host);
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(ip.to_string());
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.is_empty() || !name.chars().all(fits) {
        return Err(SetupError::new(format!(
            "`{host}` is not a host: write a host such as `db.internal`, or, where private targets are allowed, an \
             address such as `10.1.2.3` or a network such as `10.0.0.0/8`"
        )));
    }
    Ok(name)
}

/// Normalises a host for comparison: lower case, without brackets and without a trailing dot.
pub(crate) fn plain_host(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    host.to_ascii_lowercase()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Returns true if the address is globally reachable, and not in a private, local or reserved network.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_reserved = a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 198 && (b == 18 || b == 19))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99);
    !(is_reserved
        || ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation())
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let parts = ip.segments();
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // IPv4 addresses inside IPv6: NAT64 and 6to4. IPv4-mapped addresses are not needed, so they are not public.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x2002, high, low, ..] => inner(high, low),
        // Teredo, benchmarking and documentation networks are not public.
        [0x2001, second, ..] => second != 0 && second != 2 && second != 0xdb8,
        // Only 2000::/3 is assigned to public networks; 3fff::/16 is for documentation.
        [first, ..] => first & 0xe000 == 0x2000 && first != 0x3fff,
    }
}

/// Resolves a host and fails if one of its addresses is not allowed. The connection uses exactly the checked addresses.
#[derive(Debug, Clone)]
pub(crate) struct Resolver {
    allowed: Arc<Allowed>,
    system: GaiResolver,
}

impl Resolver {
    pub(crate) fn new(allowed: Arc<Allowed>) -> Self {
        Resolver { allowed, system: GaiResolver::new() }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (allowed, host) = (self.allowed.clone(), plain_host(name.as_str()));
        let found = self.system.call(name);
        Box::pin(async move {
            let found: Vec<SocketAddr> = found.await?.collect();
            for address in &found {
                allowed.address(&host, address.ip())?;
            }
            Ok(found.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use tower_service::Service;

    use super::{Allowed, Forbidden, Resolver, is_public};

    #[test]
    fn private_addresses_are_recognised() {
        for ip in ["93.184.215.14", "8.8.8.8", "172.32.0.1", "192.169.0.1", "100.128.0.1", "2606:4700::1111"]
        {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn only_https_to_allowed_hosts_is_accepted() {
        let any = Allowed::default();
        assert!(any.target("https://hooks.example.com/a?b=c").is_ok());
        for url in [
            "",
            "/hook",
            "hooks.example.com",
            "ftp://example.com",
            "http://hooks.example.com/",
            "https:///a",
            "https://user:pass@example.com/",
            "http://127.0.0.1/",
            "http://localhost@example.com/",
            "https://10.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:192.168.0.1]/",
            "https://169.254.169.254/",
        ] {
            assert!(any.target(url).is_err(), "{url}");
        }
        let hosts = ["hooks.example.com".to_owned()].into();
        let some = Allowed { hosts, private: ["127.0.0.1".to_owned()].into(), ..Allowed::default() };
        for url in ["https://hooks.example.com/", "https://HOOKS.example.com./", "http://127.0.0.1:8080/"] {
            assert!(some.target(url).is_ok(), "{url}");
        }
        for url in
            ["https://example.com/", "https://hooks.example.com.evil.example/", "http://hooks.example.com/"]
        {
            assert!(some.target(url).is_err(), "{url}");
        }
    }

    #[test]
    fn hosts_addresses_and_networks_can_be_allowed() {
        let mut allowed = Allowed::default();
        for entry in ["DB.internal.", "10.1.2.3", "192.168.0.0/16", "[fd00::1]", "fd12::/16", "172.16.0.9/31"]
        {
            allowed.allow(entry).unwrap();
        }
        for (host, ip, is_allowed) in [
            ("db.internal", "127.0.0.1", true),
            ("x", "10.1.2.3", true),
            ("x", "10.1.2.4", false),
            ("x", "192.168.255.255", true),
            ("x", "192.169.0.0", true),
            ("x", "172.16.0.8", true),
            ("x", "172.16.0.10", false),
            ("x", "fd00::1", true),
            ("x", "fd00::2", false),
            ("x", "fd12:ffff::1", true),
            ("x", "::ffff:10.1.2.3", false),
            ("x", "127.0.0.1", false),
        ] {
            assert_eq!(allowed.address(host, ip.parse().unwrap()).is_ok(), is_allowed, "{host} {ip}");
        }
        let mut all = Allowed::default();
        all.allow("0.0.0.0/0").unwrap();
        assert!(all.address("x", "10.0.0.1".parse().unwrap()).is_ok());
        assert!(all.address("x", "::1".parse().unwrap()).is_err());
        for entry in [
            "",
            ".",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0.0/",
            "10.0/8",
            "http://a",
            "a:80",
            "a b",
            "*",
            "ä",
        ] {
            assert!(allowed.allow(entry).is_err(), "{entry:?}");
        }
    }

    /// A name that resolves to a private address is treated like that address.
    #[tokio::test]
    async fn name_is_checked_by_its_addresses() {
        let resolve = |allowed: Allowed| async move {
            Resolver::new(allowed.into()).call("localhost".parse().unwrap()).await.map(Iterator::count)
        };
        let error = resolve(Allowed::default()).await.unwrap_err();
        assert!(error.downcast_ref::<Forbidden>().is_some(), "{error}");
        let private = ["localhost".to_owned()].into();
        assert!(resolve(Allowed { private, ..Allowed::default() }).await.unwrap() > 0);
    }
}
