//! Workloads on the demo's simulated clusters, good and bad, as a newcomer looks at them with kubectl.

/// Namespace of all these objects.
const NAMESPACE: &str = "trial";

/// Manifests that are applied first.
pub(super) const MANIFESTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: trial}
---
apiVersion: portolan.dev/v1alpha1
kind: PlacementPolicy
metadata: {name: two, namespace: trial}
spec:
  resources: [{apiGroup: apps, kinds: [Deployment]}]
  count: 2
  spread: [{topologyKey: region, maxSkew: 1}]
  replicas: {mode: Divide, by: Equal}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: both, namespace: trial, labels: {app: both}}
spec: {replicas: 4, selector: {matchLabels: {app: both}}, template: {metadata: {labels: {app: both}}, spec: {containers: [{name: c, image: c, ports: [{containerPort: 80}]}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: both, namespace: trial}
spec: {selector: {app: both}, ports: [{port: 80}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: queued, namespace: trial}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old, namespace: trial}
spec: {replicas: 2, selector: {app: old}, template: {metadata: {labels: {app: old}}, spec: {containers: [{name: c, image: c}]}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: old, namespace: trial}
spec: {minAvailable: 1, selector: {matchLabels: {app: old}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: both, namespace: trial}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: both}, minReplicas: 2, maxReplicas: 9}
---
apiVersion: v1
kind: Pod
metadata: {name: secretive, namespace: trial}
spec: {containers: [{name: c, image: c, env: [{name: A, valueFrom: {secretKeyRef: {name: none, key: a}}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unready, namespace: trial}
spec: {initContainers: [{name: first, image: c}], containers: [{name: c, image: c, readinessProbe: {exec: {command: ["false"]}}}]}
"#;

/// Commands, each with its subject. All print something and exit with 0.
pub(super) fn commands() -> Vec<(&'static str, String)> {
    let wait =
        |object: &str, condition: &str| format!("kubectl -n {NAMESPACE} wait {object} --for={condition} --timeout=30s");
    let until = |test: &str| {
        format!(
            "for n in $(seq 60); do if {test}; then echo yes; echo after $n looks; exit 0; fi; sleep 0.5; done; exit 1"
        )
    };
    let count = |what: &str, number: u32| {
        format!("[ $(kubectl -n {NAMESPACE} get {what} | tr ' ' '\\n' | grep -c .) = {number} ]")
    };
    let slices = "endpointslices -l kubernetes.io/service-name=both -o jsonpath={.items[*].endpoints[*].addresses[0]}";
    let addresses = "endpoints both -o jsonpath={.subsets[*].addresses[*].ip}";
    let reason = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=CreateContainerConfigError";
    let resume = r#"{"spec":{"suspend":false,"template":{"metadata":{"labels":{"x":"y"}}}}}"#;
    vec![
        ("a suspended Job says so", wait("job/queued", "condition=Suspended")),
        ("and has no start", until(&count("job queued -o jsonpath={.status.startTime}", 0))),
        ("a queue starts it", format!("kubectl -n {NAMESPACE} patch job queued --type=merge -p '{resume}'")),
        ("and it completes", wait("job/queued", "condition=Complete")),
        ("the slices of all clusters are shown", until(&count(slices, 4))),
        ("and so are their addresses", until(&count(addresses, 4))),
        ("a ReplicationController runs", wait("rc/old", "jsonpath={.status.readyReplicas}=2")),
        ("a disruption budget has a status", wait("pdb/old", "jsonpath={.status.disruptionsAllowed}=1")),
        ("an autoscaler says that there are no metrics", wait("hpa/both", "condition=ScalingActive=False")),
        ("a Secret is missing", wait("pod/secretive", reason)),
        ("a probe fails", wait("pod/unready", "condition=Ready=False")),
        ("and an Event says so", until(&format!("kubectl -n {NAMESPACE} get events | grep -q Unhealthy"))),
        ("pods have a usage", until(&format!("kubectl -n {NAMESPACE} top pods --no-headers | grep -q ^both-"))),
        ("and so have physical clusters", until("kubectl top nodes --no-headers | grep -q %")),
        ("an init container has logs", format!("kubectl -n {NAMESPACE} logs unready -c first")),
    ]
}
