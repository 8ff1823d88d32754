//! Operator that runs as a placed pod, on its own workspace.

use anyhow::{Result, ensure};
use serde_json::json;

use super::WEST;
use super::stage::{InClusterStage, LIMIT};
use harness::poll;

/// The operator makes, changes and removes objects for its custom resources, with its own account only.
pub(super) fn reconciles(stage: &InClusterStage<'_>) -> Result<()> {
    stage.apply("lamps.yaml", WEST)?;
    stage.shop.run("wait crd/lamps.portolan.dev.example --for=condition=Established --timeout=30s")?;
    stage.apply("operator.yaml", WEST)?;
    stage.shop.run("rollout status deployment/operator --timeout=80s")?;
    for color in ["red", "green"] {
        let lamp = json!({"apiVersion": "portolan.dev.example/v1", "kind": "Lamp", "metadata": {"name": "hall"},
            "spec": {"color": color}});
        stage.shop.run_with("apply -f -", &lamp.to_string())?;
        poll::until("the lamp is lit", LIMIT, || {
            let lit = stage.shop.run("get lamp hall -o jsonpath={.status.lit}")?;
            let light = stage.shop.run("get configmap hall-light -o jsonpath={.data.color}")?;
            ensure!(lit == color && light == color, "{lit}, {light}\n{}", log(stage));
            Ok(())
        })?;
    }
    stage.shop.run("delete lamp hall --timeout=60s")?;
    stage.shop.run("get configmap hall-dark")?;
    poll::until("the light is out", LIMIT, || {
        ensure!(stage.shop.run("get configmap hall-light").is_err(), "it is still there");
        Ok(())
    })
}

fn log(stage: &InClusterStage<'_>) -> String {
    stage.shop.run("logs deploy/operator --tail=20").unwrap_or_else(|error| format!("{error:#}"))
}
