//! View of a plan for its caller: rows of objects that the caller may get, and counts of the others.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use portolan_apiserver::{ApiServer, LogicalCluster, attributes::Attributes, hooks::Requester};
use portolan_scheduler::{BudgetRow, CapacityRow, Plan, PlanRow, PlannedPlace, RefusedRow};
use portolan_types::{
    GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Status,
    placement::{
        BudgetConflict, HiddenObjects, PlacementPlanStatus, PlanCounts, PlannedCapacity, PlannedCopy, PlannedMove,
        PlannedObject, PlannedRefusal,
    },
};

/// Most objects for which the caller's rights to single names are looked up. Beyond them, only rights to all objects of
/// a resource count.
const MAX_NAMED_CHECKS: usize = 2_000;

/// Objects of one resource in one namespace.
type ResourceScope = (LogicalClusterId, GroupResource, String);

/// View of a plan for its caller.
pub(super) struct PlanView<'a> {
    api: &'a Arc<ApiServer>,
    home: &'a LogicalCluster,
    caller: Requester<'a>,
    /// Rights to get all objects of a resource.
    rights: HashMap<ResourceScope, bool>,
    workspaces: HashMap<LogicalClusterId, WorkspaceView>,
    named_checks: usize,
}

/// Workspace of a row.
#[derive(Clone)]
struct WorkspaceView {
    path: String,
    is_visible: bool,
}

/// Rows that are listed, and counts of the others.
#[derive(Default)]
struct ListedRows {
    left: usize,
    omitted: PlanCounts,
    /// Counts of hidden objects by workspace; of those in workspaces that the caller may not see, under "".
    hidden: BTreeMap<String, PlanCounts>,
}

/// Place of a row in the counts.
type CountOf = fn(&mut PlanCounts) -> &mut u64;

impl ListedRows {
    /// Returns true if a visible row is listed.
    fn list(&mut self, count: CountOf) -> bool {
        if self.left == 0 {
            *count(&mut self.omitted) += 1;
            return false;
        }
        self.left -= 1;
        true
    }

    fn hide(&mut self, workspace: &WorkspaceView, count: CountOf) {
        let name = if workspace.is_visible { workspace.path.clone() } else { String::new() };
        *count(self.hidden.entry(name).or_default()) += 1;
    }
}

impl<'a> PlanView<'a> {
    pub(super) fn new(api: &'a Arc<ApiServer>, home: &'a LogicalCluster, caller: Requester<'a>) -> Self {
        Self { api, home, caller, rights: HashMap::new(), workspaces: HashMap::new(), named_checks: 0 }
    }

    /// Returns the status of a `PlacementPlan`, with at most `limit` rows.
    pub(super) async fn status_of(mut self, plan: Plan, limit: usize) -> Result<PlacementPlanStatus, Status> {
        let mut status = PlacementPlanStatus {
            summary: plan.summary(),
            hash: plan.hash.clone(),
            resource_version: plan.revision.map(|revision| revision.to_string()).unwrap_or_default(),
            counts: plan.counts(),
            ..PlacementPlanStatus::default()
        };
        let mut rows = ListedRows { left: limit, ..ListedRows::default() };
        for row in plan.refused {
            if let Some(object) = self.list(&mut rows, (&row.key, &row.kind), |counts| &mut counts.refused).await? {
                status.refused.push(refusal(object, row));
            }
        }
        for row in plan.moves {
            let count: CountOf = if row.follows { |counts| &mut counts.followers } else { |counts| &mut counts.moves };
            if let Some(object) = self.list(&mut rows, (&row.key, &row.kind), count).await? {
                status.moves.push(planned_move(object, row));
            }
        }
        for row in plan.splits {
            if let Some(object) = self.list(&mut rows, (&row.key, &row.kind), |counts| &mut counts.splits).await? {
                status.splits.push(planned_move(object, row));
            }
        }
        status.omitted = rows.omitted;
        let hidden = |(workspace, counts)| HiddenObjects { workspace, counts };
        status.hidden = rows.hidden.into_iter().map(hidden).collect();
        status.disruption_budgets = self.budgets(plan.budgets).await?;
        status.capacity = self.capacity(plan.capacity).await?;
        Ok(status)
    }

    /// Returns the budgets that the caller may get.
    async fn budgets(&mut self, rows: Vec<BudgetRow>) -> Result<Vec<BudgetConflict>, Status> {
        let kind = GroupVersionKind::new("policy", "v1", "PodDisruptionBudget");
        let mut shown = Vec::new();
        for BudgetRow { key, disrupted, allowed } in rows {
            if self.may_get(&key).await? {
                let budget = planned_object(self.workspace(key.cluster).await?.path, &key, &kind);
                shown.push(BudgetConflict { budget, disrupted, allowed });
            }
        }
        Ok(shown)
    }

