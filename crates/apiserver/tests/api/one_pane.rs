//! Lists and watches of several physical clusters.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use portolan_apiserver::{
    Body, BodyError, full,
    hooks::{PodStreamRequest, PodStreams, ProxyRequest, ProxyTarget},
};
use portolan_types::{BoxFuture, Reason, Status};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::common::{Client, Plane};

const PODS: &str = "/api/v1/pods?clusters=";
const TABLE: [(&str, &str); 1] = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];

/// Behavior of a physical cluster.
enum Member {
    /// Has these pods, at this version.
    Pods(Vec<&'static str>, u64),
    /// Does not answer.
    Silent,
    /// Answers this text.
    Text(&'static str),
    /// Refuses.
    Refusing(u16, &'static str),
}

/// Physical clusters by name, with their requests and open watches.
#[derive(Default)]
struct Members {
    members: Mutex<BTreeMap<String, Member>>,
    requests: Mutex<Vec<String>>,
    watches: Mutex<BTreeMap<String, mpsc::UnboundedSender<String>>>,
}

fn pod(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()}})
}

fn parameter(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}="))).map(str::to_owned)
}

impl Members {
    fn set(&self, name: &str, member: Member) {
        self.members.lock().unwrap().insert(name.to_owned(), member);
    }

    fn send(&self, name: &str, kind: &str, object: Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.watches.lock().unwrap()[name].send(line).unwrap();
    }

    /// Waits until a watch of a physical cluster is open.
    async fn watched(&self, name: &str) {
        while !self.watches.lock().unwrap().contains_key(name) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn list(pods: &[&str], version: u64, query: &str, is_table: bool) -> Value {
        let limit = parameter(query, "limit").map_or(500, |limit| limit.parse().unwrap());
        let start: usize = parameter(query, "continue").map_or(0, |at| at.parse().unwrap());
        let page: Vec<Value> = pods.iter().skip(start).take(limit).map(|name| pod(name, 1)).collect();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if start + page.len() < pods.len() {
            metadata["continue"] = (start + page.len()).to_string().into();
        }
        if !is_table {
            return json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": page});
        }
        let rows: Vec<Value> =
            page.into_iter().map(|own| json!({"cells": [own["metadata"]["name"]], "object": own})).collect();
        json!({"kind": "Table", "metadata": metadata, "columnDefinitions": [{"name": "Name"}], "rows": rows})
    }

    fn watch(&self, name: &str) -> Body {
        let (sender, receiver) = mpsc::unbounded_channel::<String>();
        self.watches.lock().unwrap().insert(name.to_owned(), sender);
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            let line = receiver.recv().await?;
            Some((Ok::<_, BodyError>(Frame::data(Bytes::from(line))), receiver))
        });
        StreamBody::new(lines.boxed()).boxed_unsync()
    }

    fn answer(&self, name: &str, request: &http::Request<Bytes>) -> Option<http::Response<Body>> {
        let query = request.uri().query().unwrap_or_default();
        let is_table = request.headers()["accept"].to_str().unwrap().contains("as=Table");
        let members = self.members.lock().unwrap();
        let (code, body) = match members.get(name)? {
            Member::Silent => return None,
            Member::Pods(..) if query.contains("watch=true") => (200, self.watch(name)),
            Member::Pods(pods, version) => (200, full(Self::list(pods, *version, query, is_table).to_string())),
            Member::Text(text) => (200, full(*text)),
            Member::Refusing(code, message) => {
                (*code, full(json!({"reason": "Forbidden", "message": message}).to_string()))
            }
        };
        Some(http::Response::builder().status(code).body(body).unwrap())
    }
}

/// Hook over shared members.
struct Proxy(Arc<Members>);

