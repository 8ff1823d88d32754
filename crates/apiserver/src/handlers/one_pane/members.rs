//! Physical clusters of a request: those that its parameter names, within reach of the workspace, whose proxy the
//! client may use.

use std::{collections::BTreeSet, sync::Arc};

use portolan_kinds::KindTable;
use portolan_strategy::rbac::User;
use portolan_types::{ObjectKey, Status, Uid, object};
use serde_json::Value;

use crate::{
    ApiServer,
    authz::AuthorizationDecision,
    directory::LogicalCluster,
    errors::{damaged, status_for},
    permission_policy::PolicySources,
    reach::{ClusterReach, physical_clusters},
    request::{RequestContext, ResourceTarget},
    routing::attributes::Attributes,
};

use super::tokens::MemberKey;

/// Most physical clusters of one request: their versions have to fit in a URL.
const MAX_MEMBERS: usize = 64;
/// Value of the parameter that stands for all physical clusters.
const ALL: &str = "all";

/// Physical cluster of a request.
pub(super) struct PaneMember {
    pub(super) name: String,
    pub(super) key: MemberKey,
    /// Logical cluster in which it is registered.
    pub(super) home: Arc<LogicalCluster>,
    /// `PhysicalCluster` as stored.
    pub(super) physical: Value,
    /// User of the request as the home knows it.
    pub(super) user: User,
}

/// Physical clusters of a request, ordered by name.
pub(super) struct PaneMembers {
    pub(super) members: Vec<Arc<PaneMember>>,
    /// Number of those left out of `all` because the client may not use their proxy.
    pub(super) refused: usize,
}

/// Parsed parameter of a request.
enum WantedClusters {
    All,
    Named(BTreeSet<String>),
}

impl WantedClusters {
    fn parse(text: &str) -> Result<Self, Status> {
        if text == ALL {
            return Ok(Self::All);
        }
        let names: BTreeSet<String> = text.split(',').map(str::trim).map(str::to_owned).collect();
        if names.contains("") {
            return Err(Status::bad_request(
                "clusters is \"all\", or names of physical clusters with commas between them",
            ));
        }
        check_count(names.len())?;
        Ok(Self::Named(names))
    }
}

fn check_count(count: usize) -> Result<(), Status> {
    let why = || format!("a request is for at most {MAX_MEMBERS} physical clusters, not {count}: name some of them");
    if count <= MAX_MEMBERS { Ok(()) } else { Err(Status::bad_request(why())) }
}

/// Right to the proxy of the physical cluster `name`: the same that a proxied request needs.
fn proxy_right(name: &str) -> Attributes {
    let resource = physical_clusters();
    Attributes {
        verb: "get".into(),
        group: resource.group.to_string(),
        version: "v1alpha1".into(),
        resource: resource.resource.to_string(),
        subresource: "proxy".into(),
        name: name.to_owned(),
        ..Attributes::default()
    }
}

/// Returns the physical clusters of a request.
///
/// # Errors
/// 400 for a malformed parameter; 403 if the client may not proxy to a named physical cluster, or to any of all; 404 if
/// a named one is not in reach.
pub(super) async fn members_of(api: &ApiServer, call: &RequestContext) -> Result<PaneMembers, Status> {
    let wanted = WantedClusters::parse(call.query.text(super::PARAMETER))?;
    let known = in_reach(api, call).await?;
    let (mut members, mut refusals) = (Vec::new(), Vec::new());
    for (home, key) in known {
        if matches!(&wanted, WantedClusters::Named(names) if !names.contains(key.name.as_str())) {
            continue;
        }
        match authorize(api, call, &home, &key).await? {
            Ok(user) => members.extend(member(api, home, &key, user).await?),
            Err(refusal) => refusals.push(refusal),
        }
    }
    let refused = refusals.len();
    let first_refusal = refusals.into_iter().next();
    match (&wanted, first_refusal) {
        (WantedClusters::Named(_), Some(refusal)) => return Err(refusal),
        (WantedClusters::All, Some(refusal)) if members.is_empty() => return Err(refusal),
        _ => {}
    }
    if let WantedClusters::Named(names) = &wanted {
        let is_missing = |name: &&String| !members.iter().any(|member| member.name == **name);
        if let Some(name) = names.iter().find(is_missing) {
            return Err(absent(api, call, name).await?);
        }
    }
    check_count(members.len())?;
    members.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(PaneMembers { members: members.into_iter().map(Arc::new).collect(), refused })
}

