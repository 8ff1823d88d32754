//! One pane: lists and watches with `?clusters=all` or `?clusters=a,b` show the objects of physical clusters
//! themselves, merged while they are answered. Nothing is stored.
//!
//! Each object keeps its name and namespace, and has its physical cluster in the annotation `portolan.dev/cluster`, and
//! as the first column of tables. Objects of the same name on several physical clusters are several items. A physical
//! cluster that does not answer causes a `Warning`. If none answers, the request fails, so that no client mistakes an
//! outage for an empty list. The client needs the right to list the resource in the workspace, and
//! `physicalclusters/proxy` of each physical cluster, on which it acts as the user that it is mapped to.
//!
//! One opaque resourceVersion stands for all physical clusters, in lists, events and bookmarks.

mod budget;
mod client;
mod feed;
mod items;
mod list;
mod members;
mod raw;
mod tables;
mod tokens;
mod watch;

use std::sync::Arc;

use http::{HeaderValue, Method, Response, header};
use portolan_types::{Reason, Status};

use crate::{
    ApiServer, Body,
    encode::{self, FormOffer, MetadataShape, NegotiatedForm, OBJECT_TYPES, ObjectForm, OfferedForms, ResponseFormat},
    hooks::StreamPermit,
    limits::{FlowKey, Permit},
    metrics::GaugeGuard,
    request::{RequestContext, method_not_allowed},
    routing::routes::RouteEndpoint,
};

use self::{budget::ByteBudget, client::PaneClient, members::PaneMembers};

/// Query parameter that names physical clusters.
const PARAMETER: &str = "clusters";
/// Most bytes of physical clusters that a list holds.
const MAX_LIST: usize = 32 * 1024 * 1024;
/// Bytes of memory that a list takes for each byte of a physical cluster: that byte, and the encoded one.
const LIST_WEIGHT: usize = 2;
/// Most bytes of physical clusters that a watch holds.
const MAX_WATCH: usize = 16 * 1024 * 1024;

/// Returns true if a request names physical clusters.
pub(crate) fn is_asked(call: &RequestContext) -> bool {
    let is_about_objects = matches!(call.endpoint, RouteEndpoint::Collection | RouteEndpoint::Object);
    is_about_objects && call.query.get(PARAMETER).is_some()
}

/// Answers a list or watch of physical clusters.
///
/// # Errors
/// 400 for other requests, which would otherwise act on the objects of the workspace.
pub(crate) async fn answer(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    permit: Option<Permit>,
) -> Result<Response<Body>, Status> {
    let is_list = matches!(&*call.attributes.verb, "list" | "watch") && call.endpoint == RouteEndpoint::Collection;
    // One workspace has physical clusters in reach: no view, and not all workspaces.
    let is_of_all =
        ["/clusters/*", "/clusters/%2A", "/clusters/%2a"].iter().any(|all| call.uri.path().starts_with(all));
    if !is_list || is_of_all || call.view.is_some() {
        return Err(Status::bad_request(format!(
            "the query parameter {PARAMETER} is for lists and watches of workspaces"
        )));
    }
    if call.method == Method::HEAD {
        return Err(method_not_allowed());
    }
    if call.headers.contains_key(header::UPGRADE) {
        return Err(Status::bad_request(format!("a watch with {PARAMETER} is not served over WebSocket")));
    }
    let form = form_of(call)?;
    let members = members::members_of(api, call).await?;
    match permit {
        Some(permit) => watch::answer(pane_client(api, call, &form, permit), members).await,
        None => {
            let tenant = api.directory().tenant(&call.cluster);
            let permit =
                api.limiter.stream(&FlowKey { tenant, cluster: call.cluster.id, user: &call.identity.user })?;
            list::answer(&pane_client(api, call, &form, permit), members, form).await
        }
    }
}

/// Returns the form of the answer: JSON, and YAML of lists.
fn form_of(call: &RequestContext) -> Result<NegotiatedForm, Status> {
    let offer = FormOffer { shown: OfferedForms::Table, protobuf: false, routed: OBJECT_TYPES };
    let form = encode::negotiate(&call.headers, offer)?;
    match form.media {
        ResponseFormat::Json => Ok(form),
        ResponseFormat::Yaml if call.attributes.verb == "list" => Ok(form),
        ResponseFormat::Yaml | ResponseFormat::Protobuf => {
            Err(Status::new(Reason::NotAcceptable, "only the following media types are accepted: application/json"))
        }
    }
}

fn pane_client(
    api: &Arc<ApiServer>,
    call: &Arc<RequestContext>,
    form: &NegotiatedForm,
    permit: Permit,
) -> Arc<PaneClient> {
    let shape = match form.form {
        ObjectForm::Object => None,
        ObjectForm::Table => Some("Table"),
        ObjectForm::Metadata(MetadataShape::One) => Some("PartialObjectMetadata"),
        ObjectForm::Metadata(MetadataShape::List) => Some("PartialObjectMetadataList"),
    };
    let accept = match shape {
        None => HeaderValue::from_static("application/json"),
        Some(shape) => HeaderValue::try_from(format!("application/json;as={shape};v=v1;g=meta.k8s.io"))
            .expect("the names are plain"),
    };
    let (most, weight) = if call.attributes.verb == "watch" { (MAX_WATCH, 1) } else { (MAX_LIST, LIST_WEIGHT) };
    Arc::new(PaneClient {
        api: api.clone(),
        call: call.clone(),
        permit: StreamPermit::new(permit, GaugeGuard::new(api.metrics.longrunning(&call.labels))),
        accept,
        is_table: form.form == ObjectForm::Table,
        budget: ByteBudget::new(most, weight, call.charge.clone()),
    })
}

/// Adds the warnings about physical clusters that are missing.
fn warn(call: &RequestContext, members: &PaneMembers, gaps: &[(String, Status)]) {
    if members.refused > 0 {
        call.warn([format!("{} physical clusters are left out: no right to their proxy", members.refused)]);
    }
    call.warn(gaps.iter().map(|(name, why)| format!("physical cluster {name:?} is missing: {}", why.message())));
}

/// Returns the failure of a request that no physical cluster answered: their common failure if all have the same.
fn total_failure(gaps: Vec<(String, Status)>) -> Status {
    let agree = gaps.windows(2).all(|pair| pair[0].1.code() == pair[1].1.code());
    let texts: Vec<String> = gaps.iter().map(|(name, why)| format!("{name}: {}", why.message())).collect();
    match gaps.into_iter().next() {
        Some((_, why)) if agree && (400..500).contains(&why.code()) => why,
        _ => Status::new(Reason::ServiceUnavailable, format!("no physical cluster answers: {}", texts.join("; "))),
    }
}