impl PodStreams for Proxy {
    fn open(&self, _: PodStreamRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>> {
        Box::pin(async { Err(Status::internal("no pods")) })
    }

    fn proxy(&self, request: ProxyRequest) -> BoxFuture<'_, Result<http::Response<Body>, Status>> {
        Box::pin(async move {
            let ProxyTarget::PhysicalCluster(physical) = &request.target else { panic!("a physical cluster") };
            let name = physical["metadata"]["name"].as_str().unwrap().to_owned();
            let asked = format!("{name} {} {}", request.user.name, request.request.uri());
            self.0.requests.lock().unwrap().push(asked);
            match self.0.answer(&name, &request.request) {
                Some(answer) => Ok(answer),
                None => {
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                    Err(Status::new(Reason::ServiceUnavailable, "late"))
                }
            }
        })
    }
}

struct Pane {
    plane: Plane,
    members: Arc<Members>,
}

async fn pane(names: &[&str]) -> Pane {
    let members = Arc::new(Members::default());
    let hook = members.clone();
    let plane = Plane::with(move |config| config.hooks.streams = Arc::new(Proxy(hook))).await;
    let pane = Pane { plane, members };
    for name in names {
        pane.register(name).await;
    }
    pane
}

impl Pane {
    async fn register(&self, name: &str) {
        let cluster = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": name},
            "spec": {"connection": {"simulated": {}}}});
        self.plane.admin().post("/apis/portolan.dev/v1alpha1/physicalclusters", cluster).await.expect(201);
    }

    fn admin(&self) -> Client {
        self.plane.admin()
    }
}

fn item_names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    let text = |item: &Value| {
        let cluster = item["metadata"]["annotations"]["portolan.dev/cluster"].as_str().unwrap();
        format!("{cluster}/{}", item["metadata"]["name"].as_str().unwrap())
    };
    items.map(text).collect()
}

#[tokio::test]
async fn a_list_merges_all_or_named_physical_clusters() {
    let pane = pane(&["west", "east", "north"]).await;
    pane.members.set("east", Member::Pods(vec!["web", "db"], 7));
    pane.members.set("west", Member::Pods(vec!["web"], 12));
    pane.members.set("north", Member::Pods(vec![], 3));
    let all = pane.admin().get(&format!("{PODS}all")).await.expect(200).json();
    assert_eq!((&all["kind"], &all["apiVersion"]), (&json!("PodList"), &json!("v1")));
    assert_eq!(item_names(&all), ["east/web", "east/db", "west/web"]);
    let named = pane.admin().get(&format!("{PODS}west,north&labelSelector=a%3Db")).await.expect(200).json();
    assert_eq!(item_names(&named), ["west/web"]);
    let requests = pane.members.requests.lock().unwrap().clone();
    assert!(requests.contains(&"west admin /api/v1/pods?labelSelector=a%3Db&limit=500".to_owned()), "{requests:?}");
    for (path, code) in [
        (format!("{PODS}east,nowhere"), 404),
        (format!("{PODS}east,,west"), 400),
        (format!("{PODS}east&watch=true&resourceVersion=7"), 410),
        (format!("{PODS}east&watch=true&sendInitialEvents=true"), 422),
        (format!("{PODS}east&continue=x"), 400),
        ("/api/v1/namespaces/shop/pods/web?clusters=east".to_owned(), 400),
    ] {
        pane.admin().get(&path).await.expect(code);
    }
    pane.admin().delete("/api/v1/namespaces/default/pods?clusters=all").await.expect(400);
    pane.admin().send("GET", &format!("{PODS}all"), &[("accept", "application/yaml")], "").await.expect(200);
    pane.admin()
        .send("GET", &format!("{PODS}all"), &[("accept", "application/vnd.kubernetes.protobuf")], "")
        .await
        .expect(406);
}

#[tokio::test]
async fn a_table_names_the_physical_cluster_first() {
    let pane = pane(&["east", "west"]).await;
    pane.members.set("east", Member::Pods(vec!["web"], 7));
    pane.members.set("west", Member::Pods(vec!["web"], 12));
    let table = pane.admin().send("GET", &format!("{PODS}all"), &TABLE, "").await.expect(200).json();
    let columns: Vec<_> = table["columnDefinitions"].as_array().unwrap().iter().map(|column| &column["name"]).collect();
    assert_eq!(columns, ["Cluster", "Name"]);
    let rows: Vec<_> = table["rows"].as_array().unwrap().iter().map(|row| row["cells"].clone()).collect();
    assert_eq!(rows, [json!(["east", "web"]), json!(["west", "web"])]);
}