    /// Returns the physical clusters that the caller may get.
    async fn capacity(&mut self, rows: Vec<CapacityRow>) -> Result<Vec<PlannedCapacity>, Status> {
        let mut shown = Vec::new();
        for CapacityRow { key, before, after, bounds, allocatable } in rows {
            if self.may_get_physical(&key).await? {
                let (cluster, workspace) = (key.name.to_string(), self.workspace(key.cluster).await?.path);
                shown.push(PlannedCapacity { cluster, workspace, before, after, bounds, allocatable });
            }
        }
        Ok(shown)
    }

    /// Returns the object of a row that is listed; otherwise counts it.
    async fn list(
        &mut self,
        rows: &mut ListedRows,
        (key, kind): (&ObjectKey, &GroupVersionKind),
        count: CountOf,
    ) -> Result<Option<PlannedObject>, Status> {
        let workspace = self.workspace(key.cluster).await?;
        if !self.may_get(key).await? {
            rows.hide(&workspace, count);
            return Ok(None);
        }
        Ok(rows.list(count).then(|| planned_object(workspace.path, key, kind)))
    }

    /// Returns true if the caller may get an object.
    async fn may_get(&mut self, key: &ObjectKey) -> Result<bool, Status> {
        let namespace = key.namespace().map(ToString::to_string).unwrap_or_default();
        let scope = (key.cluster, key.resource.clone(), namespace);
        let may_get_all = match self.rights.get(&scope) {
            Some(known) => *known,
            None => {
                let allowed = self.is_allowed(key, "").await?;
                self.rights.insert(scope, allowed);
                allowed
            }
        };
        if may_get_all || self.named_checks >= MAX_NAMED_CHECKS {
            return Ok(may_get_all);
        }
        self.named_checks += 1;
        self.is_allowed(key, &key.name).await
    }

    /// Returns true if the caller may get a physical cluster. Those of ancestors are shown in the workspace of the
    /// plan.
    async fn may_get_physical(&mut self, key: &ObjectKey) -> Result<bool, Status> {
        let is_below = self.lineage(key.cluster).contains(&self.home.id);
        let cluster = if is_below { key.cluster } else { self.home.id };
        self.may_get(&ObjectKey { cluster, ..key.clone() }).await
    }

    fn lineage(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId> {
        let directory = self.api.directory();
        std::iter::successors(directory.by_id(cluster), |known| directory.by_id(known.parent?)).map(|c| c.id).collect()
    }

    async fn is_allowed(&self, key: &ObjectKey, name: &str) -> Result<bool, Status> {
        // An identity of one logical cluster has no rights in another one, whatever its name.
        if self.caller.home.is_some_and(|home| home != key.cluster) {
            return Ok(false);
        }
        let attributes = Attributes {
            verb: "get".into(),
            group: key.resource.group.to_string(),
            resource: key.resource.resource.to_string(),
            namespace: key.namespace().map(ToString::to_string).unwrap_or_default(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        Ok(self.api.authorizer().authorize(key.cluster, self.caller.user, &attributes).await?.is_allowed())
    }

    /// Returns the workspace of a row. The caller may see the workspace of the plan, and those that it may get.
    async fn workspace(&mut self, cluster: LogicalClusterId) -> Result<WorkspaceView, Status> {
        if let Some(known) = self.workspaces.get(&cluster) {
            return Ok(known.clone());
        }
        let found = self.api.directory().by_id(cluster);
        let path = found.as_ref().map(|found| found.path.to_string()).unwrap_or_default();
        let is_visible = match found.and_then(|found| found.parent) {
            _ if cluster == self.home.id => true,
            Some(parent) => self.may_get_workspace(parent, path.rsplit(':').next().unwrap_or_default()).await?,
            None => false,
        };
        let view = WorkspaceView { path, is_visible };
        self.workspaces.insert(cluster, view.clone());
        Ok(view)
    }

    async fn may_get_workspace(&self, parent: LogicalClusterId, name: &str) -> Result<bool, Status> {
        let Ok(name) = name.parse() else { return Ok(false) };
        let key = ObjectKey::cluster_scoped(parent, GroupResource::new("tenancy.kcp.io", "workspaces"), name);
        self.is_allowed(&key, &key.name).await
    }
}

fn planned_object(workspace: String, key: &ObjectKey, kind: &GroupVersionKind) -> PlannedObject {
    PlannedObject {
        workspace,
        api_version: kind.group_version().to_string(),
        kind: kind.kind.to_string(),
        namespace: key.namespace().map(ToString::to_string).unwrap_or_default(),
        name: key.name.to_string(),
    }
}

fn copies(places: Vec<PlannedPlace>) -> Vec<PlannedCopy> {
    places.into_iter().map(|place| PlannedCopy { cluster: place.name, replicas: place.replicas }).collect()
}

fn planned_move(object: PlannedObject, row: PlanRow) -> PlannedMove {
    let PlanRow { from, to, reason, follows, .. } = row;
    PlannedMove { object, from: copies(from), to: copies(to), reason, follows }
}

fn refusal(object: PlannedObject, row: RefusedRow) -> PlannedRefusal {
    let RefusedRow { stays, reason, message, .. } = row;
    PlannedRefusal { object, stays: copies(stays), reason: reason.to_owned(), message }
}
