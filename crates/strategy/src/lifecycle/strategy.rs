//! Strategies of kinds: changes to a client's object other than defaults and validation.

use portolan_types::{
    Status,
    object::{self, child_mut},
};
use portolan_validation::{
    data_sources::{is_elsewhere, same_sources},
    qos::class_of as qos_class,
};
use serde_json::{Value, json};

use super::{Allocates, WriteContext, allocation, devices, families, gates, node_ports, pods, services, signing};
use portolan_codec::conversion;
use portolan_kinds::{Kind, custom};

/// Returns group and kind, for a match.
fn of(kind: &Kind) -> (&str, &str) {
    (&kind.gvk.group, &kind.gvk.kind)
}

/// Removes the status of a new object and sets its generation to 1, if its kind has one; runs before defaults.
pub(super) fn before_create(ctx: &WriteContext<'_>, kind: &Kind, object: &mut Value) {
    conversion::in_that_form(kind, object, |object| create(ctx, kind, object));
}

fn create(ctx: &WriteContext<'_>, kind: &Kind, object: &mut Value) {
    // Nodes are registered together with their status, and pods keep the class that they are sent with.
    let class = object.pointer("/status/qosClass").filter(|class| of(kind) == ("", "Pod") && **class != "").cloned();
    if kind.subresource("status").is_some() && of(kind) != ("", "Node") {
        drop_key(object, "status");
    }
    if let Some(class) = class {
        child_mut(fields(object), "status").insert("qosClass".into(), class);
    }
    if kind.generation {
        object::metadata_mut(object).insert("generation".into(), 1.into());
    }
    gates::drop_closed(of(kind), &Value::Null, object);
    match of(kind) {
        ("", "Namespace") => {
            let finalizers = child_mut(fields(object), "spec").entry("finalizers").or_insert_with(|| json!([]));
            if let Some(list) = finalizers.as_array_mut()
                && !list.contains(&json!("kubernetes"))
            {
                list.push("kubernetes".into());
            }
        }
        ("", "PersistentVolume") => {
            child_mut(fields(object), "status").insert("lastPhaseTransitionTime".into(), ctx.seams.now_text().into());
        }
        ("", "LimitRange") if object::name(object).is_empty() => {
            object::metadata_mut(object).insert("name".into(), ctx.seams.uid().to_string().into());
        }
        ("networking.k8s.io", "NetworkPolicy") => drop_key(object, "status"),
        (custom::GROUP, "CustomResourceDefinition") => put(object, "status", Some(custom::fresh_status(object))),
        ("discovery.k8s.io", "EndpointSlice") => without_topology(object),
        ("coordination.k8s.io", "Lease") => not_coordinated(&Value::Null, object),
        ("", "ServiceAccount") => only_names(object),
        ("apps", "DaemonSet") => {
            let given = object::annotation(object, TEMPLATE_GENERATION).and_then(|text| text.parse::<i64>().ok());
            let first = given.unwrap_or(0).max(1).to_string();
            object::set_annotation(object, TEMPLATE_GENERATION, Some(first));
        }
        ("apiregistration.k8s.io", "APIService") => available(ctx, object),
        ("resource.k8s.io", "ResourceSlice") => {
            devices::drop_gated(&Value::Null, object);
            devices::date_taints(ctx, object);
        }
        _ => {}
    }
}

/// Marks an APIService that the server itself serves as available.
fn available(ctx: &WriteContext<'_>, service: &mut Value) {
    if service.pointer("/spec/service").is_none_or(Value::is_null) {
        let condition = json!({"type": "Available", "status": "True", "reason": "Local",
            "message": "Local APIServices are always available", "lastTransitionTime": ctx.seams.now_text()});
        child_mut(fields(service), "status").insert("conditions".into(), json!([condition]));
    }
}

/// Moves the topology of endpoints to `nodeName` and `zone`.
fn without_topology(slice: &mut Value) {
    let endpoints = slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten();
    endpoints.for_each(|endpoint| drop_key(endpoint, "deprecatedTopology"));
}