/// Returns the refusal for a name that is not in reach: only clients with the right learn that.
async fn absent(api: &ApiServer, call: &RequestContext, name: &str) -> Result<Status, Status> {
    let right = proxy_right(name);
    let decision = api.access.rbac.authorize_identity(call.cluster.id, &call.identity, &right).await?;
    Ok(match decision {
        AuthorizationDecision::Allowed(_) => Status::not_found(&physical_clusters(), name),
        AuthorizationDecision::Denied(why) => right.denial(&call.identity.user, &why),
    })
}

/// Returns the physical clusters in reach, with the logical clusters in which they are registered.
async fn in_reach(api: &ApiServer, call: &RequestContext) -> Result<Vec<(Arc<LogicalCluster>, ObjectKey)>, Status> {
    let kind = KindTable::builtin().kind_named("portolan.dev", "v1alpha1", "PhysicalCluster");
    let kind = kind.ok_or_else(|| Status::internal("the table lacks physical clusters"))?.clone();
    let target = ResourceTarget { table: KindTable::shared(), kind, namespace: None, definition: None };
    let reads = &api.reads;
    let keys: Vec<ObjectKey> = match ClusterReach::of(&reads.reach, &call.cluster, &target).await? {
        Some(reach) => reach.list(&reads.storage, None).await?.1.into_iter().map(|stored| stored.key).collect(),
        None => stored(api, call).await?,
    };
    let home = |key: ObjectKey| Some((api.directory().by_id(key.cluster)?, key));
    Ok(keys.into_iter().filter_map(home).collect())
}

async fn stored(api: &ApiServer, call: &RequestContext) -> Result<Vec<ObjectKey>, Status> {
    use portolan_store::{RangeRequest, RangeScope};
    let scope = RangeScope::Cluster(call.cluster.id, physical_clusters());
    let (mut keys, mut next) = (Vec::new(), Some(RangeRequest::slices(scope).skip_damaged()));
    while let Some(request) = next {
        let page = api.storage.store.range(request.clone()).await.map_err(|error| status_for(&error))?;
        next = request.next(&page);
        keys.extend(page.objects.into_iter().map(|stored| stored.key));
    }
    Ok(keys)
}

/// Checks the right to the proxy of a physical cluster. Returns the user as its home knows it, or the refusal.
async fn authorize(
    api: &ApiServer,
    call: &RequestContext,
    home: &LogicalCluster,
    key: &ObjectKey,
) -> Result<Result<User, Status>, Status> {
    let right = proxy_right(&key.name);
    let decision = if home.id == call.cluster.id {
        api.access.rbac.authorize_identity(home.id, &call.identity, &right).await?
    } else {
        use crate::authz::Authorizer as _;
        let known = call.identity.requester().known_in(home.id);
        api.access.rbac.authorize(home.id, &known, &right).await?
    };
    if let AuthorizationDecision::Denied(why) = decision {
        return Ok(Err(right.denial(&call.identity.user, &why)));
    }
    if PolicySources::may_bound(&call.identity.user, &right) {
        let policies = PolicySources { store: &api.access.store, rbac: &api.access.rbac, kinds: &api.kinds };
        if let Err(refusal) = policies.check(home.id, call.identity.requester(), &right).await {
            return if refusal.code() == 403 { Ok(Err(refusal)) } else { Err(refusal) };
        }
    }
    Ok(Ok(call.identity.requester().known_in(home.id).into_owned()))
}

async fn member(
    api: &ApiServer,
    home: Arc<LogicalCluster>,
    key: &ObjectKey,
    user: User,
) -> Result<Option<PaneMember>, Status> {
    let Some(stored) = api.storage.store.get(key).await.map_err(|error| status_for(&error))? else { return Ok(None) };
    let physical = stored.record.to_value(stored.revision).map_err(|error| damaged(key, &error))?;
    let uid: Uid = object::uid(&physical).ok_or_else(|| Status::internal("a physical cluster without a uid"))?;
    Ok(Some(PaneMember { name: key.name.to_string(), key: MemberKey::of(&uid), home, physical, user }))
}
