//! Webhooks behind a Service. Its pods run on physical clusters, and a connection goes to one of them that is ready, into its own
//! network: no address is dialed that a tenant could choose (`docs/decisions/0004-services-of-webhooks.md`).

use std::{sync::Arc, time::Duration};

use portolan_machinery::lifecycle::eviction::is_ready;
use portolan_store::{DynStore, RangeRequest, RangeScope, StoreError};
use portolan_types::{GroupResource, LabelSelector, ObjectKey, Seams, object};
use serde_json::Value;
use tokio::io::DuplexStream;

use crate::{
    ApiServer,
    directory::LogicalCluster,
    errors::status_for,
    hooks::{PodPort, PodStreams},
};

/// Pods of a Service that are looked at, and bytes of them, until so many ready ones are found.
const MOST: usize = 1000;
const MOST_BYTES: usize = 16 << 20;
const ENOUGH: usize = 16;
/// Pods that are tried, one after the other.
const TRIES: usize = 3;
/// How long each has but the last: whoever asks waits 10 s unless told otherwise.
const TRY: Duration = Duration::from_secs(3);

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
    /// Why not, in the words of upstream's service resolver. Who writes what the webhook is asked about reads them, and need not
    /// know where pods run: more is in the log.
    pub(super) async fn connect(&self, port: u16) -> Result<DuplexStream, String> {
        let name = self.key.name.as_str();
        let found =
            self.store.get(&self.key).await.map_err(told)?.ok_or_else(|| format!("service {name:?} not found"))?;
        let service = found.to_value().map_err(told)?;
        let target =
            target_of(&service, port).ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
        let pods = self.ready(&service, &target).await?;
        let mut why = format!("no endpoints available for service {name:?}");
        for (at, (key, port)) in pods.iter().enumerate() {
            let tried = self.try_pod(key, *port);
            let is_last = at + 1 == pods.len();
            let connected =
                if is_last { tried.await } else { tokio::time::timeout(TRY, tried).await.unwrap_or_default() };
            match connected {
                Some(stream) => return Ok(stream),
                None => why = format!("pod {} of service {name:?} cannot be reached", key.name),
            }
        }
        Err(why)
    }

    async fn try_pod(&self, key: &ObjectKey, port: u16) -> Option<DuplexStream> {
        let pod = self.store.get(key).await.ok()??.to_value().ok()?;
        let connected = self.streams.connect(PodPort { cluster: self.cluster.clone(), pod, port }).await;
        connected.inspect_err(|why| tracing::debug!(pod = %key.name, why = why.message(), "a webhook's pod")).ok()
    }

    /// Some of the pods that take requests, in an order by chance, each with the port that is meant.
    async fn ready(&self, service: &Value, target: &Target<'_>) -> Result<Vec<(ObjectKey, u16)>, String> {
        let mut request = self.pods(service)?;
        let takes_all = service.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
        let (mut found, mut seen, mut bytes) = (Vec::new(), 0, 0);
        loop {
            let page = self.store.range(request.clone()).await.map_err(told)?;
            for stored in &page.objects {
                (seen, bytes) = (seen + 1, bytes + stored.record.body().len());
                let Ok(pod) = stored.to_value() else { continue };
                let has_ended =
                    matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"));
                let is_asked = !has_ended && (takes_all || (is_ready(&pod) && !object::is_deleting(&pod)));
                found.extend(target.in_pod(&pod).filter(|_| is_asked).map(|port| (stored.key.clone(), port)));
            }
            let is_enough = found.len() >= ENOUGH || seen >= MOST || bytes >= MOST_BYTES;
            match request.next(&page).filter(|_| !is_enough) {
                Some(next) => request = next,
                None => break,
            }
        }
        if !found.is_empty() {
            let first = self.below(found.len());
            found.rotate_left(first);
        }
        found.truncate(TRIES);
        Ok(found)
    }

    /// Reads the pods that the Service selects, a slice at a time.
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
        Ok(RangeRequest { labels, ..RangeRequest::slices(scope).past_damage() })
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