/// Leases that are handed out by a coordinator are behind a gate that is closed.
fn not_coordinated(old: &Value, lease: &mut Value) {
    for name in ["strategy", "preferredHolder"] {
        if old.pointer(&format!("/spec/{name}")).is_none()
            && let Some(spec) = lease.get_mut("spec")
        {
            drop_key(spec, name);
        }
    }
}

/// The generation of a daemon set's template, as old clients know it.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Determines addresses, families and node ports of a Service before any is allocated. Its faults come before, and
/// instead of, those of validation.
///
/// # Errors
/// 422 for values that do not exist, or that no two ports of a Service can share; 500 for some of them, as in
/// kube-apiserver.
pub(super) fn allocate(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Status> {
    if of(kind) != ("", "Service") || ctx.allocates == Allocates::Nothing {
        return Ok(());
    }
    match old {
        Some(old) => allocation::carry_over(old, new),
        None => allocation::list_address(new),
    }
    match families::settle(old, new).into_causes() {
        causes if causes.is_empty() => node_ports::settle(ctx.allocates, old, new),
        causes => Err(Status::invalid(&kind.called(), object::name(new), causes)),
    }
}

/// Removes fields that are validated and not shown: an ExternalName Service has no internal traffic policy.
pub(super) fn after_validation(kind: &Kind, object: &mut Value) {
    if of(kind) == ("", "Service") && object.pointer("/spec/type").is_some_and(|own| own == "ExternalName") {
        drop_key(child(object, "spec"), "internalTrafficPolicy");
    }
}

/// Sets values computed from the object itself, after defaults and before validation.
pub(super) fn after_defaults(ctx: &WriteContext<'_>, kind: &Kind, object: &mut Value) {
    match of(kind) {
        ("", "Pod") => {
            let class = qos_class(object);
            let status = child_mut(fields(object), "status");
            status.insert("phase".into(), "Pending".into());
            status.entry("qosClass").or_insert_with(|| class.into());
            gate(ctx, object);
            pods::match_own_labels(object);
            pods::profiles_from_annotations(object);
        }
        ("batch", "Job") => job_selector(ctx, object),
        ("", "PersistentVolumeClaim") => data_source(&Value::Null, object),
        _ => {}
    }
}

/// Returns true if an update creates a missing object (Kubernetes' `AllowCreateOnUpdate`), also through a subresource:
/// the status of a Service has the Service's own rule.
pub fn creates_on_update(kind: &Kind, subresource: Option<&str>) -> bool {
    kind.create_on_update && (subresource.is_none() || (subresource, of(kind)) == (Some("status"), ("", "Service")))
}

/// Adds the condition of a pod with scheduling gates.
fn gate(ctx: &WriteContext<'_>, pod: &mut Value) {
    let gated = pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty());
    if gated {
        let text = "Scheduling is blocked due to non-empty scheduling gates";
        child_mut(fields(pod), "status").insert(
            "conditions".into(),
            json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": text,
                "lastTransitionTime": ctx.seams.now_text(), "lastProbeTime": null}]),
        );
    }
}

/// Sets a job's selector to its own uid, unless the client chose one. The job's default labels are those of its
/// template, with the labels that are added here: kube-apiserver has one map for both.
fn job_selector(ctx: &WriteContext<'_>, job: &mut Value) {
    if job.pointer("/spec/manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let shares = shares_labels(ctx, job);
    let (uid, name) = (object::meta_text(job, "uid").to_owned(), object::name(job).to_owned());
    let spec = child_mut(fields(job), "spec");
    let labels = child_mut(child_mut(child_mut(spec, "template"), "metadata"), "labels");
    // Other values that a client gave are refused by validation.
    for key in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        labels.entry(key).or_insert_with(|| uid.clone().into());
    }
    for key in ["job-name", "batch.kubernetes.io/job-name"] {
        labels.entry(key).or_insert_with(|| name.clone().into());
    }
    let labels = labels.clone();
    let wanted = child_mut(child_mut(spec, "selector"), "matchLabels");
    wanted.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| uid.into());
    if shares {
        *child_mut(object::metadata_mut(job), "labels") = labels;
    }
}

