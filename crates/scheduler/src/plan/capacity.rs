//! Requests on physical clusters before and after a plan.

use portolan_types::{ObjectKey, Uid, placement::ResourceAmounts};

use super::{rows::CapacityRow, scope::PlanScope, shadow::ShadowPair};

/// Returns true if the logical cluster of the changes may use a physical cluster of an ancestor.
fn may_use(shadow: &ShadowPair, scope: &PlanScope, key: &ObjectKey) -> bool {
    shadow.next.ctx.rights.may_use(scope.home(), key.cluster, &key.name)
}

/// Returns the physical clusters in the scope, and those of ancestors that may be used, by key.
pub(super) fn capacity_rows(shadow: &ShadowPair, scope: &PlanScope) -> Vec<CapacityRow> {
    let (base, next) = (shadow.base.ctx.facts(), shadow.next.ctx.facts());
    let reach = shadow.next.ctx.lineage_of(scope.home());
    let row = |(uid, key, bounds): (&Uid, &ObjectKey, &ResourceAmounts)| {
        let is_usable = || may_use(shadow, scope, key);
        let is_near = scope.clusters().contains(&key.cluster) || (reach.may_contain(key.cluster) && is_usable());
        let physical = next.physical(uid).filter(|_| is_near)?;
        Some(CapacityRow {
            key: key.clone(),
            before: base.usage.of(uid),
            after: next.usage.of(uid),
            bounds: bounds.clone(),
            allocatable: physical.info.allocatable.clone(),
        })
    };
    let mut rows: Vec<CapacityRow> = next.all_physical().filter_map(row).collect();
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows
}
