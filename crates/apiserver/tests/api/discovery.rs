//! Discovery lists exactly the verbs that are served.

use serde_json::{Value, json};

use crate::{
    common::{Answer, Client, Plane},
    custom::{define, widgets},
};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// An object that is not there.
const UNKNOWN_NAME: &str = "unknown";

/// A resource or subresource as discovery shows it.
struct Listed {
    base: String,
    name: String,
    verbs: Vec<String>,
    is_namespaced: bool,
}

impl Listed {
    fn is_subresource(&self) -> bool {
        self.name.contains('/')
    }

    /// Verbs that a request can have: subresources have no collections.
    fn asked(&self) -> impl Iterator<Item = &'static str> {
        let of_collections = ["deletecollection", "list", "watch"];
        VERBS.into_iter().filter(move |verb| !self.is_subresource() || !of_collections.contains(verb))
    }

    fn collection(&self) -> String {
        let around = if self.is_namespaced { "/namespaces/default" } else { "" };
        let (plural, _) = self.name.split_once('/').unwrap_or((&self.name, ""));
        format!("{}{around}/{plural}", self.base)
    }

    fn object(&self) -> String {
        let collection = self.collection();
        match self.name.split_once('/') {
            None => format!("{collection}/{UNKNOWN_NAME}"),
            Some((_, sub)) => format!("{collection}/{UNKNOWN_NAME}/{sub}"),
        }
    }
}

async fn ask(client: &Client, of: &Listed, verb: &str) -> Answer {
    let (collection, object) = (of.collection(), of.object());
    let created_at = if of.is_subresource() { &object } else { &collection };
    match verb {
        // The bodies are invalid: a served verb answers with its own error, an unserved one with 405 or 404.
        "create" => client.post(created_at, json!([])).await,
        "update" => client.put(&object, json!([])).await,
        "patch" => client.merge(&object, json!({})).await,
        "get" => client.get(&object).await,
        "delete" => client.delete(&object).await,
        "list" => client.get(&format!("{collection}?labelSelector=no=body")).await,
        "deletecollection" => client.delete(&format!("{collection}?labelSelector=no=body")).await,
        "watch" => {
            let path = format!("{collection}?watch=true&timeoutSeconds=1&labelSelector=no=body");
            let request = http::Request::get(format!("{}{path}", client.base));
            let answer = client.raw(request.body(http_body_util::Full::default()).unwrap()).await;
            let (code, headers) = (answer.status().as_u16(), answer.headers().clone());
            Answer { code, headers, bytes: bytes::Bytes::new() }
        }
        other => panic!("{other}"),
    }
}

/// kube-apiserver's router has no path for single objects of resources that can only be created.
fn is_served(answer: &Answer) -> bool {
    let no_path = || answer.message() == "the server could not find the requested resource";
    answer.code != 405 && (answer.code != 404 || !no_path())
}

async fn all(client: &Client) -> Vec<Listed> {
    let groups = client.get("/apis").await.expect(200).json();
    let versions = groups["groups"].as_array().unwrap().iter().flat_map(|group| group["versions"].as_array().unwrap());
    let named = versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
    let mut listed = Vec::new();
    for base in std::iter::once("/api/v1".to_owned()).chain(named) {
        let found = client.get(&base).await.expect(200).json();
        listed.extend(found["resources"].as_array().unwrap().iter().map(|resource| Listed {
            base: base.clone(),
            name: resource["name"].as_str().unwrap().to_owned(),
            verbs: resource["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().into()).collect(),
            is_namespaced: resource["namespaced"] == Value::Bool(true),
        }));
    }
    listed
}

#[tokio::test]
async fn discovery_lists_exactly_the_verbs_that_are_served() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    define(&admin, widgets()).await;
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for listed in all(&admin).await {
        for verb in listed.asked() {
            let answer = ask(&admin, &listed, verb).await;
            asked += 1;
            let is_served = is_served(&answer);
            let is_listed = listed.verbs.iter().any(|own| own == verb);
            if is_served != is_listed {
                let (base, name, code) = (&listed.base, &listed.name, answer.code);
                wrong.push(format!("{verb} {base} {name}: listed {is_listed}, answered with {code} {}", answer.text()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(asked > 800, "{asked}");
}
