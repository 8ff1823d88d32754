//! Things that run: each is made, becomes ready, is changed and looked at.

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, contains};

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("create deployment, rollout status, wait Available", deployment),
    ("get deployments and pods show them ready", ready_columns),
    ("describe deployment and pod", describe),
    ("scale up and down; a wrong --current-replicas is refused", scale),
    ("get --subresource=scale", scale_subresource),
    ("set image rolls out a new template", set_image),
    ("rollout history and undo", history),
    ("rollout history and undo of what keeps revisions", revisions),
    ("rollout restart, pause, resume", restart),
    ("one ReplicaSet per template owns the pods", replica_sets),
    ("expose makes a service with the pods' selector and an address", expose),
    ("autoscale makes a HorizontalPodAutoscaler", autoscale),
    ("run a pod, wait Ready, see its node", run_pod),
    ("get pods by field: phase and node", pod_fields),
    ("statefulset: ordered pods, bound claims", stateful_set),
    ("daemonset: rollout status ends", daemon_set),
    ("job: runs to completion", job),
    ("cronjob: create job --from", cron_job),
    ("ingress: class, hosts and ports are shown", ingress),
    ("delete a pod: its set replaces it", replaced_pod),
];

fn deployment(context: &KubectlContext) -> Result<()> {
    context.prints("create deployment web --image=web:1 --replicas=2 --port=8080", "deployment.apps/web created\n")?;
    context.rolled_out("deploy/web")?;
    context.wait("deploy/web --for=condition=Available")?;
    context.wait("deploy/web --for=jsonpath={.status.readyReplicas}=2")?;
    context.path_becomes("deploy/web", "{.status.observedGeneration}", "1")
}

fn ready_columns(context: &KubectlContext) -> Result<()> {
    context.prints("get deploy/web", "NAME READY UP-TO-DATE AVAILABLE AGE\nweb 2/2 2 2 <age>\n")?;
    // Portolan shows one more column: where the object is placed.
    context.says("get deploy/web -o wide", &["CONTAINERS", "IMAGES", "SELECTOR", "web:1", "app=web"])?;
    context.wait("pods -l app=web --for=condition=Ready")?;
    let out = context.kubectl.run("get pods -l app=web --no-headers")?;
    ensure!(
        out.lines().count() == 2 && out.lines().all(|line| line.contains("1/1") && line.contains("Running")),
        "{out}"
    );
    Ok(())
}

fn describe(context: &KubectlContext) -> Result<()> {
    let texts = ["2 desired | 2 updated | 2 total | 2 available", "StrategyType:", "RollingUpdate", "NewReplicaSet:"];
    context.says("describe deploy/web", &texts)?;
    let texts = ["Status:", "Running", "Controlled By:", "ReplicaSet/web-", "Image:", "web:1", "Node:"];
    context.says("describe pods -l app=web", &texts).map(drop)
}

fn scale(context: &KubectlContext) -> Result<()> {
    context.prints("scale deploy/web --replicas=4", "deployment.apps/web scaled\n")?;
    context.wait("deploy/web --for=jsonpath={.status.readyReplicas}=4")?;
    let wrong = "scale deploy/web --replicas=9 --current-replicas=1";
    context.refuses(wrong, "", &["Expected replicas to be 1, was 4"])?;
    context.prints("scale deploy/web --replicas=2 --current-replicas=4", "deployment.apps/web scaled\n")?;
    context.path_becomes("deploy/web", "{.status.replicas}", "2")?;
    context.rolled_out("deploy/web")
}

fn scale_subresource(context: &KubectlContext) -> Result<()> {
    context.prints("get deploy/web --subresource=scale", "NAME DESIRED AVAILABLE AGE\nweb 2 2 <age>\n")?;
    let out = context.kubectl.run("get deploy/web --subresource=scale -o jsonpath={.kind}/{.status.selector}")?;
    ensure!(out == "Scale/app=web", "{out}");
    Ok(())
}

fn set_image(context: &KubectlContext) -> Result<()> {
    context.prints("set image deploy/web web=web:2", "deployment.apps/web image updated\n")?;
    context.rolled_out("deploy/web")?;
    context.path_is(
        "deploy/web",
        "{.status.updatedReplicas} {.status.observedGeneration}",
        &format!("2 {}", generation(context)?),
    )?;
    let images = "{.items[?(@.status.phase=='Running')].spec.containers[0].image}";
    super::poll::until("the old pods go", super::PATIENCE, || {
        let out = context.kubectl.run_args(&["get", "pods", "-l", "app=web", "-o", &format!("jsonpath={images}")])?;
        ensure!(out == "web:2 web:2", "images of running pods: {out}");
        Ok(())
    })
}

