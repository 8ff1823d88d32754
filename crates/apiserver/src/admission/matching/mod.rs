//! Matching of requests with webhooks and policies.

mod criteria;

use std::{borrow::Cow, sync::Arc};

use portolan_kinds::{Kind, KindTable};
use portolan_types::{GroupResource, GroupVersionKind, GroupVersionResource, LabelSelector, Status, object};
use serde_json::Value;
use tokio::sync::OnceCell;

use self::criteria::MatchRule;
pub(super) use self::criteria::{MatchCriteria, list, selector, text, texts};
use super::{AdmissionContext, lookup, review::RequestView};
use crate::hooks::{AdmissionRequest, Operation};

/// Form in which a request is sent to a webhook or evaluated by a policy.
#[derive(Clone, Debug)]
pub(super) struct Invocation {
    pub(super) resource: GroupVersionResource,
    pub(super) kind: GroupVersionKind,
    /// Version that objects are converted to, if it differs from the request's.
    pub(super) other: Option<Arc<Kind>>,
}

/// Matcher of one request with the criteria of webhooks and policies.
#[derive(Clone, Copy)]
pub(super) struct RequestMatcher<'a> {
    pub(super) context: &'a AdmissionContext,
    pub(super) request: &'a AdmissionRequest<'a>,
    pub(super) object: Option<&'a Value>,
    pub(super) old: Option<&'a Value>,
    /// Namespace of the request, read at most once.
    pub(super) namespace: &'a OnceCell<Option<Value>>,
}

impl<'a> RequestMatcher<'a> {
    /// Returns the request in the form of an invocation.
    pub(super) fn view<'v>(&self, invocation: &'v Invocation) -> RequestView<'v>
    where
        'a: 'v,
    {
        RequestView { conversion: &self.context.conversion, request: self.request, invocation }
    }
}

/// Returns the group, version and kind of the request's object.
pub(super) fn kind_of(request: &AdmissionRequest<'_>, kind: &Kind) -> GroupVersionKind {
    kind.subresource(request.subresource).map_or_else(|| kind.gvk.clone(), |subresource| subresource.gvk.clone())
}

/// Returns the kind that the object must still have after admission has changed it; `None` if no table has its type.
pub(super) fn changed_as<'r>(request: &AdmissionRequest<'r>) -> Option<Cow<'r, Kind>> {
    let gvk = kind_of(request, request.kind);
    // For the scale subresource, admission changes the scaled object.
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

/// Returns the namespace of a request. As in kube-apiserver, a Namespace object is in itself.
pub(super) fn namespace_of<'a>(request: &AdmissionRequest<'a>, object: Option<&'a Value>) -> &'a str {
    if !is_namespaces(request) {
        request.namespace
    } else if request.name.is_empty() {
        object.map(object::name).unwrap_or_default()
    } else {
        request.name
    }
}

fn is_namespaces(request: &AdmissionRequest<'_>) -> bool {
    request.kind.gvk.group.is_empty() && *request.kind.resource == *"namespaces"
}

impl RequestMatcher<'_> {
    /// Returns the invocation for these criteria; `None` if they do not match.
    ///
    /// # Errors
    /// Failure to read the namespace or to parse a selector, if the rules match.
    pub(super) async fn invocation(&self, criteria: &MatchCriteria) -> Result<Option<Invocation>, Status> {
        // A request may be matched with thousands of criteria in a row.
        tokio::task::coop::consume_budget().await;
        if self.match_rules(&criteria.excluded, criteria).is_some() {
            return Ok(None);
        }
        let invocation = if criteria.rules.is_empty() && !criteria.rules_are_needed {
            Some(self.unconverted())
        } else {
            self.match_rules(&criteria.rules, criteria)
        };
        let Some(invocation) = invocation else { return Ok(None) };
        // An object that the object selector excludes is skipped, even if the namespace selector is invalid.
        let by_namespace = self.selects_namespace(criteria).await;
        let by_object = self.selects_object(criteria);
        match (by_namespace, by_object) {
            (Ok(false), _) | (_, Ok(false)) => Ok(None),
            (Ok(true), Ok(true)) => Ok(Some(invocation)),
            (Err(why), _) | (_, Err(why)) => Err(why),
        }
    }

    /// Returns the namespace of the request; `None` at cluster scope.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub(super) async fn own_namespace(&self) -> Result<Option<&Value>, Status> {
        if is_namespaces(self.request) || self.request.namespace.is_empty() {
            Ok(None)
        } else {
            self.read_namespace(self.request.namespace).await.map(Some)
        }
    }

    async fn read_namespace(&self, name: &str) -> Result<&Value, Status> {
        let read = || lookup::namespace(&self.context.storage, self.request.cluster.id, name);
        let namespace = self.namespace.get_or_try_init(read).await?;
        namespace.as_ref().ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), name))
    }

    fn unconverted(&self) -> Invocation {
        let kind = self.request.kind;
        Invocation { resource: resource_of(kind), kind: kind_of(self.request, kind), other: None }
    }

    fn match_rules(&self, rules: &[MatchRule], criteria: &MatchCriteria) -> Option<Invocation> {
        let request = self.request;
        let own = resource_of(request.kind);
        if rules.iter().any(|rule| self.rule(rule, &own)) {
            return Some(self.unconverted());
        }
        if !criteria.matches_equivalent || rules.is_empty() {
            return None;
        }
        let same = |kind: &&Arc<Kind>| kind.storage == request.kind.storage && resource_of(kind) != own && kind.served;
        // An overlay table lists only its own kinds.
        let all = KindTable::builtin().kinds().chain(request.table.kinds());
        let others: Vec<&Arc<Kind>> = all.filter(same).collect();
        // Earlier rules win.
        let found = rules.iter().find_map(|rule| others.iter().find(|kind| self.rule(rule, &resource_of(kind))));
        found.map(|kind| Invocation {
            resource: resource_of(kind),
            kind: kind_of(request, kind),
            other: Some((*kind).clone()),
        })
    }

    fn rule(&self, rule: &MatchRule, resource: &GroupVersionResource) -> bool {
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

    /// Returns true if the namespace selector matches. Cluster-scoped objects other than Namespaces always match.
    async fn selects_namespace(&self, criteria: &MatchCriteria) -> Result<bool, Status> {
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

    fn selects_object(&self, criteria: &MatchCriteria) -> Result<bool, Status> {
        let selector = criteria.objects.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let mut states = self.object.into_iter().chain(self.old);
        Ok(match (self.request.operation, self.request.subresource) {
            // Options of streams carry no metadata.
            (Operation::Connect, _) => false,
            // A Scale carries no labels, even if the scaled object does.
            (_, "scale") => selector.matches(|_| None),
            _ => states.any(|state| labels_match(selector, state)),
        })
    }
}

fn labels_match(selector: &LabelSelector, of: &Value) -> bool {
    selector.matches(|key| object::label(of, key))
}
