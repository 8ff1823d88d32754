//! `portolan version`.

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output;

/// Version of this program.
pub(crate) const PORTOLAN: &str = env!("CARGO_PKG_VERSION");

/// Print the version.
#[derive(Args)]
pub(crate) struct VersionArgs {
    /// Output format.
    #[arg(short, long, value_enum)]
    output: Option<VersionFormat>,
}

#[derive(Clone, Copy, ValueEnum)]
enum VersionFormat {
    Json,
    Yaml,
}

impl VersionArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let kubernetes = portolan_kinds::KindTable::builtin().version();
        let value = json!({"portolan": PORTOLAN, "kubernetes": kubernetes});
        match self.output {
            None => output::line(&format!("portolan {PORTOLAN}, serving the API of Kubernetes {kubernetes}")),
            Some(VersionFormat::Json) => output::line(&serde_json::to_string_pretty(&value)?),
            Some(VersionFormat::Yaml) => output::print(&serde_saphyr::to_string(&value)?),
        }
    }
}
