//! Metrics of authentication and authorization.

use std::time::Duration;

use portolan_types::Status;
use prometheus::{HistogramVec, IntCounter, IntCounterVec};

use super::{MetricFactory, powers};

/// User of an authenticated request.
pub(crate) struct AuthenticatedUser<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_service_account: bool,
}

/// Metrics of authentication and authorization.
pub(crate) struct AccessMetrics {
    users: IntCounterVec,
    authentications: IntCounterVec,
    authentication_durations: HistogramVec,
    tokens: IntCounter,
    authorizations: IntCounterVec,
    authorization_durations: HistogramVec,
}

impl AccessMetrics {
    pub(super) fn new(make: &MetricFactory) -> Self {
        let buckets = powers(0.001, 2.0, 15);
        Self {
            users: make.counter(
                "authenticated_user_requests",
                "Number of authenticated requests by class of user.",
                &["username"],
            ),
            authentications: make.counter("authentication_attempts", "Number of authentication attempts.", &["result"]),
            authentication_durations: make.histogram(
                "authentication_duration_seconds",
                "Duration of authentication in seconds.",
                &["result"],
                &buckets,
            ),
            tokens: make
                .count("serviceaccount_valid_tokens_total", "Number of valid service account tokens presented."),
            authorizations: make.counter(
                "authorization_attempts_total",
                "Number of authorization decisions.",
                &["result"],
            ),
            authorization_durations: make.histogram(
                "authorization_duration_seconds",
                "Duration of authorization in seconds.",
                &["result"],
                &buckets,
            ),
        }
    }

    /// Records an authentication. Anonymous requests count, too.
    pub(crate) fn authenticated(&self, found: Result<AuthenticatedUser<'_>, &Status>, took: Duration) {
        let result = if found.is_ok() { "success" } else { "error" };
        if let Ok(user) = found {
            self.users.with_label_values(&[sort(user.name)]).inc();
            self.tokens.inc_by(u64::from(user.is_service_account));
        }
        self.authentications.with_label_values(&[result]).inc();
        self.authentication_durations.with_label_values(&[result]).observe(took.as_secs_f64());
    }

    /// Records an authorization decision. A request that no role allows counts as RBAC's "no opinion".
    pub(crate) fn authorized(&self, is_allowed: bool, took: Duration) {
        let result = if is_allowed { "allowed" } else { "no-opinion" };
        self.authorizations.with_label_values(&[result]).inc();
        self.authorization_durations.with_label_values(&[result]).observe(took.as_secs_f64());
    }
}

/// Classifies users as kube-apiserver does.
fn sort(name: &str) -> &str {
    match name {
        "admin" | "client" | "kube_proxy" | "kubelet" | "system:serviceaccount:kube-system:default" => name,
        name if name.contains('@') => "email_id",
        _ => "other",
    }
}
