//! What calls cost: the standard functions, and those whose overloads bring an estimate of their own.

use super::{EntrySize, Estimator, LIST_COST, Node, PATTERN_FACTOR, Range, TEXT_FACTOR};
use crate::functions::Overload;
use crate::syntax::{Call, Expr, Kind, Literal};
use crate::types::Type;

/// The cost of a call and the size of what it gives.
pub(super) struct Estimate {
    pub(super) cost: Range,
    pub(super) result: Option<Range>,
}

impl Estimate {
    pub(super) fn of(cost: Range) -> Self {
        Self { cost, result: None }
    }

    pub(super) fn with(cost: Range, result: Range) -> Self {
        Self { cost, result: Some(result) }
    }
}

/// A call with what is known of its arguments.
pub(super) struct Site<'n, 'c> {
    pub(super) function: &'n str,
    pub(super) overload: &'static Overload,
    pub(super) target: Option<&'n Node<'c>>,
    pub(super) args: &'n [Node<'c>],
    costs: &'n [Range],
}

impl<'c> Estimator<'c> {
    pub(super) fn call(&mut self, expr: &'c Expr, call: &'c Call) -> Range {
        if &*call.function == "dyn"
            && let Some(arg) = call.args.first()
        {
            return self.dyn_call(expr, arg);
        }
        let mut costs = Vec::new();
        let mut args = Vec::new();
        for arg in &call.args {
            costs.push(self.cost(arg));
            args.push(self.node(arg));
        }
        let overloads = self.checked.overloads.get(&expr.id).map_or(&[][..], Vec::as_slice);
        if overloads.is_empty() {
            return Range::fixed(0);
        }
        let mut sum = Range::fixed(0);
        let target = call.target.as_deref().map(|target| {
            sum = self.cost(target);
            self.node(target)
        });
        let mut total = Range::new(u64::MAX, 0);
        let mut result: Option<Range> = None;
        for overload in overloads {
            let site = Site { function: &call.function, overload, target: target.as_ref(), args: &args, costs: &costs };
            let estimate = self.function(expr, &site);
            total = total.union(estimate.cost);
            if let Some(size) = estimate.result {
                result = Some(result.map_or(size, |known| known.union(size)));
            }
            self.note_index(expr, call, overload, &mut result);
            result = result.or_else(|| self.size(expr));
        }
        if let Some(size) = result {
            self.sizes.insert(expr.id, size);
        }
        sum.plus(total)
    }

    /// `dyn` only hides a type.
    fn dyn_call(&mut self, expr: &'c Expr, arg: &'c Expr) -> Range {
        let cost = self.cost(arg);
        if let Some(size) = self.size(arg) {
            self.sizes.insert(expr.id, size);
        }
        if let Some(entries) = self.entry_size(arg) {
            self.entries.insert(expr.id, entries);
        }
        cost.plus(Range::fixed(1))
    }

    fn note_index(&mut self, expr: &'c Expr, call: &'c Call, overload: &Overload, result: &mut Option<Range>) {
        let name = match overload.id {
            "index_list" => "@items",
            "index_map" => "@values",
            _ => return,
        };
        let Some(container) = call.args.first() else { return };
        *result = self.entry_size(container).map(|entries| entries.value);
        let path = self.path(container).child(name.into());
        self.paths.insert(expr.id, path);
    }

    fn function(&mut self, expr: &'c Expr, site: &Site<'_, 'c>) -> Estimate {
        let args = site.costs.iter().fold(Range::fixed(0), |sum, cost| sum.plus(*cost));
        let own =
            self.of_lists_and_sets(site).or_else(|| self.of_kubernetes(site)).or_else(|| self.of_standard(expr, site));
        match own {
            Some(estimate) if is_control(site.overload.id) => estimate,
            Some(estimate) => Estimate { cost: estimate.cost.plus(args), ..estimate },
            None => Estimate::of(Range::fixed(1).plus(args)),
        }
    }

    /// The size a node was found to have, or is declared to have.
    pub(super) fn node_size(&self, node: &Node<'_>) -> Range {
        node.size.or_else(|| self.declared_size(&node.path)).unwrap_or(Range::UNKNOWN)
    }

