//! View of an export: the request's rights and the logical clusters that consent.

use std::{collections::BTreeMap, sync::Arc};

use portolan_store::{DynStore, RangeRequest, RangeScope, StoreError};
use portolan_types::{
    GroupResource, LabelSelector, LogicalClusterId, ObjectKey, ResourceVersion, Status,
    apis::{self, ExportAddress},
};
use serde_json::Value;

use crate::errors::status_for;

use super::{
    consent::{Answer, Consent, Grant, ViewedExport, claimed_forms, consent_of},
    flattened::FlattenedNames,
};

/// Returns true for a resource that may have objects that all logical clusters share.
pub(crate) fn has_shared_objects(resource: &GroupResource) -> bool {
    match &*resource.group {
        "rbac.authorization.k8s.io" => true,
        "tenancy.kcp.io" => *resource.resource == *"workspacetypes",
        "" => *resource.resource == *"configmaps",
        _ => false,
    }
}

/// View of an export, for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiView {
    pub(crate) export: ViewedExport,
    /// Logical cluster that the request is about; `None` for all.
    pub(crate) target: Option<LogicalClusterId>,
    /// Objects that the request may see in its logical cluster; `None` if it is about all, or about no resource.
    pub(crate) grant: Option<Grant>,
    /// Names of a flattened view; `None` for a view that shows objects under their own names.
    pub(crate) flattened: Option<Arc<FlattenedNames>>,
}

/// Logical clusters of a view and what may be seen in each, at one revision.
pub(crate) struct Members {
    pub(crate) revision: ResourceVersion,
    pub(crate) grants: BTreeMap<LogicalClusterId, Grant>,
}

impl ApiView {
    /// Reads the export of a view.
    ///
    /// # Errors
    /// Failure of the store. `None` if the export does not exist, or has no identity yet.
    pub(crate) async fn open(
        store: &DynStore,
        address: &ExportAddress,
        target: Option<LogicalClusterId>,
    ) -> Result<Option<Self>, Status> {
        let Some(stored) = store.get(&address.key()).await.map_err(|e| status_for(&e))? else { return Ok(None) };
        let object = stored.to_value().map_err(|e| status_for(&e))?;
        let identity = object.pointer("/status/identityHash").and_then(Value::as_str).unwrap_or_default().to_owned();
        if identity.is_empty() {
            return Ok(None);
        }
        let export = ViewedExport { address: address.clone(), object, identity };
        Ok(Some(Self { export, target, grant: None, flattened: None }))
    }

    /// Returns the selector of bindings to the export.
    pub(crate) fn label(&self) -> LabelSelector {
        let selector = format!("{}={}", apis::EXPORT_LABEL, self.export.address.label());
        LabelSelector::parse(&selector).expect("the label is hexadecimal")
    }

    /// Returns the consents of a logical cluster, or of all in the view, at a revision or at the latest.
    pub(crate) async fn consents(
        &self,
        store: &DynStore,
        at: Option<ResourceVersion>,
    ) -> Result<(ResourceVersion, Vec<(ObjectKey, Consent)>), StoreError> {
        let bindings = apis::resource(apis::BINDINGS);
        let request = match self.target {
            Some(cluster) => RangeRequest::slices(RangeScope::Cluster(cluster, bindings)),
            None => RangeRequest { labels: self.label(), ..RangeRequest::slices(RangeScope::AllClusters(bindings)) },
        };
        let mut next = Some(RangeRequest { at, ..request.skip_damaged() });
        let (mut all, mut revision) = (Vec::new(), ResourceVersion::FIRST);
        while let Some(request) = next {
            let page = store.range(request.clone()).await?;
            (next, revision) = (request.next(&page), page.revision);
            let consents =
                page.objects.iter().filter_map(|stored| consent_of(&stored.key, &stored.record, &self.export));
            all.extend(consents);
        }
        Ok((revision, all))
    }

    /// Returns the logical clusters in which a resource may be seen with a verb.
    pub(crate) async fn members(
        &self,
        store: &DynStore,
        (resource, verb): (&GroupResource, &str),
        at: Option<ResourceVersion>,
    ) -> Result<Members, StoreError> {
        let (revision, consents) = self.consents(store, at).await?;
        let mut grants = BTreeMap::new();
        for (key, consent) in consents {
            if let Answer::Granted(grant) = consent.grant(resource, verb) {
                grants.entry(key.cluster).or_insert(grant);
            }
        }
        if let Some(names) = &self.flattened {
            // The logical cluster of the export is not a consumer, even if it binds its own export.
            grants.remove(&names.own());
            grants.extend((names.shows_own && self.target.is_none()).then(|| (names.own(), Grant::All)));
        }
        Ok(Members { revision, grants })
    }

    /// Returns true for an object that the request may see or write; `None` of a request that needs no such check.
    pub(crate) fn admits(&self, value: &Value) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.admits_tree(value, &self.export))
    }

    /// Returns true for a resource of which consumers have objects that all logical clusters share
    /// (`authz::shared_objects`). A flattened view shows the shared ConfigMap of the export's logical cluster alone.
    pub(crate) fn shows_shared(&self, resource: &GroupResource) -> bool {
        let is_shown_once = self.flattened.is_some() && resource.group.is_empty();
        !is_shown_once && has_shared_objects(resource)
    }

    /// Returns the resources of the view: those that the export offers and claims, and its bindings.
    pub(crate) fn resources(&self) -> Vec<GroupResource> {
        let offered = self.export.object.pointer("/spec/resources").and_then(Value::as_array);
        let text = |own: &Value, key: &str| own.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let offered =
            offered.into_iter().flatten().map(|own| GroupResource::new(text(own, "group"), text(own, "name")));
        let claimed = apis::claims_of(&self.export.object).iter().flat_map(claimed_forms);
        offered.chain(claimed).chain([apis::resource(apis::BINDINGS)]).collect()
    }

    /// Returns the objects of a resource that a request to one logical cluster may see; `None` if no binding consents.
    pub(crate) async fn answer(
        &self,
        store: &DynStore,
        asked: Option<(&GroupResource, &str)>,
    ) -> Result<Option<Answer>, StoreError> {
        let (_, consents) = self.consents(store, None).await?;
        let Some((resource, verb)) = asked else {
            return Ok((!consents.is_empty()).then_some(Answer::Unknown));
        };
        let answers = consents.iter().map(|(_, consent)| consent.grant(resource, verb));
        // The best answer of all bindings counts.
        Ok(answers.reduce(|best, other| match (&best, &other) {
            (Answer::Granted(_), _) | (_, Answer::Unknown) | (Answer::WithoutVerb, Answer::WithoutVerb) => best,
            (_, Answer::Granted(_)) | (Answer::Unknown, Answer::WithoutVerb) => other,
        }))
    }
}
