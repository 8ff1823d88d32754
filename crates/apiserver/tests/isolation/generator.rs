//! Requests of tenants: drawn at random from the catalog, over few names, so that all tenants use the same ones.

use std::fmt;

use serde_json::{Value, json};

use crate::{
    catalog::{CATALOG, CatalogEntry, REVIEWS},
    random::Random,
    views,
};

/// Names that objects have.
const NAMES: [&str; 6] = ["n0", "n1", "n2", "n3", "n4", "n5"];
/// Namespaces of the requests; the last one may be created and deleted as an object.
const NAMESPACES: [&str; 3] = ["default", "kube-public", "n0"];
/// Forms of an answer.
const FORMS: [&str; 4] = [
    "application/json",
    "application/json;as=Table;g=meta.k8s.io;v=v1",
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
    "application/yaml",
];

/// Stands for the id of a logical cluster of another tenant.
const FOREIGN_ID: &str = "<foreign id>";
/// Last path segment that means the next page of the last list.
pub const NEXT_PAGE: &str = "next-page";
/// Last path segment that means a watch from the revision of the last list.
pub const WATCH_ON: &str = "watch-on";

/// Request of a tenant.
#[derive(Clone)]
pub struct TenantRequest {
    /// Name and groups; `None` for anonymous.
    pub user: Option<(String, Vec<String>)>,
    pub method: &'static str,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl TenantRequest {
    /// Returns true for a list that pages and watches may continue.
    pub fn is_list(&self) -> bool {
        self.method == "GET" && self.path.contains('?') && !self.path.contains("watch=true")
    }
}

impl fmt::Display for TenantRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map_or("anonymous", |(name, _)| name);
        write!(f, "{} {} as {user} {:?} {}", self.method, self.path, self.headers, self.body)
    }
}

/// Source of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// The tenant whose answers are compared: she also tries places of others.
    Observed,
    /// The other tenants: they write where they are allowed to, and try to read objects of the tenant.
    Others,
}

impl Generator {
    /// Logical clusters, of which the first gets most requests.
    fn clusters(self) -> &'static [&'static str] {
        match self {
            Self::Observed => {
                &["root:t", "root:t:team", "root", "root:v", "root:v:team", "root:w", "root:missing", "*", FOREIGN_ID]
            }
            Self::Others => &["root:v", "root:v:team", "root:w"],
        }
    }

    fn user(self, cluster: &str, random: &mut Random) -> Option<&'static str> {
        match self {
            Self::Observed => *of_few(&[Some("ann"), Some("bob"), None], random),
            Self::Others if cluster == "root:w" => Some("dora"),
            Self::Others => Some("carl"),
        }
    }

    /// Draws a request. `foreign_id` is the id of a logical cluster of another tenant.
    pub fn next(self, random: &mut Random, foreign_id: &str) -> TenantRequest {
        let cluster = *of_few(self.clusters(), random);
        let user = self.user(cluster, random);
        let mut request = match random.below(20) {
            0 => views::discovery(random),
            1 => review(random),
            2 => request("GET", format!("/{NEXT_PAGE}"), None),
            3 => request("GET", format!("/{WATCH_ON}"), None),
            _ => of_catalog(random),
        };
        if self == Self::Others {
            // Other tenants may grant rights to the tenant, who then sees them rightly.
            request.body = ["bob", "ann", "system:anonymous"]
                .iter()
                .fold(request.body, |body, name| body.replace(&format!("\"name\":\"{name}\""), "\"name\":\"eve\""));
        }
        request.path = format!("/clusters/{}{}", cluster.replace(FOREIGN_ID, foreign_id), request.path);
        request.user = user.map(|name| (name.to_owned(), Vec::new()));
        if request.user.is_some() && random.one_in(40) {
            request.headers.push(("impersonate-user".into(), (*random.pick(&["carl", "bob", "admin"])).into()));
        }
        request
    }
}

