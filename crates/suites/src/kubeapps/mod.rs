//! Users who sign in by OIDC, with kubectl and with Kubeapps: they work in the workspaces that RBAC gives them, and on
//! a physical cluster that trusts the same issuer, and nowhere else.
//!
//! The issuer is the example server of `github.com/zitadel/oidc`. Kubeapps cannot be had as a program: the suite sends
//! its requests.

mod requests;
mod sign_in;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::workspaces::WorkspaceChecks;
use harness::control_plane::{Durability, KubeControlPlane};
use harness::kubeconfig::UserKubeconfig;
use harness::kubectl::Kubectl;
use harness::pki::PemPair;
use harness::poll;
use harness::process::{self, Process};
use harness::report::CheckReport;
use harness::{portolan::Portolan, tools::Tools};
use requests::{JsonAnswer, UserCluster};
use sign_in::{ANN, BOB, CLIENT, IssuerUser, SignedInUser, TokenIssuer};

/// Physical cluster, which trusts the issuer. It is mounted in root under its name.
const MEMBER: &str = "member";
/// The same physical cluster, as a tenant registers it.
const OWN: &str = "own";
/// Workspace in which one of the users has rights.
const SHOP: &str = "root:shop";
/// Workspace of others.
const BLOG: &str = "root:blog";
/// User of the physical cluster that a user with a certificate acts as.
const MAPPED: &str = "guest";
/// Time in which a change of the PhysicalCluster takes effect.
const LIMIT: Duration = Duration::from_secs(30);
const JOIN_LIMIT: Duration = Duration::from_secs(60);
const CREDENTIALS: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";

/// Servers, and the users who have signed in.
struct SignInScene<'a> {
    workspaces: &'a WorkspaceChecks,
    member: &'a KubeControlPlane,
    ann: SignedInUser,
    bob: SignedInUser,
    audit_log: &'a Path,
}

/// Starts the issuer and the servers, and runs all checks in order.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let issuer = TokenIssuer::start(&dir.join("issuer"))?;
    let trust = issuer.flags();
    let flags: Vec<&str> = trust.iter().map(String::as_str).collect();
    let member_dir = dir.join(MEMBER);
    let member = KubeControlPlane::start_as("admin", tools, &member_dir, Durability::Unsynced, &flags)?;
    let _controllers = start_controllers(tools, &member_dir, &member)?;
    let (policy, audit_log) = (dir.join("policy.yaml"), dir.join("audit.log"));
    fs::write(&policy, "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}")?;
    let audit =
        [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", audit_log.display())];
    let flags: Vec<&str> = trust.iter().chain(&audit).map(String::as_str).collect();
    let server = Portolan::start_with(program, tools, &dir.join("portolan"), &flags)?;
    let workspaces = WorkspaceChecks::new(tools, dir, server)?;
    let root = workspaces.root();
    let settled = || settle(&workspaces, &member, program);
    if !report.check("kubeapps: two workspaces, and a physical cluster that is mounted", settled) {
        return Ok(());
    }
    let mut users = Vec::new();
    report.check("oidc: two users sign in with kubectl portolan login, in a browser", || {
        for user in [ANN, BOB] {
            let at_root = root.config().with_server(&url_of(&workspaces, "root"));
            users.push(issuer.sign_in(user, &at_root, program, tools)?);
        }
        Ok(())
    });
    let Ok([ann, bob]) = <[SignedInUser; 2]>::try_from(users) else { return Ok(()) };
    let scene = SignInScene { workspaces: &workspaces, member: &member, ann, bob, audit_log: &audit_log };
    report.check("oidc: a user works in the workspace that RBAC gives her", || scene.works_in_own());
    report.check("oidc: she and others work nowhere else", || scene.works_nowhere_else());
    report.check("oidc: the audit shows both", || scene.is_audited());
    report.check("kubeapps: a user with rights manages a release in a workspace", || scene.manages_release());
    report.check("kubeapps: a user without rights gets 403, and no namespace", || scene.refuses_others());
    report.check("kubeapps: no token reaches a physical cluster without consent", || scene.keeps_tokens());
    report.check("kubeapps: with consent it gets the user's token, and its RBAC decides", || scene.forwards_tokens());
    report.check("kubeapps: it gets no token of another audience", || scene.keeps_tokens_of_others());
    report.check("kubeapps: a physical cluster that a tenant registered gets no token", || scene.keeps_from_tenants());
    report.check("kubeapps: a TokenCredentialRequest serves without OIDC", || scene.exchanges_tokens());
    report.check("kubeapps: the server is still the process that was started", || workspaces.server().check_alive());
    Ok(())
}

