//! Result of a command about the membership of a physical cluster.

use std::io::IsTerminal as _;

use clap::Args;
use serde_json::Value;

use super::super::{output, plugin, plugin::OutputFormat, progress::StepBar};

/// Flag for the format of the result.
#[derive(Args, Clone, Default)]
pub(super) struct AnswerFlags {
    /// Output format: json, yaml, name, wide, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE, jsonpath-file=FILE,
    /// custom-columns=HEADER:PATH,… or custom-columns-file=FILE.
    /// Steps are on standard error in any case.
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub(super) output: Option<OutputFormat>,
}

/// Result of a command: lines for people, or an object.
#[derive(Debug, Default)]
pub(crate) struct MembershipAnswer {
    /// Lines of standard output without a format.
    pub(super) lines: Vec<String>,
    /// Physical cluster, or the printed command.
    pub(super) object: Value,
    /// Reason of a failed check, printed after the result.
    pub(super) failure: Option<anyhow::Error>,
}

impl MembershipAnswer {
    /// Returns the answer of an object, without lines.
    pub(super) fn of(object: Value) -> Self {
        Self { object, ..Self::default() }
    }

    /// Prints the result by `print`.
    ///
    /// # Errors
    /// A failed write, a format that the result does not have, or the reason of a failed check.
    pub(crate) fn print(
        self,
        format: Option<OutputFormat>,
        mut print: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match format.filter(OutputFormat::is_of_objects) {
            Some(format) => print(&plugin::object_text(&format, &self.object)?)?,
            None => self.lines.iter().try_for_each(|line| print(&format!("{line}\n")))?,
        }
        self.failure.map_or(Ok(()), Err)
    }
}

/// Returns the bar of a command of this process: drawn if standard error is a terminal.
pub(super) fn system_bar(steps: u64) -> StepBar {
    StepBar::start(steps, std::io::stderr().is_terminal())
}

/// Prints a result to standard output.
///
/// # Errors
/// As for [`MembershipAnswer::print`].
pub(super) fn print(answer: MembershipAnswer, format: Option<OutputFormat>) -> anyhow::Result<()> {
    answer.print(format, output::print)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_is_printed_in_its_format_before_its_failure() {
        let object =
            json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": "a"}});
        for (format, expected) in [
            (None, "connection  tunnel\n"),
            (Some(OutputFormat::Wide), "connection  tunnel\n"),
            (Some(OutputFormat::Name), "physicalcluster.portolan.dev/a\n"),
        ] {
            let failure = Some(anyhow::anyhow!("a is not ready"));
            let answer = MembershipAnswer { lines: vec!["connection  tunnel".into()], object: object.clone(), failure };
            let mut printed = String::new();
            let result = answer.print(format, |text| {
                printed.push_str(text);
                Ok(())
            });
            assert_eq!((printed.as_str(), result.unwrap_err().to_string().as_str()), (expected, "a is not ready"));
        }
    }
}