/// Returns true if the labels of a Job were defaulted from its template.
fn shares_labels(ctx: &WriteContext<'_>, job: &Value) -> bool {
    let labels = |of: &Value| of.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let own = labels(job);
    own.is_empty()
        || own == labels(job.pointer("/spec/template").unwrap_or(&Value::Null))
            && ctx.sent.and_then(|sent| sent()).is_none_or(|sent| labels(&sent).is_empty())
}

/// Returns true for a data source that every cluster supports.
fn is_known_source(source: &Value) -> bool {
    let group = source.get("apiGroup").and_then(Value::as_str).unwrap_or_default();
    let kind = source.get("kind").and_then(Value::as_str);
    matches!((group, kind), ("", Some("PersistentVolumeClaim")) | ("snapshot.storage.k8s.io", Some("VolumeSnapshot")))
}

/// Makes `dataSource` and `dataSourceRef` equal. Sources in other namespaces are behind a closed feature gate, and
/// sources of unknown kinds are only for `dataSourceRef`. `old` is null for a new claim.
fn data_source(old: &Value, claim: &mut Value) {
    let had = |name: &str| old.pointer(&format!("/spec/{name}")).is_some();
    let spec = child_mut(fields(claim), "spec");
    if spec.get("dataSourceRef").is_some_and(is_elsewhere) && !had("dataSourceRef") {
        spec.remove("dataSourceRef");
    }
    let is_new = !had("dataSource") && !had("dataSourceRef");
    if is_new && !spec.contains_key("dataSourceRef") && spec.get("dataSource").is_some_and(|one| !is_known_source(one))
    {
        spec.remove("dataSource");
    }
    same_sources(spec);
}

/// Keeps only the names of an account's secrets.
fn only_names(account: &mut Value) {
    let secrets = account.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten();
    secrets.filter_map(Value::as_object_mut).for_each(|secret| secret.retain(|name, _| name == "name"));
}

/// Sets the time at which a volume entered its phase.
fn date_phase(ctx: &WriteContext<'_>, old: &Value, volume: &mut Value) {
    let at = "lastPhaseTransitionTime";
    let before = old.get("status").unwrap_or(&Value::Null);
    let Some(Value::Object(status)) = volume.get_mut("status") else { return };
    let same = status.get("phase") == before.get("phase");
    let given = status.get(at).filter(|time| !time.is_null()).cloned();
    let time = match before.get(at) {
        before if same && given.is_none() => before.cloned(),
        before if !same && (given.is_none() || given.as_ref() == before) => Some(ctx.seams.now_text().into()),
        _ => None,
    };
    if let Some(time) = time {
        status.insert(at.into(), time);
    }
}

/// Takes over the fields of `old` that this endpoint may not change, and increments the generation.
pub(super) fn before_update(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    subresource: Option<&str>,
    old: &Value,
    new: &mut Value,
) {
    let old = &*conversion::checked_as(kind, old);
    conversion::in_that_form(kind, new, |new| update(ctx, kind, subresource, (old, new)));
}

fn update(ctx: &WriteContext<'_>, kind: &Kind, subresource: Option<&str>, (old, new): (&Value, &mut Value)) {
    let changes_dropped_fields = counts_dropped_fields(kind) && is_spec_changed(kind, old, new);
    match subresource {
        Some("status") => status_update(ctx, kind, old, new),
        Some("finalize") => copy(old, new, "status"),
        Some("approval") => approval(ctx, old, new),
        Some("ephemeralcontainers") => only_in_spec(old, new, &["ephemeralContainers"]),
        // Built by `bind` from the stored pod: changes spec and status together.
        Some("binding") => {}
        Some("resize") => resized(old, new),
        Some(_) | None => main_update(ctx, kind, old, new),
    }
    // The generation of priority classes never changes.
    let counts = kind.generation && of(kind) != ("scheduling.k8s.io", "PriorityClass");
    let is_changed = || changes_dropped_fields || is_spec_changed(kind, old, new) || ctx.changes_emptiness(kind, new);
    if counts && !matches!(subresource, Some("status" | "binding")) && is_changed() {
        let generation = object::generation(old) + 1;
        object::metadata_mut(new).insert("generation".into(), generation.into());
    }
}

