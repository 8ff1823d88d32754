//! Guarantees that are checked after a kill.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::NAMESPACES;
use super::load::Applied;
use crate::downstream::{self, count, items, name, namespace, placed_on, text};
use crate::scene::Scene;
use harness::kubectl::Kubectl;

/// Checks that each object has its last acknowledged value, or a later one that was sent, and that unacknowledged
/// objects are absent or complete.
pub(super) fn nothing_lost(kubectl: &Kubectl, applied: &[Applied]) -> Result<()> {
    let mut found = BTreeMap::new();
    for (namespace, _) in NAMESPACES {
        let list = kubectl.json(&format!("get configmaps,deployments -n {namespace}"))?;
        for item in items(&list) {
            let key = (downstream::kind(item).to_lowercase(), namespace, name(item).to_owned());
            ensure!(found.insert(key, item.clone()).is_none(), "{} is listed twice", name(item));
        }
    }
    let mut versions = BTreeSet::new();
    for object in applied {
        let item = found.remove(&(object.kind.to_owned(), object.namespace, object.name.clone()));
        let shown = format!("{} {}/{}", object.kind, object.namespace, object.name);
        match (item, object.acknowledged) {
            (None, None) => {}
            (None, Some((value, _))) => anyhow::bail!("{shown} is lost, value {value} was acknowledged"),
            (Some(item), acknowledged) => {
                let value: u64 = text(&item, "/metadata/annotations/value").parse().context(shown.clone())?;
                let (oldest, newest) = (acknowledged.map_or(1, |(value, _)| value), object.sent.unwrap_or_default());
                ensure!((oldest..=newest).contains(&value), "{shown} has value {value}, expected {oldest}..={newest}");
                ensure!(whole(&item), "{shown} is there in part only");
                ensure!(
                    versions.insert(text(&item, "/metadata/resourceVersion").to_owned()),
                    "{shown}: its version is not its own"
                );
            }
        }
    }
    let strange = found.keys().find(|(_, _, name)| name.starts_with("load-"));
    ensure!(strange.is_none(), "no writer made {strange:?}");
    Ok(())
}

fn whole(item: &Value) -> bool {
    text(item, "/data/text").len() == 900 || !text(item, "/spec/template/spec/containers/0/image").is_empty()
}

/// A new write comes after all acknowledged ones.
pub(super) fn versions_go_on(kubectl: &Kubectl, applied: &[Applied]) -> Result<()> {
    let newest = applied.iter().filter_map(|object| object.acknowledged).map(|(_, version)| version).max();
    let newest = newest.context("nothing was acknowledged")?;
    let (namespace, _) = NAMESPACES[0];
    kubectl.run(&format!("label configmap shared -n {namespace} --overwrite after={newest}"))?;
    let version = format!("get configmap shared -n {namespace} -o jsonpath={{.metadata.resourceVersion}}");
    let fresh: u64 = kubectl.run(&version)?.trim().parse().context("resourceVersion is no number")?;
    ensure!(fresh > newest, "a new write has resourceVersion {fresh}, {newest} was given out before");
    Ok(())
}

/// Every Deployment runs on the one cluster that its namespace is pinned to.
pub(super) fn placements_legal(kubectl: &Kubectl) -> Result<()> {
    for (namespace, cluster) in NAMESPACES {
        let list = kubectl.json(&format!("get deployments -n {namespace}"))?;
        for item in items(&list) {
            let places = placed_on(item);
            ensure!(places == [cluster], "{namespace}/{} is on {places:?}, pinned to {cluster}", name(item));
        }
    }
    Ok(())
}

/// Each cluster has exactly the Deployments that are placed on it, and they are ready downstream and upstream.
pub(super) fn converged(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    for (upstream, cluster) in NAMESPACES {
        let above = kubectl.json(&format!("get deployments -n {upstream}"))?;
        let wanted: BTreeSet<&str> = items(&above).iter().map(name).collect();
        ensure!(!wanted.is_empty(), "no deployments in {upstream}");
        let late: Vec<&str> = items(&above).iter().filter(|item| !ready(item)).map(name).collect();
        ensure!(late.is_empty(), "not ready above: {late:?}");

        let below = scene.cluster(cluster)?.kubectl().json("get deployments --all-namespaces")?;
        let load = || items(&below).iter().filter(|item| name(item).starts_with("load-"));
        let found: BTreeSet<&str> = load().map(name).collect();
        ensure!(
            found == wanted,
            "{cluster}: missing or too many: {:?}",
            found.symmetric_difference(&wanted).collect::<Vec<_>>()
        );
        let late: Vec<&str> = load().filter(|item| !ready(item)).map(name).collect();
        ensure!(late.is_empty(), "not ready on {cluster}: {late:?}");
        let folders: BTreeSet<&str> = load().map(namespace).collect();
        ensure!(folders.len() == 1, "{cluster}: {upstream} is in {folders:?}");
    }
    Ok(())
}

fn ready(deployment: &Value) -> bool {
    let current = count(deployment, "/status/observedGeneration") >= count(deployment, "/metadata/generation");
    current && count(deployment, "/status/readyReplicas") == 1
}
