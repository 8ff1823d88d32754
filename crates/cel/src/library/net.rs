//! IP addresses and networks.

use portolan_gocompat::ip;

use super::{LibraryFunction, error, no_overload};
use crate::program::{CelValue, EvaluationFailure};
use portolan_types::quoted::go_quoted;
use std::fmt;
use std::net::IpAddr;

/// IP address without a zone, and not an IPv4 address mapped to IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip(IpAddr);

impl Ip {
    /// Bytes of the address.
    pub(crate) fn width(self) -> usize {
        if self.0.is_ipv4() { 4 } else { 16 }
    }

    fn bits(self) -> u128 {
        match self.0 {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => u128::from(address),
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// IP address with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    pub(crate) address: Ip,
    prefix: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

impl Cidr {
    fn mask(self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or_default()
    }

    fn masked(self) -> Self {
        let bits = self.address.bits() & self.mask();
        let address = match self.address.0 {
            IpAddr::V4(_) => IpAddr::V4(u32::try_from(bits >> 96).unwrap_or_default().into()),
            IpAddr::V6(_) => IpAddr::V6(bits.into()),
        };
        Self { address: Ip(address), ..self }
    }

    fn contains(self, other: Ip) -> bool {
        self.address.width() == other.width() && (self.address.bits() ^ other.bits()) & self.mask() == 0
    }
}

/// Returns the part of an address before its zone, if it has one.
fn zoned(text: &str) -> Option<&str> {
    let (address, zone) = text.split_once('%')?;
    (!zone.is_empty() && address.contains(':')).then_some(address)
}

fn parse_ip(text: &str) -> Result<Ip, String> {
    let quoted = go_quoted(text);
    let zoned = zoned(text);
    let wrong = |_| {
        let why = ip::address_error(text);
        format!("IP Address {quoted} parse error during conversion from string: {why}")
    };
    match zoned.unwrap_or(text).parse::<IpAddr>().map_err(wrong)? {
        _ if zoned.is_some() => Err(format!("IP address {quoted} with zone value is not allowed")),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {quoted} is not allowed"))
        }
        address => Ok(Ip(address)),
    }
}

fn parse_cidr(text: &str) -> Result<Cidr, String> {
    let quoted = go_quoted(text);
    let wrong = |reason: &str| {
        format!("network address parse error during conversion from string: netip.ParsePrefix({quoted}): {reason}")
    };
    let Some((address, prefix)) = text.rsplit_once('/') else { return Err(wrong("no '/'")) };
    let zoned = zoned(address);
    let address: IpAddr = zoned.unwrap_or(address).parse().map_err(|_| wrong(&ip::address_error(address)))?;
    if zoned.is_some() {
        return Err(wrong("IPv6 zones cannot be present in a prefix"));
    }
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = ip::prefix_length(prefix).map_err(|why| wrong(&why))?;
    let length = u8::try_from(length).ok().filter(|length| *length <= most);
    let prefix = length.ok_or_else(|| wrong("prefix length out of range"))?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {quoted} is not allowed"))
        }
        address => Ok(Cidr { address: Ip(address), prefix }),
    }
}

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "ip" => |args, _| match args {
            [CelValue::String(text)] => parse_ip(text).map(CelValue::Ip).map_err(EvaluationFailure::Error),
            [CelValue::Cidr(cidr)] => Ok(CelValue::Ip(cidr.address)),
            _ => no_overload(),
        },
        "isIP" => |args, _| match args {
            [CelValue::String(text)] => Ok(CelValue::Bool(parse_ip(text).is_ok())),
            _ => no_overload(),
        },
        "ip.isCanonical" => |args, _| match args {
            [CelValue::String(text)] => Ok(CelValue::Bool(parse_ip(text)?.to_string() == **text)),
            _ => no_overload(),
        },
        "family" => |args, _| match args {
            [CelValue::Ip(ip)] => Ok(CelValue::Int(if ip.0.is_ipv4() { 4 } else { 6 })),
            _ => no_overload(),
        },
        "isUnspecified" => |args, _| is(args, |ip| ip.is_unspecified()),
        "isLoopback" => |args, _| is(args, |ip| ip.is_loopback()),
        "isLinkLocalMulticast" => |args, _| is(args, is_link_local_multicast),
        "isLinkLocalUnicast" => |args, _| is(args, is_link_local),
        "isGlobalUnicast" => |args, _| {
            is(args, |ip| {
                let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
                !(broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local(ip))
            })
        },
        "cidr" => |args, _| match args {
            [CelValue::String(text)] => match parse_cidr(text) {
                Ok(cidr) => Ok(CelValue::Cidr(cidr)),
                Err(message) => error(format!("network address parse error during conversion from string: {message}")),
            },
            _ => no_overload(),
        },
        "isCIDR" => |args, _| match args {
            [CelValue::String(text)] => Ok(CelValue::Bool(parse_cidr(text).is_ok())),
            _ => no_overload(),
        },
        "containsIP" => |args, _| match args {
            [CelValue::Cidr(cidr), CelValue::Ip(ip)] => Ok(CelValue::Bool(cidr.contains(*ip))),
            // Text that does not parse gives the error for a wrong type.
            [CelValue::Cidr(cidr), CelValue::String(text)] => {
                parse_ip(text).map_or_else(|_| no_overload(), |ip| Ok(CelValue::Bool(cidr.contains(ip))))
            }
            _ => no_overload(),
        },
        "containsCIDR" => |args, _| match args {
            [CelValue::Cidr(cidr), CelValue::Cidr(other)] => Ok(CelValue::Bool(contains_cidr(*cidr, *other))),
            [CelValue::Cidr(cidr), CelValue::String(text)] => {
                parse_cidr(text).map_or_else(|_| no_overload(), |other| Ok(CelValue::Bool(contains_cidr(*cidr, other))))
            }
            _ => no_overload(),
        },
        "masked" => |args, _| match args {
            [CelValue::Cidr(cidr)] => Ok(CelValue::Cidr(cidr.masked())),
            _ => no_overload(),
        },
        "prefixLength" => |args, _| match args {
            [CelValue::Cidr(cidr)] => Ok(CelValue::Int(i64::from(cidr.prefix))),
            _ => no_overload(),
        },
        _ => return None,
    })
}

fn contains_cidr(cidr: Cidr, other: Cidr) -> bool {
    cidr.prefix <= other.prefix && cidr.contains(other.address)
}

fn is<'a>(args: &[CelValue<'a>], holds: fn(&IpAddr) -> bool) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Ip(ip)] => Ok(CelValue::Bool(holds(&ip.0))),
        _ => no_overload(),
    }
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn is_link_local_multicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}
