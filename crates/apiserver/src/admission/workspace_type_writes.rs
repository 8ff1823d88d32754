//! Writes of WorkspaceTypes: the rights that their default bindings take, and what the server shows of them.

use portolan_types::{
    annotations::{KCP_CLUSTER, KCP_PATH},
    apis::ExportAddress,
    lifecycle::LifecycleStage,
    object,
};
use serde_json::{Value, json};

use crate::{commit::CommitError, directory::LogicalCluster};

use super::{pending_write::PendingWrite, shared_apis, workspaces::WorkspaceContext};

/// Completes a WorkspaceType: the address of the views of its steps, and the annotations that clients make its
/// initializer's name from.
///
/// # Errors
/// 403 for a default binding that it gains without the right to bind the export, since every workspace of the type
/// would get it. An export that does not exist is refused alike.
pub(super) async fn complete(context: &WorkspaceContext, write: &mut PendingWrite<'_>) -> Result<(), CommitError> {
    check_bindings(context, write).await?;
    let cluster = write.request.cluster;
    object::set_annotation(write.object, KCP_CLUSTER, Some(cluster.id.to_string()));
    object::set_annotation(write.object, KCP_PATH, Some(cluster.path.to_string()));
    show_views(write.object, cluster, &context.url);
    Ok(())
}

async fn check_bindings(context: &WorkspaceContext, write: &PendingWrite<'_>) -> Result<(), CommitError> {
    let known = write.old.map(bindings_of).unwrap_or_default();
    for reference in bindings_of(write.object).iter().filter(|reference| !known.contains(reference)) {
        let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
        let (path, name) = (text("path"), text("export"));
        let cluster = match path {
            "" => Some(write.request.cluster.id),
            path => path.parse().ok().and_then(|path| context.storage.directory.by_path(&path)).map(|found| found.id),
        };
        let export = cluster.zip(name.parse().ok()).map(|(cluster, name)| ExportAddress { cluster, name });
        let may_bind = match &export {
            Some(export) => shared_apis::may_bind(context, write.request, export).await?,
            None => false,
        };
        if !may_bind {
            let why = format!("unable to use {path}:{name} in defaultAPIBindings: no permission to bind to the export");
            return Err(write.forbidden(why).into());
        }
    }
    Ok(())
}

fn bindings_of(kind: &Value) -> Vec<Value> {
    let bindings = kind.pointer("/spec/defaultAPIBindings").and_then(Value::as_array);
    bindings.cloned().unwrap_or_default()
}

/// Shows the addresses of the views in which providers see the workspaces that wait for them.
fn show_views(kind: &mut Value, cluster: &LogicalCluster, url: &str) {
    let name = object::name(kind).to_owned();
    let view = |stage: LifecycleStage| {
        let asks = kind.pointer(&format!("/spec/{}", stage.step())) == Some(&Value::Bool(true));
        let url = format!("{url}/services/{}/{}:{name}", stage.view(), cluster.id);
        asks.then(|| json!({"url": url, "type": stage.view().trim_end_matches("workspaces")}))
    };
    let views: Vec<Value> = LifecycleStage::ALL.into_iter().filter_map(view).collect();
    let Some(top) = kind.as_object_mut() else { return };
    if views.is_empty() {
        if let Some(status) = top.get_mut("status").and_then(Value::as_object_mut) {
            status.remove("virtualWorkspaces");
        }
        return;
    }
    object::child_mut(top, "status").insert("virtualWorkspaces".into(), views.into());
}
