//! Conditions of a departure, read from the store: the pace of the policy, the Services and Ingresses in front of an
//! object, and the disruption budgets about its pods. They are read only for objects that move.

use std::collections::{BTreeMap, BTreeSet};

use portolan_placement::{DisruptionBound, FrontEnd, LeveledPolicy, MoveGates, PlacementDecision};
use portolan_store::{RangeRequest, RangeScope, StoreError};
use portolan_types::{
    GroupResource, LabelSelector, NamespaceName, ObjectKey, Uid,
    labels::LabelSelectorSpec,
    object,
    placement::{MovePace, PlacementRecord, PlacementStatus},
};
use serde_json::Value;

use crate::{
    context::SchedulerContext,
    inputs::{DecisionInputs, placement_key},
    kinds,
    queue::rescan::placed_from_here,
};

/// Label of an EndpointSlice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Labels of pods.
pub(crate) type PodLabels = BTreeMap<String, String>;

/// Returns the labels of the pods of a workload: those of its template, or a Pod's own.
pub(crate) fn pod_labels(workload: &Value) -> PodLabels {
    let template = workload.pointer("/spec/template/metadata/labels");
    let own = || object::metadata(workload).get("labels").filter(|_| workload["kind"] == "Pod");
    let labels = template.or_else(own).and_then(Value::as_object);
    let pairs = labels.into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns true if a Service selects pods with these labels. One without a selector selects none.
pub(crate) fn selects(service: &Value, labels: &PodLabels) -> bool {
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    let holds = |(key, value): (&String, &Value)| value.as_str() == labels.get(key).map(String::as_str);
    selector.is_some_and(|selector| !selector.is_empty() && selector.iter().all(holds))
}

/// Returns the names of the Services that an Ingress leads to.
pub(crate) fn backends_of(ingress: &Value) -> BTreeSet<String> {
    let name = |backend: &Value| backend.pointer("/service/name")?.as_str().map(str::to_owned);
    let rules = ingress.pointer("/spec/rules").and_then(Value::as_array).into_iter().flatten();
    let paths = rules.filter_map(|rule| rule.pointer("/http/paths")?.as_array()).flatten();
    let backends = paths.filter_map(|path| path.get("backend")).chain(ingress.pointer("/spec/defaultBackend"));
    backends.filter_map(name).collect()
}

/// Returns true if an EndpointSlice has an endpoint that takes requests. Unknown readiness counts, as in Kubernetes.
fn has_ready_endpoint(slice: &Value) -> bool {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints.into_iter().any(|endpoint| endpoint["conditions"]["ready"] != false)
}

/// Returns true if a decision takes an active copy off a physical cluster, for others.
pub(crate) fn departs(record: &PlacementRecord, decision: &PlacementDecision) -> bool {
    let stays = |uid: &Uid| decision.chosen.iter().any(|chosen| chosen.uid == *uid);
    !decision.is_to_end() && !decision.chosen.is_empty() && record.active().any(|copy| !stays(&copy.uid))
}

/// Reads the conditions of a departure.
pub(crate) async fn read_move_gates(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    decision: &PlacementDecision,
) -> Result<MoveGates, StoreError> {
    let pace = {
        let policies = ctx.facts().policies(&inputs.reach, &inputs.namespace);
        let decides = |policy: &&LeveledPolicy| Some(&policy.reference) == decision.policy.as_ref();
        policies.iter().find(decides).map(|policy| policy.policy.spec.moves)
    };
    let labels = pod_labels(&inputs.object);
    let reader = NamespaceReader { ctx, at: &inputs.key, namespace: &inputs.namespace };
    let (fronts, budget) = if labels.is_empty() {
        (Vec::new(), None)
    } else {
        (reader.fronts(&labels).await?, reader.budget(&labels).await?)
    };
    Ok(MoveGates { now: ctx.now(), pace: Some(pace.unwrap_or_else(MovePace::default)), fronts, budget })
}

/// Reads the objects of a namespace that concern one object.
struct NamespaceReader<'a> {
    ctx: &'a SchedulerContext,
    at: &'a ObjectKey,
    namespace: &'a NamespaceName,
}

