//! Types of workspaces: resolution of `spec.type`, the right to use a type, and the limits that types set each other.

use std::collections::HashMap;

use portolan_strategy::rbac::User;
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Status,
    lifecycle::{BINDINGS_INITIALIZER, LifecycleStage, is_step_label},
    object,
};
use serde_json::{Map, Value, json};

use crate::{
    authz::{Authorizer as _, shared_objects},
    directory::{ClusterLifecycle, LogicalCluster},
    errors::{damaged, status_for},
    hooks::AdmissionRequest,
    routing::attributes::Attributes,
    storage::StorageContext,
};

use super::workspaces::WorkspaceContext;

const GROUP: &str = "tenancy.kcp.io";
/// Limit of the types that one type extends, directly or not.
const MAX_EXTENDED: usize = 32;
/// Type of a workspace below one without a default, and of one whose Workspace is older than types.
const DEFAULT_TYPE: &str = "universal";

/// Name of a type, with the path of its workspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct WorkspaceTypeName {
    path: LogicalClusterPath,
    name: String,
}

impl std::fmt::Display for WorkspaceTypeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path, self.name)
    }
}

impl WorkspaceTypeName {
    fn of_root(name: &str) -> Self {
        Self { path: LogicalClusterPath::root(), name: name.to_owned() }
    }

    /// Reads a reference of an object in the workspace `home`, which is its default.
    fn of_reference(reference: &Value, home: &LogicalClusterPath) -> Option<Self> {
        let text = |key: &str| reference.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let path = text("path").map_or_else(|| Some(home.clone()), |path| path.parse().ok())?;
        Some(Self { path, name: text("name")?.to_owned() })
    }
}

/// Type as stored.
#[derive(Clone, Debug)]
struct StoredWorkspaceType {
    at: WorkspaceTypeName,
    cluster: LogicalClusterId,
    spec: Value,
}

impl StoredWorkspaceType {
    fn references(&self, pointer: &str) -> Vec<WorkspaceTypeName> {
        let list = self.spec.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|reference| WorkspaceTypeName::of_reference(reference, &self.at.path)).collect()
    }

    /// Returns the exports that workspaces of the type bind, as `<path of the workspace>:<name>`.
    fn default_bindings(&self) -> impl Iterator<Item = String> {
        let list = self.spec.get("defaultAPIBindings").and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|reference| {
            let text = |key: &str| reference.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
            Some(format!("{}:{}", text("path").unwrap_or(self.at.path.as_str()), text("export")?))
        })
    }
}

/// Side of a workspace that a type limits.
#[derive(Clone, Copy)]
enum LimitedSide {
    /// The workspace above.
    Parents,
    /// Workspaces directly below.
    Children,
}

impl LimitedSide {
    /// Returns the field of the limit, and the word for its side.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Parents => ("limitAllowedParents", "parent"),
            Self::Children => ("limitAllowedChildren", "child"),
        }
    }
}

/// Resolved type of a new workspace.
pub(super) struct WorkspaceType {
    /// Value of `spec.type`.
    pub(super) reference: Value,
    /// Labels that the types add.
    pub(super) labels: Map<String, Value>,
    /// Steps and default bindings that the types ask for.
    pub(super) lifecycle: ClusterLifecycle,
}

/// Resolver of the types of workspaces.
struct WorkspaceTypeResolver<'a> {
    storage: &'a StorageContext,
}

