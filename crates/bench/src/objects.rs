//! Requests for single objects.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::load::{LoadOutcome, LoadTarget, Until};
use super::protobuf;
use harness::client::HttpClient;

/// Number of concurrent clients of gets and applies.
const CLIENTS: usize = 16;

/// Bytes of an object's payload.
#[derive(Clone, Copy)]
pub(super) struct Size(pub(super) usize);

impl Size {
    pub(super) const SMALL: Self = Self(1024);
}

pub(super) fn maps(namespace: &str) -> Arc<str> {
    format!("/api/v1/namespaces/{namespace}/configmaps").into()
}

/// Returns the number of the object for a request. The prime factor spreads successive requests over the key range.
pub(super) fn scattered(number: usize, objects: usize) -> usize {
    number.wrapping_mul(7919) % objects
}

impl LoadTarget {
    pub(super) async fn create(
        &self,
        namespace: &str,
        clients: usize,
        size: Size,
        until: Until,
    ) -> Result<LoadOutcome> {
        let (path, namespace) = (maps(namespace), Arc::<str>::from(namespace));
        self.load(clients, until, move |client, number| {
            let (path, body) = (path.clone(), config_map(&namespace, number, size));
            async move { client.send(Method::POST, &path, body).await?.success().map(drop) }
        })
        .await
    }

    /// Creates `each` objects in each of `namespaces` namespaces.
    pub(super) async fn create_in(
        &self,
        namespaces: usize,
        each: usize,
        size: Size,
        namespace: fn(usize) -> String,
    ) -> Result<LoadOutcome> {
        self.load(64, Until::Count(namespaces * each), move |client, number| {
            let namespace = namespace(number / each);
            let (path, body) = (maps(&namespace), config_map(&namespace, number % each, size));
            async move { client.send(Method::POST, &path, body).await?.success().map(drop) }
        })
        .await
    }

    /// Creates objects with requests and responses in protobuf, as typed Go clients do.
    pub(super) async fn create_in_protobuf(&self, namespace: &str, time: Duration) -> Result<LoadOutcome> {
        let (path, namespace) = (maps(namespace), Arc::<str>::from(namespace));
        self.load(64, Until::Time(time), move |client, number| {
            let path = path.clone();
            let body = protobuf::config_map(&namespace, &format!("object-{number}"), &"p".repeat(1024));
            async move {
                let headers = [("content-type", protobuf::MEDIA), ("accept", protobuf::MEDIA)];
                client.send_with(Method::POST, &path, &headers, body).await?.success().map(drop)
            }
        })
        .await
    }

    pub(super) async fn get(&self, namespace: &str, objects: usize, time: Duration) -> Result<LoadOutcome> {
        let path = maps(namespace);
        self.load(CLIENTS, Until::Time(time), move |client, number| {
            let url = format!("{path}/object-{}", scattered(number, objects));
            async move { client.get(&url).await.map(drop) }
        })
        .await
    }

    /// Replaces objects by ones with other data.
    pub(super) async fn update(
        &self,
        namespace: &str,
        clients: usize,
        size: Size,
        objects: usize,
        until: Until,
    ) -> Result<LoadOutcome> {
        let (path, namespace) = (maps(namespace), Arc::<str>::from(namespace));
        self.load(clients, until, move |client, number| {
            let at = scattered(number, objects);
            let (url, body) = (format!("{path}/object-{at}"), changed(&namespace, at, size, number));
            async move { client.send(Method::PUT, &url, body).await?.success().map(drop) }
        })
        .await
    }

    /// Applies configurations to 500 objects, which the first requests create. If `changes` is true, each request
    /// changes its object; otherwise it repeats the same configuration.
    pub(super) async fn apply(&self, namespace: &str, until: Until, changes: bool) -> Result<LoadOutcome> {
        const OBJECTS: usize = 500;
        let (path, namespace) = (maps(namespace), Arc::<str>::from(namespace));
        self.load(CLIENTS, until, move |client, number| {
            let at = scattered(number, OBJECTS);
            let url = format!("{path}/object-{at}?fieldManager=bench&force=true");
            let body = changed(&namespace, at, Size::SMALL, if changes { number } else { 0 });
            async move {
                let headers = [("content-type", "application/apply-patch+yaml")];
                client.send_with(Method::PATCH, &url, &headers, body).await?.success().map(drop)
            }
        })
        .await
    }
}

/// Creates an object, and returns the answer.
pub(super) async fn post(client: &HttpClient, path: &str, object: &Value) -> Result<Bytes> {
    client.send(Method::POST, path, object.to_string().into()).await?.success()
}

fn object(namespace: &str, number: usize, size: Size) -> Value {
    let labels = json!({"bench": "yes", "part": (number % 100).to_string()});
    let metadata = json!({"name": format!("object-{number}"), "namespace": namespace, "labels": labels});
    let data = json!({"payload": "p".repeat(size.0)});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
}

pub(super) fn config_map(namespace: &str, number: usize, size: Size) -> Bytes {
    object(namespace, number, size).to_string().into()
}

fn changed(namespace: &str, number: usize, size: Size, version: usize) -> Bytes {
    let mut object = object(namespace, number, size);
    object["data"]["version"] = version.to_string().into();
    object.to_string().into()
}
