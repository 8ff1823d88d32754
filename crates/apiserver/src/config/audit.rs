//! Configuration of audit.

use std::{path::PathBuf, time::Duration};

/// Configuration of audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// Policy file.
    pub policy: PathBuf,
    /// Log file.
    pub log: Option<AuditLogConfig>,
    /// Webhook.
    pub webhook: Option<AuditWebhookConfig>,
    /// Most events that wait for a sink; further ones are dropped and counted.
    pub queue: usize,
}

/// Log of audit events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLogConfig {
    /// File; `-` is the standard output.
    pub path: PathBuf,
    /// Days that rotated files are kept; zero for any time.
    pub max_age_days: u64,
    /// Number of rotated files that are kept; zero for any number.
    pub max_backups: usize,
    /// MiB from which a file is rotated; zero for 100.
    pub max_size_mib: u64,
}

/// Webhook for audit events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditWebhookConfig {
    /// Kubeconfig of the webhook.
    pub kubeconfig: PathBuf,
    /// Most events of a batch.
    pub batch_size: usize,
    /// Longest time that an event waits for others.
    pub batch_wait: Duration,
    /// Pause before the second attempt.
    pub initial_backoff: Duration,
}
