//! Allocation of cluster IPs and node ports for Services.

use std::net::IpAddr;

use portolan_store::Write;
use portolan_strategy::lifecycle::{
    allocation::{AddressRange, ClusterIp, Reserved, needs_cluster_ip, reserved, set_cluster_ip},
    node_ports::{
        ALLOCATED, NODE_PORTS, Place, held, needs_health_check_port, needs_node_ports, node_port_candidates,
        set_health_check_port, set_node_port, try_node_ports,
    },
};
use portolan_types::{GroupResource, NamespaceName, ObjectKey, ObjectName, Seams, Status, StatusCause, object};
use serde_json::{Value, json};

use crate::{
    commit::{CommitError, ObjectCommit},
    hooks::AdmissionRequest,
    storage::StorageContext,
};

use super::{
    pending_write::PendingWrite,
    reservations::{key, release, reserve},
};

/// Candidates that are tried before the allocation fails.
const MAX_TRIES: usize = 256;

/// Allocates the addresses and ports of a Service.
pub(super) async fn allocate(storage: &StorageContext, write: &mut PendingWrite<'_>) -> Result<(), CommitError> {
    let reservations = ServiceReservations { storage, holder: &holder(write.request, write.object)? };
    match needs_cluster_ip(write.object, write.old) {
        ClusterIp::Nothing => {}
        ClusterIp::Given(address) => {
            let reserved = reservations.reserve_address(write.object, address).await?;
            write.commit.companions.push(reserved);
        }
        ClusterIp::Any => {
            let (address, reserved) = reservations.any_address(write.object).await?;
            set_cluster_ip(write.object, address);
            write.commit.companions.push(reserved);
        }
    }
    reservations.reserve_given_ports(write).await?;
    if write.request.dry_run {
        try_node_ports(write.old, write.object)
    } else {
        reservations.find_ports(write).await?
    }
    if let Some(old) = write.old {
        let kept = reserved(write.object);
        let gone = reserved(old).into_iter().filter(|name| !kept.contains(name));
        reservations.release(gone.collect(), write.commit).await?;
    }
    Ok(())
}

/// Releases the addresses and ports of a Service.
pub(super) async fn release_all(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    service: &Value,
    commit: &mut ObjectCommit,
) -> Result<(), Status> {
    let reservations = ServiceReservations { storage, holder: &holder(request, service)? };
    reservations.release(reserved(service), commit).await
}

fn holder(request: &AdmissionRequest<'_>, service: &Value) -> Result<ObjectKey, Status> {
    let bad = |e: portolan_types::InvalidName| Status::bad_request(e.to_string());
    let namespace: NamespaceName = object::namespace(service).parse().map_err(bad)?;
    let name: ObjectName = object::name(service).parse().map_err(bad)?;
    Ok(ObjectKey::namespaced(request.cluster.id, GroupResource::new("", "services"), namespace, name))
}

fn reservation(seams: &Seams, holder: &ObjectKey, resource: Reserved, name: &str) -> Value {
    let (version, kind) = match resource {
        Reserved::Address => ("networking.k8s.io/v1", "IPAddress"),
        Reserved::Port => ("portolan.dev/v1alpha1", "NodePort"),
    };
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    let labels = if resource == Reserved::Address { labels } else { json!({}) };
    json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "uid": seams.uid(), "creationTimestamp": seams.now_text(), "labels": labels},
        "spec": {"parentRef": {
            "group": "", "resource": "services", "namespace": holder.namespace(), "name": holder.name,
        }},
    })
}

/// Reservations of one Service.
struct ServiceReservations<'a> {
    storage: &'a StorageContext,
    holder: &'a ObjectKey,
}

