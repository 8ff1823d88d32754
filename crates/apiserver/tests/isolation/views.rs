//! Reads of many objects: lists in every form, watches with their initial events, and discovery.

use crate::{
    generator::{TenantRequest, form, request},
    random::Random,
};

/// Paths that describe the API.
const DESCRIPTIONS: [&str; 12] = [
    "/api",
    "/apis",
    "/api/v1",
    "/apis/apps/v1",
    "/apis/example.com",
    "/apis/example.com/v1",
    "/apis/portolan.dev/v1alpha1",
    "/version",
    "/openapi/v3",
    "/openapi/v3/apis/example.com/v1",
    "/healthz",
    "/metrics",
];

pub fn discovery(random: &mut Random) -> TenantRequest {
    let mut read = request("GET", (*random.pick(&DESCRIPTIONS)).to_owned(), None);
    if random.one_in(3) {
        read.headers
            .push(("accept".into(), "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList".into()));
    }
    read
}

pub fn list(collection: &str, random: &mut Random) -> TenantRequest {
    let selector =
        random.pick(&["", "labelSelector=app%3Da", "fieldSelector=metadata.name%3Dn1", "limit=1", "limit=2"]);
    let at = random.pick(&["", "", "&resourceVersion=0", "&resourceVersion=1&resourceVersionMatch=Exact"]);
    form(random, request("GET", format!("{collection}?{selector}{at}"), None))
}

/// Watches the initial events only: the stream ends after its time.
pub fn watch_list(collection: &str, random: &mut Random) -> TenantRequest {
    let selector = random.pick(&["", "&labelSelector=app%3Da"]);
    let query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    request("GET", format!("{collection}?{query}&timeoutSeconds=1{selector}"), None)
}
