//! `portolan version`.

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output;

/// Version of this program.
pub(crate) const PORTOLAN: &str = env!("CARGO_PKG_VERSION");

/// Print the version.
#[derive(Args)]
pub(crate) struct Version {
    /// Output format.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Json,
    Yaml,
}

impl Version {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let kubernetes = portolan_machinery::kinds::KindTable::builtin().version();
        let value = json!({"portolan": PORTOLAN, "kubernetes": kubernetes});
        match self.output {
            None => output::line(&format!("portolan {PORTOLAN}, serving the API of Kubernetes {kubernetes}")),
            Some(Format::Json) => output::line(&serde_json::to_string_pretty(&value)?),
            Some(Format::Yaml) => output::print(&serde_saphyr::to_string(&value)?),
        }
    }
}