fn generation(context: &KubectlContext) -> Result<String> {
    context.path("deploy/web", "{.metadata.generation}")
}

fn history(context: &KubectlContext) -> Result<()> {
    let both = "deployment.apps/web\nREVISION CHANGE-CAUSE\n1 <none>\n2 <none>\n\n";
    context.prints("rollout history deploy/web", both)?;
    context.says("rollout history deploy/web --revision=1", &["web:1"])?;
    context.prints("rollout undo deploy/web", "deployment.apps/web rolled back\n")?;
    context.rolled_out("deploy/web")?;
    context.path_is("deploy/web", "{.spec.template.spec.containers[0].image}", "web:1")
}

/// StatefulSets and DaemonSets: their history is in ControllerRevisions, which the physical cluster makes.
fn revisions(context: &KubectlContext) -> Result<()> {
    for (kind, resource, spec) in
        [("StatefulSet", "sts/turns", "serviceName: turns, replicas: 1, "), ("DaemonSet", "ds/turns", "")]
    {
        let manifest = format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: turns}}\nspec: {{{spec}selector: {{matchLabels: {{app: turns}}}}, \
             template: {{metadata: {{labels: {{app: turns}}}}, spec: {{containers: [{{name: c, image: \"turns:1\"}}]}}}}}}\n"
        );
        context.apply(&manifest)?;
        context.rolled_out(resource)?;
        let written = context.path(resource, "{.spec.template}")?;
        let full = resource.replace("sts/", "statefulset.apps/").replace("ds/", "daemonset.apps/");
        context.prints(&format!("set image {resource} c=turns:2"), &format!("{full} image updated\n"))?;
        context.rolled_out(resource)?;
        super::poll::until("both revisions are there", super::PATIENCE, || {
            context.says(&format!("rollout history {resource}"), &["REVISION", "1 ", "2 "]).map(drop)
        })?;
        context.says(&format!("rollout history {resource} --revision=1"), &["turns:1"])?;
        context.prints(&format!("rollout undo {resource}"), &format!("{full} rolled back\n"))?;
        context.rolled_out(resource)?;
        context.path_is(resource, "{.spec.template}", &written)?;
        context.says(&format!("delete {resource}"), &["deleted"])?;
    }
    Ok(())
}

fn restart(context: &KubectlContext) -> Result<()> {
    context.prints("rollout restart deploy/web", "deployment.apps/web restarted\n")?;
    context.rolled_out("deploy/web")?;
    context.prints("rollout pause deploy/web", "deployment.apps/web paused\n")?;
    context.path_is("deploy/web", "{.spec.paused}", "true")?;
    context.prints("rollout resume deploy/web", "deployment.apps/web resumed\n")?;
    context.rolled_out("deploy/web")
}

fn replica_sets(context: &KubectlContext) -> Result<()> {
    let out = context.kubectl.run("get rs -l app=web --no-headers")?;
    // web:1, web:2, and web:1 restarted.
    ensure!(out.lines().count() == 3, "{out}");
    let owner = "{.items[0].metadata.ownerReferences[0].kind}";
    let out = context.kubectl.run(&format!("get pods -l app=web -o jsonpath={owner}"))?;
    ensure!(out == "ReplicaSet", "{out}");
    let out = context.kubectl.run("get rs -l app=web -o jsonpath={.items[*].metadata.ownerReferences[0].name}")?;
    ensure!(out == "web web web", "{out}");
    Ok(())
}

fn expose(context: &KubectlContext) -> Result<()> {
    context.prints("expose deploy/web --port=80 --target-port=8080", "service/web exposed\n")?;
    context.path_is("svc/web", "{.spec.selector} {.spec.ports[0].targetPort}", "{\"app\":\"web\"} 8080")?;
    let address = context.path("svc/web", "{.spec.clusterIP}")?;
    ensure!(address.parse::<std::net::IpAddr>().is_ok(), "clusterIP {address:?}");
    let row = format!("web ClusterIP {address} <none> 80/TCP <age>\n");
    context.prints("get svc/web", &format!("NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE\n{row}"))
}

fn autoscale(context: &KubectlContext) -> Result<()> {
    context.prints(
        "autoscale deploy/web --min=1 --max=3 --cpu=50%",
        "horizontalpodautoscaler.autoscaling/web autoscaled\n",
    )?;
    context.says("get hpa/web", &["REFERENCE", "Deployment/web", "MINPODS", "MAXPODS"])?;
    context.path_is("hpa/web", "{.spec.metrics[0].resource.target.averageUtilization}", "50")?;
    context.kubectl.run("delete hpa/web").map(drop)
}

fn run_pod(context: &KubectlContext) -> Result<()> {
    context.prints("run box --image=box:1 --labels=run=box", "pod/box created\n")?;
    context.wait("pod/box --for=condition=Ready")?;
    context.prints("get pod/box", "NAME READY STATUS RESTARTS AGE\nbox 1/1 Running 0 <age>\n")?;
    let node = context.path("pod/box", "{.spec.nodeName}")?;
    ensure!(!node.is_empty(), "the pod has no node");
    context.says("get pod/box -o wide", &["NODE", &node]).map(drop)
}

fn pod_fields(context: &KubectlContext) -> Result<()> {
    let node = context.path("pod/box", "{.spec.nodeName}")?;
    let out =
        context.kubectl.run(&format!("get pods --field-selector=spec.nodeName={node},status.phase=Running -o name"))?;
    contains("get pods", &out, &["pod/box"])?;
    let out = context.kubectl.run("get pods --field-selector=status.phase!=Running -l run=box -o name")?;
    ensure!(out.is_empty(), "{out}");
    context.kubectl.run("delete pod/box --now").map(drop)
}

const STATEFUL_SET: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: db, image: 'db:1', volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {clusterIP: None, selector: {app: db}, ports: [{port: 5432}]}}
";

fn stateful_set(context: &KubectlContext) -> Result<()> {
    context.apply(STATEFUL_SET)?;
    context.rolled_out("sts/db")?;
    context.wait("pod/db-0 pod/db-1 --for=condition=Ready")?;
    context.prints("get sts/db", "NAME READY AGE\ndb 2/2 <age>\n")?;
    context.path_is("svc/db", "{.spec.clusterIP}", "None")?;
    for claim in ["pvc/data-db-0", "pvc/data-db-1"] {
        context.path_becomes(claim, "{.status.phase}", "Bound")?;
    }
    Ok(())
}

fn daemon_set(context: &KubectlContext) -> Result<()> {
    context.apply(
        "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent}, spec: {selector: {matchLabels: {app: agent}},
          template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: 'agent:1'}]}}}}",
    )?;
    context.rolled_out("ds/agent")?;
    let ready = context.path("ds/agent", "{.status.numberReady}")?;
    ensure!(ready != "0" && !ready.is_empty(), "numberReady {ready:?}");
    context.says("get ds/agent", &["DESIRED", "CURRENT", "READY", "UP-TO-DATE", "AVAILABLE"])?;
    context.kubectl.run("delete ds/agent").map(drop)
}

