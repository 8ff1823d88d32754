//! `kubectl ws NAME`: checks that the workspace is there, and points the kubeconfig to it.

use anyhow::{Context as _, anyhow, bail};
use http::Method;
use portolan_types::LogicalClusterPath;
use serde_json::{Value, json};

use super::{
    current::{CurrentWorkspace, type_of},
    name_in_parent, object_path,
    target::WorkspaceTarget,
};
use crate::cli::plugin::{
    context::PluginContext,
    kubeconfig_files::{KubeconfigEdit, KubeconfigFiles, KubeconfigSection},
    nearest_name::nearest,
    session::{ApiRequest, RequestError, WorkspaceUrl},
};

/// Names of contexts and clusters that kcp's plugin uses.
pub(super) const CURRENT: &str = "workspace.kcp.io/current";
pub(super) const PREVIOUS: &str = "workspace.kcp.io/previous";

/// Path at which any user may ask who she is, in every workspace that she may enter.
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Context with its cluster, as stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredContext {
    pub(super) name: String,
    pub(super) context: Value,
    pub(super) cluster: Value,
}

impl StoredContext {
    /// Finds a context.
    ///
    /// # Errors
    /// Fails if the context or its cluster is missing.
    pub(super) fn find(files: &KubeconfigFiles, name: &str) -> anyhow::Result<Self> {
        let context = files.entry(KubeconfigSection::Contexts, name);
        let context = context.with_context(|| format!("context \"{name}\" does not exist"))?;
        let cluster = context["cluster"].as_str().unwrap_or_default();
        let found = files.entry(KubeconfigSection::Clusters, cluster);
        let cluster = found.with_context(|| format!("cluster \"{cluster}\" not found in kubeconfig"))?;
        Ok(Self { name: name.to_owned(), context, cluster })
    }

    /// Returns the URL of its server.
    pub(super) fn url(&self) -> anyhow::Result<WorkspaceUrl> {
        WorkspaceUrl::parse(self.cluster["server"].as_str().unwrap_or_default())
    }

    /// Returns the edits that store it under another name.
    pub(super) fn stored_as(&self, name: &str) -> [KubeconfigEdit; 2] {
        let mut context = self.context.clone();
        context["cluster"] = name.into();
        let set = |section, content| KubeconfigEdit::Set { section, name: name.to_owned(), content };
        [set(KubeconfigSection::Clusters, self.cluster.clone()), set(KubeconfigSection::Contexts, context)]
    }
}

/// Changes to the workspace of a name, and returns it.
///
/// # Errors
/// A workspace that is missing or closed to the user, or a kubeconfig that cannot be changed.
pub(super) async fn enter(ctx: &mut PluginContext, name: &str) -> anyhow::Result<CurrentWorkspace> {
    let files = ctx.files()?;
    let from = StoredContext::find(&files, &files.context_name(&ctx.flags)?)?;
    let current = from.url()?;
    let target = WorkspaceTarget::parse(name, current.workspace.as_ref(), ctx.environment.home.as_deref());
    let (edits, entered) = match target.map_err(|why| anyhow!(why))? {
        WorkspaceTarget::Current => return Ok(CurrentWorkspace { url: current, kind: None }),
        WorkspaceTarget::Previous => {
            let previous = StoredContext::find(&files, PREVIOUS);
            let previous = previous.map_err(|_| anyhow!("no previous workspace exists in context"))?;
            (edits_back(&from, &previous), CurrentWorkspace { url: previous.url()?, kind: None })
        }
        WorkspaceTarget::Home => {
            let url = current.of(&home(ctx).await?);
            (edits_to(&from, &url), CurrentWorkspace { url: WorkspaceUrl::parse(&url)?, kind: None })
        }
        WorkspaceTarget::Path(path) => {
            let kind = check(ctx, &path).await?;
            let url = current.of(&path);
            (edits_to(&from, &url), CurrentWorkspace { url: WorkspaceUrl::parse(&url)?, kind })
        }
    };
    files.modify(&edits)?;
    ctx.print_warnings();
    Ok(entered)
}

/// Returns the edits that point the current context to a URL, and remember the one of before.
fn edits_to(from: &StoredContext, url: &str) -> Vec<KubeconfigEdit> {
    let mut to = from.clone();
    to.cluster["server"] = url.into();
    let mut edits = Vec::new();
    // A context of the user's own keeps its name and its cluster; only kcp's is overwritten, and needs a copy.
    if from.name == CURRENT {
        edits.extend(from.stored_as(PREVIOUS));
    } else {
        edits.push(set_context(PREVIOUS, from.context.clone()));
    }
    edits.extend(to.stored_as(CURRENT));
    edits.push(KubeconfigEdit::CurrentContext(CURRENT.to_owned()));
    edits
}

/// Returns the edits that swap the current context and the previous one.
fn edits_back(from: &StoredContext, previous: &StoredContext) -> Vec<KubeconfigEdit> {
    let mut edits = Vec::new();
    if previous.context["cluster"] == PREVIOUS {
        edits.extend(previous.stored_as(CURRENT));
    } else {
        edits.push(set_context(CURRENT, previous.context.clone()));
    }
    if from.name == CURRENT && from.context["cluster"] == CURRENT {
        edits.extend(from.stored_as(PREVIOUS));
    } else {
        edits.push(set_context(PREVIOUS, from.context.clone()));
    }
    edits.push(KubeconfigEdit::CurrentContext(CURRENT.to_owned()));
    edits
}

fn set_context(name: &str, content: Value) -> KubeconfigEdit {
    KubeconfigEdit::Set { section: KubeconfigSection::Contexts, name: name.to_owned(), content }
}