impl ServiceReservations<'_> {
    /// Adds to the commit the release of addresses and ports.
    async fn release(&self, gone: Vec<(Reserved, String)>, commit: &mut ObjectCommit) -> Result<(), Status> {
        for (resource, name) in gone {
            if let Some(key) = key(self.holder.cluster, resource.stored_as(), &name) {
                commit.companions.extend(release(self.storage, key, self.holder).await?);
            }
        }
        Ok(())
    }

    async fn reserve_name(&self, resource: Reserved, name: &str) -> Result<Option<Write>, Status> {
        let Some(key) = key(self.holder.cluster, resource.stored_as(), name) else { return Ok(None) };
        let record = reservation(&self.storage.seams, self.holder, resource, name);
        reserve(self.storage, &key, self.holder, &record).await
    }

    async fn any_address(&self, service: &Value) -> Result<(IpAddr, Write), Status> {
        for address in AddressRange::DEFAULT.candidates(object::meta_text(service, "uid")).take(MAX_TRIES) {
            if let Some(write) = self.reserve_name(Reserved::Address, &address.to_string()).await? {
                return Ok((IpAddr::V4(address), write));
            }
        }
        Err(Status::internal("failed to allocate a serviceIP: range is full"))
    }

    async fn reserve_address(&self, service: &Value, address: IpAddr) -> Result<Write, Status> {
        let shown = address.to_string();
        let refused = |why: &str| {
            invalid_field(service, "spec.clusterIPs", &shown, &format!("failed to allocate IP {shown}: {why}"))
        };
        if !AddressRange::DEFAULT.contains(address) {
            let range = AddressRange::DEFAULT;
            return Err(refused(&format!(
                "the provided IP ({shown}) is not in the valid range. The range of valid IPs is {range}"
            )));
        }
        let reserved = self.reserve_name(Reserved::Address, &shown).await?;
        reserved.ok_or_else(|| refused("provided IP is already allocated"))
    }

    /// Reserves a free port for the field at `at`, which the writes `taken` do not reserve.
    async fn any_port(&self, service: &Value, at: usize, taken: &[Write]) -> Result<(u16, Write), Status> {
        let seed = format!("{}/{at}", object::meta_text(service, "uid"));
        for port in node_port_candidates(&seed).take(MAX_TRIES) {
            let name = port.to_string();
            if taken.iter().any(|write| *write.key.name == *name) {
                continue;
            }
            if let Some(write) = self.reserve_name(Reserved::Port, &name).await? {
                return Ok((port, write));
            }
        }
        Err(Status::internal("failed to allocate a nodePort: range is full"))
    }

    /// Allocates node ports that the client left unset.
    async fn find_ports(&self, write: &mut PendingWrite<'_>) -> Result<(), Status> {
        for group in needs_node_ports(write.object, write.old.is_none()) {
            let (port, reserved) = self.any_port(write.object, group[0], &write.commit.companions).await?;
            group.into_iter().for_each(|at| set_node_port(write.object, at, port.into()));
            write.commit.companions.push(reserved);
        }
        if needs_health_check_port(write.object) {
            let (port, reserved) = self.any_port(write.object, usize::MAX, &write.commit.companions).await?;
            set_health_check_port(write.object, port.into());
            write.commit.companions.push(reserved);
        }
        Ok(())
    }

    /// Reserves node ports that the client set.
    async fn reserve_given_ports(&self, write: &mut PendingWrite<'_>) -> Result<(), Status> {
        let (before, service) = (write.old.map(reserved).unwrap_or_default(), &*write.object);
        for (place, port) in held(service) {
            let name = port.to_string();
            let known = before.contains(&(Reserved::Port, name.clone()))
                || write.commit.companions.iter().any(|write| *write.key.name == *name);
            if known {
                continue;
            }
            // As in kube-apiserver, a dry run is not checked against the port range.
            if !write.request.dry_run && !u16::try_from(port).is_ok_and(|port| NODE_PORTS.contains(&port)) {
                return Err(port_error(service, place, port, OUT_OF_RANGE));
            }
            let reserved = self.reserve_name(Reserved::Port, &name).await?;
            let reserved = reserved.ok_or_else(|| port_error(service, place, port, ALLOCATED))?;
            write.commit.companions.push(reserved);
        }
        Ok(())
    }
}

const OUT_OF_RANGE: &str = "provided port is not in the valid range. The range of valid ports is 30000-32767";

/// Returns the 422 for a node port that cannot be allocated.
fn port_error(service: &Value, place: Place, port: u64, why: &str) -> Status {
    match place {
        Place::Port(at) => invalid_field(service, &format!("spec.ports[{at}].nodePort"), &port.to_string(), why),
        Place::HealthCheck => {
            Status::internal(format!("failed to allocate requested HealthCheck NodePort {port}: {why}"))
        }
    }
}

fn invalid_field(service: &Value, field: &str, value: &str, why: &str) -> Status {
    let kind = portolan_types::GroupKind { group: "".into(), kind: "Service".into() };
    let shown = if field.ends_with("nodePort") { value.to_owned() } else { format!("[{value:?}]") };
    let cause = StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {shown}: {why}"),
        field: field.into(),
    };
    Status::invalid(&kind, object::name(service), vec![cause])
}
