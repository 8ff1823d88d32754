//! Views of the logical clusters that wait for a step: `/services/initializingworkspaces/<initializer>/clusters/<* or
//! id>/…` and `/services/terminatingworkspaces/<terminator>/…`.
//!
//! - The caller needs the verb `initialize` or `terminate` on the WorkspaceType that asks for the step.
//! - The view shows the LogicalClusters in which the step is pending, and lets the caller end that step.
//! - In one of them the caller also reaches all content, as the user who created it, or by the permissions of the
//!   type. In other workspaces only its own rights count.

use portolan_types::{LabelSelector, LogicalClusterId, lifecycle::LifecycleStage};

/// Segments of an address, with `clusters` and its target.
pub(crate) const STEP_SEGMENTS: usize = 5;

/// Step that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepAddress {
    pub(crate) stage: LifecycleStage,
    /// Id or path of the workspace of the WorkspaceType.
    pub(crate) workspace: String,
    /// Name of the WorkspaceType.
    pub(crate) type_name: String,
}

impl StepAddress {
    /// Returns the step that the first segments of a path address; `None` if they address none.
    pub(crate) fn of(segments: &[String]) -> Option<Self> {
        let [services, view, step, clusters, _, ..] = segments else { return None };
        let stage = LifecycleStage::ALL.into_iter().find(|stage| stage.view() == view)?;
        let (workspace, type_name) = step.rsplit_once(':')?;
        let (workspace, type_name) = (workspace.to_owned(), type_name.to_owned());
        (services == "services" && clusters == "clusters").then_some(Self { stage, workspace, type_name })
    }
}

/// View of the logical clusters that wait for a step, for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LifecycleView {
    pub(crate) address: StepAddress,
    /// Logical cluster of the WorkspaceType.
    pub(crate) home: LogicalClusterId,
    /// Name of the step, `<id of the type's logical cluster>:<type>`.
    pub(crate) step: String,
    /// Logical cluster that the request is about; `None` for all.
    pub(crate) target: Option<LogicalClusterId>,
    /// True for a request to the content of the target; false for one about LogicalClusters.
    pub(crate) is_content: bool,
}

impl LifecycleView {
    /// Returns true for a logical cluster with these pending steps of the stage.
    pub(crate) fn admits(&self, cluster: LogicalClusterId, pending: &[String]) -> bool {
        self.target.is_none_or(|target| target == cluster) && pending.contains(&self.step)
    }

    /// Returns the selector of the records of such logical clusters.
    pub(crate) fn selector(&self) -> LabelSelector {
        let (key, value) = self.address.stage.label(&self.step);
        LabelSelector::parse(&format!("{key}={value}")).expect("the label is hexadecimal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_step() {
        for (path, expected) in [
            ("services/initializingworkspaces/root:a/clusters/*/apis", Some(("root", "a"))),
            ("services/terminatingworkspaces/root:org:a/clusters/x", Some(("root:org", "a"))),
            ("services/initializingworkspaces/root:a/clusters", None),
            ("services/initializingworkspaces/a/clusters/*", None),
            ("services/initializingworkspaces/root:a/cluster/*", None),
            ("services/otherworkspaces/root:a/clusters/*", None),
        ] {
            let segments: Vec<String> = path.split('/').map(str::to_owned).collect();
            let found = StepAddress::of(&segments);
            let named = found.as_ref().map(|found| (found.workspace.as_str(), found.type_name.as_str()));
            assert_eq!(named, expected, "{path}");
        }
    }
}
