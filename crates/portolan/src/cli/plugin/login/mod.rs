//! `kubectl portolan login`: sign-in at an OpenID provider, kept in the kubeconfig as a credential plugin.
//!
//! The user of the kubeconfig runs this command with `--credential`, which prints the ID token and renews it with the
//! refresh token. Tokens are in a file of mode 0600, never in the kubeconfig.

mod browser_flow;
mod device_flow;
mod provider;
mod token_cache;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use http::{Request, header::ACCEPT};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use portolan_types::Seams;
use serde_json::{Value, json};

use self::{
    provider::{OpenIdClient, OpenIdProvider, claims_of},
    token_cache::{CachedTokens, TokenCache},
};

use super::{
    context::PluginContext,
    flags::ReportFlags,
    formats,
    kubeconfig_files::{KubeconfigEdit, KubeconfigSection},
    session::{RequestError, WorkspaceUrl, config_of},
};

/// Most bytes of the server's settings.
const SETTINGS_BYTES: usize = 64 * 1024;
/// Seconds before its end at which a token is renewed.
const RENEWED_BEFORE: i64 = 60;
const CREDENTIAL_VERSION: &str = "client.authentication.k8s.io/v1";

/// Sign in at an OpenID provider, and keep the user in the kubeconfig.
///
/// The current context gets a user with a token that is renewed by itself. Issuer and client are those that the server
/// names, unless flags name others.
#[derive(Args, Clone)]
pub(crate) struct LoginArgs {
    /// URL of the issuer.
    #[arg(long, value_name = "URL", requires = "client_id")]
    issuer: Option<String>,
    /// Id of the client at the issuer.
    #[arg(long, value_name = "ID", requires = "issuer")]
    client_id: Option<String>,
    /// File with the secret of the client, if it has one.
    #[arg(long, value_name = "FILE")]
    client_secret_file: Option<PathBuf>,
    /// Certificates (PEM) that the issuer's must chain to; the system's by default.
    #[arg(long, value_name = "FILE")]
    issuer_ca_file: Option<PathBuf>,
    /// Further scope to request; may be repeated.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Sign in on another device, which needs no browser on this machine.
    #[arg(long)]
    device: bool,
    /// Open the page of the issuer in a browser, too.
    #[arg(long, conflicts_with = "device")]
    open: bool,
    /// Port of this machine to which the issuer sends the browser back; any free one by default.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    redirect_port: u16,
    /// Print the claims of the token, to see why a server refuses it.
    #[arg(long)]
    claims: bool,
    /// Print the credential for kubectl. The kubeconfig has this flag.
    #[arg(long, hide = true, requires = "issuer")]
    credential: bool,
    #[command(flatten)]
    format: ReportFlags,
}

