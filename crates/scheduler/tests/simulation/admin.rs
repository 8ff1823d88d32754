//! Administrators and users of a run, who act at the same time and know nothing of each other.

use std::sync::Arc;

use portolan_store::Step;
use portolan_types::{ObjectKey, annotations, object, placement::PlacementRecord};
use serde_json::{Value, json};

use crate::{
    dice::Dice,
    plane::{ControlPlane, root, shop},
    planted::PlantedBug,
    run::{APPS, NAMES},
    syncer::SyncerParts,
};

const VERSION: &str = "portolan.dev/v1alpha1";

pub(crate) fn policy() -> ObjectKey {
    shop("clusterplacementpolicies.portolan.dev/spread")
}

fn constraint() -> ObjectKey {
    shop("clusterplacementpolicies.portolan.dev/keep-off")
}

fn physical(name: &str) -> ObjectKey {
    root(&format!("physicalclusters.portolan.dev/{name}"))
}

pub(crate) fn drain(name: &str) -> ObjectKey {
    root(&format!("drains.portolan.dev/{name}"))
}

pub(crate) fn app(name: &str) -> ObjectKey {
    shop(&format!("deployments.apps/shop/{name}"))
}

/// Returns the policy that applies when the run is left alone.
pub(crate) fn calm_policy() -> Value {
    json!({
        "resources": [{"apiGroup": "apps", "kinds": ["Deployment"], "names": ["web", "api"]}],
        "count": 2,
        "replicas": {"mode": "Divide", "by": "Equal"},
        "tolerations": [{"key": annotations::UNREACHABLE_TAINT, "operator": "Exists", "tolerationSeconds": 20}],
    })
}

/// Administrator who changes something now and then.
pub(crate) struct Admin {
    parts: Arc<SyncerParts>,
    dice: Dice,
    /// Part of the names of objects that this administrator creates.
    number: usize,
}

impl Admin {
    pub(crate) fn new(parts: Arc<SyncerParts>, number: usize, dice: Dice) -> Self {
        Self { parts, dice, number }
    }

    fn plane(&self) -> &ControlPlane {
        &self.parts.plane
    }

    /// Acts `times` times.
    pub(crate) async fn run(self, times: u64) {
        for _ in 0..times {
            tokio::time::sleep(self.dice.millis(20_000)).await;
            self.act().await;
        }
    }

    async fn act(&self) {
        let app = app(self.dice.pick(&APPS));
        let name = self.dice.pick(&NAMES);
        match self.dice.roll(12) {
            0 | 1 => self.annotate(&app, annotations::PIN, Some(name)).await,
            2 => self.annotate(&app, annotations::PIN, None).await,
            3 | 4 => self.scale(&app).await,
            5 => self.edit_policy().await,
            6 => self.set_constraint(Some(name)).await,
            7 => self.set_constraint(None).await,
            8 => self.taint(name, true).await,
            9 => self.taint(name, false).await,
            10 => self.cordon(name).await,
            _ => self.drain(name).await,
        }
    }

    async fn annotate(&self, key: &ObjectKey, annotation: &str, value: Option<&str>) {
        self.plane()
            .change(key, |object| {
                object::set_annotation(object, annotation, value.map(str::to_owned));
                Step::Write
            })
            .await;
    }

    async fn scale(&self, key: &ObjectKey) {
        let replicas = 1 + self.dice.roll(8);
        self.plane().edit(key, |spec| spec["replicas"] = replicas.into()).await;
    }

    async fn edit_policy(&self) {
        let (count, roll) = (1 + self.dice.roll(3), self.dice.roll(3));
        self.plane()
            .edit(&policy(), |spec| {
                spec["count"] = count.into();
                match roll {
                    0 => spec["replicas"] = json!({"mode": "Divide", "by": "Equal"}),
                    1 => spec["replicas"] = json!({"mode": "Divide", "by": "Capacity"}),
                    _ => drop(spec.as_object_mut().and_then(|spec| spec.remove("replicas"))),
                }
            })
            .await;
    }

    /// Forbids a physical cluster, or allows all. Of two administrators the later one wins.
    async fn set_constraint(&self, excluded: Option<&str>) {
        self.plane().delete(&constraint()).await;
        NAMES.iter().for_each(|name| self.parts.findings.exclude(name, false));
        let Some(name) = excluded else { return };
        let spec =
            json!({"resources": [{"apiGroup": "apps"}], "enforcement": "Constraint", "clusters": {"exclude": [name]}});
        self.plane().create(constraint(), VERSION, "ClusterPlacementPolicy", json!({"spec": spec})).await;
        self.parts.findings.exclude(name, true);
    }

