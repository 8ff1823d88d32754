//! What is asked of the store, counted as kube-apiserver counts what it asks of etcd.

use portolan_machinery::kinds::KindTable;
use portolan_store::StoreError;
use portolan_types::GroupResource;
use prometheus::{HistogramVec, IntCounterVec};
use tokio::time::Instant;

use super::{DURATIONS, Maker};

const REQUEST: [&str; 3] = ["operation", "group", "resource"];

/// Requests to the store. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StorageMetrics {
    durations: HistogramVec,
    requests: IntCounterVec,
    errors: IntCounterVec,
}

/// A request that is under way.
pub(crate) struct Asked {
    metrics: StorageMetrics,
    operation: &'static str,
    resource: GroupResource,
    started: Instant,
}

impl StorageMetrics {
    pub(super) fn new(make: &Maker) -> Self {
        Self {
            durations: make.histogram(
                "etcd_request_duration_seconds",
                "Time of requests to the store, by operation and resource.",
                &REQUEST,
                &DURATIONS,
            ),
            requests: make.counter("etcd_requests_total", "Requests to the store.", &REQUEST),
            errors: make.counter("etcd_request_errors_total", "Requests that the store could not answer.", &REQUEST),
        }
    }

    /// A request begins. Resources that clients define have no names here: there are as many as they like.
    pub(crate) fn asked(&self, operation: &'static str, resource: &GroupResource) -> Asked {
        let is_builtin = KindTable::builtin().stored(resource).is_some();
        let resource = if is_builtin { resource.clone() } else { GroupResource::new("", "") };
        Asked { metrics: self.clone(), operation, resource, started: Instant::now() }
    }
}

impl Asked {
    /// It has been answered.
    pub(crate) fn answered<T>(self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        let labels = [self.operation, &*self.resource.group, &*self.resource.resource];
        self.metrics.durations.with_label_values(&labels).observe(self.started.elapsed().as_secs_f64());
        self.metrics.requests.with_label_values(&labels).inc();
        if answer.as_ref().is_err_and(is_failure) {
            self.metrics.errors.with_label_values(&labels).inc();
        }
        answer
    }
}

/// Whether the store could not do as asked. That an expectation does not hold is an answer.
fn is_failure(error: &StoreError) -> bool {
    match error {
        StoreError::NotFound { .. }
        | StoreError::AlreadyExists { .. }
        | StoreError::Conflict { .. }
        | StoreError::OverLimit { .. }
        | StoreError::NotDamaged { .. } => false,
        StoreError::Compacted { .. }
        | StoreError::FutureRevision { .. }
        | StoreError::TooLarge { .. }
        | StoreError::Overloaded
        | StoreError::ClusterGone { .. }
        | StoreError::Unknown
        | StoreError::Unreachable { .. }
        | StoreError::Full(_)
        | StoreError::Damaged { .. }
        | StoreError::Backend(_) => true,
    }
}
