//! Who asks, and whether they may.

use std::time::Duration;

use portolan_types::Status;
use prometheus::{HistogramVec, IntCounter, IntCounterVec};

use super::{Maker, powers};
use crate::authn::Identity;

/// What is counted of credentials and rights.
pub(crate) struct AccessMetrics {
    users: IntCounterVec,
    authentications: IntCounterVec,
    authentication_durations: HistogramVec,
    tokens: IntCounter,
    authorizations: IntCounterVec,
    authorization_durations: HistogramVec,
}

impl AccessMetrics {
    pub(super) fn new(make: &Maker) -> Self {
        let buckets = powers(0.001, 2.0, 15);
        Self {
            users: make.counter("authenticated_user_requests", "Requests by the sort of their user.", &["username"]),
            authentications: make.counter("authentication_attempts", "Looked at credentials.", &["result"]),
            authentication_durations: make.histogram(
                "authentication_duration_seconds",
                "Time of looking at credentials.",
                &["result"],
                &buckets,
            ),
            tokens: make.count("serviceaccount_valid_tokens_total", "Tokens of service accounts that were good."),
            authorizations: make.counter("authorization_attempts_total", "Decided requests.", &["result"]),
            authorization_durations: make.histogram(
                "authorization_duration_seconds",
                "Time of deciding requests.",
                &["result"],
                &buckets,
            ),
        }
    }

    /// Credentials have been looked at. Who has none is somebody, too.
    pub(crate) fn authenticated(&self, found: &Result<Identity, Status>, took: Duration) {
        let result = if found.is_ok() { "success" } else { "error" };
        if let Ok(identity) = found {
            self.users.with_label_values(&[sort(&identity.user.name)]).inc();
            // Of one logical cluster are service accounts alone.
            self.tokens.inc_by(u64::from(identity.home.is_some()));
        }
        self.authentications.with_label_values(&[result]).inc();
        self.authentication_durations.with_label_values(&[result]).observe(took.as_secs_f64());
    }

    /// It has been decided whether a request may go on. That no role says so is no opinion of RBAC's.
    pub(crate) fn authorized(&self, is_allowed: bool, took: Duration) {
        let result = if is_allowed { "allowed" } else { "no-opinion" };
        self.authorizations.with_label_values(&[result]).inc();
        self.authorization_durations.with_label_values(&[result]).observe(took.as_secs_f64());
    }
}

/// Users as kube-apiserver tells them apart.
fn sort(name: &str) -> &str {
    match name {
        "admin" | "client" | "kube_proxy" | "kubelet" | "system:serviceaccount:kube-system:default" => name,
        name if name.contains('@') => "email_id",
        _ => "other",
    }
}