fn main_update(ctx: &WriteContext<'_>, kind: &Kind, old: &Value, new: &mut Value) {
    if kind.subresource("status").is_some() {
        copy(old, new, "status");
    }
    gates::drop_closed(of(kind), old, new);
    match of(kind) {
        ("", "Namespace") => copy_within(old, new, "spec", "finalizers"),
        ("", "Service") => services::drop_unneeded(old, new),
        ("", "PersistentVolumeClaim") => data_source(old, new),
        ("", "ServiceAccount") => only_names(new),
        ("discovery.k8s.io", "EndpointSlice") if old.get("endpoints") != new.get("endpoints") => without_topology(new),
        ("coordination.k8s.io", "Lease") => not_coordinated(old, new),
        ("apps", "DaemonSet") => {
            let before: i64 =
                object::annotation(old, TEMPLATE_GENERATION).and_then(|text| text.parse().ok()).unwrap_or(0);
            let changed = old.pointer("/spec/template") != new.pointer("/spec/template");
            let now = (before + i64::from(changed)).to_string();
            object::set_annotation(new, TEMPLATE_GENERATION, Some(now));
        }
        ("storage.k8s.io", "CSIDriver") if old.get("spec") != new.get("spec") => {
            let generation = object::generation(old) + 1;
            object::metadata_mut(new).insert("generation".into(), generation.into());
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => copy(old, new, "spec"),
        ("resource.k8s.io", "ResourceSlice") => {
            devices::drop_gated(old, new);
            devices::date_taints(ctx, new);
        }
        (custom::GROUP, "CustomResourceDefinition") => {
            let stored =
                custom::stored_versions(&new["spec"], old.pointer("/status/storedVersions").unwrap_or(&Value::Null));
            put(child(new, "status"), "storedVersions", Some(stored));
        }
        _ => {}
    }
}

/// Keeps everything but the status. Most built-in kinds allow changes of metadata, as in kube-apiserver; others (custom
/// resources, Portolan's own) do not.
fn status_update(ctx: &WriteContext<'_>, kind: &Kind, old: &Value, new: &mut Value) {
    let lets_metadata_through = kind.is_kubernetes() && !kind.status_keeps_metadata();
    let mut kept = old.clone();
    let (status, metadata) = (take(new, "status"), take(new, "metadata"));
    put(&mut kept, "status", status);
    if let (true, Some(metadata)) = (lets_metadata_through, &metadata) {
        let owners = object::metadata(old).get("ownerReferences").cloned();
        let labels = object::metadata(old).get("labels").cloned();
        kept["metadata"] = metadata.clone();
        match of(kind) {
            ("", "Pod") => {
                put(&mut kept["metadata"], "ownerReferences", owners);
                let class = old.pointer("/status/qosClass").cloned();
                if kept.pointer("/status/qosClass").is_none() {
                    put(&mut kept["status"], "qosClass", class);
                }
                gates::drop_volume_status(old, &mut kept);
            }
            ("apps", "Deployment") => put(&mut kept["metadata"], "labels", labels),
            _ => {}
        }
    } else {
        let managed = metadata.as_ref().and_then(|metadata| metadata.get("managedFields")).cloned();
        put(&mut kept["metadata"], "managedFields", managed);
    }
    if let Some(version) = metadata.as_ref().and_then(|metadata| metadata.get("resourceVersion")) {
        kept["metadata"]["resourceVersion"] = version.clone();
    }
    match of(kind) {
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            signing::keep_approvals(old, &mut kept);
            signing::date_conditions(ctx, old, &mut kept);
        }
        ("resource.k8s.io", "ResourceClaim") => devices::drop_given_back(old, &mut kept),
        // kube-apiserver keeps it in the spec.
        ("apps", "DaemonSet") => {
            let kept_generation = object::annotation(old, TEMPLATE_GENERATION).map(str::to_owned);
            object::set_annotation(&mut kept, TEMPLATE_GENERATION, kept_generation);
        }
        ("", "Pod") => pods::keep_observed_generation(old, &mut kept),
        ("", "PersistentVolume") => date_phase(ctx, old, &mut kept),
        ("", "Node") => gates::drop_closed(of(kind), old, &mut kept),
        _ => {}
    }
    *new = kept;
}

