//! Spans: one per reconcile of a worker and one per watch, with the fields `cluster` (the physical cluster),
//! `resource`, `namespace`, `name` and `resource_version`. They have the level `debug`, so that they cost nothing by
//! default.

use portolan_types::{GroupResource, ObjectKey, ResourceVersion};
use tracing::{Span, debug_span, field};

use super::{Work, reflector_cache::ObjectRef};

/// Creates the span of one reconcile on the physical cluster `cluster`.
pub(super) fn reconcile(cluster: &str, work: &Work) -> Span {
    match work {
        Work::Copy(key) => upstream_object(cluster, "copy", key),
        Work::Debt(debt) => upstream_object(cluster, "debt", &debt.key),
        Work::Projection(at) => downstream_object(cluster, "projection", at),
        Work::Event(at) => downstream_object(cluster, "event", at),
        Work::Namespace(name) => namespace(cluster, "namespace", name),
        Work::NamespaceLabels(name) => namespace(cluster, "namespace-labels", name),
        Work::Debts => debug_span!("reconcile", work = "debts", cluster),
        Work::LeftBehind => debug_span!("reconcile", work = "left-behind", cluster),
    }
}

/// Creates the span of the list and the watches of one resource.
pub(super) fn reflector(cluster: &str, resource: &GroupResource) -> Span {
    debug_span!("reflector", cluster, %resource, resource_version = field::Empty)
}

/// Records the revision of the object that the current reconcile has read.
pub(super) fn record_resource_version(revision: ResourceVersion) {
    Span::current().record("resource_version", field::display(revision));
}

fn upstream_object(cluster: &str, work: &'static str, key: &ObjectKey) -> Span {
    debug_span!(
        "reconcile",
        work,
        cluster,
        logical_cluster = %key.cluster,
        resource = %key.resource,
        namespace = key.namespace().map(|namespace| namespace.as_str()),
        name = key.name.as_str(),
        resource_version = field::Empty,
    )
}

fn downstream_object(cluster: &str, work: &'static str, at: &ObjectRef) -> Span {
    debug_span!(
        "reconcile",
        work,
        cluster,
        resource = %at.resource,
        namespace = at.namespace(),
        name = at.name,
        resource_version = field::Empty,
    )
}

fn namespace(cluster: &str, work: &'static str, name: &str) -> Span {
    debug_span!("reconcile", work, cluster, resource = "namespaces", name, resource_version = field::Empty)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use portolan_types::LogicalClusterId;
    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
    };

    use super::*;

    /// Subscriber that keeps the fields of all spans.
    #[derive(Clone, Default)]
    struct SpanRecorder(Arc<Mutex<Vec<String>>>);

    struct FieldRecorder<'a>(&'a mut Vec<String>);

    impl Visit for FieldRecorder<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.push(format!("{}={}", field.name(), format!("{value:?}").replace('"', "")));
        }
    }

    impl Subscriber for SpanRecorder {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            span.record(&mut FieldRecorder(&mut self.0.lock().unwrap()));
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut FieldRecorder(&mut self.0.lock().unwrap()));
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {}

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn spans_name_the_object_by_fixed_fields() {
        let resource = GroupResource::new("apps", "deployments");
        let (namespace, name) = ("shop".parse().unwrap(), "web".parse().unwrap());
        let key = ObjectKey::namespaced(LogicalClusterId::ROOT, resource.clone(), namespace, name);
        let at = ObjectRef { resource, namespace: "shop-x".into(), name: "web".into() };
        for (work, expected) in [
            (
                Work::Copy(key),
                "work=copy cluster=east logical_cluster=root resource=deployments.apps namespace=shop name=web",
            ),
            (Work::Projection(at), "work=projection cluster=east resource=deployments.apps namespace=shop-x name=web"),
            (Work::Namespace("shop-x".into()), "work=namespace cluster=east resource=namespaces name=shop-x"),
            (Work::Debts, "work=debts cluster=east"),
        ] {
            let recorder = SpanRecorder::default();
            tracing::subscriber::with_default(recorder.clone(), || drop(reconcile("east", &work)));
            assert_eq!(recorder.0.lock().unwrap().join(" "), expected);
        }
    }
}
