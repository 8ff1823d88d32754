//! Reads the changes of a `PlacementPlan`, and checks them.

use std::collections::BTreeMap;

use portolan_types::{
    GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, Scope, StatusCause, annotations, object,
    placement::{
        GROUP, MAX_PLAN_CHANGES, MAX_PLAN_ROWS, PlacementPlanSpec, PlanBounds, PlanChange, PlanPin, PlanTaint,
        PlanTarget, WhenBlocked,
    },
    quoted::go_quoted,
};
use serde_json::Value;

use super::change::PlannedChange;
use crate::{
    context::SchedulerContext,
    explain::warnings::names_in_reach,
    kinds,
    scheduler::{Scheduler, SchedulerError},
};

/// Result of reading a request: the changes, or all that is wrong with it.
pub type ReadChanges = Result<Vec<PlannedChange>, Vec<StatusCause>>;

impl Scheduler {
    /// Reads the changes of a plan in the logical cluster `home`, which has the changed objects. The caller has checked
    /// the objects in `apply` against their schema.
    ///
    /// # Errors
    /// Failures of the store. What is wrong with the request is in the result, each with the path of its field.
    pub async fn planned_changes(
        &self,
        home: LogicalClusterId,
        spec: &PlacementPlanSpec,
    ) -> Result<ReadChanges, SchedulerError> {
        let mut reader =
            ChangeReader { ctx: &self.ctx, home, changes: Vec::new(), paths: BTreeMap::new(), causes: Vec::new() };
        if spec.changes.is_empty() {
            reader.cause("Required", "spec.changes", "Required value: there is none".to_owned());
        }
        if spec.changes.len() > MAX_PLAN_CHANGES {
            let many = format!("Too many: {}: must have at most {MAX_PLAN_CHANGES} items", spec.changes.len());
            reader.cause("TooMany", "spec.changes", many);
        }
        if let Some(limit) = spec.limit.filter(|limit| !(1..=MAX_PLAN_ROWS).contains(&(*limit as usize))) {
            reader.invalid("spec.limit", &limit.to_string(), &format!("must be between 1 and {MAX_PLAN_ROWS}"));
        }
        for (at, change) in spec.changes.iter().take(MAX_PLAN_CHANGES).enumerate() {
            reader.read(&format!("spec.changes[{at}]"), change).await?;
        }
        Ok(if reader.causes.is_empty() { Ok(reader.changes) } else { Err(reader.causes) })
    }
}

/// Reader of changes, with the errors found so far.
struct ChangeReader<'a> {
    ctx: &'a SchedulerContext,
    home: LogicalClusterId,
    changes: Vec<PlannedChange>,
    /// Path of the change of each object.
    paths: BTreeMap<ObjectKey, String>,
    causes: Vec<StatusCause>,
}

