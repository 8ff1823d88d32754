//! Which webhooks and policies a request is put before, and as what.

mod criteria;

use std::{borrow::Cow, sync::Arc};

use portolan_machinery::kinds::{Kind, KindTable};
use portolan_types::{GroupResource, GroupVersionKind, GroupVersionResource, LabelSelector, Status, object};
use serde_json::Value;
use tokio::sync::OnceCell;

use self::criteria::Rule;
pub(super) use self::criteria::{Criteria, list, selector, text, texts};
use super::{Operation, Request, lookup};
use crate::ApiServer;

/// As what a request is put before a webhook or a policy.
#[derive(Clone, Debug)]
pub(super) struct Invocation {
    pub(super) resource: GroupVersionResource,
    pub(super) kind: GroupVersionKind,
    /// The version that objects are converted to, where it is not that of the request.
    pub(super) other: Option<Arc<Kind>>,
}

/// A request, while it is matched with what webhooks or policies are about.
#[derive(Clone, Copy)]
pub(super) struct Matching<'a> {
    pub(super) api: &'a ApiServer,
    pub(super) request: &'a Request<'a>,
    pub(super) object: Option<&'a Value>,
    pub(super) old: Option<&'a Value>,
    /// The namespace is read at most once.
    pub(super) namespace: &'a OnceCell<Option<Value>>,
}

/// The group version kind of what the request carries.
pub(super) fn kind_of(request: &Request<'_>, kind: &Kind) -> GroupVersionKind {
    kind.subresource(request.subresource).map_or_else(|| kind.gvk.clone(), |subresource| subresource.gvk.clone())
}

/// The kind that an object must still be of when admission has changed it: that of what is sent to the endpoint. Nothing where
/// no table has its type.
pub(super) fn changed_as<'r>(request: &Request<'r>) -> Option<Cow<'r, Kind>> {
    let gvk = kind_of(request, request.kind);
    // Of a scale it is the scaled object that changes.
    if gvk == request.kind.gvk || request.subresource == "scale" {
        return Some(Cow::Borrowed(request.kind));
    }
    let schema = request.table.object_type(&gvk.group, &gvk.version, &gvk.kind)?;
    Some(Cow::Owned(Kind { gvk, schema, decoded_as: schema, content: None, ..request.kind.clone() }))
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
    /// As what the request is put before what has these criteria; `None` when it is not.
    ///
    /// # Errors
    /// When it cannot be told and the rules match.
    pub(super) async fn invocation(&self, criteria: &Criteria) -> Result<Option<Invocation>, Status> {
        // There may be thousands that are looked at in a row.
        tokio::task::coop::consume_budget().await;
        if self.by_rules(&criteria.excluded, criteria).is_some() {
            return Ok(None);
        }
        let invocation = match criteria.rules.is_empty() && !criteria.rules_are_needed {
            true => Some(self.as_it_is()),
            false => self.by_rules(&criteria.rules, criteria),
        };
        let Some(invocation) = invocation else { return Ok(None) };
        // An object that is not selected decides, whatever is wrong with the other selector.
        let by_namespace = self.selects_namespace(criteria).await;
        let by_object = self.selects_object(criteria);
        match (by_namespace, by_object) {
            (Ok(false), _) | (_, Ok(false)) => Ok(None),
            (Ok(true), Ok(true)) => Ok(Some(invocation)),
            (Err(why), _) | (_, Err(why)) => Err(why),
        }
    }

    /// The namespace that the request is in, where it is in one.
    ///
    /// # Errors
    /// 404 where there is none.
    pub(super) async fn own_namespace(&self) -> Result<Option<&Value>, Status> {
        match is_namespaces(self.request) || self.request.namespace.is_empty() {
            true => Ok(None),
            false => self.read_namespace(self.request.namespace).await.map(Some),
        }
    }

    async fn read_namespace(&self, name: &str) -> Result<&Value, Status> {
        let read = || lookup::namespace(self.api, self.request.cluster.id, name);
        let namespace = self.namespace.get_or_try_init(read).await?;
        namespace.as_ref().ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), name))
    }

    fn as_it_is(&self) -> Invocation {
        let kind = self.request.kind;
        Invocation { resource: resource_of(kind), kind: kind_of(self.request, kind), other: None }
    }

    fn by_rules(&self, rules: &[Rule], criteria: &Criteria) -> Option<Invocation> {
        let request = self.request;
        let own = resource_of(request.kind);
        if rules.iter().any(|rule| self.rule(rule, &own)) {
            return Some(self.as_it_is());
        }
        if !criteria.matches_equivalent || rules.is_empty() {
            return None;
        }
        let same = |kind: &&Arc<Kind>| kind.storage == request.kind.storage && resource_of(kind) != own && kind.served;
        // A table that lies over another one lists its own kinds only.
        let all = KindTable::builtin().kinds().chain(request.table.kinds());
        let others: Vec<&Arc<Kind>> = all.filter(same).collect();
        // Earlier rules come first.
        let found = rules.iter().find_map(|rule| others.iter().find(|kind| self.rule(rule, &resource_of(kind))));
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
            && (rule.names.is_empty() || rule.names.iter().any(|name| name == self.request.name))
            && rule.resources.iter().any(|item| {
                let (name, subresource) = item.split_once('/').unwrap_or((item, ""));
                (name == "*" || name == &*resource.resource)
                    && (subresource == "*" || subresource == self.request.subresource)
            })
    }

    /// What is in no namespace, and no namespace itself, is always selected.
    async fn selects_namespace(&self, criteria: &Criteria) -> Result<bool, Status> {
        let name = namespace_of(self.request, self.object.or(self.old));
        if name.is_empty() && !is_namespaces(self.request) {
            return Ok(true);
        }
        let selector = criteria.namespaces.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let written = matches!(self.request.operation, Operation::Create | Operation::Update);
        if is_namespaces(self.request) && self.request.subresource.is_empty() && written {
            return Ok(self.object.is_some_and(|namespace| labels_match(selector, namespace)));
        }
        Ok(labels_match(selector, self.read_namespace(name).await?))
    }

    fn selects_object(&self, criteria: &Criteria) -> Result<bool, Status> {
        let selector = criteria.objects.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let mut states = self.object.into_iter().chain(self.old);
        Ok(match (self.request.operation, self.request.subresource) {
            // Options of streams have no metadata.
            (Operation::Connect, _) => false,
            // A Scale has no labels, whatever those of the scaled object are.
            (_, "scale") => selector.matches(|_| None),
            _ => states.any(|state| labels_match(selector, state)),
        })
    }
}

fn labels_match(selector: &LabelSelector, of: &Value) -> bool {
    selector.matches(|key| object::label(of, key))
}
