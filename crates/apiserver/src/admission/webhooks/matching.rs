//! Which webhooks a request is put before, and as what.

use std::sync::Arc;

use portolan_machinery::kinds::{Kind, KindTable};
use portolan_types::{GroupResource, GroupVersionKind, GroupVersionResource, LabelSelector, Status, object};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{
    super::{Operation, Request, forbidden, lookup},
    config::{Rule, Webhook},
};
use crate::ApiServer;

/// As what a request is put before a webhook.
#[derive(Clone, Debug)]
pub(super) struct Invocation {
    pub(super) resource: GroupVersionResource,
    pub(super) kind: GroupVersionKind,
    /// The version that objects are converted to, where it is not that of the request.
    pub(super) other: Option<Arc<Kind>>,
}

/// A request, while webhooks are matched with it.
pub(super) struct Matching<'a> {
    pub(super) api: &'a ApiServer,
    pub(super) request: &'a Request<'a>,
    pub(super) object: Option<&'a Value>,
    pub(super) old: Option<&'a Value>,
    /// The namespace's labels are read at most once.
    pub(super) namespace: &'a OnceCell<Option<Value>>,
}

/// The group version kind of what the request carries.
pub(super) fn kind_of(request: &Request<'_>, kind: &Kind) -> GroupVersionKind {
    kind.subresource(request.subresource).map_or_else(|| kind.gvk.clone(), |subresource| subresource.gvk.clone())
}

pub(super) fn resource_of(kind: &Kind) -> GroupVersionResource {
    let (group, version) = (kind.gvk.group.clone(), kind.gvk.version.clone());
    GroupVersionResource { group, version, resource: kind.resource.clone() }
}

/// The namespace of a request, as upstream has it: a namespace is in itself.
pub(super) fn namespace_of<'a>(request: &Request<'a>, object: Option<&'a Value>) -> &'a str {
    match is_namespaces(request) {
        false => request.namespace,
        true if request.name.is_empty() => object.map(object::name).unwrap_or_default(),
        true => request.name,
    }
}

fn is_namespaces(request: &Request<'_>) -> bool {
    request.kind.gvk.group.is_empty() && *request.kind.resource == *"namespaces"
}

impl Matching<'_> {
    /// As what the webhook is asked; `None` when it is not.
    ///
    /// # Errors
    /// When it cannot be told and the rules match.
    pub(super) async fn invocation(&self, webhook: &Webhook) -> Result<Option<Invocation>, Status> {
        let Some(invocation) = self.by_rules(webhook) else { return Ok(None) };
        if !self.selects_namespace(webhook).await? || !self.selects_object(webhook)? {
            return Ok(None);
        }
        match webhook.conditions.is_empty() {
            true => Ok(Some(invocation)),
            false => self.by_conditions(webhook).map(|holds| holds.then_some(invocation)),
        }
    }

    fn by_rules(&self, webhook: &Webhook) -> Option<Invocation> {
        let request = self.request;
        let own = resource_of(request.kind);
        let matches = |resource: &GroupVersionResource| webhook.rules.iter().any(|rule| self.rule(rule, resource));
        if matches(&own) {
            return Some(Invocation { resource: own, kind: kind_of(request, request.kind), other: None });
        }
        if !webhook.matches_equivalent {
            return None;
        }
        let same = |kind: &&Arc<Kind>| kind.storage == request.kind.storage && resource_of(kind) != own && kind.served;
        // A table that lies over another one lists its own kinds only.
        let all = KindTable::builtin().kinds().chain(request.table.kinds());
        let others: Vec<&Arc<Kind>> = all.filter(same).collect();
        // Earlier rules come first.
        let found =
            webhook.rules.iter().find_map(|rule| others.iter().find(|kind| self.rule(rule, &resource_of(kind))));
        found.map(|kind| Invocation {
            resource: resource_of(kind),
            kind: kind_of(request, kind),
            other: Some((*kind).clone()),
        })
    }

    fn rule(&self, rule: &Rule, resource: &GroupVersionResource) -> bool {
        let has = |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        let is_namespaced = !is_namespaces(self.request) && !self.request.namespace.is_empty();
        let scope = match rule.scope.as_str() {
            "" | "*" => true,
            "Namespaced" => is_namespaced,
            "Cluster" => !is_namespaced,
            _ => false,
        };
        scope
            && has(&rule.operations, self.request.operation.word())
            && has(&rule.groups, &resource.group)
            && has(&rule.versions, &resource.version)
            && rule.resources.iter().any(|item| {
                let (name, subresource) = item.split_once('/').unwrap_or((item, ""));
                (name == "*" || name == &*resource.resource)
                    && (subresource == "*" || subresource == self.request.subresource)
            })
    }

    /// What is in no namespace, and no namespace itself, is always selected.
    async fn selects_namespace(&self, webhook: &Webhook) -> Result<bool, Status> {
        let name = namespace_of(self.request, self.object.or(self.old));
        if name.is_empty() && !is_namespaces(self.request) {
            return Ok(true);
        }
        let selector = webhook.namespaces.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let written = matches!(self.request.operation, Operation::Create | Operation::Update);
        if is_namespaces(self.request) && self.request.subresource.is_empty() && written {
            return Ok(self.object.is_some_and(|namespace| labels_match(selector, namespace)));
        }
        let read = || lookup::namespace(self.api, self.request.cluster.id, name);
        match self.namespace.get_or_try_init(read).await? {
            Some(namespace) => Ok(labels_match(selector, namespace)),
            None => Err(Status::not_found(&GroupResource::new("", "namespaces"), name)),
        }
    }

    fn selects_object(&self, webhook: &Webhook) -> Result<bool, Status> {
        let selector = webhook.objects.as_ref().map_err(Status::internal)?;
        let mut states = self.object.into_iter().chain(self.old);
        Ok(selector.is_everything() || states.any(|state| labels_match(selector, state)))
    }

    /// Expressions are not evaluated here yet: the webhook's policy for failures says what that means.
    fn by_conditions(&self, webhook: &Webhook) -> Result<bool, Status> {
        if webhook.fails_open {
            return Ok(false);
        }
        let names: Vec<&str> = webhook.conditions.iter().map(|(name, _)| name.as_str()).collect();
        let why = format!("matchConditions of webhook {:?} are not evaluated here: {}", webhook.name, names.join(", "));
        Err(forbidden(self.request, self.object, why))
    }
}

fn labels_match(selector: &LabelSelector, of: &Value) -> bool {
    selector.matches(|key| object::label(of, key))
}
