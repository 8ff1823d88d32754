//! The sample app of `manifests/demo`, as a logical cluster knows it after `kubectl apply`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::downstream::{self, count, items, kind, name, namespace, placed_on};
use super::scene::Scene;
use harness::kubectl::Kubectl;
use harness::tools::repository;

/// Kinds of the sample app that have a copy on each physical cluster they are placed on.
const SYNCED: [&str; 8] =
    ["Deployment", "StatefulSet", "DaemonSet", "Job", "Service", "Ingress", "ConfigMap", "Secret"];

/// One workspace with the sample app in it.
pub(super) struct SampleApp<'a> {
    scene: &'a Scene,
    kubectl: Kubectl,
    folder: PathBuf,
}

impl<'a> SampleApp<'a> {
    pub(super) fn new(scene: &'a Scene, kubectl: Kubectl) -> Self {
        let kubectl = kubectl.within(Duration::from_secs(150));
        Self { scene, kubectl, folder: repository().join("manifests/demo") }
    }

    pub(super) fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    fn folder(&self) -> Result<&str> {
        self.folder.to_str().context("the path of the clone is not UTF-8")
    }

    /// `kubectl apply -f manifests/demo`.
    pub(super) fn apply(&self) -> Result<()> {
        self.kubectl.run_args(&["apply", "-f", self.folder()?]).map(drop)
    }

    /// `kubectl delete -f manifests/demo`, and the claims of its StatefulSets, which stay by Kubernetes' rules.
    pub(super) fn delete(&self) -> Result<()> {
        let namespaces = self.namespaces()?;
        self.kubectl.run_args(&["delete", "--timeout=120s", "--ignore-not-found", "-f", self.folder()?])?;
        namespaces.iter().try_for_each(|namespace| {
            self.kubectl.run(&format!("delete pvc --all -n {namespace} --timeout=60s")).map(drop)
        })
    }

    /// Returns the app's present objects in the logical cluster.
    pub(super) fn objects(&self) -> Result<Vec<Value>> {
        let text = self.kubectl.run_args(&["get", "-o", "json", "-f", self.folder()?])?;
        let list: Value = serde_json::from_str(&text).context("kubectl printed no JSON")?;
        Ok(items(&list).to_vec())
    }

    /// Its objects of one kind.
    pub(super) fn of_kind(&self, wanted: &str) -> Result<Vec<Value>> {
        let objects: Vec<Value> = self.objects()?.into_iter().filter(|object| kind(object) == wanted).collect();
        ensure!(!objects.is_empty(), "the sample app has no {wanted}");
        Ok(objects)
    }

    pub(super) fn namespaces(&self) -> Result<BTreeSet<String>> {
        let found =
            self.objects()?.iter().map(|object| namespace(object).to_owned()).filter(|n| !n.is_empty()).collect();
        Ok(found)
    }

    /// Checks that every object that is synced names its clusters, and only existing ones.
    pub(super) fn all_placed(&self) -> Result<()> {
        for object in self.synced()? {
            let places = placed_on(&object);
            ensure!(!places.is_empty(), "{} {} is not placed", kind(&object), name(&object));
            places.iter().try_for_each(|place| self.scene.cluster(place).map(drop))?;
        }
        Ok(())
    }

    /// Checks that copies exist exactly where the annotation says.
    pub(super) fn copies_match(&self) -> Result<()> {
        for object in self.synced()? {
            let places = placed_on(&object);
            for cluster in self.scene.clusters() {
                if places.iter().any(|place| place == cluster.name()) {
                    downstream::one(cluster, kind(&object), name(&object))?;
                } else {
                    downstream::none(cluster, kind(&object), name(&object))?;
                }
            }
        }
        Ok(())
    }

    fn synced(&self) -> Result<Vec<Value>> {
        let mut objects = self.objects()?;
        objects.retain(|object| SYNCED.contains(&kind(object)));
        ensure!(objects.len() >= 6, "the sample app has only {} objects of several kinds", objects.len());
        Ok(objects)
    }

    /// Waits with a user's commands until everything that runs is reported upstream.
    pub(super) fn ready_above(&self) -> Result<()> {
        for object in self.objects()? {
            let target = format!("{}/{} -n {}", kind(&object).to_lowercase(), name(&object), namespace(&object));
            match kind(&object) {
                "Deployment" | "StatefulSet" | "DaemonSet" => {
                    self.kubectl.run(&format!("rollout status {target} --timeout=120s"))?;
                }
                "Job" => {
                    self.kubectl.run(&format!("wait {target} --for=condition=Complete --timeout=120s"))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the replicas of a Deployment per physical cluster. All must be ready and, if given, have `image`.
    pub(super) fn replicas_below(&self, deployment: &Value, image: Option<&str>) -> Result<Vec<u64>> {
        let name = name(deployment);
        let fresh = self.kubectl.json(&format!("get deployment {name} -n {}", namespace(deployment)))?;
        let places = placed_on(&fresh);
        ensure!(!places.is_empty(), "deployment {name} is not placed");
        let replicas = places.iter().map(|place| {
            let cluster = self.scene.cluster(place)?;
            let copy = downstream::one(cluster, "deployment", name)?;
            let (wanted, ready) = (count(&copy, "/spec/replicas"), count(&copy, "/status/readyReplicas"));
            ensure!(wanted == ready, "{place}: {name} has {ready} of {wanted} ready");
            let found = downstream::text(&copy, "/spec/template/spec/containers/0/image");
            ensure!(image.is_none_or(|image| image == found), "{place}: {name} has image {found}");
            Ok(wanted)
        });
        replicas.collect()
    }
}
