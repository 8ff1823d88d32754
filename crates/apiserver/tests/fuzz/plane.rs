//! Server that receives the inputs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, ApiServerConfig, User, http::answer_connection};
use portolan_types::Seams;
use serde_json::Value;

use crate::target::Input;

/// Time limit for reading a body, because some never end.
const READ: Duration = Duration::from_millis(100);

pub struct Plane {
    api: Arc<ApiServer>,
    admin: Arc<User>,
}

pub struct Answer {
    pub code: u16,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Plane {
    pub async fn new() -> Self {
        let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
        let groups = vec!["system:masters".into(), "system:authenticated".into()];
        Self { api, admin: Arc::new(User { name: "admin".into(), groups, ..User::default() }) }
    }

    pub async fn create(&self, collection: &str, body: Vec<u8>) -> Answer {
        let input = Input {
            method: "POST".into(),
            url: format!("{collection}?fieldManager=setup"),
            media: "application/json".into(),
            body: body.into(),
        };
        self.send(&input).await
    }

    /// An object in protobuf; `None` when it cannot be created or has no such form.
    pub async fn as_protobuf(&self, collection: &str, body: Vec<u8>) -> Option<Vec<u8>> {
        let request = Request::post(format!("{collection}?dryRun=All"))
            .header("content-type", "application/json")
            .header("accept", "application/vnd.kubernetes.protobuf");
        let answer = self.ask(request.body(Full::new(body.into())).ok()?).await;
        (answer.code == 201 && answer.body.starts_with(b"k8s\0")).then(|| answer.body.to_vec())
    }

    /// Sends an input.
    pub async fn send(&self, input: &Input) -> Answer {
        self.send_as(input, "application/json").await
    }

    async fn send_as(&self, input: &Input, accept: &str) -> Answer {
        let mut request = Request::builder().method(&*input.method).uri(&*input.url).header("accept", accept);
        if input.media != "-" {
            request = request.header("content-type", &*input.media);
        }
        match request.body(Full::new(input.body.clone())) {
            Ok(request) => self.ask(request).await,
            // Such a request cannot come out of an HTTP library.
            Err(_) => Answer { code: 400, body: Bytes::new() },
        }
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> Answer {
        let response = answer_connection(self.api.clone(), Some(self.admin.clone()), request).await;
        let (parts, body) = response.into_parts();
        let body = match tokio::time::timeout(READ, body.collect()).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(_)) | Err(_) => Bytes::new(),
        };
        Answer { code: parts.status.as_u16(), body }
    }

    /// Uses an object that an input has created: reads it in every form and deletes it. Returns the worst code.
    pub async fn make_use_of(&self, input: &Input, made: &Value) -> u16 {
        let (Some(name), Some(collection)) = (made["metadata"]["name"].as_str(), input.url.split('?').next()) else {
            return 0;
        };
        let object = Input::get(format!("{collection}/{name}"));
        let mut worst = 0;
        for accept in [
            "application/json;as=Table;g=meta.k8s.io;v=v1",
            "application/yaml",
            "application/vnd.kubernetes.protobuf, */*",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        ] {
            worst = worst.max(self.send_as(&object, accept).await.code);
        }
        let gone = Input { method: "DELETE".into(), url: format!("{}?gracePeriodSeconds=0", object.url), ..object };
        worst.max(self.send(&gone).await.code)
    }
}
