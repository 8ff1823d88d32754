//! Metrics of store requests, with the meaning of kube-apiserver's etcd request metrics.

use portolan_kinds::KindTable;
use portolan_store::StoreError;
use portolan_types::GroupResource;
use prometheus::{HistogramVec, IntCounterVec};
use tokio::time::Instant;

use super::{DURATIONS, MetricFactory};

const REQUEST: [&str; 3] = ["operation", "group", "resource"];

/// Metrics of store requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StorageMetrics {
    durations: HistogramVec,
    requests: IntCounterVec,
    errors: IntCounterVec,
}

/// Running store request.
pub(crate) struct StorageRequest {
    metrics: StorageMetrics,
    operation: &'static str,
    resource: GroupResource,
    started: Instant,
}

impl StorageMetrics {
    pub(super) fn new(make: &MetricFactory) -> Self {
        Self {
            durations: make.histogram(
                "etcd_request_duration_seconds",
                "Duration of store requests in seconds, by operation and resource.",
                &REQUEST,
                &DURATIONS,
            ),
            requests: make.counter("etcd_requests_total", "Number of store requests.", &REQUEST),
            errors: make.counter("etcd_request_errors_total", "Number of store requests that failed.", &REQUEST),
        }
    }

    /// Begins a request. Resources that clients define have no names here, since their number is unlimited.
    pub(crate) fn begin(&self, operation: &'static str, resource: &GroupResource) -> StorageRequest {
        let is_builtin = KindTable::builtin().stored(resource).is_some();
        let resource = if is_builtin { resource.clone() } else { GroupResource::new("", "") };
        StorageRequest { metrics: self.clone(), operation, resource, started: Instant::now() }
    }
}

impl StorageRequest {
    /// Records the response.
    pub(crate) fn end<T>(self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        let labels = [self.operation, &*self.resource.group, &*self.resource.resource];
        self.metrics.durations.with_label_values(&labels).observe(self.started.elapsed().as_secs_f64());
        self.metrics.requests.with_label_values(&labels).inc();
        if answer.as_ref().is_err_and(is_failure) {
            self.metrics.errors.with_label_values(&labels).inc();
        }
        answer
    }
}

/// Returns true if the store failed. A precondition that does not hold is a response.
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
