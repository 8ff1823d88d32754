//! Cluster IPs and node ports of Services.

use std::net::IpAddr;

use portolan_machinery::lifecycle::{
    allocation::{AddressRange, ClusterIp, Reserved, needs_cluster_ip, reserved, set_cluster_ip},
    node_ports::{
        ALLOCATED, NODE_PORTS, Place, held, needs_health_check_port, needs_node_ports, node_port_candidates,
        set_health_check_port, set_node_port, try_node_ports,
    },
};
use portolan_store::Write;
use portolan_types::{GroupResource, NamespaceName, ObjectKey, ObjectName, Status, StatusCause, object};
use serde_json::{Value, json};

use crate::{
    ApiServer,
    objects::{Commit, CommitError},
};

use super::{
    Request,
    reservations::{key, release, reserve},
};

/// Candidates that are looked at before giving up.
const MAX_TRIES: usize = 256;

/// Gives a Service the address and ports it needs.
pub(super) async fn furnish(
    api: &ApiServer,
    request: &Request<'_>,
    service: &mut Value,
    old: Option<&Value>,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    let holder = holder(request, service)?;
    match needs_cluster_ip(service, old) {
        ClusterIp::Nothing => {}
        ClusterIp::Given(address) => commit.companions.push(given(api, &holder, service, address).await?),
        ClusterIp::Any => {
            let (address, write) = any_address(api, &holder, service).await?;
            set_cluster_ip(service, address);
            commit.companions.push(write);
        }
    }
    reserve_given_ports(api, request, service, old, commit).await?;
    match request.dry_run {
        true => try_node_ports(old, service),
        false => find_ports(api, &holder, service, old, commit).await?,
    }
    if let Some(old) = old {
        let kept = reserved(service);
        let gone = reserved(old).into_iter().filter(|name| !kept.contains(name));
        for (resource, name) in gone {
            give_back(api, &holder, resource, &name, commit).await?;
        }
    }
    Ok(())
}

/// Gives back what a Service had.
pub(super) async fn clear(
    api: &ApiServer,
    request: &Request<'_>,
    service: &Value,
    commit: &mut Commit,
) -> Result<(), Status> {
    let holder = holder(request, service)?;
    for (resource, name) in reserved(service) {
        give_back(api, &holder, resource, &name, commit).await?;
    }
    Ok(())
}

async fn give_back(
    api: &ApiServer,
    holder: &ObjectKey,
    resource: Reserved,
    name: &str,
    commit: &mut Commit,
) -> Result<(), Status> {
    if let Some(key) = key(holder.cluster, resource.stored_as(), name) {
        commit.companions.extend(release(api, key, holder).await?);
    }
    Ok(())
}

fn holder(request: &Request<'_>, service: &Value) -> Result<ObjectKey, Status> {
    let bad = |e: portolan_types::InvalidName| Status::bad_request(e.to_string());
    let namespace: NamespaceName = object::namespace(service).parse().map_err(bad)?;
    let name: ObjectName = object::name(service).parse().map_err(bad)?;
    Ok(ObjectKey::namespaced(request.cluster.id, GroupResource::new("", "services"), namespace, name))
}

fn reservation(api: &ApiServer, holder: &ObjectKey, resource: Reserved, name: &str) -> Value {
    let (version, kind) = match resource {
        Reserved::Address => ("networking.k8s.io/v1", "IPAddress"),
        Reserved::Port => ("portolan.dev/v1alpha1", "NodePort"),
    };
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    let labels = if resource == Reserved::Address { labels } else { json!({}) };
    json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "uid": api.seams.uid(), "creationTimestamp": api.seams.now_text(), "labels": labels},
        "spec": {"parentRef": {
            "group": "", "resource": "services", "namespace": holder.namespace(), "name": holder.name,
        }},
    })
}

async fn take(api: &ApiServer, holder: &ObjectKey, resource: Reserved, name: &str) -> Result<Option<Write>, Status> {
    let Some(key) = key(holder.cluster, resource.stored_as(), name) else { return Ok(None) };
    reserve(api, &key, holder, &reservation(api, holder, resource, name)).await
}