#[tokio::test(start_paused = true)]
async fn gaps_are_named_and_an_outage_is_no_empty_list() {
    let pane = pane(&["a", "b", "c", "d"]).await;
    pane.members.set("a", Member::Pods(vec!["web"], 7));
    pane.members.set("b", Member::Silent);
    pane.members.set("c", Member::Text(r#"{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[7]}"#));
    pane.members.set("d", Member::Refusing(403, "you may not"));
    let answer = pane.admin().get(&format!("{PODS}all")).await.expect(200);
    assert_eq!(item_names(&answer.json()), ["a/web"]);
    let warnings: Vec<&str> =
        answer.headers.get_all("warning").iter().map(|warning| warning.to_str().unwrap()).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("\\\"b\\\" is missing: it does not answer in time"), "{warnings:?}");
    assert!(warnings[1].contains("\\\"c\\\" is missing: its answer is invalid"), "{warnings:?}");
    assert!(warnings[2].contains("\\\"d\\\" is missing: you may not"), "{warnings:?}");
    pane.admin().get(&format!("{PODS}b,c,d")).await.expect(503);
    assert_eq!(pane.admin().get(&format!("{PODS}d")).await.expect(403).message(), "you may not");
}

#[tokio::test]
async fn pages_come_in_the_order_of_the_names() {
    let pane = pane(&["east", "west"]).await;
    pane.members.set("east", Member::Pods(vec!["a", "b", "c"], 7));
    pane.members.set("west", Member::Pods(vec!["a", "b"], 12));
    let (mut pages, mut token) = (Vec::new(), String::new());
    let whole = pane.admin().get(&format!("{PODS}all")).await.expect(200).json();
    loop {
        let page = pane.admin().get(&format!("{PODS}all&limit=2&continue={token}")).await.expect(200).json();
        pages.push(item_names(&page));
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => {
                assert_eq!(page["metadata"]["resourceVersion"], whole["metadata"]["resourceVersion"]);
                break;
            }
        }
    }
    assert_eq!(pages, [vec!["east/a", "east/b"], vec!["east/c"], vec!["west/a", "west/b"]]);
}

#[tokio::test]
async fn each_physical_cluster_needs_the_right_to_its_proxy() {
    let pane = pane(&["east", "west"]).await;
    pane.members.set("east", Member::Pods(vec!["web"], 7));
    pane.members.set("west", Member::Pods(vec!["web"], 12));
    let (admin, ann) = (pane.admin(), pane.plane.as_user("ann"));
    let rules = |names: &[&str]| {
        json!({"metadata": {"name": "pane"}, "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": ["portolan.dev"], "resources": ["physicalclusters/proxy"], "resourceNames": names, "verbs": ["get"]}]})
    };
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    admin.post(roles, rules(&["nothing"])).await.expect(201);
    let binding = json!({"metadata": {"name": "pane"}, "subjects": [{"kind": "User", "name": "ann",
        "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pane"}});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    ann.get(&format!("{PODS}all")).await.expect(403);
    ann.get(&format!("{PODS}nowhere")).await.expect(403);
    admin.merge(&format!("{roles}/pane"), rules(&["east"])).await.expect(200);
    let answer = ann.get(&format!("{PODS}all")).await.expect(200);
    assert_eq!(item_names(&answer.json()), ["east/web"]);
    assert!(answer.headers["warning"].to_str().unwrap().contains("1 physical clusters are left out"));
    let refused = ann.get(&format!("{PODS}east,west")).await.expect(403);
    assert!(refused.message().contains("physicalclusters/proxy"), "{}", refused.message());
    ann.get("/api/v1/services?clusters=all").await.expect(403);
}

