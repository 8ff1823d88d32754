//! Steps before a logical cluster is ready, and before its content is deleted: initializers and terminators, which
//! providers end one by one.

use portolan_strategy::rbac::User;
use portolan_types::{
    lifecycle::{LifecycleStage, is_step_label},
    object,
};
use serde_json::{Map, Value, json};

use super::{ClusterPhase, LogicalCluster};

/// Condition of a Workspace that is true once there is no initializer.
const INITIALIZED: &str = "WorkspaceInitialized";

fn phase_of(stage: LifecycleStage) -> ClusterPhase {
    match stage {
        LifecycleStage::Initializing => ClusterPhase::Initializing,
        LifecycleStage::Terminating => ClusterPhase::Terminating,
    }
}

/// Steps of a logical cluster, and its owner. Only one whose type asks for steps has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterLifecycle {
    /// Initializers that its types ask for.
    pub initializers: Vec<String>,
    /// Terminators that its types ask for.
    pub terminators: Vec<String>,
    /// Steps of the current stage that have not ended.
    pub pending: Vec<String>,
    /// Exports that its types bind, as `<path of the workspace>:<name>`.
    pub bindings: Vec<String>,
    /// Name of the user who created it.
    pub owner: String,
    /// Groups of the user who created it.
    pub owner_groups: Vec<String>,
    /// Time of the deletion, RFC 3339; empty before it.
    pub deleted: String,
}

impl ClusterLifecycle {
    /// Returns true without any step.
    pub(crate) fn is_empty(&self) -> bool {
        self.initializers.is_empty() && self.terminators.is_empty()
    }

    /// Returns the steps of a stage that its types ask for.
    pub(crate) fn steps(&self, stage: LifecycleStage) -> &[String] {
        match stage {
            LifecycleStage::Initializing => &self.initializers,
            LifecycleStage::Terminating => &self.terminators,
        }
    }

    /// Returns the user who created the logical cluster.
    pub(crate) fn owner(&self) -> User {
        User { name: self.owner.clone(), groups: self.owner_groups.clone(), ..User::default() }
    }

    pub(super) fn to_value(&self) -> Value {
        json!({
            "initializers": self.initializers, "terminators": self.terminators, "pending": self.pending,
            "bindings": self.bindings, "owner": self.owner, "ownerGroups": self.owner_groups, "deleted": self.deleted,
        })
    }

    /// Decodes the stored form; `None` for a damaged one.
    pub(super) fn of(value: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = |key: &str| value.get(key)?.as_array()?.iter().map(text).collect::<Option<Vec<_>>>();
        Some(Self {
            initializers: texts("initializers")?,
            terminators: texts("terminators")?,
            pending: texts("pending")?,
            bindings: texts("bindings")?,
            owner: text(value.get("owner")?)?,
            owner_groups: texts("ownerGroups")?,
            deleted: text(value.get("deleted")?)?,
        })
    }
}

impl LogicalCluster {
    /// Returns the steps of a stage that have not ended; none in another stage.
    pub fn pending(&self, stage: LifecycleStage) -> &[String] {
        match &self.lifecycle {
            Some(lifecycle) if self.phase == phase_of(stage) => &lifecycle.pending,
            _ => &[],
        }
    }

    /// Returns the labels of its pending steps.
    pub(crate) fn step_labels(&self) -> Map<String, Value> {
        let of_stage = |stage: LifecycleStage| {
            self.pending(stage).iter().map(move |step| stage.label(step)).map(|(key, value)| (key, value.into()))
        };
        LifecycleStage::ALL.into_iter().flat_map(of_stage).collect()
    }

    /// Returns it after the end of a step; `None` if the step is not pending.
    pub(crate) fn after_step(&self, stage: LifecycleStage, step: &str) -> Option<Self> {
        if !self.pending(stage).iter().any(|own| own == step) {
            return None;
        }
        let mut lifecycle = self.lifecycle.clone()?;
        lifecycle.pending.retain(|own| own != step);
        let phase = match (lifecycle.pending.is_empty(), stage) {
            (false, _) => self.phase,
            (true, LifecycleStage::Initializing) => ClusterPhase::Ready,
            (true, LifecycleStage::Terminating) => ClusterPhase::Deleting,
        };
        Some(Self { phase, lifecycle: Some(lifecycle), ..self.clone() })
    }

    /// Returns the record after the start of the workspace's deletion; `None` if the deletion has started already.
    pub(crate) fn begun_deletion(&self, now: &str) -> Option<Self> {
        let is_alive = matches!(self.phase, ClusterPhase::Initializing | ClusterPhase::Ready);
        is_alive.then(|| self.after_deletion(now.to_owned()))
    }

