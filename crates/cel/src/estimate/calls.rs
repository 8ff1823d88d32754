//! Cost estimates of calls: the standard functions, and overloads with their own estimate.

use super::{CostRange, EntrySize, EstimatedNode, Estimator, LIST_COST, PATTERN_FACTOR, TEXT_FACTOR};
use crate::functions::Overload;
use crate::syntax::{CallExpr, Expr, ExprKind, Literal};
use crate::types::CelType;

/// Cost of a call and size of its result.
pub(super) struct CallEstimate {
    pub(super) cost: CostRange,
    pub(super) result: Option<CostRange>,
}

impl CallEstimate {
    pub(super) fn of(cost: CostRange) -> Self {
        Self { cost, result: None }
    }

    pub(super) fn with(cost: CostRange, result: CostRange) -> Self {
        Self { cost, result: Some(result) }
    }
}

/// Call with the known facts about its arguments.
pub(super) struct CallSite<'n, 'c> {
    pub(super) function: &'n str,
    pub(super) overload: &'static Overload,
    pub(super) target: Option<&'n EstimatedNode<'c>>,
    pub(super) args: &'n [EstimatedNode<'c>],
    costs: &'n [CostRange],
}

impl<'c> Estimator<'c> {
    pub(super) fn call(&mut self, expr: &'c Expr, call: &'c CallExpr) -> CostRange {
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
            return CostRange::fixed(0);
        }
        let mut sum = CostRange::fixed(0);
        let target = call.target.as_deref().map(|target| {
            sum = self.cost(target);
            self.node(target)
        });
        let mut total = CostRange::new(u64::MAX, 0);
        let mut result: Option<CostRange> = None;
        for overload in overloads {
            let site =
                CallSite { function: &call.function, overload, target: target.as_ref(), args: &args, costs: &costs };
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

    /// `dyn` changes the type and nothing else.
    fn dyn_call(&mut self, expr: &'c Expr, arg: &'c Expr) -> CostRange {
        let cost = self.cost(arg);
        if let Some(size) = self.size(arg) {
            self.sizes.insert(expr.id, size);
        }
        if let Some(entries) = self.entry_size(arg) {
            self.entries.insert(expr.id, entries);
        }
        cost.plus(CostRange::fixed(1))
    }

    fn note_index(&mut self, expr: &'c Expr, call: &'c CallExpr, overload: &Overload, result: &mut Option<CostRange>) {
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

    fn function(&mut self, expr: &'c Expr, site: &CallSite<'_, 'c>) -> CallEstimate {
        let args = site.costs.iter().fold(CostRange::fixed(0), |sum, cost| sum.plus(*cost));
        let own =
            self.of_lists_and_sets(site).or_else(|| self.of_kubernetes(site)).or_else(|| self.of_standard(expr, site));
        match own {
            Some(estimate) if is_control(site.overload.id) => estimate,
            Some(estimate) => CallEstimate { cost: estimate.cost.plus(args), ..estimate },
            None => CallEstimate::of(CostRange::fixed(1).plus(args)),
        }
    }

    /// Returns the computed size of a node, or its declared size.
    pub(super) fn node_size(&self, node: &EstimatedNode<'_>) -> CostRange {
        node.size.or_else(|| self.declared_size(&node.path)).unwrap_or(CostRange::UNKNOWN)
    }

    fn of_standard(&mut self, expr: &'c Expr, site: &CallSite<'_, 'c>) -> Option<CallEstimate> {
        let found = |node: &EstimatedNode<'_>| node.size.unwrap_or(CostRange::UNKNOWN);
        let target = site.target.map(found);
        let first = site.args.first().map(found);
        let second = site.args.get(1).map(found);
        Some(match site.overload.id {
            "string_format" => CallEstimate::of(target?.scaled(TEXT_FACTOR)),
            "string_to_bytes" => {
                let size = first?;
                CallEstimate::with(size.scaled(TEXT_FACTOR), CostRange::new(size.min, size.max.wrapping_mul(4)))
            }
            "bytes_to_string" => {
                let size = first?;
                CallEstimate::with(size.scaled(TEXT_FACTOR), CostRange::new(size.min / 4, size.max))
            }
            "strings_quote" => {
                let size = first?;
                let result = CostRange::new(size.min.wrapping_add(2), size.max.wrapping_mul(2).wrapping_add(2));
                CallEstimate::with(size.scaled(TEXT_FACTOR), result)
            }
            "starts_with_string" | "ends_with_string" => CallEstimate::of(first?.scaled(TEXT_FACTOR)),
            "in_list" => CallEstimate::of(second?.scaled(1.0)),
            "matches_string" => {
                let text = target?.plus(CostRange::fixed(1)).scaled(TEXT_FACTOR);
                CallEstimate::of(text.times(first?.scaled(PATTERN_FACTOR)))
            }
            "contains_string" => CallEstimate::of(target?.scaled(TEXT_FACTOR).times(first?.scaled(TEXT_FACTOR))),
            "logical_or" | "logical_and" => {
                let left = site.costs[0];
                CallEstimate::of(CostRange::new(left.min, left.plus(site.costs[1]).max))
            }
            "conditional" => {
                let entries = EntrySize::union(self.entry_of(&site.args[1]), self.entry_of(&site.args[2]));
                self.note_entries(expr, entries);
                let cost = site.costs[0].plus(site.costs[1].union(site.costs[2]));
                CallEstimate::with(cost, second?.union(found(&site.args[2])))
            }
            "add_string" | "add_bytes" | "add_list" => {
                let entries = EntrySize::union(self.entry_of(&site.args[0]), self.entry_of(&site.args[1]));
                self.note_entries(expr, entries);
                let result = first?.plus(second?);
                let cost =
                    if site.overload.id == "add_list" { CostRange::fixed(1) } else { result.scaled(TEXT_FACTOR) };
                CallEstimate::with(cost, result)
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
                CallEstimate::of(CostRange::new(u64::from(most > 0), most).scaled(TEXT_FACTOR))
            }
            _ => return None,
        })
    }

    fn entry_of(&self, node: &EstimatedNode<'_>) -> Option<EntrySize> {
        node.expr.and_then(|expr| self.entry_size(expr))
    }

    fn note_entries(&mut self, expr: &Expr, entries: Option<EntrySize>) {
        if let Some(entries) = entries {
            self.entries.insert(expr.id, entries);
        }
    }

    /// List and set extensions, whose estimates depend on the overload.
    fn of_lists_and_sets(&self, site: &CallSite<'_, 'c>) -> Option<CallEstimate> {
        let target = site.target.map(|node| self.node_size(node));
        let list = |factor: f64, size: CostRange| {
            CallEstimate::with(size.scaled(factor).plus(CostRange::fixed(1 + LIST_COST)), size)
        };
        let id = site.overload.id;
        Some(match id {
            "list_sets_contains_list" | "list_sets_intersects_list" | "list_sets_equivalent_list" => {
                let product = self.node_size(&site.args[0]).times(self.node_size(&site.args[1]));
                let factor = if id == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
                CallEstimate::of(product.scaled(factor).plus(CostRange::fixed(1)))
            }
            "list_slice" => {
                let start = constant(&site.args[0], 0);
                let end = constant(&site.args[1], target?.max);
                list(1.0, CostRange::fixed(end.wrapping_sub(start)))
            }
            "list_flatten" => list(1.0, target?),
            "list_flatten_int" => list(constant(&site.args[0], u64::MAX) as f64, target?),
            "lists_range" => list(1.0, CostRange::fixed(constant(&site.args[0], u64::MAX))),
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

/// Functions whose estimates include the costs of their arguments.
fn is_control(overload: &str) -> bool {
    matches!(overload, "logical_or" | "logical_and" | "conditional")
}

/// Returns a constant integer of at least zero.
fn constant(node: &EstimatedNode<'_>, otherwise: u64) -> u64 {
    match node.expr.map(|expr| &expr.kind) {
        Some(ExprKind::Literal(Literal::Int(number))) => u64::try_from(*number).unwrap_or_default(),
        _ => otherwise,
    }
}

/// Returns the elements of a list, as far as estimates see them.
pub(super) fn elements<'c>(list: &EstimatedNode<'c>) -> Option<EstimatedNode<'c>> {
    let one = match &list.one {
        CelType::List(element) => (**element).clone(),
        CelType::Map(key, _) => (**key).clone(),
        CelType::Opaque(_, parameters) => parameters.first()?.clone(),
        _ => return None,
    };
    let path = if list.path.is_empty() { list.path.clone() } else { list.path.detached_child("@items") };
    Some(EstimatedNode { path, one, expr: None, size: None })
}
