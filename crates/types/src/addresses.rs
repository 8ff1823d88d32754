//! Locality of addresses. If users choose an address that the server connects to, it must not lead to the server
//! itself, to its cloud's metadata service, or to its link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of metadata services outside the link-local ranges.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), // Alibaba Cloud
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),     // Oracle Cloud, earlier
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)), // AWS
];

/// Locality of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// Metadata service of a cloud.
    Metadata,
    /// No machine.
    Nothing,
    /// Group of machines.
    Multicast,
    /// Machine on the same link.
    LinkLocal,
    /// This machine.
    Loopback,
    /// Machine of a private network.
    Private,
    /// Machine of the Internet.
    Public,
}

impl Locality {
    /// Returns the locality of an address. An IPv6 address that embeds an IPv4 address has the locality of that
    /// address.
    pub fn of(address: IpAddr) -> Self {
        let address = plain(address);
        match address {
            _ if METADATA.contains(&address) => Self::Metadata,
            _ if address.is_unspecified() => Self::Nothing,
            _ if address.is_multicast() => Self::Multicast,
            _ if address.is_loopback() => Self::Loopback,
            IpAddr::V4(v4) if v4.is_link_local() => Self::LinkLocal,
            IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] == 0 => Self::Nothing,
            IpAddr::V4(v4) if v4.is_private() || is_shared(v4) => Self::Private,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Self::LinkLocal,
            IpAddr::V6(v6) if v6.is_unique_local() => Self::Private,
            IpAddr::V4(_) | IpAddr::V6(_) => Self::Public,
        }
    }

    /// Returns a phrase to follow an address.
    pub fn text(self) -> &'static str {
        match self {
            Self::Metadata => "the address of a metadata service",
            Self::Nothing => "no address of any machine",
            Self::Multicast => "a multicast address",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "this machine itself",
            Self::Private => "an address of a private network",
            Self::Public => "a public address",
        }
    }
}

/// Returns true for addresses that providers share among customers (RFC 6598).
fn is_shared(v4: Ipv4Addr) -> bool {
    let [a, b, ..] = v4.octets();
    a == 100 && (64..128).contains(&b)
}

/// Returns the IPv4 address that an IPv6 address embeds, if any.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [a, b, .., g, h] = v6.segments();
    let embedded = || Ipv4Addr::from((u32::from(g) << 16) | u32::from(h));
    match v6.to_ipv4_mapped() {
        Some(v4) => v4.into(),
        None if (a, b) == (0x64, 0xff9b) => embedded().into(), // NAT64
        None if v6.segments()[..6] == [0; 6] && !v6.is_loopback() && !v6.is_unspecified() => embedded().into(),
        None => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_distinguished_in_every_notation() {
        for (address, expected) in [
            ("10.0.0.1", Locality::Private),
            ("192.168.1.1", Locality::Private),
            ("100.64.0.1", Locality::Private),
            ("fd12::1", Locality::Private),
            ("203.0.113.7", Locality::Public),
            ("2001:db8::1", Locality::Public),
            ("127.8.9.10", Locality::Loopback),
            ("::1", Locality::Loopback),
            ("::ffff:127.0.0.1", Locality::Loopback),
            ("64:ff9b::7f00:1", Locality::Loopback),
            ("::127.0.0.1", Locality::Loopback),
            ("169.254.169.254", Locality::LinkLocal),
            ("::ffff:169.254.169.254", Locality::LinkLocal),
            ("fe80::1", Locality::LinkLocal),
            ("fd00:ec2::254", Locality::Metadata),
            ("100.100.100.200", Locality::Metadata),
            ("0.0.0.0", Locality::Nothing),
            ("0.1.2.3", Locality::Nothing),
            ("::", Locality::Nothing),
            ("255.255.255.255", Locality::Nothing),
            ("224.0.0.1", Locality::Multicast),
            ("ff02::1", Locality::Multicast),
        ] {
            assert_eq!(Locality::of(address.parse().unwrap()), expected, "{address}");
        }
    }
}