fn job(context: &KubectlContext) -> Result<()> {
    context.prints("create job once --image=once:1 -- true", "job.batch/once created\n")?;
    context.wait("job/once --for=condition=Complete")?;
    context.prints("get job/once", "NAME STATUS COMPLETIONS DURATION AGE\nonce Complete 1/1 <age> <age>\n")?;
    context.says("describe job/once", &["1 Succeeded"]).map(drop)
}

fn cron_job(context: &KubectlContext) -> Result<()> {
    context.kubectl.run_args(&["create", "cronjob", "nightly", "--image=n:1", "--schedule=0 3 1 1 *"])?;
    context.says("get cronjob/nightly", &["SCHEDULE", "0 3 1 1 *", "False"])?;
    context.prints("create job now --from=cronjob/nightly", "job.batch/now created\n")?;
    context.wait("job/now --for=condition=Complete")?;
    context.path_is("job/now", "{.metadata.ownerReferences[0].kind}", "CronJob")?;
    context.kubectl.run("delete cronjob/nightly job/once").map(drop)
}

fn ingress(context: &KubectlContext) -> Result<()> {
    let args = "create ingress shop --class=nginx --rule=shop.example/*=web:80,tls=shop-cert";
    context.prints(args, "ingress.networking.k8s.io/shop created\n")?;
    let row = "NAME CLASS HOSTS ADDRESS PORTS AGE\nshop nginx shop.example 80, 443 <age>\n";
    context.prints("get ingress/shop", row)?;
    context.says("describe ingress/shop", &["web:80", "shop-cert terminates shop.example"])?;
    context.kubectl.run("delete ingress/shop").map(drop)
}

fn replaced_pod(context: &KubectlContext) -> Result<()> {
    let before = context.path("pod/db-0", "{.metadata.uid}")?;
    context.kubectl.run("delete pod/db-0")?;
    super::poll::until("a new pod db-0", super::PATIENCE, || {
        let uid = context.path("pod/db-0", "{.metadata.uid}")?;
        ensure!(uid != before, "still the old pod");
        Ok(())
    })?;
    context.wait("pod/db-0 --for=condition=Ready")
}
