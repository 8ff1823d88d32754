//! A Portolan server, and kubectl in its workspaces.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use harness::kubectl::Kubectl;
use harness::poll;
use harness::{portolan::Portolan, tools::Tools};

/// The server and its administrator. Dropping it stops the server.
pub(super) struct WorkspaceChecks {
    server: Portolan,
    root: Kubectl,
    program: PathBuf,
    dir: PathBuf,
}

impl WorkspaceChecks {
    /// `dir` is for kubeconfigs and homes.
    pub(super) fn new(tools: &Tools, dir: &Path, server: Portolan) -> Result<Self> {
        let root = Kubectl::new(&tools.kubectl(), server.kubeconfig(), dir, "root")?;
        Ok(Self { server, root, program: tools.kubectl(), dir: dir.to_owned() })
    }

    pub(super) fn server(&self) -> &Portolan {
        &self.server
    }

    pub(super) fn server_mut(&mut self) -> &mut Portolan {
        &mut self.server
    }

    /// kubectl in the logical cluster `root`.
    pub(super) fn root(&self) -> &Kubectl {
        &self.root
    }

    /// Makes the workspace `root:<name>`, waits until it is Ready, and gives kubectl in it.
    pub(super) fn make(&self, name: &str) -> Result<Kubectl> {
        let manifest = json!({
            "apiVersion": "tenancy.kcp.io/v1alpha1",
            "kind": "Workspace",
            "metadata": {"name": name},
        });
        self.root.run_with("apply -f -", &manifest.to_string())?;
        self.root.run(&format!("wait workspace/{name} --for=jsonpath={{.status.phase}}=Ready --timeout=30s"))?;
        let config = self.server.workspace(&format!("root:{name}"));
        let kubectl = Kubectl::new(&self.program, &config, &self.dir, name)?;
        poll::until("the workspace answers", Duration::from_secs(10), || kubectl.run("get namespace/default"))?;
        Ok(kubectl)
    }

    /// Deletes the workspace `root:<name>` and waits until it is gone.
    pub(super) fn delete(&self, name: &str) -> Result<()> {
        let slow = self.root.within(Duration::from_secs(130));
        slow.run(&format!("delete workspace {name} --timeout=120s"))
            .map(drop)
            .with_context(|| self.deletion_condition(name))
    }

    /// Returns the condition of a workspace that cannot be deleted.
    fn deletion_condition(&self, name: &str) -> String {
        let told = "--output=jsonpath={.status.conditions[*].message}";
        self.root.run(&format!("get workspace {name} {told}")).unwrap_or_else(|error| format!("{error:#}"))
    }
}