/// Starts the controllers that fill the Secrets of ServiceAccounts and the role `view`, for a control plane.
fn start_controllers(tools: &Tools, dir: &Path, member: &KubeControlPlane) -> Result<Process> {
    let config = member.kubeconfig().write(&dir.join("controllers.kubeconfig"))?;
    let file = |name: &str| dir.join("pki").join(name).display().to_string();
    let flags = [
        format!("--kubeconfig={}", config.display()),
        format!("--root-ca-file={}", file("ca.crt")),
        format!("--service-account-private-key-file={}", file("service-accounts.key")),
        "--controllers=serviceaccount-token-controller,serviceaccount-controller,clusterrole-aggregation-controller"
            .to_owned(),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
    ];
    Process::spawn("kube-controller-manager", &tools.kube_controller_manager(), flags, &dir.join("logs"))
}

/// Returns the URL of a workspace.
fn url_of(workspaces: &WorkspaceChecks, path: &str) -> String {
    workspaces.server().workspace(path).server().to_owned()
}

/// Makes the workspaces, joins and mounts the physical cluster, and gives one of the users rights in both.
fn settle(workspaces: &WorkspaceChecks, member: &KubeControlPlane, program: &Path) -> Result<()> {
    let shop = workspaces.make("shop")?;
    workspaces.make("blog")?;
    let root = workspaces.root();
    let below = root.with_config(member.kubeconfig(), "below")?;
    let mut join = Command::new(program);
    join.args(["cluster", "join", MEMBER, "--kubeconfig"]).arg(below.kubeconfig_file());
    join.arg("--upstream").arg(root.kubeconfig_file()).arg("--access");
    join.arg(format!("--access-user=nobody={MAPPED}"));
    process::output(&mut join, JOIN_LIMIT)?;
    let mounted = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "name": MEMBER});
    let workspace = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace",
        "metadata": {"name": MEMBER}, "spec": {"mount": {"ref": mounted}}});
    root.run_with("apply -f -", &workspace.to_string())?;
    root.run(&format!("wait workspace/{MEMBER} --for=jsonpath={{.status.phase}}=Ready --timeout=50s"))?;
    shop.run(&format!("create clusterrolebinding ann --clusterrole=admin --user={}", ANN.name()))?;
    for user in [ANN, BOB] {
        grant_proxy(root, user)?;
    }
    below.run(&format!("create clusterrolebinding ann --clusterrole=cluster-admin --user={}", ANN.name()))?;
    below.run(&format!("create clusterrolebinding guest --clusterrole=view --user={MAPPED}")).map(drop)
}

/// Registers the physical cluster in a workspace, as a tenant with a kubeconfig can, and consents to tokens.
fn register(kubectl: &Kubectl, name: &str, member: &KubeControlPlane) -> Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "stringData": {"kubeconfig": member.kubeconfig().to_json()}});
    let reference = json!({"namespace": "default", "name": name, "key": "kubeconfig"});
    let access = json!({"forwardTokens": {"audiences": [CLIENT]}});
    let registered = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
        "metadata": {"name": name},
        "spec": {"connection": {"direct": {"kubeconfigSecretRef": reference}}, "access": access}});
    let items = json!({"apiVersion": "v1", "kind": "List", "items": [secret, registered]});
    kubectl.run_with("apply -f -", &items.to_string()).map(drop)
}

/// Gives a user all verbs on the API of the physical cluster, in the workspace of its registration.
fn grant_proxy(kubectl: &Kubectl, user: IssuerUser) -> Result<()> {
    let name = user.name().replace(':', "-");
    let verbs = "--verb=get,create,update,patch,delete";
    kubectl.run(&format!("create clusterrole {name} {verbs} --resource=physicalclusters.portolan.dev/proxy"))?;
    kubectl.run(&format!("create clusterrolebinding {name} --clusterrole={name} --user={}", user.name())).map(drop)
}

