//! A Service under load while its pods move, are drained, return, and lose their physical cluster.
//!
//! Each of 200 requests per second goes to an address that is published upstream, and succeeds if the pod behind it
//! exists and is Ready on its physical cluster at that moment. Pods stop as those of a kubelet do: they serve for a
//! while after their deletion.

mod addresses;
mod balancers;
mod load;
mod server_link;
mod stage;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::downstream::{self, count, items, text};
use super::scene::registration;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::process;
use harness::report::CheckReport;
use harness::tools::Tools;

pub(crate) use load::ServiceLoad;
pub(crate) use stage::TrafficStage;

/// Replicas of the Deployment under load.
const REPLICAS: u64 = 6;
/// Time in which a move ends: its addresses are withdrawn for 30 s before its copy goes.
const MOVE_LIMIT: Duration = Duration::from_secs(120);
/// Time in which a lost physical cluster is noticed and its objects run elsewhere: 40 s without a heartbeat, and a
/// toleration of 20 s.
const FAILOVER_LIMIT: Duration = Duration::from_secs(150);
/// Time after the loss in which requests may go to its addresses, as to those of a Node that is lost.
const UNNOTICED: Duration = Duration::from_secs(50);

/// Maximum duration of a request during the loss of its physical cluster.
const ON_THE_WAY: Duration = Duration::from_secs(1);

const APP: &str = "
apiVersion: portolan.dev/v1alpha1
kind: PlacementPolicy
metadata: {name: web}
spec:
  resources: [{apiGroup: apps, kinds: [Deployment]}]
  clusters: {selector: {matchLabels: {region: eu}}, fallback: [{selector: {matchLabels: {region: us}}}]}
  count: 2
  replicas: {mode: Divide, by: Equal}
  tolerations: [{key: portolan.dev/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 20}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, clients.portolan.dev/graceful: 'true'}}
    spec: {containers: [{name: web, image: registry.example/web:1, resources: {requests: {cpu: 100m}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, annotations: {portolan.dev/pin: east}}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: registry.example/db:1}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: log, annotations: {portolan.dev/pin: north}}
spec:
  replicas: 1
  serviceName: log
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec: {containers: [{name: log, image: registry.example/log:1}]}
";

/// Runs the suite. The physical cluster of the outage is stopped for `outage`.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path, outage: Duration) -> Result<()> {
    let stage = TrafficStage::start(program, tools, dir)?;
    let suite = TrafficSuite::new(stage, program, tools, dir)?;
    if !report.check("traffic: an app runs on two of three physical clusters", || suite.set_up()) {
        return Ok(());
    }
    let seconds = outage.as_secs();
    let steps: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("no request fails while the app moves", &|| suite.undisturbed(|| suite.moves())),
        ("no request fails through a drain and its undo", &|| suite.undisturbed(|| suite.drain_and_undo())),
        (&format!("a cluster that stops for {seconds} s and returns loses nothing"), &|| suite.outage(outage)),
        ("a cluster that is gone for good is written off", &|| suite.loss()),
    ];
    for (name, step) in steps {
        report.check(&format!("traffic: {name}"), step);
    }
    Ok(())
}

/// The stage with kubectl for it.
struct TrafficSuite<'a> {
    stage: TrafficStage,
    program: &'a Path,
    root: Kubectl,
    shop: Kubectl,
}

impl<'a> TrafficSuite<'a> {
    fn new(stage: TrafficStage, program: &'a Path, tools: &Tools, dir: &Path) -> Result<Self> {
        let root = Kubectl::new(&tools.kubectl(), stage.server.kubeconfig(), dir, "root")?;
        let shop = Kubectl::new(&tools.kubectl(), &stage.shop(), dir, "shop")?.within(Duration::from_secs(150));
        Ok(Self { stage, program, root, shop })
    }

