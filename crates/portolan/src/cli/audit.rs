//! Flags of audit, as kube-apiserver has them.

use std::{path::PathBuf, time::Duration};

use anyhow::ensure;
use clap::Args;
use portolan_apiserver::audit::{AUDIT_QUEUE, AuditConfig, AuditLogConfig, AuditWebhookConfig};

use super::values;

/// Flags of audit.
#[derive(Args, Debug, Default)]
#[group(skip)]
pub(super) struct AuditArgs {
    /// File with a Policy of audit.k8s.io/v1, which chooses the requests that are audited and how much of them is
    /// written. Bodies of Secrets and tokens are never written.
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// File for audit events, one JSON object per line; - is the standard output.
    #[arg(long, value_name = "FILE", requires = "audit_policy_file")]
    audit_log_path: Option<PathBuf>,
    /// Days that rotated audit logs are kept; 0 for any time.
    #[arg(long, value_name = "DAYS", default_value_t = 0, requires = "audit_log_path")]
    audit_log_maxage: u64,
    /// Number of rotated audit logs that are kept; 0 for any number.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "audit_log_path")]
    audit_log_maxbackup: usize,
    /// MiB from which the audit log is rotated.
    #[arg(long, value_name = "MIB", default_value_t = 100, requires = "audit_log_path")]
    audit_log_maxsize: u64,
    /// Kubeconfig of a webhook that audit events are posted to.
    #[arg(long, value_name = "FILE", requires = "audit_policy_file")]
    audit_webhook_config_file: Option<PathBuf>,
    /// Maximum number of events that are posted at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 400, requires = "audit_webhook_config_file")]
    audit_webhook_batch_max_size: usize,
    /// Longest time that an event waits for others. Seconds, or with units, as 1m30s.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::time, requires = "audit_webhook_config_file")]
    audit_webhook_batch_max_wait: Option<Duration>,
    /// Pause before a failed request to the webhook is repeated; it doubles each time, up to five requests.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::time, requires = "audit_webhook_config_file")]
    audit_webhook_initial_backoff: Option<Duration>,
    /// Maximum number of events that wait for the log or the webhook. Further ones are dropped and counted: requests
    /// do not wait.
    #[arg(long, value_name = "NUMBER", default_value_t = AUDIT_QUEUE, requires = "audit_policy_file")]
    audit_buffer_size: usize,
}

impl AuditArgs {
    /// Returns the configuration; `None` without a policy.
    ///
    /// # Errors
    /// A policy without a place for events.
    pub(super) fn config(self) -> anyhow::Result<Option<AuditConfig>> {
        let Some(policy) = self.audit_policy_file else { return Ok(None) };
        let log = self.audit_log_path.map(|path| AuditLogConfig {
            path,
            max_age_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_size_mib: self.audit_log_maxsize,
        });
        let webhook = self.audit_webhook_config_file.map(|kubeconfig| AuditWebhookConfig {
            kubeconfig,
            batch_size: self.audit_webhook_batch_max_size,
            batch_wait: self.audit_webhook_batch_max_wait.unwrap_or_default(),
            initial_backoff: self.audit_webhook_initial_backoff.unwrap_or_default(),
        });
        ensure!(
            log.is_some() || webhook.is_some(),
            "--audit-policy-file needs --audit-log-path or --audit-webhook-config-file"
        );
        Ok(Some(AuditConfig { policy, log, webhook, queue: self.audit_buffer_size }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        audit: AuditArgs,
    }

    fn parse(flags: &str) -> anyhow::Result<Option<AuditConfig>> {
        let line = Line::try_parse_from(["server"].into_iter().chain(flags.split_whitespace()))?;
        line.audit.config()
    }

    #[test]
    fn a_policy_and_a_sink_are_needed() {
        assert_eq!(parse("").unwrap(), None);
        for (flags, words) in [
            ("--audit-policy-file p", "needs --audit-log-path"),
            ("--audit-log-path l", "--audit-policy-file"),
            ("--audit-policy-file p --audit-webhook-batch-max-size 3", "--audit-webhook-config-file"),
            ("--audit-policy-file p --audit-log-path l --audit-log-maxage x", "invalid value"),
        ] {
            let why = parse(flags).unwrap_err().to_string();
            assert!(why.contains(words), "{flags}: {why}");
        }
        let both = "--audit-policy-file p --audit-log-path - --audit-webhook-config-file k --audit-log-maxbackup 3";
        let found = parse(both).unwrap().unwrap();
        let (log, webhook) = (found.log.unwrap(), found.webhook.unwrap());
        assert_eq!((log.max_backups, log.max_size_mib, found.queue), (3, 100, AUDIT_QUEUE));
        assert_eq!((webhook.batch_size, webhook.batch_wait), (400, Duration::from_secs(30)));
    }
}
