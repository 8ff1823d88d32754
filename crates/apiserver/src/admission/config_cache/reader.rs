//! Reader of admission configuration.

use std::collections::{HashMap, HashSet};

use portolan_store::{Damage, DamagedObject, DynStore, RangeRequest, RangeScope, StoredObject};
use portolan_types::{
    GroupResource, LogicalClusterId, Status,
    object::{self, Object},
};
use serde_json::Value;

use crate::errors::status_for;

use super::{
    super::{
        policies::{AdmissionPolicy, policies_of, policy_name},
        webhooks::{WebhookConfig, webhooks_of},
    },
    AdmissionConfiguration, LIMITS, MUTATING, MUTATING_POLICIES, PRIORITIES, QUOTAS, Resource, VALIDATING,
    VALIDATING_POLICIES,
};

/// Reader of the configuration of a logical cluster.
pub(super) struct ConfigurationReader<'a> {
    store: &'a DynStore,
    cluster: LogicalClusterId,
    bytes: usize,
    damaged: Vec<(Resource, DamagedObject)>,
}

impl<'a> ConfigurationReader<'a> {
    pub(super) fn new(store: &'a DynStore, cluster: LogicalClusterId) -> Self {
        Self { store, cluster, bytes: 0, damaged: Vec::new() }
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// Failure of the store.
    pub(super) async fn read(mut self) -> Result<AdmissionConfiguration, Status> {
        Ok(AdmissionConfiguration {
            with_quotas: self.with_quotas().await?,
            limits: self.limits().await?,
            priorities: self.trees(PRIORITIES).await?,
            mutating: self.webhooks(MUTATING).await?,
            validating: self.webhooks(VALIDATING).await?,
            mutating_policies: self.policies(MUTATING_POLICIES).await?,
            validating_policies: self.policies(VALIDATING_POLICIES).await?,
            bytes: self.bytes,
            damaged: self.damaged,
        })
    }

    /// Reads the namespaces of quotas. Charging reads the quotas themselves and reports damaged ones.
    async fn with_quotas(&mut self) -> Result<HashSet<String>, Status> {
        let mut all = HashSet::new();
        let mut quotas = self.slices(QUOTAS);
        while let Some(slice) = self.next(QUOTAS, &mut quotas).await? {
            all.extend(slice.iter().filter_map(|quota| quota.key.namespace()).map(ToString::to_string));
        }
        let damaged = self.damaged.iter().filter(|(of, _)| *of == QUOTAS).map(|(_, found)| &found.key);
        all.extend(damaged.filter_map(|key| key.namespace()).map(ToString::to_string));
        Ok(all)
    }

    async fn limits(&mut self) -> Result<HashMap<String, Vec<Value>>, Status> {
        let mut limits: HashMap<String, Vec<Value>> = HashMap::new();
        for range in self.trees(LIMITS).await? {
            limits.entry(object::namespace(&range).to_owned()).or_default().push(range);
        }
        Ok(limits)
    }

    /// Reads webhooks, ordered by configuration name and position.
    async fn webhooks(&mut self, resource: Resource) -> Result<Vec<WebhookConfig>, Status> {
        Ok(self.trees(resource).await?.iter().flat_map(webhooks_of).collect())
    }

    /// Reads the policies that have bindings.
    async fn policies(&mut self, [policies, bindings]: [Resource; 2]) -> Result<Vec<AdmissionPolicy>, Status> {
        let before = self.damaged.len();
        let readable = self.trees(bindings).await?;
        let any_may_be_bound = self.damaged.len() > before;
        if readable.is_empty() && !any_may_be_bound {
            return Ok(Vec::new());
        }
        let trees = self.trees(policies).await?;
        let is_bound = |name: &str| any_may_be_bound || readable.iter().any(|binding| policy_name(binding) == name);
        // The name of a damaged policy is readable unless its key is damaged.
        self.damaged.retain(|(of, found)| *of != policies || found.why == Damage::Key || is_bound(&found.key.name));
        if trees.is_empty() && !self.damaged.iter().any(|(of, _)| *of == policies) {
            self.damaged.retain(|(of, _)| *of != bindings);
        }
        Ok(policies_of(&trees, &readable))
    }

    async fn trees(&mut self, resource: Resource) -> Result<Vec<Value>, Status> {
        let mut trees = Vec::new();
        let mut slices = self.slices(resource);
        while let Some(slice) = self.next(resource, &mut slices).await? {
            for stored in slice {
                let Ok(mut tree) = stored.record.to_value(stored.revision) else {
                    self.damaged.push((resource, DamagedObject { key: stored.key, why: Damage::Body }));
                    continue;
                };
                self.bytes += stored.record.body().len().saturating_sub(reduce(resource, &mut tree));
                trees.push(tree);
            }
        }
        Ok(trees)
    }

    fn slices(&self, resource: Resource) -> Option<RangeRequest> {
        let (group, resource) = resource;
        let scope = RangeScope::Cluster(self.cluster, GroupResource::new(group, resource));
        Some(RangeRequest::slices(scope).skip_damaged())
    }

    /// Reads the next slice of objects; `None` after the last.
    async fn next(
        &mut self,
        resource: Resource,
        slice: &mut Option<RangeRequest>,
    ) -> Result<Option<Vec<StoredObject>>, Status> {
        let Some(request) = slice.take() else { return Ok(None) };
        let page = self.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        *slice = request.next(&page);
        self.damaged.extend(page.damaged.into_iter().map(|found| (resource, found)));
        Ok(Some(page.objects))
    }
}

/// Removes fields that admission never reads, such as a status. Returns the bytes removed.
pub(super) fn reduce(resource: Resource, tree: &mut Value) -> usize {
    let kept: Option<&[&str]> = match resource {
        PRIORITIES => Some(&["globalDefault", "metadata", "preemptionPolicy", "value"]),
        LIMITS => Some(&["metadata", "spec"]),
        _ => None,
    };
    let Some(fields) = tree.as_object_mut() else { return 0 };
    let mut gone = Vec::new();
    let is_kept = |name: &str| kept.map_or(name != "status", |kept| kept.contains(&name));
    take(fields, is_kept, &mut gone);
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| kept.is_some()) {
        take(metadata, |name| matches!(name, "name" | "namespace"), &mut gone);
    }
    gone.iter().map(|value| value.to_string().len()).sum()
}

fn take(fields: &mut Object, is_kept: impl Fn(&str) -> bool, gone: &mut Vec<Value>) {
    fields.retain(|name, value| {
        let insert = is_kept(name);
        if !insert {
            gone.push(value.take());
        }
        insert
    });
}