impl LoginArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// An issuer that refuses or does not answer; a server that refuses the token; a kubeconfig that cannot be written.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        if self.credential {
            return self.print_credential(ctx).await;
        }
        // The user of the flag may not exist yet: it is the one to write.
        let name = ctx.flags.user.take();
        let (issuer, client_id) = match (&self.issuer, &self.client_id) {
            (Some(issuer), Some(client_id)) => (issuer.clone(), client_id.clone()),
            _ => issuer_of_server(ctx).await?,
        };
        let provider = self.provider(issuer, client_id).await?;
        let tokens = if self.device {
            device_flow::sign_in(&provider, &mut ctx.terminal).await?
        } else {
            browser_flow::sign_in(&provider, &mut ctx.terminal, self.redirect_port, self.open).await?
        };
        if self.claims {
            let claims = claims_of(&tokens.id_token).context("the ID token is no JSON Web Token")?;
            ctx.terminal.note(&serde_json::to_string_pretty(&claims)?);
        }
        let user = self.user_at_server(ctx, &tokens).await?;
        TokenCache::of(&ctx.environment, &provider)?.store(&tokens)?;
        let context = self.keep_in_kubeconfig(ctx, &provider, name)?;
        match self.format.output {
            None => ctx.terminal.line(&format!("Signed in as \"{user}\" in the context \"{context}\".")),
            Some(format) => {
                let end = jiff::Timestamp::from_second(tokens.ends()?).context("the end of the token is no time")?;
                let end = portolan_types::seams::seconds_text(end);
                let (issuer, client) = (&provider.issuer, &provider.client_id);
                let signed_in =
                    json!({"user": user, "context": context, "issuer": issuer, "clientId": client, "expires": end});
                formats::print_object(&mut ctx.terminal, &format.into(), &signed_in)
            }
        }
    }

    async fn provider(&self, issuer: String, client_id: String) -> anyhow::Result<OpenIdProvider> {
        let secret = self.client_secret_file.as_ref().map(|file| {
            let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
            anyhow::Ok(text.trim().to_owned())
        });
        let roots = self.issuer_ca_file.as_ref().map(|file| {
            let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
            let found = portolan_apiserver::pki::certificates(&text).map_err(anyhow::Error::msg)?;
            anyhow::Ok(found.iter().map(|certificate| certificate.to_vec()).collect())
        });
        let (secret, roots) = (secret.transpose()?, roots.transpose()?);
        let client = OpenIdClient { id: client_id, secret, scopes: self.scopes.clone(), roots };
        OpenIdProvider::discover(issuer, client).await
    }

    /// Asks the server who the user of a token is.
    ///
    /// # Errors
    /// A refusal, with the claims that may be the reason.
    async fn user_at_server(&self, ctx: &mut PluginContext, tokens: &CachedTokens) -> anyhow::Result<String> {
        ctx.flags.token = Some(tokens.id_token.clone());
        ctx.connect().await?;
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        match ctx.session().create(None, path, &review).await {
            Ok(answer) => Ok(answer["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned()),
            Err(RequestError::Refused(refusal)) if refusal.code == 401 => {
                let claims = claims_of(&tokens.id_token).unwrap_or_default();
                bail!(
                    "the server does not accept the token\n  why:  its issuer is {}, its audience {}, its end {}\n  fix:  compare them with \
                     the server's --oidc-issuer-url and --oidc-client-id; --claims prints all",
                    claims["iss"],
                    claims["aud"],
                    claims["exp"],
                )
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the user of the provider under a name and makes it the user of the context. Returns the name of the
    /// context.
    fn keep_in_kubeconfig(
        &self,
        ctx: &PluginContext,
        provider: &OpenIdProvider,
        user: Option<String>,
    ) -> anyhow::Result<String> {
        let files = ctx.files()?;
        let name = files.context_name(&ctx.flags)?;
        let mut context = files.entry(KubeconfigSection::Contexts, &name).context("the context is gone")?;
        let user = user.unwrap_or_else(|| format!("oidc@{}", provider.host()));
        context["user"] = user.as_str().into();
        let exec = json!({"exec": {
            "apiVersion": CREDENTIAL_VERSION,
            "command": "kubectl",
            "args": self.credential_args(provider)?,
            "interactiveMode": "Never",
            "provideClusterInfo": false,
            "installHint": "It is renewed by kubectl portolan login, which \"portolan plugin install\" links.",
        }});
        files.modify(&[
            KubeconfigEdit::Set { section: KubeconfigSection::Users, name: user, content: exec },
            KubeconfigEdit::Set { section: KubeconfigSection::Contexts, name: name.clone(), content: context },
        ])?;
        Ok(name)
    }

    /// Returns the arguments with which the kubeconfig runs this command.
    fn credential_args(&self, provider: &OpenIdProvider) -> anyhow::Result<Vec<String>> {
        let mut args: Vec<String> = ["portolan", "login", "--credential", "--issuer"].map(str::to_owned).into();
        args.extend([provider.issuer.clone(), "--client-id".to_owned(), provider.client_id.clone()]);
        for (flag, file) in
            [("--client-secret-file", &self.client_secret_file), ("--issuer-ca-file", &self.issuer_ca_file)]
        {
            let Some(file) = file else { continue };
            let path = std::path::absolute(file).with_context(|| format!("{} has no path", file.display()))?;
            args.extend([flag.to_owned(), path.to_string_lossy().into_owned()]);
        }
        Ok(args)
    }

    /// Prints the credential, renewed if it ends soon.
    ///
    /// # Errors
    /// Fails if there is none, or the issuer does not renew it.
    async fn print_credential(&self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let (Some(issuer), Some(client_id)) = (self.issuer.clone(), self.client_id.clone()) else {
            bail!("name --issuer and --client-id")
        };
        let again = "sign in with: kubectl portolan login";
        let cache = TokenCache::named(&ctx.environment, &issuer, &client_id)?;
        let mut tokens = cache.load()?.with_context(|| format!("you are not signed in; {again}"))?;
        if tokens.ends()? <= Seams::system().clock.now().as_second() + RENEWED_BEFORE {
            let refresh = tokens.refresh_token.clone();
            let refresh = refresh.with_context(|| format!("the token has ended and cannot be renewed; {again}"))?;
            let provider = self.provider(issuer, client_id).await?;
            let renewed = provider.renew(&refresh).await;
            tokens = renewed.with_context(|| format!("the issuer does not renew the token; {again}"))?;
            cache.store(&tokens)?;
        }
        let end = jiff::Timestamp::from_second(tokens.ends()?).context("the end of the token is no time")?;
        let credential = json!({
            "apiVersion": CREDENTIAL_VERSION,
            "kind": "ExecCredential",
            "status": {"token": tokens.id_token, "expirationTimestamp": portolan_types::seams::seconds_text(end)},
        });
        ctx.terminal.line(&credential.to_string())
    }
}

/// Asks the server for its issuer, without the credential of the context, which may have ended.
///
/// # Errors
/// Fails if the server does not answer, or names none or several.
async fn issuer_of_server(ctx: &PluginContext) -> anyhow::Result<(String, String)> {
    let mut config = config_of(&ctx.files()?, &ctx.flags).await?;
    let url = WorkspaceUrl::parse(&config.cluster_url.to_string())?;
    (config.auth_info, config.cluster_url) =
        (kube::config::AuthInfo::default(), url.base.parse().context("the server of the context is no URL")?);
    let client = kube::Client::try_from(config).context("the kubeconfig cannot be used")?;
    let request = Request::get("/ui/settings").header(ACCEPT, "application/json").body(Body::empty())?;
    let answer = client.send(request).await.context("the server does not name its issuers")?;
    let body = Limited::new(answer.into_body(), SETTINGS_BYTES).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
    let settings: Value = serde_json::from_slice(&body).context("the server does not name its issuers")?;
    let issuers = settings["issuers"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |issuer: &Value, name: &str| issuer[name].as_str().unwrap_or_default().to_owned();
    match issuers {
        [] => bail!(
            "the server has no issuer of tokens (--oidc-issuer-url); name another one with --issuer and --client-id"
        ),
        [one] => Ok((text(one, "url"), text(one, "clientId"))),
        several => {
            let urls: Vec<String> = several.iter().map(|one| text(one, "url")).collect();
            bail!("the server has several issuers; name one with --issuer and --client-id: {}", urls.join(", "))
        }
    }
}
