//! kcp's clients, unmodified: the examples of its multicluster-provider and of multicluster-runtime, and the requests
//! of its plugins, sent with its own library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::clients::{ClientBundle, Clients};
use harness::kubectl::Kubectl;
use harness::poll;
use harness::process::Process;
use harness::report::CheckReport;
use harness::{portolan::Portolan, tools::Tools};

use super::{ClientStage, programs};
use crate::workspaces::WorkspaceChecks;

/// Time limit of the steps that an example does by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// Workspaces that the manifests of each example make.
const EXAMPLES: [&str; 3] = ["example1", "example2", "example3"];

/// Server with the examples. One example runs at a time, since each serves metrics on the same port.
struct ExampleStage<'a> {
    clients: &'a Clients,
    workspaces: &'a WorkspaceChecks,
    dir: &'a Path,
}

/// Starts a server, and runs kcp's clients in its root workspace, which their manifests name.
pub(crate) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let clients = Clients::build([ClientBundle::Kcp])?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let server = Portolan::start(program, tools, &dir.join("portolan"))?;
    let workspaces = WorkspaceChecks::new(tools, dir, server)?;
    let stage =
        ClientStage { clients: &clients, kubectl: workspaces.root(), workspaces: Some(&workspaces), quay: None, dir };
    let mut plugins = Command::new(clients.kcp("plugins.test"));
    plugins.args(["-test.v", "-test.count=1", "-test.timeout=5m"]);
    programs::run(report, "kcp plugins", plugins, &stage);
    let examples = ExampleStage { clients: &clients, workspaces: &workspaces, dir };
    report.check("kcp: the example apiexport reconciles the workspaces that bind its export", || examples.exports());
    report.check("kcp: the example path-aware finds workspaces by their paths", || examples.paths());
    report.check("kcp: the example initializingworkspaces makes workspaces ready", || examples.initializers());
    report.check("kcp: the example namespace of multicluster-runtime reconciles", || examples.namespaces());
    report.check("kcp: the server is still the process that was started", || workspaces.server().check_alive());
    Ok(())
}