fn of_catalog(random: &mut Random) -> TenantRequest {
    let entry = random.pick(CATALOG);
    let collection = collection(entry, random);
    let name = match entry.resource {
        "customresourcedefinitions" => "widgets.example.com",
        "logicalclusters" => "cluster",
        _ => random.pick(&NAMES),
    };
    match random.below(12) {
        0 | 1 => views::list(&collection, random),
        2 => views::watch_list(&collection, random),
        3 | 4 => form(random, object_request("GET", &collection, name, None)),
        5..=7 => create(entry, &collection, name, random),
        8 => replace(entry, &collection, name, random),
        9 => patch(entry, &collection, name, random),
        // Without its controller, a new definition would never be established.
        10 | 11 if entry.resource == "customresourcedefinitions" => views::list(&collection, random),
        10 => object_request("DELETE", &collection, name, None),
        _ if random.one_in(6) => request("DELETE", format!("{collection}?labelSelector=app=a"), None),
        _ => views::list(&collection, random),
    }
}

/// Picks one of a few: mostly the first one.
fn of_few<'a, T>(of: &'a [T], random: &mut Random) -> &'a T {
    if random.one_in(4) { random.pick(of) } else { &of[0] }
}

fn collection(entry: &CatalogEntry, random: &mut Random) -> String {
    let CatalogEntry { prefix, resource, .. } = entry;
    if entry.is_namespaced {
        format!("{prefix}/namespaces/{}/{resource}", of_few(&NAMESPACES, random))
    } else {
        format!("{prefix}/{resource}")
    }
}

pub fn request(method: &'static str, path: String, body: Option<&Value>) -> TenantRequest {
    let headers = body.map(|_| ("content-type".to_owned(), "application/json".to_owned())).into_iter().collect();
    let body = body.map(Value::to_string).unwrap_or_default();
    TenantRequest { user: None, method, path, headers, body }
}

fn object_request(method: &'static str, collection: &str, name: &str, body: Option<&Value>) -> TenantRequest {
    request(method, format!("{collection}/{name}"), body)
}

/// Asks for one of the forms of an answer.
pub fn form(random: &mut Random, mut request: TenantRequest) -> TenantRequest {
    request.headers.push(("accept".into(), (*random.pick(&FORMS)).into()));
    request
}

fn object(entry: &CatalogEntry, name: &str, random: &mut Random) -> Value {
    let mut object = (entry.fields)(random);
    // An apply has to name the type.
    let version = entry.prefix.trim_start_matches("/apis/").trim_start_matches("/api/");
    (object["apiVersion"], object["kind"]) = (version.into(), entry.kind.into());
    object["metadata"] = json!({"name": name, "labels": {"app": random.pick(&["a", "b"])}});
    object
}

fn create(entry: &CatalogEntry, collection: &str, name: &str, random: &mut Random) -> TenantRequest {
    let object = object(entry, name, random);
    let dry_run = random.pick(&["", "", "", "?dryRun=All", "?fieldValidation=Strict"]);
    request("POST", format!("{collection}{dry_run}"), Some(&object))
}

fn replace(entry: &CatalogEntry, collection: &str, name: &str, random: &mut Random) -> TenantRequest {
    let object = object(entry, name, random);
    object_request("PUT", collection, name, Some(&object))
}

fn patch(entry: &CatalogEntry, collection: &str, name: &str, random: &mut Random) -> TenantRequest {
    let object = object(entry, name, random);
    let mut patch = object_request("PATCH", collection, name, Some(&object));
    let media = if random.one_in(2) {
        patch.path.push_str("?fieldManager=test&force=true");
        "application/apply-patch+yaml"
    } else {
        "application/merge-patch+json"
    };
    patch.headers = vec![("content-type".into(), media.into())];
    patch
}

fn review(random: &mut Random) -> TenantRequest {
    let (prefix, resource) = random.pick(&REVIEWS);
    let attributes = json!({"verb": random.pick(&["get", "create", "*"]), "resource": random.pick(&["pods", "secrets"]),
        "namespace": random.pick(&NAMESPACES)});
    let spec = match *resource {
        "selfsubjectaccessreviews" => json!({"resourceAttributes": attributes}),
        "selfsubjectrulesreviews" => json!({"namespace": random.pick(&NAMESPACES)}),
        _ => json!({}),
    };
    request("POST", format!("{prefix}/{resource}"), Some(&json!({"spec": spec})))
}
