//! Where a webhook may go: which hosts, over which scheme, to which addresses.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

/// What is allowed.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowed {
    /// Only these hosts, if there are any.
    pub(super) hosts: BTreeSet<String>,
    /// These hosts may be in a private network.
    pub(super) private: BTreeSet<String>,
    /// Plain HTTP is allowed also to other computers.
    pub(super) plain: bool,
}

/// Where a message must not go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Forbidden(String);

impl Allowed {
    /// Takes an address apart, and refuses one that is not allowed. Addresses behind names are looked at when they are known.
    pub(super) fn target(&self, url: &str) -> Result<Uri, Forbidden> {
        let no = |why: String| Err(Forbidden(why));
        let Ok(uri) = url.parse::<Uri>() else { return no("it is not an address of the web".to_owned()) };
        let Some(host) = uri.host().map(plain_host) else {
            return no("it is not an address of the web such as `https://example.com/hook`".to_owned());
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return no(format!("an address at `{host}` has a user in it, which is not sent"));
        }
        if !self.hosts.is_empty() && !self.hosts.contains(&host) && !self.private.contains(&host) {
            return no(format!("`{host}` is not one of the hosts that messages may go to"));
        }
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") if self.plain || is_loopback(&host) => {}
            Some("http") => return no(format!("`{host}` would be sent a secret in the clear: use https")),
            _ => return no(format!("messages to `{host}` go by https")),
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            self.address(&host, ip)?;
        }
        Ok(uri)
    }

    /// Refuses an address in a private network, unless its host may be there.
    fn address(&self, host: &str, ip: IpAddr) -> Result<(), Forbidden> {
        if is_public(ip) || self.private.contains(host) {
            return Ok(());
        }
        Err(Forbidden(format!(
            "`{host}` is in a private network, where messages do not go unless that is allowed"
        )))
    }
}

/// A host as it is compared: in small letters, without brackets and without the dot at its end.
pub(super) fn plain_host(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    host.to_ascii_lowercase()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// The address is one that everybody can reach, and so nobody's own network.
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
        // An address of version 4 in an address of version 6: mapped, translated, 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x2002, high, low, ..] => inner(high, low),
        // Teredo, benchmarks, documentation.
        [0x2001, second, ..] => second != 0 && second != 2 && second != 0xdb8,
        // Only these are given to networks that everybody can reach.
        [first, ..] => first & 0xe000 == 0x2000 && first != 0x3fff,
    }
}

/// Finds the addresses of a host and gives those only that messages may go to: what is connected to is what was looked at.
#[derive(Debug, Clone)]
pub(super) struct Resolver {
    allowed: Arc<Allowed>,
    system: GaiResolver,
}

impl Resolver {
    pub(super) fn new(allowed: Arc<Allowed>) -> Self {
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
    fn addresses_of_nobody_but_their_own_network_are_told() {
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
    fn only_https_and_only_hosts_that_are_allowed() {
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
        let some = Allowed { hosts, private: ["127.0.0.1".to_owned()].into(), plain: false };
        for url in ["https://hooks.example.com/", "https://HOOKS.example.com./", "http://127.0.0.1:8080/"] {
            assert!(some.target(url).is_ok(), "{url}");
        }
        for url in
            ["https://example.com/", "https://hooks.example.com.evil.example/", "http://hooks.example.com/"]
        {
            assert!(some.target(url).is_err(), "{url}");
        }
    }

    /// A name that leads into a private network is as good as an address there.
    #[tokio::test]
    async fn a_name_is_judged_by_what_is_behind_it() {
        let resolve = |allowed: Allowed| async move {
            Resolver::new(allowed.into()).call("localhost".parse().unwrap()).await.map(Iterator::count)
        };
        let error = resolve(Allowed::default()).await.unwrap_err();
        assert!(error.downcast_ref::<Forbidden>().is_some(), "{error}");
        let private = ["localhost".to_owned()].into();
        assert!(resolve(Allowed { private, ..Allowed::default() }).await.unwrap() > 0);
    }
}