    fn set_up(&self) -> Result<()> {
        let mut objects = vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}}),
            json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "shop"}, "spec": {}}),
        ];
        for cluster in &self.stage.clusters {
            let region = if cluster.name() == "west" { "us" } else { "eu" };
            objects.extend(registration(cluster, &json!({"region": region})));
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.root.run_with("apply -f -", &list)?;
        self.root.run("wait physicalclusters --all --for=condition=Ready --timeout=50s")?;
        self.root.run("wait workspace/shop --for=jsonpath={.status.phase}=Ready --timeout=30s")?;
        poll::until("the workspace", Duration::from_secs(10), || self.shop.run("get namespace/default"))?;
        self.shop.run_with("apply -f -", APP)?;
        self.shop.run("rollout status deployment/web --timeout=90s")?;
        self.shop.run("rollout status statefulset/db --timeout=90s")?;
        self.shop.run("rollout status statefulset/log --timeout=90s")?;
        self.runs_on(&[("east", 3), ("north", 3)], MOVE_LIMIT)?;
        poll::until("an address of each load balancer", Duration::from_secs(30), || {
            let service = self.shop.json("get service web")?;
            let count = service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array).map_or(0, Vec::len);
            ensure!(count == 2, "{count} addresses");
            Ok(())
        })
    }

    /// Returns the copies of the app, and its whole Placement for messages.
    fn copies(&self) -> Result<(Vec<Value>, Value)> {
        let placement = self.shop.json("get placement deployments.apps-web")?;
        let copies = placement.pointer("/status/clusters").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok((copies, placement))
    }

    /// Waits until the app runs exactly so, ready, and no copy leaves.
    fn runs_on(&self, expected: &[(&str, u64)], limit: Duration) -> Result<()> {
        let expected: BTreeMap<String, u64> =
            expected.iter().map(|(name, replicas)| ((*name).to_owned(), *replicas)).collect();
        poll::until("the split of the app", limit, || {
            let (copies, placement) = self.copies()?;
            let found: BTreeMap<String, u64> =
                copies.iter().map(|copy| (text(copy, "/name").to_owned(), count(copy, "/ready"))).collect();
            ensure!(found == expected && copies.iter().all(|copy| copy["phase"] != "Leaving"), "it is {placement}");
            Ok(())
        })
    }

    /// Runs `change` under load. No request may fail, and no replica be unavailable.
    fn undisturbed(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let load = self.stage.load()?;
        std::thread::sleep(Duration::from_secs(2));
        let outcome = change();
        std::thread::sleep(Duration::from_secs(2));
        println!("      {}", load.record().told());
        outcome?;
        load.check_flawless(REPLICAS)
    }

    /// The whole app moves to one physical cluster by a pin, and back without it.
    fn moves(&self) -> Result<()> {
        self.shop.run("annotate deployment web portolan.dev/pin=west")?;
        self.runs_on(&[("west", REPLICAS)], MOVE_LIMIT)?;
        self.shop.run("annotate deployment web portolan.dev/pin-")?;
        self.runs_on(&[("east", 3), ("north", 3)], MOVE_LIMIT)
    }

    fn drain_and_undo(&self) -> Result<()> {
        // The pin of the StatefulSet there is stronger.
        let drain = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Drain", "metadata": {"name": "north"},
            "spec": {"physicalClusters": ["north"], "whenBlocked": "Skip"}});
        self.root.run_with("create -f -", &drain.to_string())?;
        let slow = self.root.within(MOVE_LIMIT + Duration::from_secs(10));
        slow.run("wait drain/north --for=jsonpath={.status.phase}=Completed --timeout=120s")?;
        self.runs_on(&[("east", 3), ("west", 3)], MOVE_LIMIT)?;
        self.root.run_args(&["patch", "drain", "north", "--type=merge", "-p", r#"{"spec":{"undo":true}}"#])?;
        slow.run("wait drain/north --for=jsonpath={.status.phase}=Undone --timeout=120s")?;
        self.runs_on(&[("east", 3), ("north", 3)], MOVE_LIMIT)?;
        self.root.run("delete drain north").map(drop)
    }

    /// A physical cluster stops, and returns with all that it had.
    fn outage(&self, pause: Duration) -> Result<()> {
        let east = self.stage.cluster("east")?;
        let uid = |object: &Value| text(object, "/metadata/uid").to_owned();
        let before = uid(&downstream::one(east, "statefulset", "db")?);
        let load = self.stage.load()?;
        std::thread::sleep(Duration::from_secs(2));
        let lost = load.elapsed() - ON_THE_WAY;
        east.interrupt(pause)?;
        self.root.within(FAILOVER_LIMIT).run("wait physicalcluster/east --for=condition=Ready --timeout=120s")?;
        poll::until("the app is whole", FAILOVER_LIMIT, || self.is_whole())?;
        println!("      {}", load.record().told());
        load.check_failures_within(lost..lost + UNNOTICED.min(pause + Duration::from_secs(5)))?;
        let after = uid(&downstream::one(east, "statefulset", "db")?);
        ensure!(before == after, "the StatefulSet, which runs once, was created again on east");
        self.shop.run("rollout status statefulset/db --timeout=60s").map(drop)
    }

    /// Fails unless all replicas are ready, no copy leaves, and the physical clusters have as many pods.
    fn is_whole(&self) -> Result<()> {
        let (copies, placement) = self.copies()?;
        let ready: u64 = copies.iter().map(|copy| count(copy, "/ready")).sum();
        ensure!(ready == REPLICAS && copies.iter().all(|copy| copy["phase"] != "Leaving"), "it is {placement}");
        let mut pods = 0;
        for cluster in &self.stage.clusters {
            pods += items(&cluster.kubectl().json("get pods --all-namespaces -l app=web")?).len() as u64;
        }
        ensure!(pods == REPLICAS, "{pods} pods run downstream");
        Ok(())
    }

    /// Kills a physical cluster: the app runs elsewhere, and an administrator writes the cluster off.
    fn loss(&self) -> Result<()> {
        let load = self.stage.load()?;
        std::thread::sleep(Duration::from_secs(2));
        let (lost, begun) = (load.elapsed() - ON_THE_WAY, Instant::now());
        self.stage.cluster("north")?.kill_control_plane()?;
        let is_elsewhere = || {
            let (copies, placement) = self.copies()?;
            let ready = copies.iter().filter(|copy| copy["name"] != "north").map(|copy| count(copy, "/ready"));
            ensure!(ready.sum::<u64>() >= REPLICAS, "it is {placement}");
            Ok(())
        };
        poll::until("all replicas run elsewhere", FAILOVER_LIMIT, is_elsewhere)?;
        println!("      all replicas ran elsewhere {:.0} s after the loss", begun.elapsed().as_secs_f64());
        let log = self.shop.json("get placement statefulsets.apps-log")?;
        ensure!(text(&log, "/status/clusters/0/name") == "north", "what runs once moved without proof: {log}");
        self.write_off("north")?;
        poll::until("the StatefulSet runs elsewhere", Duration::from_secs(60), || {
            let set = self.shop.json("get statefulset log")?;
            ensure!(count(&set, "/status/readyReplicas") == 1, "{set}");
            Ok(())
        })?;
        println!("      {}", load.record().told());
        load.check_failures_within(lost..lost + UNNOTICED)
    }

    fn write_off(&self, name: &str) -> Result<()> {
        // The pin of the StatefulSet names the lost physical cluster.
        self.shop.run("annotate statefulset log portolan.dev/pin-")?;
        let mut command = Command::new(self.program);
        command.args(["cluster", "unjoin", name, "--dead"]).env("KUBECONFIG", self.root.kubeconfig_file());
        process::output(&mut command, Duration::from_secs(120))?;
        let left = self.root.run(&format!("get physicalcluster {name} --ignore-not-found"))?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    }
}
