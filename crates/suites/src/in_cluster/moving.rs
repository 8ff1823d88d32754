//! Restarts of the agent.

use anyhow::{Context as _, Result, ensure};

use super::WEST;
use super::stage::{InClusterStage, LIMIT};
use harness::poll;

/// Checks that after a restart of the agent, upstream changes reach the pods and `logs` works.
pub(super) fn agent_restarts(stage: &InClusterStage<'_>) -> Result<()> {
    let west = stage.cluster(WEST)?;
    let old = west.kubectl().run("get pods -n portolan -l app.kubernetes.io/name=portolan-agent -o name")?;
    west.kubectl().in_namespace("portolan").run("rollout restart deployment/portolan-agent")?;
    west.kubectl().in_namespace("portolan").within(LIMIT).run("rollout status deployment/portolan-agent")?;
    let new = west.kubectl().run("get pods -n portolan -l app.kubernetes.io/name=portolan-agent -o name")?;
    ensure!(old != new, "{new}");
    stage.shop.run(&format!("scale deployment/web-{WEST} --replicas=3"))?;
    poll::until("the new replica is seen", LIMIT, || {
        let ready = stage.shop.run(&format!("get deployment/web-{WEST} -o jsonpath={{.status.readyReplicas}}"))?;
        ensure!(ready == "3", "{ready} ready replicas");
        Ok(())
    })?;
    let log = stage.shop.run(&format!("logs deploy/looker-{WEST} --tail=1"))?;
    log.starts_with("asked").then_some(()).with_context(|| format!("the log is {log:?}"))
}
