//! Flags that every command has, with kubectl's names and meanings.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::output_format::OutputFormat;

/// kubectl's flags for the server, the user and the namespace.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KubectlFlags {
    /// Path to the kubeconfig file.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Options of every command")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context.
    #[arg(long, global = true, value_name = "NAME", help_heading = "Options of every command")]
    pub(crate) context: Option<String>,
    /// Name of the kubeconfig user.
    #[arg(long, global = true, value_name = "NAME", help_heading = "Options of every command")]
    pub(crate) user: Option<String>,
    /// Address of the API server, with the path of the workspace.
    #[arg(short = 's', long, global = true, value_name = "URL", help_heading = "Options of every command")]
    pub(crate) server: Option<String>,
    /// Bearer token for the API server.
    #[arg(long, global = true, hide_env_values = true, help_heading = "Options of every command")]
    pub(crate) token: Option<String>,
    /// Namespace of the request.
    #[arg(short = 'n', long, global = true, help_heading = "Options of every command")]
    pub(crate) namespace: Option<String>,
    /// User to impersonate.
    #[arg(long = "as", global = true, value_name = "USER", help_heading = "Options of every command")]
    pub(crate) impersonate: Option<String>,
    /// Group to impersonate; may be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP", help_heading = "Options of every command")]
    pub(crate) impersonate_groups: Vec<String>,
    /// UID to impersonate.
    #[arg(long = "as-uid", global = true, value_name = "UID", help_heading = "Options of every command")]
    pub(crate) impersonate_uid: Option<String>,
    /// Time to wait for one request, such as 1s or 2m; 0 for no limit.
    #[arg(long, global = true, value_name = "TIME", default_value = "0", value_parser = request_timeout,
        help_heading = "Options of every command")]
    pub(crate) request_timeout: Duration,
}

/// Parses a time as kubectl does: a number of seconds, or a number with units.
fn request_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let units = || portolan_types::duration::parse(text).ok().and_then(|nanos| u64::try_from(nanos).ok());
    let wrong = || "it is no time, such as 10 (seconds), 1s, 2m or 3h".to_owned();
    seconds.or_else(|| units().map(Duration::from_nanos)).ok_or_else(wrong)
}

/// Parses the longest wait of a command, as `kubectl wait --timeout` does.
pub(crate) fn wait_timeout(text: &str) -> Result<Duration, String> {
    match request_timeout(text)? {
        Duration::ZERO => Err("it must be more than zero".into()),
        time => Ok(time),
    }
}

/// Flags of commands that print objects.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct OutputFlags {
    /// Output format: json, yaml, name, wide, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE, jsonpath-file=FILE,
    /// custom-columns=HEADER:PATH,… or custom-columns-file=FILE.
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) output: Option<OutputFormat>,
    /// Print tables without headers.
    #[arg(long)]
    pub(crate) no_headers: bool,
}

impl OutputFlags {
    /// Returns true for tables with all columns.
    pub(crate) fn is_wide(&self) -> bool {
        self.output == Some(OutputFormat::Wide)
    }

    /// Returns the format of objects; `None` for tables and messages.
    pub(crate) fn object_format(&self) -> Option<OutputFormat> {
        match self.output.clone().filter(OutputFormat::is_of_objects) {
            Some(OutputFormat::CustomColumns(columns)) if self.no_headers => {
                Some(OutputFormat::CustomColumns(columns.without_headers()))
            }
            other => other,
        }
    }
}

/// Flags of commands whose results are not objects.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ReportFlags {
    /// Output format of the result.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub(crate) output: Option<ReportFormat>,
}

/// Output format of a result that has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Indented JSON.
    Json,
    /// YAML.
    Yaml,
}

impl From<ReportFormat> for OutputFormat {
    fn from(of: ReportFormat) -> Self {
        match of {
            ReportFormat::Json => Self::Json,
            ReportFormat::Yaml => Self::Yaml,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_kubectl_reads_them() {
        for (text, expected) in [
            ("0", Ok(Duration::ZERO)),
            ("0s", Ok(Duration::ZERO)),
            ("10", Ok(Duration::from_secs(10))),
            ("1m30s", Ok(Duration::from_secs(90))),
            ("500ms", Ok(Duration::from_millis(500))),
            ("-1s", Err(())),
            ("soon", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(request_timeout(text).map_err(drop), expected, "{text:?}");
        }
        assert!(wait_timeout("0").is_err() && wait_timeout("1s").is_ok());
    }
}
