//! Published cert-manager: controller, webhook and CA injector, installed by its own chart, each with its
//! ServiceAccount from the chart. Its own published end-to-end tests check it: all that need no serving pod, run by the
//! program that its project uses.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::ginkgo::Specs;
use super::ClientStage;
use super::harbour::{Harbour, OperatorCheck, PATIENCE};
use harness::go;
use harness::poll;
use harness::ports::free_port;
use harness::process::{self, Process};
use harness::report::CheckReport;

const NAMESPACE: &str = "cert-manager";
const RELEASE: &str = "cert-manager";
/// Time limit of all its tests, with a margin for the report of unfinished ones.
const LIMIT: Duration = Duration::from_secs(1200);
const REPORTED: Duration = Duration::from_secs(60);
/// Minimum number of its cases that run.
const CASES: usize = 191;

/// Feature gates of its own tests, without those that need the kinds of the Gateway API.
const GATES: &str = "AdditionalCertificateOutputFormats=true,ExperimentalCertificateSigningRequestControllers=true,\
                     LiteralCertificateSubject=true";
/// Its tests that are left out.
const LEFT_OUT: [&str; 5] = [
    // They want servers in pods or on the internet: ACME servers, Vault, Venafi, an issuer of another project.
    "ACME|Vault|Venafi|External|Gateway|Ingress",
    // They compare with certificates that have ended in 2023.
    "when the CA is (an issuer|a second level issuer)",
    // It expects the administrator to have the name that kubeadm uses.
    "should appropriately create set UserInfo of CertificateRequests, and reject changes",
    // They use one Secret of the namespace cert-manager, as another case does at the same time: each undoes the
    // other's.
    "CertificateSigningRequests SelfSigned Secret ClusterIssuer: private key Secret is updated",
    // The same 41 cases with each kind of issuer: one will do, for it takes minutes.
    "with issuer type (SelfSigned|CA ClusterIssuer)",
];
/// Number of concurrent cases, which mostly wait.
const PROCESSES: usize = 16;

/// A certificate of a chain: an issuer that signs itself, its certificate, an issuer by that, and a certificate of
/// that.
const CHAIN: &str = r#"
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: itself}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: authority}
spec: {isCA: true, commonName: harbour, secretName: authority, issuerRef: {name: itself}}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: authority}
spec: {ca: {secretName: authority}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: quay}
spec: {dnsNames: [quay.harbour.test], secretName: quay, issuerRef: {name: authority}}
"#;

/// Valid by its schema, but refused by its webhook.
const WRONG: &str = r#"{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: wrong},
    spec: {secretName: wrong, issuerRef: {name: itself}}}"#;

const CHECKS: [OperatorCheck; 4] = [
    ("a chain of issuers and certificates becomes ready, each with its Secret", issues),
    ("a certificate that only its webhook can judge is refused", refuses),
    ("a certificate is renewed when its Secret goes, and when somebody asks for it", renews),
    ("newer definitions are applied over its own, and it works on", upgrades),
];

/// Runs all checks in order. Each builds on those before it.
pub(super) fn run(report: &mut CheckReport, stage: &ClientStage<'_>) {
    let mut harbour = None;
    let ready = report.check("cert-manager: its chart is installed, and its programs start", || {
        harbour = Some(launch(stage)?);
        Ok(())
    });
    let Some(harbour) = harbour.filter(|_| ready) else { return };
    if report.check("cert-manager: its own certificate is in the configuration of its webhooks", || serves(&harbour)) {
        published(report, stage, &harbour);
        harbour.check_all(report, "cert-manager", &CHECKS);
    }
    report.check("cert-manager: it ends when it is told to, and goes with its chart", || ends(stage, harbour));
}

fn launch(stage: &ClientStage<'_>) -> Result<Harbour> {
    let webhook = Webhook::of(stage)?;
    let chart = stage.clients.cert_manager("chart");
    // Its programs run here and not in pods: pods of its Deployments would be others, without effect.
    let values = format!(
        "replicaCount=0,cainjector.replicaCount=0,startupapicheck.enabled=false,\
         global.leaderElection.namespace={NAMESPACE},{}",
        webhook.values
    );
    stage.kubectl.run(&format!("create namespace {NAMESPACE}"))?;
    if let Some(quay) = stage.quay {
        stage.kubectl.run(&format!("annotate namespace {NAMESPACE} portolan.dev/pin={}", quay.name()))?;
    }
    helm(stage, &["install", RELEASE, go::text(&chart)?, "--set", &values])?;
    stage.kubectl.run("wait crd --all --for=condition=Established --timeout=60s")?;
    if stage.quay.is_some() {
        let kubectl = stage.kubectl.in_namespace(NAMESPACE).within(PATIENCE);
        kubectl.run("rollout status deployment/cert-manager-webhook --timeout=50s")?;
    }
    stage.kubectl.run("create namespace harbour")?;
    let gates = format!("--feature-gates={GATES}");
    let leads = format!("--leader-election-namespace={NAMESPACE}");
    let programs = [
        (
            "controller",
            "cert-manager",
            vec![
                leads.clone(),
                gates.clone(),
                format!("--cluster-resource-namespace={NAMESPACE}"),
                format!("--metrics-listen-address=127.0.0.1:{}", free_port()?),
            ],
        ),
        (
            "webhook",
            "cert-manager-webhook",
            vec![
                gates,
                format!("--secure-port={}", webhook.port),
                format!("--healthz-port={}", free_port()?),
                format!("--dynamic-serving-ca-secret-namespace={NAMESPACE}"),
                "--dynamic-serving-ca-secret-name=cert-manager-webhook-ca".to_owned(),
                format!("--dynamic-serving-dns-names={}", webhook.names),
            ],
        ),
        ("cainjector", "cert-manager-cainjector", vec![leads]),
    ];
    let programs = programs.into_iter().map(|(name, account, flags)| spawn(stage, name, account, flags));
    Ok(Harbour { programs: programs.collect::<Result<_>>()?, kubectl: stage.kubectl.in_namespace("harbour") })
}