impl NamespaceReader<'_> {
    async fn list(&self, resource: GroupResource) -> Result<Vec<(ObjectKey, Value)>, StoreError> {
        let scope = RangeScope::Namespace(self.at.cluster, resource, self.namespace.clone());
        let request = RangeRequest { labels: placed_from_here(), ..RangeRequest::all(scope).skip_damaged() };
        let page = self.ctx.objects.store().range(request).await?;
        page.objects.iter().map(|stored| Ok((stored.key.clone(), stored.to_value()?))).collect()
    }

    async fn status_of(&self, key: &ObjectKey) -> Result<PlacementStatus, StoreError> {
        let found = self.ctx.objects.get_value(&placement_key(key)).await?;
        let status = found.and_then(|(mut placement, _)| placement.get_mut("status").map(Value::take));
        Ok(status.and_then(|status| serde_json::from_value(status).ok()).unwrap_or_default())
    }

    /// Returns the Services and Ingresses that lead to pods with these labels and publish addresses. An exported
    /// Service publishes those of its endpoints.
    async fn fronts(&self, labels: &PodLabels) -> Result<Vec<FrontEnd>, StoreError> {
        let services = self.list(kinds::services()).await?;
        let selecting: Vec<_> = services.iter().filter(|(_, service)| selects(service, labels)).collect();
        if selecting.is_empty() {
            return Ok(Vec::new());
        }
        let names: BTreeSet<String> = selecting.iter().map(|(key, _)| key.name.to_string()).collect();
        let ingresses = self.list(kinds::ingresses()).await?;
        let leading = ingresses.iter().filter(|(_, ingress)| !backends_of(ingress).is_disjoint(&names));
        let mut fronts = self.exported(&selecting).await?;
        let balanced = selecting.into_iter().filter(|(_, service)| service["spec"]["type"] == "LoadBalancer");
        for (key, front) in balanced.chain(leading) {
            let copies = self.status_of(key).await?.clusters.into_iter();
            let published: BTreeSet<Uid> =
                copies.filter(|copy| copy.addresses > 0).filter_map(|copy| copy.uid.parse().ok()).collect();
            if !published.is_empty() {
                let kind = front["kind"].as_str().unwrap_or_default().to_lowercase();
                let backends = if kind == "ingress" { backends_of(front) } else { [key.name.to_string()].into() };
                let serving = self.serving(backends.intersection(&names)).await?;
                fronts.push(FrontEnd { title: format!("{kind}/{}", key.name), published, serving });
            }
        }
        Ok(fronts)
    }

    /// Returns those of the Services that have a ServiceExport and publish endpoints.
    async fn exported(&self, services: &[&(ObjectKey, Value)]) -> Result<Vec<FrontEnd>, StoreError> {
        let mut fronts = Vec::new();
        for (key, service) in services {
            let export = ObjectKey { resource: kinds::exports(), ..key.clone() };
            if self.ctx.objects.store().get(&export).await?.is_none() {
                continue;
            }
            let serving = self.serving(std::iter::once(&key.name.to_string())).await?;
            let record = PlacementRecord::of(service).unwrap_or_default();
            let published: BTreeSet<Uid> = &serving - &record.withdrawn;
            if !published.is_empty() {
                fronts.push(FrontEnd { title: format!("serviceexport/{}", key.name), published, serving });
            }
        }
        Ok(fronts)
    }

    /// Returns the physical clusters on which the EndpointSlices of these Services show a ready endpoint.
    async fn serving(&self, services: impl Iterator<Item = &String>) -> Result<BTreeSet<Uid>, StoreError> {
        let mut serving = BTreeSet::new();
        for service in services {
            // A name that is no value of a label has no EndpointSlices.
            let Ok(labels) = LabelSelector::parse(&format!("{SERVICE_NAME}={service}")) else { continue };
            let scope = RangeScope::Namespace(self.at.cluster, kinds::endpoint_slices(), self.namespace.clone());
            let request = RangeRequest { labels, ..RangeRequest::all(scope).skip_damaged() };
            for slice in self.ctx.objects.store().range(request).await?.objects {
                let slice = slice.to_value()?;
                let places = PlacementRecord::of(&slice).filter(|_| has_ready_endpoint(&slice)).unwrap_or_default();
                serving.extend(places.clusters.into_iter().map(|copy| copy.uid));
            }
        }
        Ok(serving)
    }

    /// Returns the tightest bound of the budgets about pods with these labels. Pods are counted over all physical
    /// clusters.
    async fn budget(&self, labels: &PodLabels) -> Result<Option<DisruptionBound>, StoreError> {
        let budgets = self.list(kinds::disruption_budgets()).await?;
        let selectors: Vec<_> =
            budgets.iter().filter_map(|(key, budget)| Some((key, budget, selector(budget)?))).collect();
        let about: Vec<_> = selectors.iter().filter(|(_, _, selector)| selector.matches_map(labels)).collect();
        if about.is_empty() {
            return Ok(None);
        }
        let is_counted = |labels: &PodLabels| about.iter().any(|(_, _, selector)| selector.matches_map(labels));
        let counted = self.counted_workloads(is_counted).await?;
        let bound = |(key, budget, selector): &&(&ObjectKey, &Value, LabelSelector)| {
            let all = || counted.iter().filter(|workload| selector.matches_map(&workload.labels));
            let expected: i64 = all().map(|workload| workload.wanted).sum();
            let others = all().filter(|workload| workload.key != *self.at);
            let healthy: i64 = others.map(|workload| workload.available).sum();
            let required = desired(budget, expected).saturating_sub(healthy);
            DisruptionBound { name: key.name.to_string(), required }
        };
        Ok(about.iter().map(bound).max_by_key(|bound| bound.required).filter(|bound| bound.required > 0))
    }

    /// Returns the workloads of the namespace whose pods have labels that count.
    async fn counted_workloads(
        &self,
        is_counted: impl Fn(&PodLabels) -> bool,
    ) -> Result<Vec<CountedWorkload>, StoreError> {
        let mut counted = Vec::new();
        for placeable in kinds::PLACEABLE.iter().filter(|placeable| kinds::is_budgeted(placeable)) {
            for (key, workload) in self.list(placeable.resource()).await? {
                let labels = pod_labels(&workload);
                if !is_counted(&labels) {
                    continue;
                }
                let record = PlacementRecord::of(&workload).unwrap_or_default();
                let status = self.status_of(&key).await?;
                let is_active = |uid: &str| record.active().any(|copy| copy.uid.as_str() == uid);
                let copies = status.clusters.iter().filter(|copy| is_active(&copy.uid));
                let available: i64 = copies.map(|copy| copy.available.unwrap_or(copy.ready)).sum();
                let wanted = workload.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
                let available = available.min(wanted);
                counted.push(CountedWorkload { labels, key, wanted, available });
            }
        }
        Ok(counted)
    }
}