    fn of_standard(&mut self, expr: &'c Expr, site: &Site<'_, 'c>) -> Option<Estimate> {
        let found = |node: &Node<'_>| node.size.unwrap_or(Range::UNKNOWN);
        let target = site.target.map(found);
        let first = site.args.first().map(found);
        let second = site.args.get(1).map(found);
        Some(match site.overload.id {
            "string_format" => Estimate::of(target?.scaled(TEXT_FACTOR)),
            "string_to_bytes" => {
                let size = first?;
                Estimate::with(size.scaled(TEXT_FACTOR), Range::new(size.min, size.max.wrapping_mul(4)))
            }
            "bytes_to_string" => {
                let size = first?;
                Estimate::with(size.scaled(TEXT_FACTOR), Range::new(size.min / 4, size.max))
            }
            "strings_quote" => {
                let size = first?;
                let result = Range::new(size.min.wrapping_add(2), size.max.wrapping_mul(2).wrapping_add(2));
                Estimate::with(size.scaled(TEXT_FACTOR), result)
            }
            "starts_with_string" | "ends_with_string" => Estimate::of(first?.scaled(TEXT_FACTOR)),
            "in_list" => Estimate::of(second?.scaled(1.0)),
            "matches_string" => {
                let text = target?.plus(Range::fixed(1)).scaled(TEXT_FACTOR);
                Estimate::of(text.times(first?.scaled(PATTERN_FACTOR)))
            }
            "contains_string" => Estimate::of(target?.scaled(TEXT_FACTOR).times(first?.scaled(TEXT_FACTOR))),
            "logical_or" | "logical_and" => {
                let left = site.costs[0];
                Estimate::of(Range::new(left.min, left.plus(site.costs[1]).max))
            }
            "conditional" => {
                let entries = EntrySize::union(self.entry_of(&site.args[1]), self.entry_of(&site.args[2]));
                self.note_entries(expr, entries);
                let cost = site.costs[0].plus(site.costs[1].union(site.costs[2]));
                Estimate::with(cost, second?.union(found(&site.args[2])))
            }
            "add_string" | "add_bytes" | "add_list" => {
                let entries = EntrySize::union(self.entry_of(&site.args[0]), self.entry_of(&site.args[1]));
                self.note_entries(expr, entries);
                let result = first?.plus(second?);
                let cost = if site.overload.id == "add_list" { Range::fixed(1) } else { result.scaled(TEXT_FACTOR) };
                Estimate::with(cost, result)
            }
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals" => {
                let most = first?.max.min(second?.max);
                Estimate::of(Range::new(u64::from(most > 0), most).scaled(TEXT_FACTOR))
            }
            _ => return None,
        })
    }

    fn entry_of(&self, node: &Node<'_>) -> Option<EntrySize> {
        node.expr.and_then(|expr| self.entry_size(expr))
    }

    fn note_entries(&mut self, expr: &Expr, entries: Option<EntrySize>) {
        if let Some(entries) = entries {
            self.entries.insert(expr.id, entries);
        }
    }

    /// The list and set extensions, whose estimates go by overload.
    fn of_lists_and_sets(&self, site: &Site<'_, 'c>) -> Option<Estimate> {
        let target = site.target.map(|node| self.node_size(node));
        let list =
            |factor: f64, size: Range| Estimate::with(size.scaled(factor).plus(Range::fixed(1 + LIST_COST)), size);
        let id = site.overload.id;
        Some(match id {
            "list_sets_contains_list" | "list_sets_intersects_list" | "list_sets_equivalent_list" => {
                let product = self.node_size(&site.args[0]).times(self.node_size(&site.args[1]));
                let factor = if id == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
                Estimate::of(product.scaled(factor).plus(Range::fixed(1)))
            }
            "list_slice" => {
                let start = constant(&site.args[0], 0);
                let end = constant(&site.args[1], target?.max);
                list(1.0, Range::fixed(end.wrapping_sub(start)))
            }
            "list_flatten" => list(1.0, target?),
            "list_flatten_int" => list(constant(&site.args[0], u64::MAX) as f64, target?),
            "lists_range" => list(1.0, Range::fixed(constant(&site.args[0], u64::MAX))),
            "list_reverse" => list(1.0, target?),
            "list_distinct" => list(2.0, target?.times(target?)),
            _ if id.starts_with("list_") && (id.ends_with("_sort") || id.ends_with("_sortByAssociatedKeys")) => {
                let size = if id.ends_with("_sort") { target? } else { self.node_size(&site.args[0]) };
                let texts = id.starts_with("list_string") || id.starts_with("list_bytes");
                list(if texts { 2.0 + TEXT_FACTOR } else { 2.0 }, size.times(size))
            }
            _ => return None,
        })
    }
}

/// These tell of their arguments' costs themselves.
fn is_control(overload: &str) -> bool {
    matches!(overload, "logical_or" | "logical_and" | "conditional")
}

/// A whole number written out; not below nothing.
fn constant(node: &Node<'_>, otherwise: u64) -> u64 {
    match node.expr.map(|expr| &expr.kind) {
        Some(Kind::Literal(Literal::Int(number))) => u64::try_from(*number).unwrap_or_default(),
        _ => otherwise,
    }
}

/// The elements of a list, as far as estimates see them.
pub(super) fn elements<'c>(list: &Node<'c>) -> Option<Node<'c>> {
    let one = match &list.one {
        Type::List(element) => (**element).clone(),
        Type::Map(key, _) => (**key).clone(),
        Type::Opaque(_, parameters) => parameters.first()?.clone(),
        _ => return None,
    };
    let path = if list.path.is_empty() { list.path.clone() } else { list.path.detached_child("@items") };
    Some(Node { path, one, expr: None, size: None })
}
