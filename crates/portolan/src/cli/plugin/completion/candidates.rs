//! Candidates for the last word of a line: names that the kubeconfig and the server have.

use http::Method;
use portolan_types::{
    object,
    placement::{GROUP, VERSION},
};
use serde_json::Value;

use super::{CompletedValue, CompletionPosition};
use crate::cli::plugin::{
    context::PluginContext,
    kubeconfig_files::KubeconfigSection,
    placements::encoded,
    resources::ResourceCatalog,
    session::{ApiRequest, ApiSession, JSON, RequestError},
    workspaces::WORKSPACES,
};

/// Most candidates that a list of the server gives.
const CANDIDATES: usize = 500;
/// Path of the physical clusters of a workspace.
const MEMBERS: &str = "/apis/portolan.dev/v1alpha1/physicalclusters";
/// Path of the types of workspaces.
const WORKSPACE_TYPES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes";

/// Returns the candidates for the last word of a line.
///
/// # Errors
/// No answer of the server, or a refusal.
pub(super) async fn candidates(
    ctx: &mut PluginContext,
    at: &CompletionPosition<'_>,
    last: &str,
) -> anyhow::Result<Vec<String>> {
    if !at.words.is_empty() {
        return Ok(at.words.clone());
    }
    let subcommands = || {
        let shown = at.command.get_subcommands().filter(|command| !command.is_hide_set());
        shown.map(|command| command.get_name().to_owned()).collect::<Vec<_>>()
    };
    Ok(match at.value {
        CompletedValue::Subcommand => subcommands(),
        CompletedValue::Flag => {
            let flags = at.command.get_arguments().filter(|arg| !arg.is_hide_set());
            flags.filter_map(|arg| arg.get_long().map(|long| format!("--{long}"))).collect()
        }
        CompletedValue::Context => ctx.files()?.names(KubeconfigSection::Contexts),
        CompletedValue::User => ctx.files()?.names(KubeconfigSection::Users),
        CompletedValue::WorkspaceType => names(ctx, WORKSPACE_TYPES).await?,
        CompletedValue::Policy => policies(ctx, last).await?,
        CompletedValue::Namespace => names(ctx, "/api/v1/namespaces").await?,
        CompletedValue::PhysicalCluster => names(ctx, MEMBERS).await?,
        CompletedValue::Workspace => {
            let fixed = ["..", "-", "~", ":"].map(str::to_owned);
            let listed = names(ctx, WORKSPACES).await.unwrap_or_default();
            subcommands().into_iter().chain(fixed).chain(listed).collect()
        }
        CompletedValue::Object => {
            ctx.connect().await?;
            let session = ctx.session();
            objects(session, async |path, accept| read(session, path, accept).await, at, last).await?
        }
        CompletedValue::MemberObject => {
            // Without a name, any physical cluster has the types.
            let member = match &at.member {
                Some(member) => member.clone(),
                None => names(ctx, MEMBERS).await?.into_iter().next().unwrap_or_default(),
            };
            ctx.connect().await?;
            let session = ctx.session();
            let through = |path: &str| format!("{MEMBERS}/{member}/proxy{path}");
            objects(session, async |path, accept| read(session, &through(path), accept).await, at, last).await?
        }
        CompletedValue::File | CompletedValue::Nothing => Vec::new(),
    })
}

async fn names(ctx: &mut PluginContext, path: &str) -> anyhow::Result<Vec<String>> {
    ctx.connect().await?;
    Ok(names_of(&ctx.session().get(&limited(path)).await?))
}

fn limited(path: &str) -> String {
    format!("{path}?limit={CANDIDATES}")
}

fn names_of(list: &Value) -> Vec<String> {
    list["items"].as_array().into_iter().flatten().map(|item| object::name(item).to_owned()).collect()
}

async fn read(session: &ApiSession, path: &str, accept: &str) -> Result<Value, RequestError> {
    session.send(ApiRequest { accept, ..ApiRequest::new(Method::GET, path) }).await
}

/// Returns `TYPE/` for every type, `TYPE/NAME` for the objects of one, or `NAME` behind a type. `read` reads a path of
/// the API that has them.
async fn objects(
    session: &ApiSession,
    read: impl AsyncFn(&str, &str) -> Result<Value, RequestError>,
    at: &CompletionPosition<'_>,
    last: &str,
) -> anyhow::Result<Vec<String>> {
    let catalog = ResourceCatalog::discover_with(async |path, accept| read(path, accept).await).await?;
    let (kind, prefix) = match (last.split_once('/'), at.arguments.as_slice()) {
        (Some((kind, _)), _) => (kind, format!("{kind}/")),
        (None, [kind, ..]) if !kind.contains('/') => (kind.as_str(), String::new()),
        (None, _) => {
            let namespaced = catalog.all().iter().filter(|of| of.is_namespaced && !of.resource.contains('/'));
            // A list needs no name.
            let end = if at.command.get_name() == "get" { "" } else { "/" };
            return Ok(namespaced.map(|of| format!("{}{end}", of.resource)).collect());
        }
    };
    let path = catalog.find(kind)?.path(&encoded(&session.namespace), None);
    let list = read(&limited(&path), JSON).await?;
    Ok(names_of(&list).into_iter().map(|name| format!("{prefix}{name}")).collect())
}

/// Returns `TYPE/` for the types of policies, or `TYPE/NAME` for the policies of one.
async fn policies(ctx: &mut PluginContext, last: &str) -> anyhow::Result<Vec<String>> {
    let types = ["clusterplacementpolicy", "placementpolicy", "physicalcluster"];
    let Some((kind, _)) = last.split_once('/') else { return Ok(types.map(|kind| format!("{kind}/")).into()) };
    ctx.connect().await?;
    let path = match kind {
        "clusterplacementpolicy" => format!("/apis/{GROUP}/{VERSION}/clusterplacementpolicies"),
        "placementpolicy" => {
            format!("/apis/{GROUP}/{VERSION}/namespaces/{}/placementpolicies", encoded(&ctx.session().namespace))
        }
        "physicalcluster" => MEMBERS.to_owned(),
        _ => return Ok(Vec::new()),
    };
    Ok(names(ctx, &path).await?.into_iter().map(|name| format!("{kind}/{name}")).collect())
}