/// Workload whose pods a budget may count.
struct CountedWorkload {
    key: ObjectKey,
    labels: PodLabels,
    wanted: i64,
    /// Available pods on all physical clusters, at most the wanted number.
    available: i64,
}

/// Returns the selector of a budget; one without any selects nothing.
fn selector(budget: &Value) -> Option<LabelSelector> {
    let spec = serde_json::from_value::<LabelSelectorSpec>(budget.pointer("/spec/selector")?.clone()).ok()?;
    LabelSelector::try_from(&spec).ok()
}

/// Returns the number of pods that a budget wants available of `expected`. Percentages are rounded up, as in
/// Kubernetes.
fn desired(budget: &Value, expected: i64) -> i64 {
    let amount = |value: &Value| match value {
        Value::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            Some(expected.saturating_mul(percent.clamp(0, 100)).saturating_add(99) / 100)
        }
        other => other.as_i64(),
    };
    let spec = &budget["spec"];
    let least = spec.get("minAvailable").and_then(amount);
    let most_missing = spec.get("maxUnavailable").and_then(amount);
    least
        .or_else(|| most_missing.map(|missing| expected.saturating_sub(missing)))
        .unwrap_or(0)
        .clamp(0, expected.max(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn budgets_count_as_in_kubernetes() {
        for (spec, expected, desired_pods) in [
            (json!({"minAvailable": 2}), 3, 2),
            (json!({"minAvailable": 5}), 3, 3),
            (json!({"minAvailable": "50%"}), 3, 2),
            (json!({"maxUnavailable": 1}), 3, 2),
            (json!({"maxUnavailable": "50%"}), 3, 1),
            (json!({"maxUnavailable": 9}), 3, 0),
            (json!({"minAvailable": "x"}), 3, 0),
            (json!({}), 3, 0),
        ] {
            assert_eq!(desired(&json!({"spec": spec}), expected), desired_pods, "{spec}");
        }
    }

    #[test]
    fn an_endpoint_of_unknown_readiness_is_ready() {
        for (endpoints, expected) in [
            (json!(null), false),
            (json!([]), false),
            (json!([{"conditions": {"ready": false}}]), false),
            (json!([{"conditions": {"ready": false}}, {"conditions": {"ready": true}}]), true),
            (json!([{}]), true),
        ] {
            assert_eq!(has_ready_endpoint(&json!({"endpoints": endpoints})), expected, "{endpoints}");
        }
    }

    #[test]
    fn services_and_ingresses_lead_to_pods_by_their_labels() {
        let labels = pod_labels(&json!({"spec": {"template": {"metadata": {"labels": {"app": "web", "tier": "a"}}}}}));
        let service = |selector: Value| json!({"spec": {"selector": selector}});
        for (case, selector, expected) in [
            ("one of the labels", json!({"app": "web"}), true),
            ("another value", json!({"app": "api"}), false),
            ("one label too many", json!({"app": "web", "zone": "a"}), false),
            ("no selector", json!({}), false),
        ] {
            assert_eq!(selects(&service(selector), &labels), expected, "{case}");
        }
        assert_eq!(pod_labels(&json!({"kind": "Pod", "metadata": {"labels": {"app": "web"}}})).len(), 1);
        assert!(pod_labels(&json!({"kind": "Deployment", "metadata": {"labels": {"app": "web"}}})).is_empty());
        let backend = |name: &str| json!({"service": {"name": name, "port": {"number": 80}}});
        let ingress = json!({"spec": {"defaultBackend": backend("a"), "rules": [
            {"http": {"paths": [{"backend": backend("b")}, {"backend": {"resource": {}}}]}}, {"host": "x"}]}});
        assert_eq!(backends_of(&ingress), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    }
}
