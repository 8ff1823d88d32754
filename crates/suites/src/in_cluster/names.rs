//! Names that pods resolve.

use anyhow::{Context as _, Result, ensure};

use super::stage::{InClusterStage, LIMIT};
use super::view::in_pod;
use super::{EAST, SHOP, WEST};
use harness::poll;

/// Services are found by all forms of their names, on the cluster that runs them; names of the cluster are not.
pub(super) fn resolve(stage: &InClusterStage<'_>) -> Result<()> {
    for place in [EAST, WEST] {
        let web = format!("web-{place}");
        for host in [
            web.clone(),
            format!("{web}.{SHOP}"),
            format!("{web}.{SHOP}.svc"),
            format!("{web}.{SHOP}.svc.cluster.local"),
        ] {
            let found =
                poll::until(&host, LIMIT, || in_pod(&stage.shop, place, &format!("curl -sf -m 3 http://{host}/")));
            let found = found.with_context(|| format!("{place}: {host}"))?;
            ensure!(found.trim() == format!("hello from {place}"), "{place}: {host} answers {found:?}");
        }
        let namespace = namespace_of(stage, place)?;
        for host in [
            format!("{web}.{namespace}.svc.cluster.local"),
            "kubernetes.default.svc.cluster.local".to_owned(),
            "portolan-dns.portolan.svc.cluster.local".to_owned(),
        ] {
            let script = format!("python3 -c 'import socket; socket.getaddrinfo(\"{host}\", 80)' 2>&1 || true");
            let told = in_pod(&stage.shop, place, &script)?;
            // The name of the API server is in the file of hosts where the agent forwards to it.
            let is_of_agent = place == WEST && host.starts_with("kubernetes");
            ensure!(is_of_agent || told.contains("gaierror"), "{place}: {host} resolves: {told:?}");
        }
    }
    Ok(())
}

/// Namespace of the pods on the physical cluster.
fn namespace_of(stage: &InClusterStage<'_>, place: &str) -> Result<String> {
    let path = "-o jsonpath={.items[0].metadata.namespace}";
    stage.cluster(place)?.kubectl().run(&format!("get pods -A -l app=web-{place} {path}"))
}
