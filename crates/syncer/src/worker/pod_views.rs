//! View that placed pods get of their logical cluster, and the Secrets downstream with their tokens.

use std::time::Duration;

use portolan_types::{
    Uid, annotations, object,
    placement::{NamespaceMapping, PlacementRecord, PodAccess},
    upstream::{PodAccessReport, PodToken, PodTokenRequest, UpstreamObject},
    work::WorkOutcome,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{SyncError, Worker, copies::CopyView, session::Session};
use crate::{
    client::{DownstreamClient, DownstreamError, ServedResource},
    rules::SyncRefusal,
    transform::{ApiAddress, LogicalView, pod_view},
};

/// Services of the agent and of the DNS responder, which serve pods.
const API_SERVICE: &str = "/api/v1/namespaces/portolan/services/portolan-api";
const DNS_SERVICE: &str = "/api/v1/namespaces/portolan/services/portolan-dns";
/// Name by which pods reach the server through the agent; the certificate of every server has it.
const AGENT_HOST: &str = "kubernetes.default.svc";
/// Interval of checks for a ServiceAccount that gives no token now.
const ACCOUNT_CHECK: Duration = Duration::from_secs(30);
/// Shortest time until a renewal.
const LEAST_WAIT: i64 = 1;
/// Reads in a row without a Service after which the pods lose its address. Each loss rolls all workloads.
const MISSES: u32 = 3;

/// Addresses by which the pods on a physical cluster reach Portolan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodAddresses {
    api: Option<ApiAddress>,
    dns: Option<std::net::IpAddr>,
}

impl PodAddresses {
    /// Returns the addresses that the `PhysicalCluster` names, and otherwise those of the Services there.
    pub(super) async fn read(api: &DownstreamClient, access: Option<&PodAccess>) -> Result<Self, DownstreamError> {
        let access = access.cloned().unwrap_or_default();
        if access.disabled {
            return Ok(Self::default());
        }
        let server = match access.server_address() {
            Ok((host, port)) => Some(ApiAddress { host, port, alias: None }),
            Err(_) => read_object(api, API_SERVICE).await?.and_then(|service| {
                let port = service.pointer("/spec/ports/0/port")?.as_u64()?;
                let alias = Some(cluster_ip(&service)?);
                Some(ApiAddress { host: AGENT_HOST.to_owned(), port: u16::try_from(port).ok()?, alias })
            }),
        };
        let dns = match access.dns.parse() {
            Ok(address) => Some(address),
            Err(_) => read_object(api, DNS_SERVICE).await?.as_ref().and_then(cluster_ip),
        };
        Ok(Self { api: server, dns })
    }

    /// Returns their state in the status of the `PhysicalCluster`.
    pub(super) fn report(&self, access: Option<&PodAccess>) -> PodAccessReport {
        let is_off = access.is_some_and(|access| access.disabled);
        let server = match &self.api {
            _ if is_off => {
                Err(("Disabled", "spec.podAccess.disabled is set: pods keep the view of the physical cluster".into()))
            }
            None => Err((
                "NoAddress",
                "pods get no token: spec.podAccess.server is not set, and there is no Service portolan/portolan-api"
                    .into(),
            )),
            Some(ApiAddress { host, port, alias: None }) => Ok(format!("https://{host}:{port}")),
            Some(ApiAddress { port, alias: Some(alias), .. }) => Ok(format!("the agent at {alias}, port {port}")),
        };
        PodAccessReport { server, are_names_resolved: self.dns.is_some() }
    }
}

/// Addresses for pods, as they were last known.
#[derive(Debug, Default)]
pub(super) struct KnownPodAddresses {
    addresses: PodAddresses,
    /// Reads in a row that found less than is known.
    misses: u32,
}