    /// Returns it after the deletion of its workspace: its terminators come first, also if it was never ready.
    pub(super) fn after_deletion(&self, now: String) -> Self {
        let mut ended = Self { phase: ClusterPhase::Deleting, ..self.clone() };
        if let Some(lifecycle) = &mut ended.lifecycle {
            lifecycle.deleted = now;
            lifecycle.pending.clone_from(&lifecycle.terminators);
            if !lifecycle.pending.is_empty() {
                ended.phase = ClusterPhase::Terminating;
            }
        }
        ended
    }

    /// Shows its stage on its Workspace, with the condition that names pending initializers.
    pub(crate) fn show_on_workspace(&self, workspace: &mut Value, now: &str) {
        self.show_stage(workspace);
        let condition = match self.pending(LifecycleStage::Initializing) {
            [] if self.phase == ClusterPhase::Initializing || self.phase == ClusterPhase::Ready => {
                json!({"type": INITIALIZED, "status": "True", "lastTransitionTime": now})
            }
            [] => return,
            pending => json!({
                "type": INITIALIZED,
                "status": "False",
                "severity": "Info",
                "reason": "InitializerExists",
                "message": format!("Initializers still exist: {}", pending.join(", ")),
                "lastTransitionTime": now,
            }),
        };
        let Some(top) = workspace.as_object_mut() else { return };
        let conditions = object::child_mut(top, "status").entry("conditions").or_insert_with(|| json!([]));
        let Some(conditions) = conditions.as_array_mut() else { return };
        conditions.retain(|own| own["type"] != INITIALIZED);
        conditions.push(condition);
    }

    /// Shows its stage on its Workspace, or on the LogicalCluster: the phase, the pending steps and their labels.
    pub(crate) fn show_stage(&self, object: &mut Value) {
        object["status"]["phase"] = self.phase.text().into();
        let labels = object::child_mut(object::metadata_mut(object), "labels");
        labels.retain(|key, _| !is_step_label(key));
        labels.extend(self.step_labels());
        if labels.is_empty() {
            object::metadata_mut(object).remove("labels");
        }
        let Some(top) = object.as_object_mut() else { return };
        let status = object::child_mut(top, "status");
        for stage in LifecycleStage::ALL {
            match self.pending(stage) {
                [] => status.remove(stage.steps()),
                pending => status.insert(stage.steps().into(), pending.into()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{LogicalClusterId, ResourceVersion};

    use super::*;

    fn cluster(initializers: &[&str], terminators: &[&str]) -> LogicalCluster {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let lifecycle = ClusterLifecycle {
            initializers: texts(initializers),
            terminators: texts(terminators),
            pending: texts(initializers),
            ..ClusterLifecycle::default()
        };
        LogicalCluster {
            id: LogicalClusterId::new(9),
            path: "root:a".parse().unwrap(),
            parent: Some(LogicalClusterId::ROOT),
            workspace: None,
            created: String::new(),
            since: ResourceVersion::FIRST,
            phase: ClusterPhase::Initializing,
            limits: None,
            lifecycle: Some(Box::new(lifecycle)),
        }
    }

    #[test]
    fn a_logical_cluster_is_ready_after_its_last_initializer() {
        let new = cluster(&["root:a", "root:b"], &[]);
        assert_eq!(new.after_step(LifecycleStage::Initializing, "root:c"), None, "no such step");
        assert_eq!(new.after_step(LifecycleStage::Terminating, "root:a"), None, "another stage");
        let half = new.after_step(LifecycleStage::Initializing, "root:a").unwrap();
        assert_eq!((half.phase, half.pending(LifecycleStage::Initializing)), (new.phase, &["root:b".to_owned()][..]));
        let ready = half.after_step(LifecycleStage::Initializing, "root:b").unwrap();
        assert_eq!((ready.phase, ready.pending(LifecycleStage::Initializing)), (ClusterPhase::Ready, &[][..]));
    }

    #[test]
    fn terminators_come_before_the_deletion() {
        let deleted = |cluster: &LogicalCluster| cluster.after_deletion("now".into());
        assert_eq!(deleted(&cluster(&["root:a"], &[])).phase, ClusterPhase::Deleting, "an initializer holds nothing");
        let ending = deleted(&cluster(&["root:a"], &["root:t"]));
        assert_eq!(ending.phase, ClusterPhase::Terminating);
        assert_eq!(ending.pending(LifecycleStage::Initializing), &[] as &[String]);
        let ended = ending.after_step(LifecycleStage::Terminating, "root:t").unwrap();
        assert_eq!(ended.phase, ClusterPhase::Deleting);
    }
}