impl WorkspaceTypeResolver<'_> {
    async fn find(&self, at: WorkspaceTypeName) -> Result<Option<StoredWorkspaceType>, Status> {
        let directory = &self.storage.directory;
        let by_id = || at.path.as_str().parse().ok().and_then(|id| directory.by_id(id));
        let Some(cluster) = directory.by_path(&at.path).or_else(by_id) else { return Ok(None) };
        let Ok(name) = at.name.parse() else { return Ok(None) };
        let key = ObjectKey::cluster_scoped(cluster.id, GroupResource::new(GROUP, "workspacetypes"), name);
        let at = WorkspaceTypeName { path: cluster.path.clone(), ..at };
        let found = self.read(&key).await?.or_else(|| shared_objects::builtin_workspace_type(&key).cloned());
        Ok(found.map(|mut found| StoredWorkspaceType { at, cluster: cluster.id, spec: found["spec"].take() }))
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<Value>, Status> {
        let stored = self.storage.store.get(key).await.map_err(|e| status_for(&e))?;
        stored.map(|stored| stored.record.to_value(stored.revision).map_err(|e| damaged(key, &e))).transpose()
    }

    /// Finds a type of a name in a logical cluster or the nearest ancestor that has one.
    async fn nearest(&self, cluster: &LogicalCluster, name: &str) -> Result<Option<StoredWorkspaceType>, Status> {
        for above in self.storage.directory.lineage(cluster.id) {
            let at = WorkspaceTypeName { path: above.path.clone(), name: name.to_owned() };
            if let Some(found) = self.find(at).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the default type of workspaces below one of the type `parent`, and its name.
    async fn default_below(
        &self,
        parent: Option<&StoredWorkspaceType>,
    ) -> Result<(String, Option<StoredWorkspaceType>), Status> {
        let default = parent.and_then(|parent| {
            WorkspaceTypeName::of_reference(parent.spec.get("defaultChildWorkspaceType")?, &parent.at.path)
        });
        let at = default.unwrap_or_else(|| WorkspaceTypeName::of_root(DEFAULT_TYPE));
        Ok((at.to_string(), self.find(at).await?))
    }

    /// Returns the type that a new workspace in `cluster` names, and its name.
    async fn referenced_type(
        &self,
        cluster: &LogicalCluster,
        reference: &Value,
    ) -> Result<(String, Option<StoredWorkspaceType>), Status> {
        let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
        let (path, name) = (text("path"), text("name"));
        if path.is_empty() {
            return Ok((name.to_owned(), self.nearest(cluster, name).await?));
        }
        let found = match WorkspaceTypeName::of_reference(reference, &cluster.path) {
            Some(at) => self.find(at).await?,
            None => None,
        };
        Ok((format!("{path}:{name}"), found))
    }

    /// Returns the name of the type of a logical cluster.
    async fn type_of(&self, cluster: &LogicalCluster) -> Result<WorkspaceTypeName, Status> {
        let Some(parent) = cluster.parent else { return Ok(WorkspaceTypeName::of_root("root")) };
        if cluster.workspace.is_none() {
            return Ok(WorkspaceTypeName::of_root("home"));
        }
        let name = cluster.path.rsplit(':').next().and_then(|name| name.parse().ok());
        let key = name.map(|name| ObjectKey::cluster_scoped(parent, GroupResource::new(GROUP, "workspaces"), name));
        let workspace = match &key {
            Some(key) => self.read(key).await?,
            None => None,
        };
        let reference = workspace.as_ref().and_then(|workspace| workspace.pointer("/spec/type"));
        let named =
            reference.and_then(|reference| WorkspaceTypeName::of_reference(reference, &LogicalClusterPath::root()));
        Ok(named.unwrap_or_else(|| WorkspaceTypeName::of_root(DEFAULT_TYPE)))
    }

    /// Returns a type, followed by all types that it extends.
    ///
    /// # Errors
    /// The reason, for types that extend each other in a circle, too many, or one that does not exist: its initializer
    /// or its limits would be skipped.
    async fn with_extended(
        &self,
        first: StoredWorkspaceType,
    ) -> Result<Result<Vec<StoredWorkspaceType>, String>, Status> {
        let (mut all, mut next) = (Vec::new(), vec![first]);
        // A reference may name the workspace by its path or its id.
        let (mut known, mut edges) = (HashMap::new(), Vec::new());
        while let Some(kind) = next.pop() {
            if all.len() >= MAX_EXTENDED {
                return Ok(Err(format!("it extends more than {MAX_EXTENDED} types")));
            }
            for extended in kind.references("/extend/with") {
                if !known.contains_key(&extended) {
                    let why = format!("{} extends {extended}, which does not exist", kind.at);
                    let Some(found) = self.find(extended.clone()).await? else { return Ok(Err(why)) };
                    known.insert(extended.clone(), found.at.clone());
                    if all.iter().chain(&next).chain([&kind]).all(|other| other.at != found.at) {
                        next.push(found);
                    }
                }
                edges.push((kind.at.clone(), known[&extended].clone()));
            }
            all.push(kind);
        }
        Ok(match in_a_circle(&edges) {
            None => Ok(all),
            Some(circular) => Err(format!("{circular} extends itself")),
        })
    }
}

/// Returns a type that extends itself, directly or not. An edge is a type and one that it extends.
fn in_a_circle(edges: &[(WorkspaceTypeName, WorkspaceTypeName)]) -> Option<&WorkspaceTypeName> {
    let mut left: Vec<_> = edges.iter().collect();
    loop {
        let goes_on = |(_, to): &&(WorkspaceTypeName, WorkspaceTypeName)| left.iter().any(|(from, _)| from == to);
        let going_on: Vec<_> = left.iter().copied().filter(goes_on).collect();
        if going_on.len() == left.len() {
            return left.first().map(|(from, _)| from);
        }
        left = going_on;
    }
}

/// Resolves the type of a new workspace: the one that it names, or the default of its parent's type.
///
/// # Errors
/// 403 for a type that does not exist, that the user may not use, or that does not fit the parent's.
pub(super) async fn resolve(
    context: &WorkspaceContext,
    request: &AdmissionRequest<'_>,
    workspace: &Value,
) -> Result<WorkspaceType, Status> {
    let refused = |why: String| Status::forbidden(&request.kind.group_resource(), object::name(workspace), why);
    let types = WorkspaceTypeResolver { storage: &context.storage };
    let parent_name = types.type_of(request.cluster).await?;
    let parent = types.find(parent_name.clone()).await?;
    let reference = workspace.pointer("/spec/type").filter(|reference| !reference.is_null());
    let (wanted, found) = match reference {
        None => types.default_below(parent.as_ref()).await?,
        Some(reference) => types.referenced_type(request.cluster, reference).await?,
    };
    // A type that may not be used looks like one that is missing.
    let found = match found {
        Some(found) if may_use(context, request, &found).await? => found,
        Some(_) | None => {
            let why = format!("workspace type {wanted:?} does not exist, or you lack the verb \"use\" on it");
            return Err(refused(why));
        }
    };
    let reference = json!({"name": found.at.name, "path": found.at.path});
    let own =
        types.with_extended(found).await?.map_err(|why| refused(format!("type {wanted:?} is unusable: {why}")))?;
    let above = match parent {
        Some(parent) => {
            let unusable = |why| refused(format!("type {parent_name} of the parent is unusable: {why}"));
            types.with_extended(parent).await?.map_err(unusable)?
        }
        None => Vec::new(),
    };
    let of_parent: Vec<WorkspaceTypeName> = if above.is_empty() { vec![parent_name] } else { names(&above) };
    check_limits(&own, LimitedSide::Parents, &of_parent).map_err(refused)?;
    check_limits(&above, LimitedSide::Children, &names(&own)).map_err(refused)?;
    let labels = own.iter().filter_map(|kind| kind.spec.get("additionalWorkspaceLabels")?.as_object().cloned());
    let labels = labels.flatten().filter(|(key, _)| !is_step_label(key)).collect();
    Ok(WorkspaceType { reference, labels, lifecycle: lifecycle_of(&own, request.user) })
}

/// Returns the steps that types require, those of the type itself first. Bindings are created before any other step
/// ends.
fn lifecycle_of(types: &[StoredWorkspaceType], owner: &User) -> ClusterLifecycle {
    let steps = |stage: LifecycleStage| {
        let asks = move |kind: &&StoredWorkspaceType| kind.spec[stage.step()] == Value::Bool(true);
        types.iter().filter(asks).map(|kind| format!("{}:{}", kind.cluster, kind.at.name)).collect::<Vec<_>>()
    };
    let mut bindings = Vec::new();
    for reference in types.iter().flat_map(StoredWorkspaceType::default_bindings) {
        if !bindings.contains(&reference) {
            bindings.push(reference);
        }
    }
    let mut initializers = steps(LifecycleStage::Initializing);
    initializers.extend((!bindings.is_empty()).then(|| BINDINGS_INITIALIZER.to_owned()));
    ClusterLifecycle {
        pending: initializers.clone(),
        initializers,
        terminators: steps(LifecycleStage::Terminating),
        bindings,
        owner: owner.name.clone(),
        owner_groups: owner.groups.clone(),
        deleted: String::new(),
    }
}

fn names(types: &[StoredWorkspaceType]) -> Vec<WorkspaceTypeName> {
    types.iter().map(|kind| kind.at.clone()).collect()
}

/// Checks a limit of each type against the types on the other side.
fn check_limits(types: &[StoredWorkspaceType], side: LimitedSide, others: &[WorkspaceTypeName]) -> Result<(), String> {
    let (field, role) = side.names();
    for kind in types {
        let Some(limit) = kind.spec.get(field).filter(|limit| !limit.is_null()) else { continue };
        let other = others.first().map(WorkspaceTypeName::to_string).unwrap_or_default();
        if limit.get("none").and_then(Value::as_bool) == Some(true) {
            return Err(format!("workspace type {} allows no {role} workspace, such as one of {other}", kind.at));
        }
        let allowed = kind.references(&format!("/{field}/types"));
        if !allowed.is_empty() && !others.iter().any(|other| allowed.contains(other)) {
            let allowed: Vec<String> = allowed.iter().map(WorkspaceTypeName::to_string).collect();
            let allowed = allowed.join(", ");
            return Err(format!("workspace type {} only allows {role} workspaces of {allowed}, not {other}", kind.at));
        }
    }
    Ok(())
}

async fn may_use(
    context: &WorkspaceContext,
    request: &AdmissionRequest<'_>,
    found: &StoredWorkspaceType,
) -> Result<bool, Status> {
    let asked = Attributes {
        verb: "use".into(),
        group: GROUP.into(),
        version: "v1alpha1".into(),
        resource: "workspacetypes".into(),
        name: found.at.name.clone(),
        ..Attributes::default()
    };
    let user = request.requester.known_in(found.cluster);
    Ok(context.rbac.authorize(found.cluster, &user, &asked).await?.is_allowed())
}
