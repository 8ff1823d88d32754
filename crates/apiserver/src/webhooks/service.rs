//! Webhooks behind a Service. Its pods run on physical clusters, and a connection goes to a ready one inside its own
//! network, so no address that a tenant chose is dialed (`docs/decisions/0004-services-of-webhooks.md`).

use std::{sync::Arc, time::Duration};

use portolan_store::{RangeRequest, RangeScope, StoreError};
use portolan_strategy::lifecycle::eviction::is_ready;
use portolan_types::{GroupResource, LabelSelector, LogicalClusterId, ObjectKey, object};
use serde_json::Value;
use tokio::io::DuplexStream;

use crate::{
    directory::LogicalCluster,
    errors::status_for,
    hooks::{PodPort, PodStreams},
    storage::StorageContext,
};

/// Limits of a search for ready pods: pods read, their bytes, and ready pods that suffice.
const MAX_PODS: usize = 1000;
const MAX_POD_BYTES: usize = 16 << 20;
const READY_PODS: usize = 16;
/// Limit of pods that are tried in turn.
const MAX_TRIES: usize = 3;
/// Time limit for each try but the last; callers wait 10 s by default.
const TRY_TIMEOUT: Duration = Duration::from_secs(3);

/// Means to reach the pods of Services.
#[derive(Clone)]
pub(crate) struct ServiceNetwork {
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) streams: Arc<dyn PodStreams>,
}

impl ServiceNetwork {
    /// Returns a Service of a logical cluster; `None` for an invalid name.
    pub(super) fn service(&self, cluster: LogicalClusterId, namespace: &str, name: &str) -> Option<WebhookService> {
        let (namespace, name) = (namespace.parse().ok()?, name.parse().ok()?);
        let key = ObjectKey::namespaced(cluster, GroupResource::new("", "services"), namespace, name);
        let cluster = self.storage.directory.by_id(cluster)?;
        Some(WebhookService { network: self.clone(), cluster, key })
    }
}

/// Service, and the means to reach its pods.
#[derive(Clone)]
pub(super) struct WebhookService {
    network: ServiceNetwork,
    cluster: Arc<LogicalCluster>,
    key: ObjectKey,
}

impl WebhookService {
    pub(super) fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Connects to a pod behind a port of the Service.
    ///
    /// # Errors
    /// The reason in the words of kube-apiserver's service resolver. Clients of the webhook's resources read it and
    /// need not know where pods run; the log has the details.
    pub(super) async fn connect(&self, port: u16) -> Result<DuplexStream, String> {
        let name = self.key.name.as_str();
        let found = self.network.storage.store.get(&self.key).await.map_err(error_text)?;
        let found = found.ok_or_else(|| format!("service {name:?} not found"))?;
        let service = found.to_value().map_err(error_text)?;
        let target =
            target_of(&service, port).ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
        let pods = self.ready(&service, &target).await?;
        let mut why = format!("no endpoints available for service {name:?}");
        for (at, (key, port)) in pods.iter().enumerate() {
            let tried = self.try_pod(key, *port);
            let is_last = at + 1 == pods.len();
            let connected =
                if is_last { tried.await } else { tokio::time::timeout(TRY_TIMEOUT, tried).await.unwrap_or_default() };
            match connected {
                Some(stream) => return Ok(stream),
                None => why = format!("pod {} of service {name:?} cannot be reached", key.name),
            }
        }
        Err(why)
    }

    async fn try_pod(&self, key: &ObjectKey, port: u16) -> Option<DuplexStream> {
        let pod = self.network.storage.store.get(key).await.ok()??.to_value().ok()?;
        let connected = self.network.streams.connect(PodPort { cluster: self.cluster.clone(), pod, port }).await;
        connected
            .inspect_err(|why| tracing::debug!(pod = %key.name, why = why.message(), "webhook pod unreachable"))
            .ok()
    }

    /// Returns some ready pods in random order, each with its target port.
    async fn ready(&self, service: &Value, target: &ServicePort<'_>) -> Result<Vec<(ObjectKey, u16)>, String> {
        let mut request = self.pods(service)?;
        let takes_all = service.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
        let (mut found, mut seen, mut bytes) = (Vec::new(), 0, 0);
        loop {
            let page = self.network.storage.store.range(request.clone()).await.map_err(error_text)?;
            for stored in &page.objects {
                (seen, bytes) = (seen + 1, bytes + stored.record.body().len());
                let Ok(pod) = stored.to_value() else { continue };
                let has_ended =
                    matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"));
                let is_asked = !has_ended && (takes_all || (is_ready(&pod) && !object::is_deleting(&pod)));
                found.extend(target.in_pod(&pod).filter(|_| is_asked).map(|port| (stored.key.clone(), port)));
            }
            let is_enough = found.len() >= READY_PODS || seen >= MAX_PODS || bytes >= MAX_POD_BYTES;
            match request.next(&page).filter(|_| !is_enough) {
                Some(next) => request = next,
                None => break,
            }
        }
        if !found.is_empty() {
            let first = self.below(found.len());
            found.rotate_left(first);
        }
        found.truncate(MAX_TRIES);
        Ok(found)
    }

    /// Builds the request that reads the selected pods slice by slice.
    fn pods(&self, service: &Value) -> Result<RangeRequest, String> {
        let unreachable = |why: &str| {
            let name = self.key.name.as_str();
            format!(
                "service {name:?} cannot be reached: it {why}; say in clientConfig.url where the webhook is, instead of \
                 clientConfig.service"
            )
        };
        if service.pointer("/spec/type").is_some_and(|kind| kind == "ExternalName") {
            return Err(unreachable("is of type ExternalName"));
        }
        let selector = service.pointer("/spec/selector").and_then(Value::as_object).filter(|labels| !labels.is_empty());
        let selector = selector.ok_or_else(|| unreachable("selects no pods"))?;
        let wanted: Vec<String> =
            selector.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        let labels = LabelSelector::parse(&wanted.join(",")).map_err(|e| e.to_string())?;
        let namespace = self.key.namespace().ok_or_else(|| unreachable("is in no namespace"))?.clone();
        let scope = RangeScope::Namespace(self.key.cluster, GroupResource::new("", "pods"), namespace);
        Ok(RangeRequest { labels, ..RangeRequest::slices(scope).skip_damaged() })
    }

    /// Returns a random number below `bound`.
    fn below(&self, bound: usize) -> usize {
        let mut bytes = [0; 8];
        self.network.storage.seams.entropy.fill(&mut bytes);
        (u64::from_le_bytes(bytes) % bound as u64) as usize
    }
}

fn error_text(error: StoreError) -> String {
    status_for(&error).message().to_owned()
}

/// Target port of a Service port.
enum ServicePort<'a> {
    Number(u16),
    Name(&'a str),
}

impl ServicePort<'_> {
    fn in_pod(&self, pod: &Value) -> Option<u16> {
        match self {
            Self::Number(port) => Some(*port),
            Self::Name(name) => {
                let of = |list: &str| pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
                let containers = of("containers").iter().chain(of("initContainers"));
                let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
                ports.find(|port| port["name"] == **name).and_then(|port| number(&port["containerPort"]))
            }
        }
    }
}

fn target_of(service: &Value, port: u16) -> Option<ServicePort<'_>> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array)?;
    let found = ports.iter().find(|found| number(&found["port"]) == Some(port) && found["protocol"] != "UDP")?;
    match &found["targetPort"] {
        Value::String(name) => Some(ServicePort::Name(name)),
        target => Some(ServicePort::Number(number(target).filter(|target| *target > 0).unwrap_or(port))),
    }
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|number| u16::try_from(number).ok())
}
