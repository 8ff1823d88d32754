//! Addresses that a kubeconfig may lead to. Users write the Secret that it comes from, so it must not make the server
//! talk to itself, to the metadata service of its cloud, or to its own link.
//!
//! Names are resolved once per connection and the addresses checked after that, so a name that resolves to another
//! address the next time gains nothing.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use portolan_types::addresses::Locality;

/// Addresses that a physical cluster may have, besides public ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Allows private networks, where the clusters of administrators usually are.
    pub allow_private: bool,
    /// Allows loopback addresses.
    pub allow_loopback: bool,
}

impl Addresses {
    /// # Errors
    /// Fails with the reason that the address is refused.
    pub(crate) fn check(self, address: IpAddr) -> Result<(), String> {
        let locality = Locality::of(address);
        match locality {
            Locality::Public => Ok(()),
            Locality::Private if self.allow_private => Ok(()),
            Locality::Loopback if self.allow_loopback => Ok(()),
            Locality::Private | Locality::Loopback => Err(format!(
                "{address} is {}, which has to be allowed by `portolan server {}`",
                locality.text(),
                if self.allow_private { "--allow-loopback-clusters" } else { "--allow-local-tenant-clusters" },
            )),
            Locality::Metadata | Locality::Nothing | Locality::Multicast | Locality::LinkLocal => {
                Err(format!("{address} is {}", locality.text()))
            }
        }
    }

    /// Checks a host that is an address already. Those are not resolved.
    pub(crate) fn check_host(self, host: &str) -> Result<(), String> {
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => self.check(address),
            Err(_) => Ok(()),
        }
    }
}

/// DNS resolver that returns allowed addresses only, and fails if a name has none.
#[derive(Clone, Debug)]
pub(crate) struct Resolver(pub(crate) Addresses);

impl tower::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let addresses = self.0;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            allowed(addresses, name.as_str(), found).map(Vec::into_iter)
        })
    }
}

fn allowed(addresses: Addresses, name: &str, found: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let (good, bad): (Vec<_>, Vec<_>) = found.into_iter().partition(|at| addresses.check(at.ip()).is_ok());
    match (good.is_empty(), bad.first()) {
        (true, Some(at)) => {
            let why = addresses.check(at.ip()).err().unwrap_or_default();
            Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{name} leads to where it must not: {why}")))
        }
        (true, None) | (false, _) => Ok(good),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANTS: Addresses = Addresses { allow_private: false, allow_loopback: false };
    const STRICT: Addresses = Addresses { allow_private: true, allow_loopback: false };
    const LOCAL: Addresses = Addresses { allow_private: true, allow_loopback: true };

    #[test]
    fn a_kubeconfig_cannot_lead_to_this_machine_its_link_or_its_metadata() {
        for (address, strict, local) in [
            ("10.0.0.1", true, true),
            ("192.168.1.1", true, true),
            ("203.0.113.7", true, true),
            ("2001:db8::1", true, true),
            ("fd12::1", true, true),
            ("127.0.0.1", false, true),
            ("127.8.9.10", false, true),
            ("::1", false, true),
            ("::ffff:127.0.0.1", false, true),
            ("64:ff9b::7f00:1", false, true),
            ("::127.0.0.1", false, true),
            ("169.254.169.254", false, false),
            ("::ffff:169.254.169.254", false, false),
            ("64:ff9b::a9fe:a9fe", false, false),
            ("fd00:ec2::254", false, false),
            ("100.100.100.200", false, false),
            ("fe80::1", false, false),
            ("0.0.0.0", false, false),
            ("0.1.2.3", false, false),
            ("::", false, false),
            ("224.0.0.1", false, false),
            ("ff02::1", false, false),
            ("255.255.255.255", false, false),
        ] {
            let parsed: IpAddr = address.parse().unwrap();
            assert_eq!((STRICT.check(parsed).is_ok(), LOCAL.check(parsed).is_ok()), (strict, local), "{address}");
        }
    }

    #[test]
    fn a_tenants_kubeconfig_leads_to_public_addresses_only() {
        for (address, is_allowed) in [
            ("203.0.113.7", true),
            ("2001:db8::1", true),
            ("10.0.0.1", false),
            ("172.16.0.1", false),
            ("192.168.1.1", false),
            ("100.64.0.1", false),
            ("fd12::1", false),
            ("::ffff:10.0.0.1", false),
            ("64:ff9b::a00:1", false),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
        ] {
            assert_eq!(TENANTS.check(address.parse().unwrap()).is_ok(), is_allowed, "{address}");
        }
        let why = TENANTS.check_host("10.0.0.1").unwrap_err();
        assert!(why.ends_with("has to be allowed by `portolan server --allow-local-tenant-clusters`"), "{why}");
        let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        assert!(allowed(TENANTS, "x", vec![at("10.0.0.1")]).is_err(), "a name that resolves to one is refused too");
    }

    #[test]
    fn a_host_that_is_an_address_is_checked_as_one() {
        for (host, is_allowed) in
            [("127.0.0.1", false), ("[::1]", false), ("10.1.2.3", true), ("east.example.com", true)]
        {
            assert_eq!(STRICT.check_host(host).is_ok(), is_allowed, "{host}");
        }
    }

    #[test]
    fn only_allowed_addresses_of_a_name_are_used() {
        let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let mixed = allowed(STRICT, "x", vec![at("127.0.0.1"), at("10.0.0.1")]).unwrap();
        assert_eq!(mixed, [at("10.0.0.1")]);
        let error = allowed(STRICT, "metadata.example.com", vec![at("169.254.169.254")]).unwrap_err();
        assert!(error.to_string().contains("metadata.example.com leads to where it must not"), "{error}");
        assert!(allowed(STRICT, "x", Vec::new()).unwrap().is_empty(), "nothing found is not our error to tell");
    }

    #[tokio::test]
    async fn names_are_checked_after_they_are_resolved() {
        use tower::Service as _;
        let resolve = |addresses| Resolver(addresses).call("localhost".parse().unwrap());
        assert!(resolve(STRICT).await.is_err());
        assert!(resolve(LOCAL).await.is_ok_and(|found| found.count() > 0));
    }
}