/// Checks that Portolan refused a request, because it forwards no token and the user is mapped to nobody.
fn is_unmapped(answer: JsonAnswer) -> Result<()> {
    let refused = answer.expect(403)?;
    ensure!(refused["message"].as_str().is_some_and(|why| why.contains("mapped to no user")), "{refused}");
    Ok(())
}

impl SignInScene<'_> {
    fn root(&self) -> &Kubectl {
        self.workspaces.root()
    }

    /// Returns a workspace or mount as Kubeapps reaches it for a user.
    fn cluster(&self, user: &SignedInUser, path: &str) -> Result<UserCluster> {
        Ok(UserCluster(self.workspaces.server().workspace(path).with_token(&user.token()?)))
    }

    fn mount(&self, user: &SignedInUser) -> Result<UserCluster> {
        self.cluster(user, &format!("root:{MEMBER}"))
    }

    fn works_in_own(&self) -> Result<()> {
        let shop = url_of(self.workspaces, SHOP);
        self.ann.kubectl(&shop, "create configmap of-ann --from-literal=a=b")?;
        let found = self.ann.kubectl(&shop, "get configmap of-ann --output=jsonpath={.data.a}")?;
        ensure!(found == "b", "{found}");
        let user = self.ann.kubectl(&shop, "auth whoami --output=jsonpath={.status.userInfo.username}")?;
        ensure!(user == ANN.name(), "{user}");
        Ok(())
    }

    fn works_nowhere_else(&self) -> Result<()> {
        for (user, path) in [(&self.ann, BLOG), (&self.ann, "root"), (&self.bob, SHOP), (&self.bob, BLOG)] {
            for args in ["create configmap of-others", "get secrets --namespace=default", "get namespaces"] {
                let Err(refused) = user.kubectl(&url_of(self.workspaces, path), args) else {
                    anyhow::bail!("kubectl {args} works in {path}");
                };
                let refused = format!("{refused:#}");
                ensure!(refused.to_lowercase().contains("forbidden"), "{refused}");
            }
        }
        Ok(())
    }

    /// Returns the events of the audit log about ConfigMaps that a user wrote.
    fn audited(&self, user: IssuerUser) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.audit_log).context("there is no audit log")?;
        let events = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let is_wanted = |event: &Value| {
            let of_maps = event["objectRef"]["resource"] == "configmaps" && event["stage"] == "ResponseComplete";
            of_maps && event["user"]["username"] == user.name() && event["verb"] == "create"
        };
        Ok(events.into_iter().filter(is_wanted).collect())
    }

    fn is_audited(&self) -> Result<()> {
        poll::until("the events are written", LIMIT, || {
            for (user, path, code, decision) in
                [(ANN, SHOP, 201, "allow"), (ANN, BLOG, 403, "forbid"), (BOB, SHOP, 403, "forbid")]
            {
                let events = self.audited(user)?;
                let is_shown = |event: &Value| {
                    let annotation = |key: &str| event["annotations"][key].as_str().unwrap_or_default();
                    event["responseStatus"]["code"] == code
                        && event["requestURI"].as_str().is_some_and(|uri| uri.contains(&format!("/clusters/{path}/")))
                        && annotation("authorization.k8s.io/decision") == decision
                        && !annotation("tenancy.kcp.io/workspace").is_empty()
                };
                ensure!(events.iter().any(is_shown), "{code} in {path} is missing: {}", json!(events));
            }
            Ok(())
        })
    }

    fn manages_release(&self) -> Result<()> {
        let shop = self.cluster(&self.ann, SHOP)?;
        ensure!(shop.may_get_secrets()?, "she may not get Secrets");
        shop.manage_release()
    }

    fn refuses_others(&self) -> Result<()> {
        let others = self.cluster(&self.bob, SHOP)?;
        others.refuses_all()?;
        self.cluster(&self.ann, BLOG)?.refuses_all()
    }

    /// Merges into `spec.access` of the physical cluster, as its administrator.
    fn consent(&self, access: &Value) -> Result<()> {
        let patch = json!({"spec": {"access": access}}).to_string();
        self.root().run_args(&["patch", "physicalcluster", MEMBER, "--type=merge", "-p", &patch]).map(drop)
    }

    /// Checks that the physical cluster gets no request of a user who is known there only by the token.
    fn keeps_tokens(&self) -> Result<()> {
        is_unmapped(self.mount(&self.ann)?.get("/api/v1/namespaces")?)
    }

    fn forwards_tokens(&self) -> Result<()> {
        self.consent(&json!({"forwardTokens": {"audiences": [CLIENT]}}))?;
        let (ann, bob) = (self.mount(&self.ann)?, self.mount(&self.bob)?);
        poll::until("the token is forwarded", LIMIT, || ann.is_user(&ANN.name()))?;
        ann.get("/api/v1/namespaces")?.expect(200)?;
        ensure!(ann.may_get_secrets()?, "she may not get Secrets");
        ann.manage_release()?;
        bob.is_user(&BOB.name())?;
        bob.refuses_all()
    }

    fn keeps_tokens_of_others(&self) -> Result<()> {
        self.consent(&json!({"forwardTokens": {"audiences": ["other"]}}))?;
        poll::until("the token is not forwarded", LIMIT, || self.keeps_tokens())
    }

    /// Registers the same physical cluster in a workspace, with all rights and consent there.
    fn keeps_from_tenants(&self) -> Result<()> {
        let shop = self.root().with_config(&self.workspaces.server().workspace(SHOP), "tenant")?;
        register(&shop, OWN, self.member)?;
        grant_proxy(&shop, ANN)?;
        let proxied = format!("/apis/portolan.dev/v1alpha1/physicalclusters/{OWN}/proxy/api/v1/namespaces");
        is_unmapped(self.cluster(&self.ann, SHOP)?.get(&proxied)?)
    }

    /// Exchanges a token as Kubeapps does through Pinniped, and uses the certificate in a workspace and a mount.
    fn exchanges_tokens(&self) -> Result<()> {
        self.consent(&json!({"forwardTokens": null, "users": [{"name": ANN.name(), "as": MAPPED}]}))?;
        let mount = format!("root:{MEMBER}");
        let certified = self.exchanged(&self.ann.token()?, &mount)?;
        let at = |path: &str| UserCluster(certified.with_server(&url_of(self.workspaces, path)));
        at(SHOP).is_user(&ANN.name())?;
        at(SHOP).manage_release()?;
        at(BLOG).refuses_all()?;
        poll::until("she is mapped to a user of the physical cluster", LIMIT, || at(&mount).is_user(MAPPED))?;
        at(&mount).get("/api/v1/namespaces")?.expect(200)?;
        let secrets = at(&mount).get("/api/v1/namespaces/default/secrets")?;
        ensure!(secrets.code == 403, "{secrets:?}");
        let forged = self.exchanged("e30.e30.e30", &mount);
        ensure!(forged.is_err(), "a forged token was exchanged");
        Ok(())
    }

    /// Returns a kubeconfig with the certificate for a token.
    fn exchanged(&self, token: &str, path: &str) -> Result<UserKubeconfig> {
        let cluster = self.workspaces.server().workspace(path);
        let authenticator = json!({"apiGroup": "authentication.concierge.pinniped.dev", "kind": "JWTAuthenticator",
            "name": "kubeapps"});
        let request = json!({"apiVersion": "login.concierge.pinniped.dev/v1alpha1", "kind": "TokenCredentialRequest",
            "spec": {"token": token, "authenticator": authenticator}});
        let anonymous = UserCluster(cluster.with_token(token));
        let answer = anonymous.send(Method::POST, CREDENTIALS, &request)?.expect(201)?;
        let text = |field: &str| -> Result<String> {
            let value = answer["status"]["credential"][field].as_str();
            value.filter(|text| !text.is_empty()).map(str::to_owned).with_context(|| format!("{field} is missing"))
        };
        let pair = PemPair { certificate: text("clientCertificateData")?, key: text("clientKeyData")? };
        let ca = String::from_utf8(cluster.ca().to_vec()).context("the CA is no PEM")?;
        Ok(UserKubeconfig::new(cluster.server(), &ca, &pair))
    }
}
