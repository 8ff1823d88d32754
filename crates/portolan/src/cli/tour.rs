//! `portolan demo --tour`: the commands of the plugin one after the other, each with an explanation.

use std::{ffi::OsString, path::Path, time::Duration};

use super::{
    output,
    plugin::{Terminal, UserEnvironment, applets::Applet, execute},
};

/// Time to read an output before the next step.
const PAUSE: Duration = Duration::from_secs(6);

/// Step of the tour: a title, an explanation, and the arguments of `kubectl portolan`.
#[derive(Debug)]
struct TourStep {
    title: &'static str,
    text: &'static str,
    command: String,
}

/// Returns the steps. `drained` is a physical cluster that runs the sample app, `target` one that does not.
fn steps(drained: &str, target: &str) -> Vec<TourStep> {
    let step = |title, text, command: String| TourStep { title, text, command };
    vec![
        step(
            "Where",
            "A policy asked for one physical cluster in each region. The record on the object names them.",
            "where deploy/web".into(),
        ),
        step(
            "Why",
            "Every filter gives a verdict about every physical cluster; the last lines name the nearest change.",
            "why deploy/web".into(),
        ),
        step(
            "Plan",
            "A plan computes what a change would move, with the code that decides, and writes nothing.",
            format!("move deploy/web --to {target} --dry-run"),
        ),
        step(
            "Drain",
            "Emptying a physical cluster: new copies are ready before old ones leave. The drain is an object, too.",
            format!("drain {drained}"),
        ),
        step("Where now", "The same workload, the same ready replicas, elsewhere.", "where deploy/web".into()),
        step(
            "Undo",
            "The record has the split of before, so an undo restores it exactly.",
            format!("drain {drained} --undo"),
        ),
    ]
}

/// Runs the steps in the workspace of the kubeconfig.
///
/// # Errors
/// Fails if a command fails, or the output is closed.
pub(super) async fn run(kubeconfig: &Path, drained: &str, target: &str) -> anyhow::Result<()> {
    let steps = steps(drained, target);
    let count = steps.len();
    for (number, step) in steps.into_iter().enumerate() {
        output::line(&format!("\n[{}/{count}] {}. {}", number + 1, step.title, step.text))?;
        output::line(&format!("$ kubectl portolan {}", step.command))?;
        let mut args = vec![OsString::from("--kubeconfig"), kubeconfig.into()];
        args.extend(step.command.split(' ').map(OsString::from));
        let code = execute(Applet::Portolan, args, UserEnvironment::system(), Terminal::system()).await;
        anyhow::ensure!(code == 0, "kubectl portolan {} ended with {code}", step.command);
        tokio::time::sleep(PAUSE).await;
    }
    output::line("\nThat was the tour. Everything is as before; the demo continues.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tour_takes_about_a_minute_and_undoes_its_changes() {
        let steps = steps("eu-1", "eu-2");
        let commands: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
        assert_eq!(commands.last(), Some(&"drain eu-1 --undo"));
        assert!(commands.iter().any(|command| command.ends_with("--dry-run")), "{commands:?}");
        let pauses = PAUSE * u32::try_from(steps.len()).unwrap();
        assert!(pauses <= Duration::from_secs(50), "{pauses:?}");
    }
}
