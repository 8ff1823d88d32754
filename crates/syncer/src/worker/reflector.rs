//! Reflector of one downstream resource, limited to objects with our label: a complete list, then a watch, resumed
//! after its end.

use std::{sync::Arc, time::Duration};

use portolan_types::{GroupResource, ObjectKey, Scope, annotations, object, placement::CopyIdentity};
use serde_json::Value;
use tracing::Instrument as _;

use super::{Work, Worker, queue::jitter, reflector_cache::ObjectRef, session::Session, spans};
use crate::{
    client::{DownstreamError, ServedResource, WatchEvent},
    naming::NamespaceIdentity,
    plan, project,
    rules::is_custom,
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// Runs until its session ends. No failure here deletes anything: cached objects stay until a watch or a complete list
/// removes them, and even then a delete requires proof from upstream.
pub(super) async fn follow(worker: Arc<Worker>, session: Arc<Session>, served: ServedResource) {
    let span = spans::reflector(&worker.config.name, &served.resource);
    list_and_watch(worker, session, served).instrument(span).await;
}

async fn list_and_watch(worker: Arc<Worker>, session: Arc<Session>, mut served: ServedResource) {
    let (mut version, mut pause): (Option<String>, _) = (None, FIRST_PAUSE);
    loop {
        session.api.wait_until_trusted().await;
        if is_custom(&served.resource) {
            match session.followed(&served.resource) {
                None => return,
                // Another version is preferred there now.
                Some(now) if now.kind != served.kind => (served, version) = (now, None),
                Some(_) => {}
            }
        }
        let path = served.path(None, None);
        let step = match &version {
            None => {
                let listed = list(&worker, &session, &served, &path).await;
                record_readable(&session, &served, &listed);
                listed.map(Some)
            }
            Some(from) => watch(&worker, &session, &served, &path, from).await,
        };
        match step {
            Ok(reached @ Some(_)) if reached == version => {
                // A watch that ended without an error must not be repeated without a delay.
                tokio::time::sleep(jitter(&worker.seams, pause)).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
            Ok(Some(reached)) => {
                pause = FIRST_PAUSE;
                tracing::Span::current().record("resource_version", &*reached);
                version = Some(reached);
            }
            Ok(None) => version = None,
            Err(error) => {
                tracing::debug!(cluster = %worker.config.name, resource = %served.resource, %error, "a downstream watch failed");
                if is_version_gone(&error) {
                    version = None;
                }
                tokio::time::sleep(jitter(&worker.seams, error.retry_after().unwrap_or(pause))).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }
}

/// Records if a list failed because an object is too large. Other failures prove nothing.
fn record_readable(session: &Session, served: &ServedResource, listed: &Result<String, DownstreamError>) {
    match listed {
        Ok(_) => session.cache.set_unreadable(&served.resource, None),
        Err(DownstreamError::Excessive(why)) => session.cache.set_unreadable(&served.resource, Some(why.clone())),
        Err(_) => {}
    }
}

/// After any failure other than a lost connection, the position in the stream is uncertain: list again.
fn is_version_gone(error: &DownstreamError) -> bool {
    match error {
        DownstreamError::Unreachable(_) => false,
        DownstreamError::Refused(_) | DownstreamError::Garbled(_) | DownstreamError::Excessive(_) => true,
    }
}

async fn list(
    worker: &Worker,
    session: &Session,
    served: &ServedResource,
    path: &str,
) -> Result<String, DownstreamError> {
    let mut list = session.cache.arriving_list();
    let version = session.api.pages(path, annotations::DOWN_CLUSTER, |page| list.add(page).map(|()| true)).await?;
    let gone = session.cache.replace(&served.resource, list)?;
    gone.iter().for_each(|observed| worker.observe_object(&served.resource, &observed.object));
    let all = session.cache.all(&served.resource, None);
    all.iter().for_each(|observed| worker.observe_object(&served.resource, &observed.object));
    Ok(version)
}

/// Follows until the server ends the watch: then at which version to continue; `None` to list again.
async fn watch(
    worker: &Worker,
    session: &Session,
    served: &ServedResource,
    path: &str,
    from: &str,
) -> Result<Option<String>, DownstreamError> {
    let mut reached = from.to_owned();
    let mut events = session.api.watch(path, annotations::DOWN_CLUSTER, from).await?;
    loop {
        // Each object that is or was cached queues work.
        worker.queue.wait_for_room(worker.config.limits.objects.saturating_mul(2)).await;
        let event = match events.next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(Some(reached)),
            // All received events are stored: continue after the last one.
            Err(DownstreamError::Unreachable(_)) if reached != from => return Ok(Some(reached)),
            Err(error) => return Err(error),
        };
        match event {
            WatchEvent::Bookmark(version) => reached = version,
            WatchEvent::Present(object) => {
                reached = object::meta_text(&object, "resourceVersion").to_owned();
                let place = ObjectRef::of(&served.resource, &object);
                let observed = session.cache.put(&place, object);
                worker.observe_object(&served.resource, &observed.object);
            }
            WatchEvent::Deleted(object) => {
                reached = object::meta_text(&object, "resourceVersion").to_owned();
                let place = ObjectRef::of(&served.resource, &object);
                session.cache.remove(&place, object::meta_text(&object, "uid"));
                worker.observe_object(&served.resource, &object);
            }
        }
        if reached.is_empty() {
            return Ok(None);
        }
    }
}

impl Worker {
    /// Enqueues the work for a downstream object that was created, changed or deleted.
    pub(super) fn observe_object(&self, resource: &GroupResource, object: &Value) {
        if &*resource.resource == "namespaces" && resource.group.is_empty() {
            return self.observe_namespace(object);
        }
        match plan::copy_identity(object, &self.config.uid) {
            Some(identity) => {
                if let Some(key) = key_of(&identity, resource) {
                    self.queue.add(Work::Copy(key));
                }
            }
            None => self.queue.add(Work::Projection(ObjectRef::of(resource, object))),
        }
        if &*resource.resource == "pods" {
            self.observe_pod(object);
        }
        if &*resource.resource == "horizontalpodautoscalers" {
            self.observe_autoscaler(object);
        }
    }

    fn observe_namespace(&self, namespace: &Value) {
        let Some(identity) = NamespaceIdentity::of(namespace).filter(|i| i.plane.as_deref() == self.upstream.plane())
        else {
            return;
        };
        self.queue.add_after(Work::Namespace(object::name(namespace).to_owned()), self.config.namespace_linger);
        self.queue.add(Work::NamespaceLabels(object::name(namespace).to_owned()));
        let known: Vec<ObjectKey> = {
            let state = self.state();
            let is_in = |key: &&ObjectKey| {
                key.cluster.to_string() == identity.cluster
                    && key.namespace().is_some_and(|ns| ns.as_str() == identity.namespace)
            };
            state.known.keys().filter(is_in).cloned().collect()
        };
        if object::is_deleting(namespace) || self.lacks_namespace(object::name(namespace)) {
            known.into_iter().for_each(|key| self.queue.add(Work::Copy(key)));
        }
    }

    /// Enqueues the target of an autoscaler, which owns its replicas from now on, or no longer does.
    fn observe_autoscaler(&self, autoscaler: &Value) {
        let target = &autoscaler["spec"]["scaleTargetRef"];
        let resource = target["kind"].as_str().and_then(project::controller_resource);
        let Some(identity) = plan::copy_identity(autoscaler, &self.config.uid) else { return };
        let (Some((group, resource)), Some(name)) = (resource, target["name"].as_str()) else { return };
        let identity = CopyIdentity { name: name.to_owned(), ..identity };
        if let Some(key) = key_of(&identity, &GroupResource::new(group, resource)) {
            self.queue.add(Work::Copy(key));
        }
    }
}

/// Returns the upstream address that an identity names; `None` when it is damaged.
fn key_of(identity: &CopyIdentity, resource: &GroupResource) -> Option<ObjectKey> {
    let scope = match identity.namespace.as_str() {
        "" => Scope::Cluster,
        namespace => Scope::Namespace(namespace.parse().ok()?),
    };
    Some(ObjectKey {
        cluster: identity.cluster.parse().ok()?,
        resource: resource.clone(),
        scope,
        name: identity.name.parse().ok()?,
    })
}