impl ExampleStage<'_> {
    fn root(&self) -> &Kubectl {
        self.workspaces.root()
    }

    /// Starts an example against a workspace.
    fn start(&self, name: &str, args: &[&str], kubectl: &Kubectl) -> Result<Process> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is not UTF-8");
        let (config, home) = (text(kubectl.kubeconfig_file())?, text(self.dir)?);
        let mut all = vec![format!("KUBECONFIG={config}"), format!("HOME={home}"), text(&self.clients.kcp(name))?];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        Process::spawn(&format!("example-{name}"), Path::new("env"), all, self.dir)
    }

    fn manifest(&self, example: &str, file: &str) -> PathBuf {
        self.clients.kcp(&format!("manifests/{example}/{file}"))
    }

    fn apply(&self, example: &str) -> Result<()> {
        let file = self.manifest(example, "bundle.yaml");
        self.root().run(&format!("apply -f {}", file.display())).map(drop)
    }

    fn until_ready(&self) -> Result<()> {
        let names = EXAMPLES.map(|name| format!("workspace/{name}")).join(" ");
        self.root().run(&format!("wait {names} --for=jsonpath={{.status.phase}}=Ready --timeout=50s")).map(drop)
    }

    fn delete(&self, example: &str) -> Result<()> {
        let file = self.manifest(example, "bundle.yaml");
        self.root().within(PATIENCE).run(&format!("delete -f {} --timeout=50s", file.display())).map(drop)
    }

    fn id(&self, name: &str) -> Result<String> {
        let id = self.root().run(&format!("get workspace {name} --output=jsonpath={{.spec.cluster}}"))?;
        ensure!(!id.is_empty(), "{name} has no logical cluster");
        Ok(id)
    }

    fn inside(&self, name: &str) -> Result<Kubectl> {
        let config = self.workspaces.server().workspace(&format!("root:{name}"));
        self.root().with_config(&config, name)
    }

    fn exports(&self) -> Result<()> {
        self.apply("apiexport")?;
        self.until_ready()?;
        let example = self.start("apiexport", &[], self.root())?;
        for name in EXAMPLES {
            self.inside(name)?.run(&format!("create configmap of-{name}"))?;
            self.until_reconciled(&example, name)?;
        }
        let later = self
            .root()
            .run(&format!("create -f {} -o name", self.manifest("apiexport", "workspace.yaml").display()))?;
        let later = later.trim().rsplit('/').next().unwrap_or_default().to_owned();
        self.root().run(&format!("wait workspace/{later} --for=jsonpath={{.status.phase}}=Ready --timeout=50s"))?;
        self.inside(&later)?.run(&format!("create configmap of-{later}"))?;
        self.until_reconciled(&example, &later)?;
        // The claim of events lets it report in the workspaces of its consumers.
        poll::until("an event in the workspace", PATIENCE, || {
            let events = self.inside(&later)?.run("get events --output=jsonpath={.items[*].message}")?;
            ensure!(events.contains(&format!("ConfigMap of-{later} reconciled")), "{events}");
            Ok(())
        })?;
        example.terminate()?;
        self.root().within(PATIENCE).run(&format!("delete workspace {later} --timeout=50s")).map(drop)
    }

    /// Waits until the example has reconciled the ConfigMap `of-<name>` in the workspace `name`.
    fn until_reconciled(&self, example: &Process, name: &str) -> Result<()> {
        let (id, map) = (self.id(name)?, format!("of-{name}"));
        until_logged(example, &format!("the ConfigMap in {name} is reconciled"), |line| {
            line.contains("Reconciling ConfigMap") && line.contains(&id) && line.contains(&map)
        })
    }

    /// Its manifests are those of the example apiexport.
    fn paths(&self) -> Result<()> {
        let example = self.start("path-aware", &["--endpointslice=examples-apiexport-multicluster"], self.root())?;
        for name in EXAMPLES {
            until_logged(&example, &format!("{name} is found by its path"), |line| {
                line.contains("Found ConfigMap via path lookup") && line.contains(&format!("root:{name}"))
            })?;
        }
        example.terminate()?;
        self.delete("apiexport")
    }

    fn initializers(&self) -> Result<()> {
        const TYPE: &str = "examples-initializingworkspaces-multicluster";
        self.apply("initializingworkspaces")?;
        let phases =
            self.root().run("get workspaces example1 example2 example3 --output=jsonpath={.items[*].status.phase}")?;
        ensure!(phases == "Initializing Initializing Initializing", "{phases}");
        let example = self.start("initializingworkspaces", &[&format!("--workspace-type={TYPE}")], self.root())?;
        self.until_ready().with_context(|| example.log_tail())?;
        for name in EXAMPLES {
            let inside = self.inside(name)?;
            inside.run("get configmap kcp-initializer-cm --namespace=default")?;
            inside.run(&format!("get workspace initialized-workspace-{}", self.id(name)?))?;
        }
        example.terminate()?;
        self.delete("initializingworkspaces")
    }

    fn namespaces(&self) -> Result<()> {
        let own = self.workspaces.make("namespaces")?;
        let config = own.kubeconfig_file().to_str().context("a path is not UTF-8")?.to_owned();
        let example = self.start("namespace", &["--kubeconfig", &config], &own)?;
        for (namespace, map) in [("zoo", "elephant"), ("zoo", "lion"), ("jungle", "monkey"), ("island", "bird")] {
            until_logged(&example, &format!("{map} is reconciled"), |line| {
                line.contains("in cluster") && line.contains(&format!("cluster=\"{namespace}\"")) && line.contains(map)
            })?;
        }
        example.terminate()
    }
}

/// Waits for a line in the output of an example.
fn until_logged(example: &Process, what: &str, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    poll::until(what, PATIENCE, || {
        example.check_alive()?;
        ensure!(example.log()?.lines().any(&is_wanted), "{}", example.log_tail());
        Ok(())
    })
}