/// Takes over only the approval conditions of a signing request.
fn approval(ctx: &WriteContext<'_>, old: &Value, new: &mut Value) {
    signing::date_conditions(ctx, old, new);
    let conditions = new.pointer("/status/conditions").cloned();
    copy(old, new, "spec");
    copy(old, new, "status");
    put(child(new, "status"), "conditions", conditions);
}

fn child<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    child_mut(fields(object), key);
    &mut object[key]
}

/// Returns true if kube-apiserver looks for changes before it drops disabled fields.
fn counts_dropped_fields(kind: &Kind) -> bool {
    matches!(of(kind), ("discovery.k8s.io", "EndpointSlice") | ("resource.k8s.io", "ResourceSlice"))
}

/// Takes all of `old` but these fields of its spec.
fn only_in_spec(old: &Value, new: &mut Value, names: &[&str]) {
    let mut kept = old.clone();
    for name in names {
        let value = new.pointer(&format!("/spec/{name}")).cloned();
        put(child(&mut kept, "spec"), name, value);
    }
    if let Some(managed) = object::metadata(new).get("managedFields") {
        kept["metadata"]["managedFields"] = managed.clone();
    }
    *new = kept;
}

/// A pod of which only resources change. Other containers than before stay, for validation to refuse.
fn resized(old: &Value, new: &mut Value) {
    let lists = ["containers", "initContainers"];
    let of = |pod: &Value, list: &str| pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).cloned();
    let lists = lists.map(|list| (list, of(old, list).unwrap_or_default(), of(new, list).unwrap_or_default()));
    if lists.iter().any(|(_, before, after)| before.len() != after.len()) {
        return;
    }
    only_in_spec(old, new, &["resources"]);
    for (list, before, after) in lists {
        let same = before.iter().zip(&after).all(|(before, after)| before.get("name") == after.get("name"));
        let merged = before.into_iter().zip(&after).map(|(mut container, after)| {
            for name in ["resources", "resizePolicy"] {
                put(&mut container, name, after.get(name).cloned());
            }
            container
        });
        let containers: Vec<Value> = if same { merged.collect() } else { after.clone() };
        if !containers.is_empty() {
            put(child(new, "spec"), list, Some(containers.into()));
        }
    }
}

/// Returns true if anything but metadata and status changed; for Deployments annotations count too, for EndpointSlices
/// labels.
fn is_spec_changed(kind: &Kind, old: &Value, new: &Value) -> bool {
    let apart: &[&str] = if kind.is_typed() || kind.subresource("status").is_some() {
        &["metadata", "apiVersion", "kind", "status"]
    } else {
        &["metadata", "apiVersion", "kind"]
    };
    let apart = |key: &str| !apart.contains(&key);
    let (Some(before), Some(after)) = (old.as_object(), new.as_object()) else { return true };
    let differs = before.iter().any(|(key, value)| apart(key) && after.get(key) != Some(value))
        || after.keys().any(|key| apart(key) && !before.contains_key(key));
    let counted = match of(kind) {
        ("apps", "Deployment") => "annotations",
        ("discovery.k8s.io", "EndpointSlice") => "labels",
        _ => return differs,
    };
    let own = |object| object::metadata(object).get(counted).and_then(Value::as_object).filter(|map| !map.is_empty());
    differs || own(old) != own(new)
}

fn fields(object: &mut Value) -> &mut object::Object {
    object.as_object_mut().expect("callers check that an object is a JSON object")
}

fn drop_key(object: &mut Value, key: &str) {
    take(object, key);
}

fn take(object: &mut Value, key: &str) -> Option<Value> {
    object.as_object_mut().and_then(|fields| fields.remove(key))
}

fn put(object: &mut Value, key: &str, value: Option<Value>) {
    let Some(fields) = object.as_object_mut() else { return };
    match value {
        Some(value) => {
            fields.insert(key.to_owned(), value);
        }
        None => {
            fields.remove(key);
        }
    }
}

fn copy(old: &Value, new: &mut Value, key: &str) {
    put(new, key, old.get(key).cloned());
}

fn copy_within(old: &Value, new: &mut Value, outer: &str, key: &str) {
    put(child(new, outer), key, old.get(outer).and_then(|fields| fields.get(key)).cloned());
}