impl KnownPodAddresses {
    /// Merges a read. An address that it lacks stays for [`MISSES`] reads, and all stay if the Services may not be
    /// read.
    ///
    /// # Errors
    /// The errors of the read, except 403.
    fn merge(&mut self, read: Result<PodAddresses, DownstreamError>) -> Result<PodAddresses, DownstreamError> {
        let now = match read {
            Err(error) if error.code() == 403 => return Ok(self.addresses.clone()),
            read => read?,
        };
        let known = &self.addresses;
        let lacks = known.api.is_some() && now.api.is_none() || known.dns.is_some() && now.dns.is_none();
        self.misses = if lacks { self.misses + 1 } else { 0 };
        if lacks && self.misses < MISSES {
            self.addresses = PodAddresses { api: now.api.or(known.api.clone()), dns: now.dns.or(known.dns) };
        } else {
            (self.addresses, self.misses) = (now, 0);
        }
        Ok(self.addresses.clone())
    }
}

/// Reads an object; `None` if it is missing.
async fn read_object(api: &DownstreamClient, path: &str) -> Result<Option<Value>, DownstreamError> {
    match api.get(path).await {
        Ok(service) => Ok(Some(service)),
        Err(error) if error.code() == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

fn cluster_ip(service: &Value) -> Option<std::net::IpAddr> {
    service["spec"]["clusterIP"].as_str()?.parse().ok()
}

/// Token of the pods of one copy.
#[derive(Clone, Debug)]
pub(super) struct PodTokenState {
    uid: Uid,
    account: String,
    renew_at: i64,
    /// Uid of the copy that owns the Secret: the physical cluster deletes both. Empty before the Secret is written.
    owner: String,
    /// Token that the Secret does not have yet.
    unwritten: Option<PodToken>,
}

/// Value of [`annotations::DOWN_POD_TOKEN`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenNote {
    account: String,
    renew_at: i64,
}

/// Returns the name of the Secret with the token of the pods of an object.
fn secret_name(uid: &Uid) -> String {
    format!("portolan-token-{uid}")
}

impl Worker {
    /// Returns the view that the pods of a copy get; `None` when they keep that of the physical cluster.
    ///
    /// Pods that exist keep the view that they were made with.
    pub(super) async fn pod_view(&self, view: &CopyView<'_>) -> Result<Option<LogicalView>, SyncError> {
        let Some(upstream) = view.upstream.filter(|upstream| pod_view::has_pods(&upstream.kind)) else {
            return Ok(None);
        };
        let record = PlacementRecord::of(&upstream.object).unwrap_or_default();
        let is_off = self.config.spec.pod_access.as_ref().is_some_and(|access| access.disabled)
            || pod_view::is_off(&record, &self.config.uid);
        let fixed = view.downstream.as_ref().filter(|_| pod_view::is_fixed(&upstream.kind));
        if let Some(copy) = fixed {
            let kept = pod_view::of_copy(&copy.object);
            if kept.as_ref().is_some_and(|kept| kept.secret.is_some()) {
                self.has_token(view, upstream).await?;
            }
            return Ok(kept);
        }
        let Some(namespace) = view.key.namespace().filter(|_| !is_off) else { return Ok(None) };
        let addresses = view.session.pod_addresses();
        let is_dedicated = self.config.spec.namespace_mapping == NamespaceMapping::Identity;
        let secret = match (&addresses.api, object::uid(&upstream.object)) {
            (Some(_), Some(uid)) if self.has_token(view, upstream).await? => Some(secret_name(&uid)),
            _ => None,
        };
        let dns = addresses.dns.filter(|_| !is_dedicated);
        Ok(Some(LogicalView { namespace: namespace.to_string(), api: addresses.api.clone(), secret, dns }))
    }

    /// Returns true if the pods of an object get a token; afterwards there is one, which may have to be written.
    async fn has_token(&self, view: &CopyView<'_>, upstream: &UpstreamObject) -> Result<bool, SyncError> {
        let Some(uid) = object::uid(&upstream.object) else { return Ok(false) };
        let spec = pod_view::template(&upstream.kind, &upstream.object).map(|template| &template["spec"]);
        let spec = spec.cloned().unwrap_or_default();
        let is_asked = spec["automountServiceAccountToken"].as_bool();
        if is_asked == Some(false) {
            return Ok(false);
        }
        let account = spec["serviceAccountName"].as_str().filter(|name| !name.is_empty()).unwrap_or("default");
        let now = self.seams.clock.now().as_second();
        let copy = view.downstream.as_ref().map(|copy| object::meta_text(&copy.object, "uid"));
        // A recreated copy has lost its Secret together with the former copy.
        let has_secret = |known: &PodTokenState| known.unwritten.is_some() || copy == Some(known.owner.as_str());
        let is_same = |known: &PodTokenState| known.uid == uid && known.account == account && has_secret(known);
        let is_good = |known: &PodTokenState| is_same(known) && known.renew_at > now;
        if self.state().pod_tokens.get(view.key).is_some_and(is_good) {
            return Ok(true);
        }
        if let Some(known) = self.read_token_state(view, &uid).await? {
            let is_good = is_good(&known);
            self.state().pod_tokens.insert(view.key.clone(), known);
            if is_good {
                return Ok(true);
            }
        }
        let seconds = self
            .config
            .spec
            .pod_access
            .as_ref()
            .map_or_else(|| PodAccess::default().token_lifetime(), PodAccess::token_lifetime);
        let request = PodTokenRequest {
            physical: &self.config.uid,
            key: view.key,
            uid: &uid,
            account,
            is_asked: is_asked == Some(true),
            seconds,
        };
        let Some(token) = self.upstream.pod_token(request).await? else {
            // Running pods keep the token that they have until it ends: without it they would be replaced.
            let mut state = self.state();
            let known = state.pod_tokens.get_mut(view.key).filter(|known| is_same(known));
            return Ok(known.is_some_and(|known| {
                known.renew_at = now + ACCOUNT_CHECK.as_secs().cast_signed();
                true
            }));
        };
        let (renew_at, account, owner) = (token.renew_at, account.to_owned(), String::new());
        let issued = PodTokenState { uid, account, renew_at, owner, unwritten: Some(token) };
        self.state().pod_tokens.insert(view.key.clone(), issued);
        Ok(true)
    }

    /// Reads the known state of the Secret of an earlier worker.
    async fn read_token_state(&self, view: &CopyView<'_>, uid: &Uid) -> Result<Option<PodTokenState>, SyncError> {
        if view.downstream.is_none() || self.state().pod_tokens.contains_key(view.key) {
            return Ok(None);
        }
        let path = ServedResource::secrets().path(view.place.namespace(), Some(&secret_name(uid)));
        let Some(secret) = read_object(&view.session.api, &path).await? else { return Ok(None) };
        let note = object::annotation(&secret, annotations::DOWN_POD_TOKEN);
        let note: Option<TokenNote> = note.and_then(|note| serde_json::from_str(note).ok());
        let owner = object::owner_references(&secret).first().and_then(|owner| owner["uid"].as_str());
        let owner = owner.unwrap_or_default().to_owned();
        Ok(note.map(|TokenNote { account, renew_at }| PodTokenState {
            uid: uid.clone(),
            account,
            renew_at,
            owner,
            unwritten: None,
        }))
    }

    /// Writes a new token into its Secret once the copy is there, which owns it. Returns the outcome with the time of
    /// the next renewal.
    pub(super) async fn settle_pod_token(
        &self,
        view: &CopyView<'_>,
        outcome: WorkOutcome,
    ) -> Result<WorkOutcome, SyncError> {
        let Some(pods) = &view.pods else { return Ok(outcome) };
        if pods.secret.is_none() {
            let is_missing = pods.api.is_some() && view.upstream.is_some_and(wants_token);
            return Ok(if is_missing { sooner(outcome, ACCOUNT_CHECK) } else { outcome });
        }
        let known = self.state().pod_tokens.get(view.key).cloned();
        let (Some(known), Some(copy), Some(served)) = (known, view.session.cache.get(view.place), view.served) else {
            return Ok(outcome);
        };
        if let Some(token) = &known.unwritten {
            let secret = SecretDraft { view, pods, known: &known, token, kind: &served.kind };
            let owner = object::meta_text(&copy.object, "uid").to_owned();
            let body = secret.body(&owner);
            if let Some(refusal) = write_secret(view, &body).await? {
                if let Some(upstream) = view.upstream {
                    self.report_refusal(upstream, &refusal).await?;
                }
                return Ok(sooner(outcome, ACCOUNT_CHECK));
            }
            let written = PodTokenState { owner, unwritten: None, ..known.clone() };
            self.state().pod_tokens.insert(view.key.clone(), written);
        }
        let wait = (known.renew_at - self.seams.clock.now().as_second()).max(LEAST_WAIT);
        Ok(sooner(outcome, Duration::from_secs(wait.unsigned_abs())))
    }

    /// Reads the addresses for pods again. Copies are planned again when they have changed.
    pub(super) async fn refresh_pod_addresses(&self, session: &Session) {
        let Ok(now) = self.read_pod_addresses(&session.api).await else { return };
        if session.replace_pod_addresses(now) {
            self.enqueue_everything();
        }
    }

    /// Reads the addresses for pods, and reports them.
    ///
    /// # Errors
    /// The physical cluster does not answer.
    pub(super) async fn read_pod_addresses(&self, api: &DownstreamClient) -> Result<PodAddresses, DownstreamError> {
        let access = self.config.spec.pod_access.as_ref();
        let read = PodAddresses::read(api, access).await;
        let mut state = self.state();
        let is_off = access.is_some_and(|access| access.disabled);
        let now = if is_off { PodAddresses::default() } else { state.known_pod_addresses.merge(read)? };
        state.pod_access = Some(now.report(access));
        Ok(now)
    }
}

/// Writes the Secret of a token. One of that name that is not ours is a refusal.
async fn write_secret(view: &CopyView<'_>, body: &Value) -> Result<Option<SyncRefusal>, SyncError> {
    let (api, secrets, name) = (&view.session.api, ServedResource::secrets(), object::name(body));
    let path = secrets.path(view.place.namespace(), Some(name));
    match read_object(api, &path).await? {
        None => drop(api.create(&secrets.path(view.place.namespace(), None), body).await?),
        Some(live) if object::annotation(&live, annotations::DOWN_POD_TOKEN).is_none() => {
            let what = format!("the Secret {name} is there and not Portolan's: pods get no token");
            return Ok(Some(SyncRefusal::conflict(what)));
        }
        Some(live) => {
            let mut patch = json!({"metadata": body["metadata"], "stringData": body["stringData"]});
            patch["metadata"]["resourceVersion"] = object::meta_text(&live, "resourceVersion").into();
            drop(api.merge_patch(&path, &patch).await?);
        }
    }
    Ok(None)
}

/// Returns true unless the pods of an object ask for no token.
fn wants_token(upstream: &UpstreamObject) -> bool {
    let template = pod_view::template(&upstream.kind, &upstream.object);
    template.is_some_and(|template| template["spec"]["automountServiceAccountToken"] != json!(false))
}

fn sooner(outcome: WorkOutcome, wait: Duration) -> WorkOutcome {
    match outcome {
        WorkOutcome::Done => WorkOutcome::RequeueAfter(wait),
        WorkOutcome::RequeueAfter(other) => WorkOutcome::RequeueAfter(other.min(wait)),
    }
}

/// Secret with the token of the pods of a copy.
struct SecretDraft<'a> {
    view: &'a CopyView<'a>,
    pods: &'a LogicalView,
    known: &'a PodTokenState,
    token: &'a PodToken,
    kind: &'a portolan_types::GroupVersionKind,
}

impl SecretDraft<'_> {
    /// Returns the Secret. The copy owns it, so that the physical cluster deletes both.
    fn body(&self, copy: &str) -> Value {
        let note = TokenNote { account: self.known.account.clone(), renew_at: self.known.renew_at };
        let note = serde_json::to_string(&note).expect("strings and numbers serialize");
        let owner = json!({"apiVersion": self.kind.group_version().to_string(), "kind": &*self.kind.kind,
            "name": self.view.place.name, "uid": copy});
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": secret_name(&self.known.uid), "namespace": self.view.place.namespace,
                "annotations": {annotations::DOWN_POD_TOKEN: note},
                "ownerReferences": [owner],
            },
            "stringData": {
                "token": self.token.token,
                "ca.crt": self.token.authority,
                "namespace": self.pods.namespace,
            },
        })
    }
}
