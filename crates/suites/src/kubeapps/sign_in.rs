//! Sign-in at the example server of `github.com/zitadel/oidc`, with `kubectl portolan login`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use harness::clients::{ClientBundle, Clients};
use harness::kubeconfig::UserKubeconfig;
use harness::ports::free_port;
use harness::process::{self, Process};
use harness::{poll, tools::Tools};

/// Client id at the issuer, and thus the audience of the tokens.
pub(super) const CLIENT: &str = "kubeapps";
/// Prefix that the servers give to the users of the issuer.
pub(super) const PREFIX: &str = "oidc:";
/// Time limit of one step.
const PATIENCE: Duration = Duration::from_secs(30);

/// Running issuer of tokens, with the folders of its users.
pub(super) struct TokenIssuer {
    program: PathBuf,
    url: String,
    dir: PathBuf,
    process: Process,
}

/// User of the issuer: the example server has two.
#[derive(Clone, Copy)]
pub(super) struct IssuerUser {
    /// Name at the login page.
    login: &'static str,
    /// Claim `sub`.
    subject: &'static str,
}

/// User with rights.
pub(super) const ANN: IssuerUser = IssuerUser { login: "test-user@127.0.0.1", subject: "id1" };
/// User without rights.
pub(super) const BOB: IssuerUser = IssuerUser { login: "test-user2", subject: "id2" };

/// User who has signed in: kubectl with the credential plugin in its kubeconfig.
pub(super) struct SignedInUser {
    kubeconfig: PathBuf,
    home: PathBuf,
    path: String,
}

impl IssuerUser {
    /// Returns the name of the user at the servers.
    pub(super) fn name(self) -> String {
        format!("{PREFIX}{}", self.subject)
    }
}

impl TokenIssuer {
    /// Starts the issuer and waits until it answers.
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let program = Clients::build([ClientBundle::Oidc])?.oidc();
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let args = ["serve".as_ref(), address.as_ref(), dir.as_os_str()];
        let process = Process::spawn("issuer", &program, args, dir)?;
        let issuer = Self { program, url: format!("https://{address}"), dir: dir.to_owned(), process };
        poll::until("the issuer answers", PATIENCE, || {
            issuer.process.check_alive()?;
            ensure!(std::net::TcpStream::connect(&address).is_ok(), "nobody listens at {address}");
            Ok(())
        })?;
        Ok(issuer)
    }

    fn ca(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Returns the flags by which a server, also kube-apiserver, trusts the issuer.
    pub(super) fn flags(&self) -> Vec<String> {
        vec![
            format!("--oidc-issuer-url={}", self.url),
            format!("--oidc-client-id={CLIENT}"),
            format!("--oidc-username-prefix={PREFIX}"),
            format!("--oidc-ca-file={}", self.ca().display()),
        ]
    }

    /// Signs a user in, who has a kubeconfig without any credential until then.
    pub(super) fn sign_in(
        &self,
        user: IssuerUser,
        server: &UserKubeconfig,
        portolan: &Path,
        tools: &Tools,
    ) -> Result<SignedInUser> {
        let home = self.dir.join(user.subject);
        let links = home.join("bin");
        fs::create_dir_all(&links).with_context(|| format!("cannot make {}", links.display()))?;
        symlink(fs::canonicalize(portolan)?, links.join("kubectl-portolan")).context("cannot link the plugin")?;
        symlink(tools.kubectl(), links.join("kubectl")).context("cannot link kubectl")?;
        let path = format!("{}:{}", links.display(), std::env::var("PATH").unwrap_or_default());
        let kubeconfig = home.join("kubeconfig");
        fs::write(&kubeconfig, without_user(server)?).context("cannot write a kubeconfig")?;
        let signed_in = SignedInUser { kubeconfig, home, path };
        let ca = self.ca().to_string_lossy().into_owned();
        let login = signed_in.spawn("login", &["portolan", "login", "--issuer-ca-file", &ca])?;
        let page = poll::until("the plugin names the page of the issuer", PATIENCE, || {
            let log = login.log()?;
            let url = log.lines().map(str::trim).find(|line| line.starts_with(&self.url)).map(str::to_owned);
            url.with_context(|| log)
        })?;
        let mut browser = Command::new(&self.program);
        browser.args(["browse", &page, &ca, user.login]);
        process::output(&mut browser, PATIENCE).context("the browser")?;
        poll::until("the plugin has the tokens", PATIENCE, || {
            let status = login.ended()?.context("it still runs")?;
            ensure!(status.success(), "{}", login.log_tail());
            Ok(())
        })?;
        let told = login.log()?;
        ensure!(told.contains(&format!("Signed in as \"{}\"", user.name())), "{told}");
        Ok(signed_in)
    }
}

/// Returns the kubeconfig of a server with no user.
fn without_user(server: &UserKubeconfig) -> Result<String> {
    let mut config: Value = serde_json::from_str(&server.to_json())?;
    config["users"] = json!([]);
    for context in config["contexts"].as_array_mut().context("it has no contexts")? {
        context["context"].as_object_mut().context("it is no context")?.remove("user");
    }
    Ok(config.to_string())
}

impl SignedInUser {
    fn spawn(&self, name: &str, args: &[&str]) -> Result<Process> {
        let mut all = vec![format!("PATH={}", self.path), format!("HOME={}", self.home.display())];
        all.extend([format!("KUBECONFIG={}", self.kubeconfig.display()), "kubectl".to_owned()]);
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        Process::spawn(name, Path::new("env"), all, &self.home)
    }

    /// Runs kubectl, which gets the token from its credential plugin, and returns its output. Another exit code than 0
    /// is an error.
    pub(super) fn kubectl(&self, server: &str, args: &str) -> Result<String> {
        let mut command = Command::new(self.home.join("bin/kubectl"));
        command.arg("--server").arg(server).args(args.split_whitespace());
        command.env("PATH", &self.path).env("HOME", &self.home).env("KUBECONFIG", &self.kubeconfig);
        process::output(&mut command, PATIENCE)
    }

    /// Returns the ID token, as the credential plugin prints it for kubectl.
    pub(super) fn token(&self) -> Result<String> {
        let text = fs::read_to_string(&self.kubeconfig).context("the kubeconfig is gone")?;
        let config: Value = serde_saphyr::from_str(&text).context("the kubeconfig is no YAML")?;
        let exec = &config["users"][0]["user"]["exec"];
        let program = exec["command"].as_str().context("the user has no credential plugin")?;
        let mut command = Command::new(self.home.join("bin").join(program));
        command.args(exec["args"].as_array().into_iter().flatten().filter_map(Value::as_str));
        command.env("PATH", &self.path).env("HOME", &self.home).env("KUBECONFIG", &self.kubeconfig);
        let printed: Value = serde_json::from_str(&process::output(&mut command, PATIENCE)?)?;
        printed["status"]["token"].as_str().map(str::to_owned).context("the plugin printed no token")
    }
}
