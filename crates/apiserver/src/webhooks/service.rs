//! Webhooks behind a Service. Its pods run on physical clusters, and a connection goes to one of them that is ready, into its own
//! network: no address is dialed that a tenant could choose (`docs/decisions/0004-services-of-webhooks.md`).

use std::sync::Arc;

use portolan_machinery::lifecycle::eviction::is_ready;
use portolan_store::{DynStore, OnDamage, RangeRequest, RangeScope, StoreError};
use portolan_types::{GroupResource, LabelSelector, ObjectKey, Seams, object};
use serde_json::Value;
use tokio::io::DuplexStream;

use crate::{
    ApiServer,
    directory::LogicalCluster,
    errors::status_for,
    hooks::{PodPort, PodStreams},
};

/// Pods of a Service that are looked at, the first by name.
const MOST: usize = 100;
/// Pods that are tried, one after the other.
const TRIES: usize = 3;

/// A Service, and the way to its pods.
#[derive(Clone)]
pub(super) struct Service {
    store: DynStore,
    streams: Arc<dyn PodStreams>,
    seams: Seams,
    cluster: Arc<LogicalCluster>,
    key: ObjectKey,
}

impl Service {
    pub(super) fn new(api: &ApiServer, cluster: Arc<LogicalCluster>, key: ObjectKey) -> Self {
        let streams = api.config.hooks.streams.clone();
        Self { store: api.store.clone(), streams, seams: api.seams.clone(), cluster, key }
    }

    pub(super) fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Connects to a pod behind a port of the Service.
    ///
    /// # Errors
    /// Why not, in the words of upstream's service resolver.
    pub(super) async fn connect(&self, port: u16) -> Result<DuplexStream, String> {
        let name = &self.key.name;
        let found = self.store.get(&self.key).await.and_then(|found| found.map(|found| found.to_value()).transpose());
        let service = found.map_err(told)?.ok_or_else(|| format!("service {:?} not found", name.as_str()))?;
        let target = target_of(&service, port)
            .ok_or_else(|| format!("no service port {port} found for service {:?}", name.as_str()))?;
        let mut pods = self.ready(&service).await?;
        let mut why = format!("no endpoints available for service {:?}", name.as_str());
        if !pods.is_empty() {
            let first = self.below(pods.len());
            pods.rotate_left(first);
        }
        for pod in pods.into_iter().take(TRIES) {
            let Some(port) = target.in_pod(&pod) else { continue };
            match self.streams.connect(PodPort { cluster: self.cluster.clone(), pod, port }).await {
                Ok(stream) => return Ok(stream),
                Err(refused) => why = refused.message().to_owned(),
            }
        }
        Err(why)
    }

    /// The pods that take requests.
    async fn ready(&self, service: &Value) -> Result<Vec<Value>, String> {
        let name = self.key.name.as_str();
        let selector = service.pointer("/spec/selector").and_then(Value::as_object).filter(|labels| !labels.is_empty());
        let selector = selector.ok_or_else(|| {
            format!(
                "service {name:?} cannot be reached: it selects no pods; say in clientConfig.url where the webhook is, instead of \
                 clientConfig.service"
            )
        })?;
        let wanted: Vec<String> =
            selector.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        let labels = LabelSelector::parse(&wanted.join(",")).map_err(|e| e.to_string())?;
        let Some(namespace) = self.key.namespace() else { return Ok(Vec::new()) };
        let scope = RangeScope::Namespace(self.key.cluster, GroupResource::new("", "pods"), namespace.clone());
        let request = RangeRequest { labels, limit: Some(MOST), on_damage: OnDamage::Skip, ..RangeRequest::all(scope) };
        let page = self.store.range(request).await.map_err(told)?;
        let pods: Result<Vec<Value>, StoreError> = page.objects.iter().map(|pod| pod.to_value()).collect();
        let takes_all = service.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
        let is_asked = |pod: &Value| takes_all || (is_ready(pod) && !object::is_deleting(pod));
        Ok(pods.map_err(told)?.into_iter().filter(is_asked).collect())
    }

    /// Some number below `bound`.
    fn below(&self, bound: usize) -> usize {
        let mut bytes = [0; 8];
        self.seams.entropy.fill(&mut bytes);
        (u64::from_le_bytes(bytes) % bound as u64) as usize
    }
}

fn told(error: StoreError) -> String {
    status_for(&error).message().to_owned()
}

/// The port of a pod that a port of a Service stands for.
enum Target<'a> {
    Number(u16),
    Name(&'a str),
}

impl Target<'_> {
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

fn target_of(service: &Value, port: u16) -> Option<Target<'_>> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array)?;
    let found = ports.iter().find(|found| number(&found["port"]) == Some(port) && found["protocol"] != "UDP")?;
    match &found["targetPort"] {
        Value::String(name) => Some(Target::Name(name)),
        target => Some(Target::Number(number(target).filter(|target| *target > 0).unwrap_or(port))),
    }
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|number| u16::try_from(number).ok())
}