/// Asks for the path of the user's home workspace.
async fn home(ctx: &mut PluginContext) -> anyhow::Result<LogicalClusterPath> {
    ctx.connect().await?;
    let root = LogicalClusterPath::root();
    let home = ctx.session().send(ApiRequest::new(Method::GET, &object_path("~")).to(Some(&root))).await;
    let home = match home {
        Err(error) if error.is_not_found() => bail!("this server has no home workspaces; name one, such as :root"),
        other => other?,
    };
    // The host of the answer may be one that this user does not reach.
    let url = home["spec"]["URL"].as_str().unwrap_or_default();
    WorkspaceUrl::parse(url)?.workspace.context("the home workspace has no URL")
}

/// Checks that the user may enter a workspace, and returns its type if she may read that.
async fn check(ctx: &mut PluginContext, path: &LogicalClusterPath) -> anyhow::Result<Option<String>> {
    ctx.connect().await?;
    let session = ctx.session();
    let parent = path.parent();
    let name = object_path(name_in_parent(path));
    let of_parent = match &parent {
        Some(parent) => session.send(ApiRequest::new(Method::GET, &name).to(Some(parent))).await.ok(),
        None => None,
    };
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let asked = session.create(Some(path), WHO_AM_I, &review).await;
    match asked {
        Ok(_) => Ok(of_parent.as_ref().and_then(type_of)),
        Err(error) if error.is_not_found() => bail!("{}", absent(ctx, path, &error).await),
        // She may see it in the parent, and have no rights in it yet.
        Err(error) if error.is_forbidden() && of_parent.is_some() => {
            ctx.terminal.note(&format!("Warning: you have no rights in workspace {path}"));
            Ok(of_parent.as_ref().and_then(type_of))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the message about a workspace that does not exist, with the most similar name beside it.
async fn absent(ctx: &PluginContext, path: &LogicalClusterPath, error: &RequestError) -> String {
    let Some(parent) = path.parent() else { return error.to_string() };
    let listed = ctx.session().send(ApiRequest::new(Method::GET, super::WORKSPACES).to(Some(&parent))).await;
    let items = listed.as_ref().ok().and_then(|list| list["items"].as_array()).map_or(&[][..], Vec::as_slice);
    let names = items.iter().map(portolan_types::object::name);
    match nearest(name_in_parent(path), names) {
        Some(name) => format!("workspace \"{path}\" not found; did you mean \"{parent}:{name}\"?"),
        None => format!("workspace \"{path}\" not found"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(name: &str, cluster: &str, url: &str) -> StoredContext {
        let context = json!({"cluster": cluster, "user": "u", "namespace": "shop"});
        StoredContext {
            name: name.into(),
            context,
            cluster: json!({"server": url, "certificate-authority-data": "Q0E="}),
        }
    }

    /// Applies edits to a map of `section/name`.
    fn applied(edits: &[KubeconfigEdit], before: &[(&str, Value)]) -> std::collections::BTreeMap<String, Value> {
        let mut all: std::collections::BTreeMap<_, _> =
            before.iter().map(|(name, content)| ((*name).to_owned(), content.clone())).collect();
        for edit in edits {
            match edit {
                KubeconfigEdit::Set { section, name, content } => {
                    all.insert(format!("{}/{name}", section.list()), content.clone())
                }
                KubeconfigEdit::CurrentContext(name) => all.insert("current".into(), json!(name)),
            };
        }
        all
    }

    #[test]
    fn a_context_of_the_users_own_is_left_alone() {
        let edits = edits_to(&context("mine", "east", "https://a/clusters/root"), "https://a/clusters/root:shop");
        let after = applied(&edits, &[]);
        assert_eq!(after["current"], CURRENT);
        assert_eq!(after["contexts/workspace.kcp.io/previous"]["cluster"], "east");
        assert_eq!(
            after["contexts/workspace.kcp.io/current"],
            json!({"cluster": CURRENT, "user": "u", "namespace": "shop"})
        );
        let cluster = json!({"server": "https://a/clusters/root:shop", "certificate-authority-data": "Q0E="});
        assert_eq!(after["clusters/workspace.kcp.io/current"], cluster);
        assert!(!after.contains_key("contexts/mine") && !after.contains_key("clusters/east"), "{after:?}");
    }

    #[test]
    fn the_workspace_of_before_is_remembered_and_swapped() {
        let from = context(CURRENT, CURRENT, "https://a/clusters/root:b");
        let after = applied(&edits_to(&from, "https://a/clusters/root:c"), &[]);
        assert_eq!(after["contexts/workspace.kcp.io/previous"]["cluster"], PREVIOUS);
        assert_eq!(after["clusters/workspace.kcp.io/previous"]["server"], "https://a/clusters/root:b");
        assert_eq!(after["clusters/workspace.kcp.io/current"]["server"], "https://a/clusters/root:c");

        let previous = context(PREVIOUS, PREVIOUS, "https://a/clusters/root:b");
        let back = applied(&edits_back(&context(CURRENT, CURRENT, "https://a/clusters/root:c"), &previous), &[]);
        assert_eq!(back["clusters/workspace.kcp.io/current"]["server"], "https://a/clusters/root:b");
        assert_eq!(back["clusters/workspace.kcp.io/previous"]["server"], "https://a/clusters/root:c");

        let mine = context(PREVIOUS, "east", "https://a/clusters/root");
        let back = applied(&edits_back(&context(CURRENT, CURRENT, "https://a/clusters/root:c"), &mine), &[]);
        assert_eq!(back["contexts/workspace.kcp.io/current"]["cluster"], "east", "the user's own cluster");
        assert_eq!(back["clusters/workspace.kcp.io/previous"]["server"], "https://a/clusters/root:c");
        assert!(!back.contains_key("clusters/workspace.kcp.io/current"), "{back:?}");
    }
}