    async fn taint(&self, name: &str, is_tainted: bool) {
        let taints = if is_tainted { json!([{"key": "maintenance", "effect": "NoExecute"}]) } else { json!([]) };
        self.plane().edit(&physical(name), |spec| spec["taints"] = taints.clone()).await;
    }

    async fn cordon(&self, name: &str) {
        self.plane().edit(&physical(name), |spec| spec["unschedulable"] = (spec["unschedulable"] != true).into()).await;
    }

    /// Starts a drain, or changes the one of this administrator.
    async fn drain(&self, name: &str) {
        let key = drain(&format!("d{}", self.number));
        if self.plane().get(&key).await.is_none() {
            let spec = json!({"physicalClusters": [name], "budget": {"maxMoving": 1 + self.dice.roll(3)}});
            self.plane().create(key, VERSION, "Drain", json!({"spec": spec})).await;
            return;
        }
        match self.dice.roll(5) {
            0 => drop(self.plane().edit(&key, |spec| spec["paused"] = (spec["paused"] != true).into()).await),
            1 => drop(self.plane().edit(&key, |spec| spec["abort"] = true.into()).await),
            2 | 3 => drop(self.plane().edit(&key, |spec| spec["undo"] = true.into()).await),
            _ => self.plane().delete(&key).await,
        }
    }

    /// Takes back everything that administrators have set, so that only the policy counts.
    pub(crate) async fn tidy(&self) {
        self.set_constraint(None).await;
        for number in 0..2 {
            self.plane().delete(&drain(&format!("d{number}"))).await;
        }
        for name in NAMES {
            let plain = |spec: &mut Value| *spec = json!({});
            self.plane().edit(&physical(name), plain).await;
        }
        for name in APPS {
            self.annotate(&app(name), annotations::PIN, None).await;
        }
        self.plane().edit(&policy(), |spec| *spec = calm_policy()).await;
    }
}

/// Acts like a faulty scheduler: changes records in the store.
pub(crate) async fn sabotage(parts: &SyncerParts, bug: PlantedBug, dice: &Dice) {
    for _ in 0..40 {
        tokio::time::sleep(dice.millis(4_000)).await;
        let key = app(dice.pick(&APPS));
        parts
            .plane
            .change(&key, |object| {
                let Some(mut record) = PlacementRecord::of(object) else { return Step::Keep };
                if !spoil(&mut record, bug, parts) {
                    return Step::Keep;
                }
                record.write_to(object);
                Step::Write
            })
            .await;
    }
}

/// Changes a record for the worse. Returns false if it offers no opportunity.
fn spoil(record: &mut PlacementRecord, bug: PlantedBug, parts: &SyncerParts) -> bool {
    use portolan_types::placement::{CopyPhase, PlacedCopy};
    match bug {
        PlantedBug::VanishingCopy => {
            record.clusters.len() > 1 && {
                record.clusters.remove(0);
                true
            }
        }
        PlantedBug::EarlyDeparture => {
            !record.clusters.is_empty() && {
                record.clusters.iter_mut().for_each(|copy| copy.phase = CopyPhase::Leaving);
                true
            }
        }
        PlantedBug::IgnoredConstraint => {
            let free = parts
                .fleet
                .clusters
                .iter()
                .find(|cluster| parts.findings.is_excluded(cluster.name) && record.on(&cluster.uid).is_none());
            let Some(cluster) = free else { return false };
            let epoch = 1 + record.clusters.iter().map(|copy| copy.epoch).max().unwrap_or(0) + 1_000_000;
            let replicas = record.clusters.first().and_then(|copy| copy.replicas);
            let (name, uid) = (cluster.name.to_owned(), cluster.uid.clone());
            record.clusters.push(PlacedCopy { name, uid, phase: CopyPhase::Active, replicas, epoch });
            true
        }
        PlantedBug::ForgottenSplit => record.drain.as_mut().is_some_and(|mark| {
            mark.before.len() > 1 && {
                mark.before.pop();
                true
            }
        }),
        PlantedBug::ExtraReplica | PlantedBug::AbsenceIsDeletion => false,
    }
}