impl ChangeReader<'_> {
    fn cause(&mut self, reason: &str, field: &str, message: String) {
        self.causes.push(StatusCause { reason: format!("FieldValue{reason}"), message, field: field.to_owned() });
    }

    fn invalid(&mut self, field: &str, value: &str, why: &str) {
        self.cause("Invalid", field, format!("Invalid value: {value}: {why}"));
    }

    /// Adds a change, unless another one is about the same object.
    fn add(&mut self, path: &str, change: PlannedChange) {
        let key = change.key().clone();
        if let Some(other) = self.paths.get(&key) {
            let message = format!("Duplicate value: {}: {other} changes this object too", go_quoted(&key.name));
            return self.cause("Duplicate", path, message);
        }
        self.paths.insert(key, path.to_owned());
        self.changes.push(change);
    }

    /// Checks that a change has exactly one field.
    fn has_one_field(&mut self, path: &str, change: &PlanChange) -> bool {
        let set = [
            ("apply", change.apply.is_some()),
            ("delete", change.delete.is_some()),
            ("taint", change.taint.is_some()),
            ("cordon", change.cordon.is_some()),
            ("bounds", change.bounds.is_some()),
            ("pin", change.pin.is_some()),
            ("lose", !change.lose.is_empty()),
            ("drain", !change.drain.is_empty()),
        ];
        let named: Vec<&str> = set.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        if named.is_empty() {
            let all = set.map(|(name, _)| name).join(", ");
            self.cause("Required", path, format!("Required value: exactly one of {all} must be set"));
        } else if named.len() > 1 {
            self.cause("Forbidden", path, format!("Forbidden: may not set both {}", named.join(" and ")));
        }
        if change.when_blocked.is_some() && change.drain.is_empty() {
            let field = format!("{path}.whenBlocked");
            self.cause("Forbidden", &field, "Forbidden: may only be set beside drain".to_owned());
        }
        named.len() == 1
    }

    async fn read(&mut self, path: &str, change: &PlanChange) -> Result<(), SchedulerError> {
        if !self.has_one_field(path, change) {
            return Ok(());
        }
        let PlanChange { apply, delete, taint, cordon, bounds, pin, lose, drain, when_blocked } = change;
        let force = *when_blocked == Some(WhenBlocked::Force);
        if let Some(object) = apply {
            self.read_apply(&format!("{path}.apply"), object);
        }
        if let Some(target) = delete {
            self.read_delete(&format!("{path}.delete"), target).await?;
        }
        if let Some(taint) = taint {
            self.read_taint(&format!("{path}.taint"), taint).await?;
        }
        if let Some(cordon) = cordon {
            let unschedulable = cordon.unschedulable.unwrap_or(true);
            let key = self.physical(&format!("{path}.cordon.cluster"), &cordon.cluster).await?;
            key.into_iter().for_each(|key| self.add(path, PlannedChange::Cordon { key, unschedulable }));
        }
        if let Some(PlanBounds { cluster, bounds }) = bounds {
            let key = self.physical(&format!("{path}.bounds.cluster"), cluster).await?;
            key.into_iter().for_each(|key| self.add(path, PlannedChange::Bounds { key, bounds: bounds.clone() }));
        }
        if let Some(pin) = pin {
            self.read_pin(&format!("{path}.pin"), pin).await?;
        }
        self.read_names(&format!("{path}.lose"), lose, |key| PlannedChange::Lose { key }).await?;
        self.read_names(&format!("{path}.drain"), drain, |key| PlannedChange::Drain { key, force }).await
    }

    async fn read_names(
        &mut self,
        path: &str,
        names: &[String],
        change: impl Fn(ObjectKey) -> PlannedChange,
    ) -> Result<(), SchedulerError> {
        for (at, name) in names.iter().enumerate() {
            let field = format!("{path}[{at}]");
            if let Some(key) = self.physical(&field, name).await? {
                self.add(&field, change(key));
            }
        }
        Ok(())
    }

    fn read_apply(&mut self, path: &str, object: &Value) {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let target = PlanTarget {
            api_version: text("apiVersion"),
            kind: text("kind"),
            namespace: object::namespace(object).to_owned(),
            name: object::name(object).to_owned(),
        };
        let Some(key) = self.planned_kind(path, &target, ".metadata") else { return };
        let own = self.ctx.lineage_of(self.home).lineage.into_iter().next();
        if let Some(named) = object::annotation(object, annotations::KCP_CLUSTER) {
            let is_own = named == self.home.to_string() || own.as_ref().is_some_and(|(_, path)| *named == **path);
            if !is_own {
                let field = format!("{path}.metadata.annotations[{}]", annotations::KCP_CLUSTER);
                self.invalid(&field, &go_quoted(named), "a plan changes objects of its own workspace only");
            }
        }
        self.add(path, PlannedChange::Apply { key, object: object.clone() });
    }

    async fn read_delete(&mut self, path: &str, target: &PlanTarget) -> Result<(), SchedulerError> {
        let Some(key) = self.planned_kind(path, target, "") else { return Ok(()) };
        if self.ctx.objects.store().get(&key).await?.is_none() {
            self.cause("NotFound", &format!("{path}.name"), format!("Not found: {}", go_quoted(&target.name)));
            return Ok(());
        }
        self.add(path, PlannedChange::Delete { key });
        Ok(())
    }

    async fn read_taint(&mut self, path: &str, planned: &PlanTaint) -> Result<(), SchedulerError> {
        let taint = &planned.taint;
        if taint.key.is_empty() {
            self.cause("Required", &format!("{path}.key"), "Required value".to_owned());
        }
        if !matches!(&*taint.effect, "NoSchedule" | "NoExecute") {
            let message = format!(
                "Unsupported value: {}: supported values: \"NoExecute\", \"NoSchedule\"",
                go_quoted(&taint.effect)
            );
            self.cause("NotSupported", &format!("{path}.effect"), message);
        }
        if let Some(key) = self.physical(&format!("{path}.cluster"), &planned.cluster).await? {
            self.add(path, PlannedChange::Taint { key, taint: taint.clone(), remove: planned.remove });
        }
        Ok(())
    }

    async fn read_pin(&mut self, path: &str, pin: &PlanPin) -> Result<(), SchedulerError> {
        let known = names_in_reach(self.ctx, &self.ctx.lineage_of(self.home));
        for (at, name) in pin.clusters.iter().enumerate().filter(|(_, name)| !known.contains(name)) {
            let message = format!("Not found: {}: it is not in reach", go_quoted(name));
            self.cause("NotFound", &format!("{path}.clusters[{at}]"), message);
        }
        let target = &pin.object;
        let path_of_object = format!("{path}.object");
        let resource = match (&*target.api_version, &*target.kind) {
            ("v1", "Namespace") => Some(kinds::namespaces()),
            (version, kind) => {
                let group = version.split_once('/').map_or("", |(group, _)| group);
                self.ctx.resource_in(self.home, group, kind)
            }
        };
        let Some(resource) = resource else {
            let why = "it is none of the kinds that are placed, and no Namespace";
            self.invalid(&format!("{path_of_object}.kind"), &go_quoted(&target.kind), why);
            return Ok(());
        };
        let is_namespace = resource == kinds::namespaces();
        let Some(key) = self.key(&path_of_object, target, (resource, !is_namespace)) else { return Ok(()) };
        if self.ctx.objects.store().get(&key).await?.is_none() {
            let message = format!("Not found: {}", go_quoted(&target.name));
            self.cause("NotFound", &format!("{path_of_object}.name"), message);
            return Ok(());
        }
        self.add(path, PlannedChange::Pin { key, clusters: pin.clusters.clone() });
        Ok(())
    }

    /// Returns the key of a policy or physical cluster; `below` is the path from it to its name.
    fn planned_kind(&mut self, path: &str, target: &PlanTarget, below: &str) -> Option<ObjectKey> {
        let [namespaced, wide] = kinds::policies();
        let group = GroupVersionKind::parse(&target.api_version, &target.kind).map(|gvk| gvk.group.to_string());
        let resource = match (group.as_deref(), &*target.kind) {
            (Ok(GROUP), "PlacementPolicy") => (namespaced, true),
            (Ok(GROUP), "ClusterPlacementPolicy") => (wide, false),
            (Ok(GROUP), "PhysicalCluster") => (kinds::physical_clusters(), false),
            (Ok(GROUP), _) => {
                let supported = "\"ClusterPlacementPolicy\", \"PhysicalCluster\", \"PlacementPolicy\"";
                let message = format!("Unsupported value: {}: supported values: {supported}", go_quoted(&target.kind));
                self.cause("NotSupported", &format!("{path}.kind"), message);
                return None;
            }
            _ => {
                let value = go_quoted(&target.api_version);
                self.invalid(&format!("{path}.apiVersion"), &value, "must be a version of portolan.dev");
                return None;
            }
        };
        self.key(&format!("{path}{below}"), target, resource)
    }

    fn key(
        &mut self,
        path: &str,
        target: &PlanTarget,
        (resource, is_namespaced): (portolan_types::GroupResource, bool),
    ) -> Option<ObjectKey> {
        let namespace: Option<NamespaceName> = target.namespace.parse().ok();
        let scope = match (is_namespaced, namespace) {
            (true, Some(namespace)) => Scope::Namespace(namespace),
            (false, _) if target.namespace.is_empty() => Scope::Cluster,
            (true, None) if target.namespace.is_empty() => {
                self.cause("Required", &format!("{path}.namespace"), "Required value".to_owned());
                return None;
            }
            (is_namespaced, _) => {
                let why = if is_namespaced { "is no name of a namespace" } else { "the kind has no namespace" };
                self.invalid(&format!("{path}.namespace"), &go_quoted(&target.namespace), why);
                return None;
            }
        };
        match target.name.parse() {
            Ok(name) => Some(ObjectKey { cluster: self.home, resource, scope, name }),
            Err(_) if target.name.is_empty() => {
                self.cause("Required", &format!("{path}.name"), "Required value".to_owned());
                None
            }
            Err(error) => {
                self.invalid(&format!("{path}.name"), &go_quoted(&target.name), &error.to_string());
                None
            }
        }
    }

    /// Returns the key of a physical cluster that is registered in the workspace of the plan.
    async fn physical(&mut self, field: &str, name: &str) -> Result<Option<ObjectKey>, SchedulerError> {
        let Ok(parsed) = name.parse() else {
            self.cause("Required", field, "Required value: the name of a physical cluster".to_owned());
            return Ok(None);
        };
        let key = ObjectKey::cluster_scoped(self.home, kinds::physical_clusters(), parsed);
        if self.ctx.objects.store().get(&key).await?.is_some() {
            return Ok(Some(key));
        }
        let reach = self.ctx.lineage_of(self.home);
        let elsewhere = names_in_reach(self.ctx, &reach).iter().any(|known| known == name);
        let why = if elsewhere { ": it is registered in an ancestor, where it can be planned" } else { "" };
        self.cause("NotFound", field, format!("Not found: {}{why}", go_quoted(name)));
        Ok(None)
    }
}
