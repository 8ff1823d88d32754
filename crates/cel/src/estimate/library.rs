//! Cost estimates of Kubernetes' own functions.

use super::calls::{CallEstimate, CallSite, elements};
use super::{CostRange, Estimator, LIST_COST, PATTERN_FACTOR, STRUCT_COST, TEXT_FACTOR};
use crate::syntax::{ExprKind, Literal};
use crate::types::CelType;

/// Longest pattern of a named format, and longest name of a format.
const FORMAT_PATTERN: f64 = 128.0;
const FORMAT_SIZE: u64 = 64;
/// Cost of an authorization check: an expression can afford two.
pub(crate) const CHECK_COST: u64 = 350_000;

/// Cost of parsing a label or field selector of a given length.
pub(crate) fn selector_cost(length: CostRange) -> CostRange {
    let requirements = length.scaled(0.5).scaled((LIST_COST + STRUCT_COST) as f64);
    CostRange::fixed(LIST_COST).plus(length.scaled(TEXT_FACTOR)).plus(requirements)
}

/// Returns true if a function of Kubernetes costs 1 for all arguments.
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
    pub(super) fn of_kubernetes(&self, site: &CallSite<'_, 'c>) -> Option<CallEstimate> {
        let target = site.target.map(|node| self.node_size(node));
        let first = site.args.first().map(|node| self.node_size(node));
        let id = site.overload.id;
        Some(match site.function {
            "check" => CallEstimate::of(CostRange::fixed(CHECK_COST)),
            simple if costs_one(simple) => CallEstimate::of(CostRange::fixed(1)),
            "fieldSelector" | "labelSelector" => CallEstimate::of(selector_cost(first?)),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => self.list_walk(site)?,
            "url" | "jsonpatch.escapeKey" => CallEstimate::with(first?.scaled(TEXT_FACTOR), first?),
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                CallEstimate::with(target?.scaled(TEXT_FACTOR), target?)
            }
            "replace" => replace(target?, first?, site.args.get(1).map(|node| self.node_size(node))?),
            "split" => CallEstimate::with(
                target?.scaled(2.0 * TEXT_FACTOR),
                CostRange::new(0, split_limit(site).unwrap_or(target?.max)),
            ),
            "join" => self.join(site)?,
            "find" | "findAll" => {
                let text = target?.plus(CostRange::fixed(1)).scaled(TEXT_FACTOR);
                CallEstimate::with(text.times(first?.scaled(PATTERN_FACTOR)), CostRange::new(0, target?.max))
            }
            "ip" if id == "cidr_ip" => CallEstimate::of(CostRange::fixed(1)),
            "ip" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                CallEstimate::of(first?.scaled(TEXT_FACTOR))
            }
            "ip.isCanonical" => CallEstimate::of(first?.scaled(2.0 * TEXT_FACTOR)),
            "containsIP" | "containsCIDR" => CallEstimate::of(contains_address(id, first?)),
            "validate" => CallEstimate::of(first?.scaled(TEXT_FACTOR).scaled(FORMAT_PATTERN * PATTERN_FACTOR)),
            "_==_" => self.equality(site)?,
            _ => return None,
        })
    }

    fn list_walk(&self, site: &CallSite<'_, 'c>) -> Option<CallEstimate> {
        let target = site.target?;
        let size = self.node_size(target);
        let Some(element) = elements(target) else { return Some(CallEstimate::of(size.scaled(TEXT_FACTOR))) };
        let mut each = CostRange::fixed(1);
        if matches!(element.one, CelType::String | CelType::Bytes) {
            each = each.plus(self.node_size(&element).scaled(TEXT_FACTOR));
        }
        Some(CallEstimate::of(size.times(each)))
    }

    fn join(&self, site: &CallSite<'_, 'c>) -> Option<CallEstimate> {
        let target = site.target?;
        let count = self.node_size(target);
        let mut size = elements(target).map_or(CostRange::fixed(0), |element| count.times(self.node_size(&element)));
        if let Some(separator) = site.args.first() {
            let gaps = CostRange::new(count.min.saturating_sub(1), count.max.saturating_sub(1));
            size = size.plus(self.node_size(separator).times(gaps));
        }
        Some(CallEstimate::with(size.scaled(TEXT_FACTOR), size))
    }

    /// Returns the cost of comparing values of Kubernetes' own types.
    fn equality(&self, site: &CallSite<'_, 'c>) -> Option<CallEstimate> {
        let [left, right] = site.args else { return None };
        if left.one != right.one {
            return None;
        }
        let cost = match &left.one {
            CelType::Opaque(name, _) if matches!(&**name, "net.IP" | "net.CIDR") => CostRange::fixed(1),
            CelType::Struct(name) => match &**name {
                "kubernetes.NamedFormat" => CostRange::new(1, FORMAT_SIZE).scaled(TEXT_FACTOR),
                "kubernetes.URL" => CostRange::new(1, right.size.map_or(1, |size| size.max)).scaled(TEXT_FACTOR),
                name if name.starts_with("kubernetes.") => CostRange::fixed(1),
                _ => return None,
            },
            _ => return None,
        };
        Some(CallEstimate::of(cost))
    }
}

/// Returns the limit of `split`, if it is a constant.
fn split_limit(site: &CallSite<'_, '_>) -> Option<u64> {
    match site.args.get(1)?.expr.map(|expr| &expr.kind) {
        Some(ExprKind::Literal(Literal::Int(limit))) => Some(*limit as u64),
        _ => None,
    }
}

fn replace(text: CostRange, old: CostRange, new: CostRange) -> CallEstimate {
    let mut count = CostRange::fixed(0);
    let mut kept = CostRange::fixed(0);
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
    CallEstimate::with(text.scaled(2.0 * TEXT_FACTOR), count.times(new).plus(kept))
}

/// IP addresses have 4 to 16 bytes.
fn contains_address(overload: &str, other: CostRange) -> CostRange {
    let address = CostRange::new(4, 16);
    let mut cost = address.plus(address).scaled(TEXT_FACTOR);
    if overload.starts_with("cidr_contains_cidr") {
        cost = cost.plus(address.scaled(TEXT_FACTOR)).plus(CostRange::fixed(1));
    }
    if overload.ends_with("_string") { cost.plus(other.scaled(TEXT_FACTOR)) } else { cost }
}
