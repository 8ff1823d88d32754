//! Requests about the initial content of a server: discovery, OpenAPI, and the objects that it starts with.

use super::caching;
use super::catalog::ResourceCatalog;
use super::step::{OracleScript, PROTOBUF, ScriptPhase, Step, TABLE};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const OPENAPI_V2: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const OPENAPI_V3: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// OpenAPI documents that belong to no group version, and a document that does not exist.
const AROUND: [&str; 6] = ["api", "apis", "version", "openid/v1/jwks", ".well-known/openid-configuration", "nothing"];

/// All of these requests.
pub(super) fn scripts(catalog: &ResourceCatalog) -> Vec<OracleScript> {
    let script = |name: &str, steps| OracleScript { name: format!("server/{name}"), steps, phase: ScriptPhase::Fresh };
    vec![
        script("caching", caching::steps()),
        script("discovery", discovery(catalog)),
        script("openapi", openapi(catalog)),
        script("objects", objects(catalog)),
    ]
}

fn versions(catalog: &ResourceCatalog) -> Vec<String> {
    let mut versions: Vec<String> = catalog.kinds().map(|(version, _)| version.to_owned()).collect();
    versions.dedup();
    versions
}

/// `apis/apps` for each group.
fn groups(catalog: &ResourceCatalog) -> Vec<String> {
    let of = |version: &String| version.split_once('/').map(|(group, _)| format!("apis/{group}"));
    let mut groups: Vec<String> = versions(catalog).iter().filter_map(of).collect();
    groups.dedup();
    groups
}

fn version_path(version: &str) -> String {
    if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") }
}

fn discovery(catalog: &ResourceCatalog) -> Vec<Step> {
    let mut steps = Vec::new();
    for path in ["/", "/api", "/api/", "/apis", "/apis/", "/version"] {
        steps.push(Step::get(&format!("{path} is served"), path));
    }
    for path in ["/api", "/apis"] {
        steps.push(Step::get(&format!("{path} is aggregated"), path).accept(AGGREGATED));
        steps.push(
            Step::get(&format!("{path} is aggregated or not"), path).accept(&format!("{AGGREGATED},application/json")),
        );
        steps.push(Step::get(&format!("{path} in protobuf"), path).accept(PROTOBUF));
    }
    for version in versions(catalog) {
        let path = version_path(&version);
        steps.push(Step::get(&format!("{path} is served"), path.clone()));
        if let Some((group, _)) = path.rsplit_once('/').filter(|(group, _)| *group != "/api") {
            let name = format!("{group} of {version} is served");
            steps.push(Step::get(&name, group));
        }
    }
    for path in ["/apis/nothing.example.com", "/apis/apps/v9", "/api/v9", "/nothing", "/apis/apps/v1/nothing"] {
        steps.push(Step::get(&format!("{path} is not there"), path));
    }
    steps
}

fn openapi(catalog: &ResourceCatalog) -> Vec<Step> {
    let mut steps = vec![
        Step::get("the index", "/openapi/v3"),
        Step::get("the index in an unknown type", "/openapi/v3").accept("application/xml"),
        Step::get("version 2 in an unknown type", "/openapi/v2").accept("application/xml"),
        Step::get("a document that is not there", "/openapi/v3/apis/nothing.example.com/v1"),
        Step::get("a document in an unknown type", "/openapi/v3/api/v1").accept("application/xml"),
        Step::get("a wrong hash", "/openapi/v3/api/v1?hash=ABC"),
        Step::get("the index in protobuf", "/openapi/v3").accept(OPENAPI_V3),
    ];
    for name in AROUND.into_iter().map(str::to_owned).chain(groups(catalog)) {
        let path = format!("/openapi/v3/{name}");
        steps.push(Step::get(&format!("the document of {name}"), path.clone()));
        steps.push(Step::get(&format!("the document of {name} in protobuf"), path).accept(OPENAPI_V3));
    }
    for version in versions(catalog) {
        let path = version_path(&version);
        let path = format!("/openapi/v3{path}");
        steps.push(Step::get(&format!("the document of {version}"), path.clone()));
        steps.push(Step::get(&format!("the document of {version} in protobuf"), path).accept(OPENAPI_V3));
    }
    steps.push(Step::get("version 2", "/openapi/v2"));
    steps.push(Step::get("version 2 in protobuf", "/openapi/v2").accept(OPENAPI_V2));
    steps
}

/// Returns the reads of all objects that exist from the start, of every kind that can be listed.
fn objects(catalog: &ResourceCatalog) -> Vec<Step> {
    let mut steps = Vec::new();
    for (version, kind) in catalog.kinds() {
        let Some(resource) = catalog.find(version, kind).filter(|resource| resource.can("list")) else { continue };
        steps.push(Step::get(&format!("all {kind} of {version}"), resource.everywhere()));
        steps.push(Step::get(&format!("all {kind} of {version} as a table"), resource.everywhere()).accept(TABLE));
    }
    steps
}