/// Address of the webhook, which runs beside the tests.
struct Webhook {
    /// Port on which it listens.
    port: u16,
    /// Names in its certificate.
    names: String,
    /// Values of the chart that describe it.
    values: String,
}

impl Webhook {
    /// Chooses the address. A pod whose port leads here stands behind the chart's Service, as intended: Portolan goes
    /// through the pod. A kube-apiserver cannot reach a Service here and gets a URL.
    fn of(stage: &ClientStage<'_>) -> Result<Self> {
        if let Some(quay) = stage.quay {
            let forwarded = quay.kubelet().https;
            let service = format!("{RELEASE}-webhook");
            return Ok(Self {
                port: forwarded.local,
                names: format!("{service},{service}.{NAMESPACE},{service}.{NAMESPACE}.svc"),
                values: format!("webhook.securePort={}", forwarded.pod),
            });
        }
        let port = free_port()?;
        let values = format!("webhook.replicaCount=0,webhook.url.host=localhost:{port}");
        Ok(Self { port, names: "localhost".to_owned(), values })
    }
}

/// Starts one of its programs as the service account that its chart made for it.
fn spawn(stage: &ClientStage<'_>, name: &str, account: &str, flags: Vec<String>) -> Result<Process> {
    let token = stage.kubectl.in_namespace(NAMESPACE).run(&format!("create token {account} --duration=1h"))?;
    let config = stage.kubectl.config().with_token(token.trim());
    let config = config.write(&stage.dir.join(format!("{account}-account.kubeconfig")))?;
    let program = stage.clients.cert_manager(name);
    Process::spawn(
        account,
        &program,
        [format!("--kubeconfig={}", config.display())].into_iter().chain(flags),
        stage.dir,
    )
}

fn helm(stage: &ClientStage<'_>, args: &[&str]) -> Result<String> {
    let mut command = Command::new(stage.clients.helm());
    command.args(args).args(["--namespace", NAMESPACE]);
    command.env("KUBECONFIG", stage.kubectl.kubeconfig_file()).env("HOME", stage.dir);
    let ended = process::run(&mut command, "", PATIENCE)?;
    ensure!(ended.status.success(), "helm {args:?}: {}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
    Ok(ended.stdout)
}

/// Its own end-to-end tests, each group of them a check.
fn published(report: &mut CheckReport, stage: &ClientStage<'_>, harbour: &Harbour) {
    let mut specs = None;
    report.check("cert-manager: its own end-to-end tests run to their end", || {
        specs = Some(run_published(stage)?);
        Ok(())
    });
    for group in specs.iter().flat_map(Specs::groups) {
        let outcome = group.outcome().with_context(|| harbour.logs());
        report.record(
            &format!("cert-manager's own tests: {}, {} cases", group.name, group.ran),
            group.seconds,
            outcome,
        );
    }
}

fn run_published(stage: &ClientStage<'_>) -> Result<Specs> {
    let told = stage.dir.join("cert-manager-tests.json");
    let mut command = Command::new(stage.clients.cert_manager("ginkgo"));
    command
        .args([format!("--procs={PROCESSES}"), format!("--timeout={}s", LIMIT.as_secs()), "--no-color".to_owned()])
        .args(LEFT_OUT.map(|cases| format!("--skip={cases}")))
        .args(["--output-dir", go::text(stage.dir)?, "--json-report", "cert-manager-tests.json"])
        .arg(stage.clients.cert_manager("e2e.test"))
        .args(["--", "--repo-root", go::text(stage.dir)?, "--feature-gates", GATES])
        .env("KUBECONFIG", stage.kubectl.kubeconfig_file())
        .env("HOME", stage.dir)
        .current_dir(stage.dir);
    let ended = process::run(&mut command, "", LIMIT + REPORTED)?;
    let report = std::fs::read(&told).with_context(|| format!("no report: {}\n{}", ended.stdout, ended.stderr))?;
    Specs::read(&serde_json::from_slice::<Value>(&report)?, CASES)
}

fn serves(harbour: &Harbour) -> Result<()> {
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        let object = format!("{kind}/cert-manager-webhook");
        harbour.becomes(&object, "{.webhooks[0].clientConfig.caBundle}", |found| !found.is_empty())?;
    }
    poll::until("its webhooks answer", PATIENCE, || {
        harbour.check_alive()?;
        harbour.kubectl.run_with("create --dry-run=server -f -", CHAIN).map(drop)
    })
}

