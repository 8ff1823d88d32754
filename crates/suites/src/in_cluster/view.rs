//! API of the workspace, as pods see it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::stage::{InClusterStage, LIMIT, source};
use super::{EAST, SHOP, WEST};
use harness::kubectl::Kubectl;
use harness::poll;

const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Number of tokens that a pod has seen when its token was renewed twice.
const TOKENS: usize = 3;

/// Runs the application on both clusters.
pub(super) fn rolls_out(stage: &InClusterStage<'_>) -> Result<()> {
    let scripts = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": {
        "caller.py": source("caller.py")?,
        "looker.sh": source("looker.sh")?,
        "operator_of_lamps.py": source("operator_of_lamps.py")?,
    }});
    stage.shop.run_with("apply -f -", &scripts.to_string())?;
    stage.apply("accounts.yaml", EAST)?;
    for place in [EAST, WEST] {
        stage.apply("shop.yaml", place)?;
    }
    for place in [EAST, WEST] {
        for name in ["web", "looker"] {
            stage.shop.run(&format!("rollout status deployment/{name}-{place} --timeout=80s"))?;
        }
        let pods = stage.cluster(place)?.kubectl().run("get pods -A -l app -o wide")?;
        ensure!(pods.matches(&format!("web-{place}")).count() == 2, "{pods}");
    }
    Ok(())
}

/// Runs a command in the pod that asks the API.
pub(super) fn in_pod(kubectl: &Kubectl, place: &str, script: &str) -> Result<String> {
    kubectl.run_args(&["exec", &format!("deploy/looker-{place}"), "--", "bash", "-c", script])
}

/// Returns the script of a request with the credentials of the pod, which prints the answer and its code.
fn request(path: &str) -> String {
    format!(
        "curl -s -m 5 -w '\\n%{{http_code}}' --cacert {ACCOUNT}/ca.crt -H \"Authorization: Bearer $(cat {ACCOUNT}/token)\" \
         https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/{path}"
    )
}

/// The namespace, the API and its rights are those of the workspace; the token is not valid elsewhere.
pub(super) fn sees_its_workspace(stage: &InClusterStage<'_>) -> Result<()> {
    let rival = stage.workspace("rival")?;
    rival.run(&format!("create namespace {SHOP}"))?;
    rival.in_namespace(SHOP).run("create configmap foreign")?;
    for place in [EAST, WEST] {
        let within = |script: &str| in_pod(&stage.shop, place, script);
        let namespace = within(&format!("echo $NAMESPACE $(cat {ACCOUNT}/namespace)"))?;
        ensure!(namespace.trim() == format!("{SHOP} {SHOP}"), "{place}: {namespace}");
        let maps = within(&request(&format!("api/v1/namespaces/{SHOP}/configmaps")))?;
        ensure!(maps.ends_with("200") && maps.contains("site-east") && maps.contains("site-west"), "{place}: {maps}");
        ensure!(!maps.contains("foreign"), "{place}: {maps}");
        let secrets = within(&request(&format!("api/v1/namespaces/{SHOP}/secrets")))?;
        let user = format!("system:serviceaccount:{SHOP}:clerk");
        ensure!(secrets.ends_with("403") && secrets.contains(&user), "{place}: {secrets}");
        let kubectl = stage.tools.kubectl();
        let listed = within(&format!("{} get configmaps -o name", kubectl.display()))?;
        ensure!(listed.contains("configmap/site-west") && !listed.contains("foreign"), "{place}: {listed}");
        let below = within(&format!(
            "curl -sk -m 5 -o /dev/null -w '%{{http_code}}' -H \"Authorization: Bearer $(cat {ACCOUNT}/token)\" {}/api",
            stage.cluster(place)?.kubeconfig().server().replace("127.0.0.1", &stage.cluster(place)?.host_address())
        ))?;
        ensure!(below == "401", "{place}: the physical cluster answers {below}");
    }
    Ok(())
}

/// A pod that asks every second sees several tokens, and each works.
pub(super) fn tokens_are_renewed(stage: &InClusterStage<'_>) -> Result<()> {
    for place in [EAST, WEST] {
        poll::until("tokens are renewed", LIMIT * 2 + Duration::from_secs(30), || {
            let log = stage.shop.run(&format!("logs deploy/looker-{place}"))?;
            let asked: Vec<Vec<&str>> = log.lines().map(|line| line.split(' ').collect()).collect();
            let tokens: BTreeSet<&str> = asked.iter().filter_map(|words| words.get(2).copied()).collect();
            ensure!(tokens.len() >= TOKENS, "{place}: {} tokens", tokens.len());
            Ok(())
        })?;
        let log = stage.shop.run(&format!("logs deploy/looker-{place}"))?;
        let refused = log.lines().find(|line| line.contains(" 401 ") || line.contains(" 403 "));
        refused.map_or(Ok(()), |line| Err(anyhow::anyhow!("{line}"))).with_context(|| place)?;
    }
    Ok(())
}