#[tokio::test]
async fn one_resource_version_resumes_all_physical_clusters() {
    let pane = pane(&["east", "west"]).await;
    pane.members.set("east", Member::Pods(vec!["a"], 7));
    pane.members.set("west", Member::Pods(vec!["a"], 12));
    let list = pane.admin().get(&format!("{PODS}all")).await.expect(200).json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let path = |version: &str| format!("{PODS}all&watch=true&allowWatchBookmarks=true&resourceVersion={version}");
    let mut watch = pane.admin().watch(&path(&version), &[]).await;
    pane.members.send("west", "ADDED", pod("b", 13));
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("b")));
    assert_eq!(event["object"]["metadata"]["annotations"]["portolan.dev/cluster"], "west");
    pane.members.send(
        "east",
        "BOOKMARK",
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}}),
    );
    let bookmark = watch.next().await.unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["kind"]), (&json!("BOOKMARK"), &json!("Pod")));
    drop(watch);
    pane.members.requests.lock().unwrap().clear();
    let resumed = bookmark["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = pane.admin().watch(&path(resumed), &[]).await;
    let requests = pane.members.requests.lock().unwrap().join("\n");
    assert!(requests.contains("resourceVersion=9&") && requests.contains("resourceVersion=13&"), "{requests}");
    pane.members.send("east", "ERROR", json!({"code": 410, "message": "too old"}));
    let end = watch.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_connects_again_and_gets_what_is_new() {
    let pane = pane(&["east"]).await;
    pane.members.set("east", Member::Pods(vec!["a"], 7));
    let mut watch = pane.admin().watch(&format!("{PODS}all&watch=true"), &[]).await;
    assert_eq!(watch.seen().await, ("ADDED".into(), "a".into()));
    // A watch makes progress only while it is read.
    let send = async |kind: &str, version| {
        pane.members.watched("east").await;
        pane.members.send("east", kind, pod("a", version));
    };
    let (modified, ()) = tokio::join!(watch.seen(), send("MODIFIED", 9));
    assert_eq!(modified.0, "MODIFIED");
    drop(pane.members.watches.lock().unwrap().remove("east"));
    let (last, ()) = tokio::join!(watch.next(), send("DELETED", 10));
    let last = last.unwrap();
    let requests = pane.members.requests.lock().unwrap().clone();
    assert!(requests.last().unwrap().contains("resourceVersion=9&"), "{requests:?}");
    assert_eq!(last["type"], "DELETED");
    pane.members.set("west", Member::Pods(vec!["b"], 3));
    pane.register("west").await;
    assert!(watch.next().await.is_none(), "it ends when another one comes");
    let version = last["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = pane.admin().watch(&format!("{PODS}all&watch=true&resourceVersion={version}"), &[]).await;
    assert_eq!(watch.seen().await, ("ADDED".into(), "b".into()));
    pane.admin().delete("/apis/portolan.dev/v1alpha1/physicalclusters/west").await;
    let end = watch.next().await.unwrap();
    assert_eq!(end["object"]["code"], 410, "{end}");
}

#[tokio::test]
async fn tables_of_a_watch_have_their_columns_once() {
    let pane = pane(&["east", "west"]).await;
    pane.members.set("east", Member::Pods(vec!["a"], 7));
    pane.members.set("west", Member::Pods(vec!["b"], 12));
    let mut watch = pane.admin().watch(&format!("{PODS}all&watch=true"), &TABLE).await;
    let (first, second) = (watch.next().await.unwrap(), watch.next().await.unwrap());
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Cluster");
    assert_eq!(second["object"]["columnDefinitions"], Value::Null);
    let mut cells = [first["object"]["rows"][0]["cells"].clone(), second["object"]["rows"][0]["cells"].clone()];
    cells.sort_by_key(Value::to_string);
    assert_eq!(cells, [json!(["east", "a"]), json!(["west", "b"])]);
}
