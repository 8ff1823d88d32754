//! Every kubectl verb, unmodified, against a logical cluster. The same checks pass against a real kube-apiserver
//! (`--against kube`): the expected texts and columns are those of Kubernetes.

mod access;
mod basics;
mod certificates;
mod deletion;
mod draining;
mod errors;
mod golden;
mod nodes;
mod objects;
mod printing;
mod workloads;

use std::time::Duration;

use anyhow::{Result, ensure};

use harness::kubectl::{Kubectl, KubectlOutput};
use harness::poll;
use harness::report::CheckReport;

/// The namespace that the checks fill.
const NAMESPACE: &str = "verbs";

/// Time limit for the work of a loop.
const PATIENCE: Duration = Duration::from_secs(60);

/// Context of every check.
struct KubectlContext {
    /// Client of the namespace of the suite.
    kubectl: Kubectl,
    /// Without a namespace.
    anywhere: Kubectl,
}

/// Check: a sentence with the expected behavior, and its code.
type KubectlCheck = (&'static str, fn(&KubectlContext) -> Result<()>);

/// Runs all checks in order. A group may build on the objects of the groups before it.
pub(super) fn run(report: &mut CheckReport, anywhere: &Kubectl) {
    let context = KubectlContext { kubectl: anywhere.in_namespace(NAMESPACE), anywhere: anywhere.clone() };
    let groups = [
        ("basics", basics::CHECKS),
        ("objects", objects::CHECKS),
        ("printing", printing::CHECKS),
        ("errors", errors::CHECKS),
        ("access", access::CHECKS),
        ("certificates", certificates::CHECKS),
        ("nodes", nodes::CHECKS),
        ("workloads", workloads::CHECKS),
        ("draining", draining::CHECKS),
        ("deletion", deletion::CHECKS),
    ];
    for (group, checks) in groups {
        for (name, check) in checks {
            report.check(&format!("kubectl {group}: {name}"), || check(&context));
        }
    }
}

impl KubectlContext {
    /// Runs kubectl in the namespace, and checks for exit code 0 and all of `texts` in stdout.
    fn says(&self, args: &str, texts: &[&str]) -> Result<String> {
        let out = self.kubectl.run(args)?;
        contains(args, &out, texts)?;
        Ok(out)
    }

    /// Runs kubectl in the namespace, and checks for exit code 0 and exactly this stdout, as normalized by
    /// [`golden::settled`].
    fn prints(&self, args: &str, expected: &str) -> Result<()> {
        self.prints_for(args, "", expected)
    }

    /// Checks as [`KubectlContext::prints`], with stdin.
    fn prints_for(&self, args: &str, stdin: &str, expected: &str) -> Result<()> {
        let found = golden::settled(&self.kubectl.run_with(args, stdin)?);
        ensure!(found == expected, "{args} prints\n{found}expected\n{expected}");
        Ok(())
    }

    /// Runs kubectl in the namespace, and checks for exit code 1 and all of `texts` in stderr.
    fn refuses(&self, args: &str, stdin: &str, texts: &[&str]) -> Result<()> {
        refused(&self.kubectl.call(args, stdin)?, texts)
    }

    /// `kubectl apply -f -` of one text.
    fn apply(&self, manifest: &str) -> Result<String> {
        self.kubectl.run_with("apply -f -", manifest)
    }

    /// One JSONPath of one object.
    fn path(&self, object: &str, path: &str) -> Result<String> {
        self.kubectl.run_args(&["get", object, "-o", &format!("jsonpath={path}")])
    }

    /// Checks that a JSONPath of an object prints exactly `expected`.
    fn path_is(&self, object: &str, path: &str, expected: &str) -> Result<()> {
        let found = self.path(object, path)?;
        ensure!(found == expected, "{object} {path} is {found:?}, expected {expected:?}");
        Ok(())
    }

    /// Waits until [`KubectlContext::path_is`] is true.
    fn path_becomes(&self, object: &str, path: &str, expected: &str) -> Result<()> {
        poll::until("a field", PATIENCE, || self.path_is(object, path, expected))
    }

    /// kubectl with a long time limit.
    fn slow(&self) -> Kubectl {
        self.kubectl.within(Duration::from_secs(130))
    }

    /// `kubectl rollout status`, bounded.
    fn rolled_out(&self, object: &str) -> Result<()> {
        self.slow().run(&format!("rollout status {object} --timeout=120s")).map(drop)
    }

    /// `kubectl wait`, bounded.
    fn wait(&self, args: &str) -> Result<()> {
        self.slow().run(&format!("wait {args} --timeout=120s")).map(drop)
    }
}

fn contains(what: &str, out: &str, texts: &[&str]) -> Result<()> {
    for text in texts {
        ensure!(out.contains(text), "{what}: {text:?} is not in\n{}", out.chars().take(1500).collect::<String>());
    }
    Ok(())
}

fn refused(output: &KubectlOutput, texts: &[&str]) -> Result<()> {
    ensure!(output.code == Some(1), "expected exit code 1\n{output}");
    for text in texts {
        ensure!(output.stderr.contains(text), "{text:?} is not in stderr\n{output}");
    }
    Ok(())
}

/// A ConfigMap manifest with one key `k`.
fn config_map(name: &str, value: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{k: '{value}'}}}}\n---\n")
}