fn issues(harbour: &Harbour) -> Result<()> {
    harbour.kubectl.run_with("apply -f -", CHAIN)?;
    for object in ["issuer/itself", "certificate/authority", "issuer/authority", "certificate/quay"] {
        harbour.is_true(object, "Ready")?;
    }
    let authority = harbour.becomes("secret/authority", "{.data.tls\\.crt}", |found| !found.is_empty())?;
    harbour.becomes("secret/quay", "{.data.ca\\.crt}", |found| found == authority)?;
    let table = harbour.kubectl.run("get certificate quay")?;
    let words: Vec<&str> = table.split_whitespace().collect();
    ensure!(words.starts_with(&["NAME", "READY", "SECRET", "AGE", "quay", "True", "quay"]), "{table}");
    Ok(())
}

fn refuses(harbour: &Harbour) -> Result<()> {
    let said = harbour.kubectl.call("apply -f -", WRONG)?.to_string();
    let expected = "admission webhook \"webhook.cert-manager.io\" denied the request: spec: Invalid value: \"\": at least \
                    one of commonName, dnsNames, uris ipAddresses, or emailAddresses must be set";
    ensure!(said.contains(expected), "{said}");
    Ok(())
}

fn renews(harbour: &Harbour) -> Result<()> {
    let certificate = "{.data.tls\\.crt}";
    let first = harbour.becomes("secret/quay", certificate, |found| !found.is_empty())?;
    harbour.kubectl.run("delete secret quay")?;
    poll::until("there is another Secret", PATIENCE, || {
        let found = harbour.seen("secret/quay", certificate)?;
        ensure!(!found.is_empty() && found != first, "it is {found:?}");
        Ok(())
    })?;
    // The Secret is written before the status of the certificate, and a request in between fails.
    harbour.is("certificate/quay", "{.status.revision}", "2")?;
    harbour.is_true("certificate/quay", "Ready")?;
    let second = harbour.becomes("secret/quay", certificate, |found| !found.is_empty())?;
    // What `cmctl renew` writes.
    let asked = r#"{"status": {"conditions": [{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
        "message": "asked for"}]}}"#;
    harbour.kubectl.run_args(&["patch", "certificate/quay", "--subresource=status", "--type=merge", "-p", asked])?;
    harbour.becomes("secret/quay", certificate, |found| !found.is_empty() && found != second)?;
    harbour.is("certificate/quay", "{.status.revision}", "3")?;
    harbour.is_true("certificate/quay", "Ready")
}

/// The definitions of a release that is years newer, as Go keeps them.
fn upgrades(harbour: &Harbour) -> Result<()> {
    let newer = go::fetched("github.com/cert-manager/cert-manager@v1.21.2")?.join("deploy/crds");
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", go::text(&newer)?];
    harbour.kubectl.within(PATIENCE).run_args(&apply)?;
    harbour.kubectl.run("wait crd --all --for=condition=Established --timeout=60s")?;
    harbour.is_true("certificate/quay", "Ready")?;
    harbour.kubectl.run("delete secret quay")?;
    harbour.is("certificate/quay", "{.status.revision}", "4")?;
    harbour.is_true("certificate/quay", "Ready")
}

fn ends(stage: &ClientStage<'_>, harbour: Harbour) -> Result<()> {
    harbour.kubectl.within(PATIENCE).run("delete certificates,issuers --all --timeout=50s")?;
    harbour.gone("certificaterequests,orders,challenges").context("what it made goes with its certificates")?;
    harbour.stop()?;
    helm(stage, &["uninstall", RELEASE, "--wait"])?;
    let kubectl = stage.kubectl.within(PATIENCE * 2);
    let definitions = kubectl.run("get crd -o name")?;
    ensure!(!definitions.contains("cert-manager"), "{definitions}");
    let roles = kubectl.run(
        "get clusterroles,clusterrolebindings,validatingwebhookconfigurations,\
                             mutatingwebhookconfigurations -l app.kubernetes.io/instance=cert-manager -o name",
    )?;
    ensure!(roles.is_empty(), "{roles}");
    kubectl.run(&format!("delete namespace harbour {NAMESPACE} --timeout=110s")).map(drop)
}
