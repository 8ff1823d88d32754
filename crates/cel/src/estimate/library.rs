//! What Kubernetes' own functions cost.

use super::calls::{Estimate, Site, elements};
use super::{Estimator, LIST_COST, PATTERN_FACTOR, Range, STRUCT_COST, TEXT_FACTOR};
use crate::syntax::{Kind, Literal};
use crate::types::Type;

/// The longest pattern of a named format, and the longest format itself.
const FORMAT_PATTERN: f64 = 128.0;
const FORMAT_SIZE: u64 = 64;
/// An authorization check: an expression can afford two.
pub(crate) const CHECK_COST: u64 = 350_000;

/// Reading a label or field selector of some length.
pub(crate) fn selector_cost(length: Range) -> Range {
    let requirements = length.scaled(0.5).scaled((LIST_COST + STRUCT_COST) as f64);
    Range::fixed(LIST_COST).plus(length.scaled(TEXT_FACTOR)).plus(requirements)
}

/// Whether a function of Kubernetes' costs 1, whatever it is called with.
pub(crate) fn costs_one(function: &str) -> bool {
    matches!(
        function,
        "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery"
    )
}

impl<'c> Estimator<'c> {
    pub(super) fn of_kubernetes(&self, site: &Site<'_, 'c>) -> Option<Estimate> {
        let target = site.target.map(|node| self.node_size(node));
        let first = site.args.first().map(|node| self.node_size(node));
        let id = site.overload.id;
        Some(match site.function {
            "check" => Estimate::of(Range::fixed(CHECK_COST)),
            simple if costs_one(simple) => Estimate::of(Range::fixed(1)),
            "fieldSelector" | "labelSelector" => Estimate::of(selector_cost(first?)),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => self.list_walk(site)?,
            "url" | "jsonpatch.escapeKey" => Estimate::with(first?.scaled(TEXT_FACTOR), first?),
            "lowerAscii" | "upperAscii" | "substring" | "trim" => Estimate::with(target?.scaled(TEXT_FACTOR), target?),
            "replace" => replace(target?, first?, site.args.get(1).map(|node| self.node_size(node))?),
            "split" => Estimate::with(
                target?.scaled(2.0 * TEXT_FACTOR),
                Range::new(0, split_limit(site).unwrap_or(target?.max)),
            ),
            "join" => self.join(site)?,
            "find" | "findAll" => {
                let text = target?.plus(Range::fixed(1)).scaled(TEXT_FACTOR);
                Estimate::with(text.times(first?.scaled(PATTERN_FACTOR)), Range::new(0, target?.max))
            }
            "ip" if id == "cidr_ip" => Estimate::of(Range::fixed(1)),
            "ip" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                Estimate::of(first?.scaled(TEXT_FACTOR))
            }
            "ip.isCanonical" => Estimate::of(first?.scaled(2.0 * TEXT_FACTOR)),
            "containsIP" | "containsCIDR" => Estimate::of(contains_address(id, first?)),
            "validate" => Estimate::of(first?.scaled(TEXT_FACTOR).scaled(FORMAT_PATTERN * PATTERN_FACTOR)),
            "_==_" => self.equality(site)?,
            _ => return None,
        })
    }

    fn list_walk(&self, site: &Site<'_, 'c>) -> Option<Estimate> {
        let target = site.target?;
        let size = self.node_size(target);
        let Some(element) = elements(target) else { return Some(Estimate::of(size.scaled(TEXT_FACTOR))) };
        let mut each = Range::fixed(1);
        if matches!(element.one, Type::String | Type::Bytes) {
            each = each.plus(self.node_size(&element).scaled(TEXT_FACTOR));
        }
        Some(Estimate::of(size.times(each)))
    }

    fn join(&self, site: &Site<'_, 'c>) -> Option<Estimate> {
        let target = site.target?;
        let count = self.node_size(target);
        let mut size = elements(target).map_or(Range::fixed(0), |element| count.times(self.node_size(&element)));
        if let Some(separator) = site.args.first() {
            let gaps = Range::new(count.min.saturating_sub(1), count.max.saturating_sub(1));
            size = size.plus(self.node_size(separator).times(gaps));
        }
        Some(Estimate::with(size.scaled(TEXT_FACTOR), size))
    }

    /// Values of Kubernetes' own types compare at a cost of their own.
    fn equality(&self, site: &Site<'_, 'c>) -> Option<Estimate> {
        let [left, right] = site.args else { return None };
        if left.one != right.one {
            return None;
        }
        let cost = match &left.one {
            Type::Opaque(name, _) if matches!(&**name, "net.IP" | "net.CIDR") => Range::fixed(1),
            Type::Struct(name) => match &**name {
                "kubernetes.NamedFormat" => Range::new(1, FORMAT_SIZE).scaled(TEXT_FACTOR),
                "kubernetes.URL" => Range::new(1, right.size.map_or(1, |size| size.max)).scaled(TEXT_FACTOR),
                name if name.starts_with("kubernetes.") => Range::fixed(1),
                _ => return None,
            },
            _ => return None,
        };
        Some(Estimate::of(cost))
    }
}

/// The most parts `split` may give, where that is written out.
fn split_limit(site: &Site<'_, '_>) -> Option<u64> {
    match site.args.get(1)?.expr.map(|expr| &expr.kind) {
        Some(Kind::Literal(Literal::Int(limit))) => Some(*limit as u64),
        _ => None,
    }
}

fn replace(text: Range, old: Range, new: Range) -> Estimate {
    let mut count = Range::fixed(0);
    let mut kept = Range::fixed(0);
    if old.min == 0 {
        count.max = text.max.saturating_add(1);
        kept.max = text.max;
    } else if new.max <= old.min {
        kept.max = text.max;
    } else {
        count.max = (text.max as f64 / old.min as f64).ceil() as u64;
    }
    if old.max == 0 {
        count.min = text.min.saturating_add(1);
        kept.min = text.min;
    } else if old.max <= new.min {
        kept.min = text.min;
    } else {
        count.min = (text.min as f64 / old.max as f64).ceil() as u64;
    }
    Estimate::with(text.scaled(2.0 * TEXT_FACTOR), count.times(new).plus(kept))
}

/// Addresses are of 4 to 16 bytes.
fn contains_address(overload: &str, other: Range) -> Range {
    let address = Range::new(4, 16);
    let mut cost = address.plus(address).scaled(TEXT_FACTOR);
    if overload.starts_with("cidr_contains_cidr") {
        cost = cost.plus(address.scaled(TEXT_FACTOR)).plus(Range::fixed(1));
    }
    if overload.ends_with("_string") { cost.plus(other.scaled(TEXT_FACTOR)) } else { cost }
}