async fn any_address(api: &ApiServer, holder: &ObjectKey, service: &Value) -> Result<(IpAddr, Write), Status> {
    for address in AddressRange::DEFAULT.candidates(object::meta_text(service, "uid")).take(MAX_TRIES) {
        if let Some(write) = take(api, holder, Reserved::Address, &address.to_string()).await? {
            return Ok((IpAddr::V4(address), write));
        }
    }
    Err(Status::internal("failed to allocate a serviceIP: range is full"))
}

async fn given(api: &ApiServer, holder: &ObjectKey, service: &Value, address: IpAddr) -> Result<Write, Status> {
    let shown = address.to_string();
    if !AddressRange::DEFAULT.contains(address) {
        let range = AddressRange::DEFAULT;
        let why = format!("the provided IP ({shown}) is not in the valid range. The range of valid IPs is {range}");
        return Err(refused(service, "spec.clusterIPs", &shown, &format!("failed to allocate IP {shown}: {why}")));
    }
    let why = format!("failed to allocate IP {shown}: provided IP is already allocated");
    let taken = || refused(service, "spec.clusterIPs", &shown, &why);
    take(api, holder, Reserved::Address, &shown).await?.ok_or_else(taken)
}

async fn any_port(
    api: &ApiServer,
    holder: &ObjectKey,
    service: &Value,
    at: usize,
    taken: &[Write],
) -> Result<(u16, Write), Status> {
    let seed = format!("{}/{at}", object::meta_text(service, "uid"));
    for port in node_port_candidates(&seed).take(MAX_TRIES) {
        let name = port.to_string();
        if taken.iter().any(|write| *write.key.name == *name) {
            continue;
        }
        if let Some(write) = take(api, holder, Reserved::Port, &name).await? {
            return Ok((port, write));
        }
    }
    Err(Status::internal("failed to allocate a nodePort: range is full"))
}

/// Ports that the client left to us.
async fn find_ports(
    api: &ApiServer,
    holder: &ObjectKey,
    service: &mut Value,
    old: Option<&Value>,
    commit: &mut Commit,
) -> Result<(), Status> {
    for group in needs_node_ports(service, old.is_none()) {
        let (port, write) = any_port(api, holder, service, group[0], &commit.companions).await?;
        group.into_iter().for_each(|at| set_node_port(service, at, port.into()));
        commit.companions.push(write);
    }
    if needs_health_check_port(service) {
        let (port, write) = any_port(api, holder, service, usize::MAX, &commit.companions).await?;
        set_health_check_port(service, port.into());
        commit.companions.push(write);
    }
    Ok(())
}

/// Ports that the client chose.
async fn reserve_given_ports(
    api: &ApiServer,
    request: &Request<'_>,
    service: &Value,
    old: Option<&Value>,
    commit: &mut Commit,
) -> Result<(), Status> {
    let holder = &holder(request, service)?;
    let before = old.map(reserved).unwrap_or_default();
    for (place, port) in held(service) {
        let name = port.to_string();
        let known = before.contains(&(Reserved::Port, name.clone()))
            || commit.companions.iter().any(|write| *write.key.name == *name);
        if known {
            continue;
        }
        // A trial is not held against the range, as upstream has it.
        if !request.dry_run && !u16::try_from(port).is_ok_and(|port| NODE_PORTS.contains(&port)) {
            return Err(no_port(service, place, port, OUT_OF_RANGE));
        }
        let write = take(api, holder, Reserved::Port, &name).await?;
        commit.companions.push(write.ok_or_else(|| no_port(service, place, port, ALLOCATED))?);
    }
    Ok(())
}

const OUT_OF_RANGE: &str = "provided port is not in the valid range. The range of valid ports is 30000-32767";

/// Why a port that the client chose cannot be had.
fn no_port(service: &Value, place: Place, port: u64, why: &str) -> Status {
    match place {
        Place::Port(at) => refused(service, &format!("spec.ports[{at}].nodePort"), &port.to_string(), why),
        Place::HealthCheck => {
            Status::internal(format!("failed to allocate requested HealthCheck NodePort {port}: {why}"))
        }
    }
}

fn refused(service: &Value, field: &str, value: &str, why: &str) -> Status {
    let kind = portolan_types::GroupKind { group: "".into(), kind: "Service".into() };
    let shown = if field.ends_with("nodePort") { value.to_owned() } else { format!("[{value:?}]") };
    let cause = StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {shown}: {why}"),
        field: field.into(),
    };
    Status::invalid(&kind, object::name(service), vec![cause])
}
