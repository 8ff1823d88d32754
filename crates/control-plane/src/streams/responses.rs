//! Responses to stream requests that open no stream.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use portolan_apiserver::{Body, full, hooks::PodStream};
use portolan_syncer::streams::StreamError;
use portolan_types::{GroupResource, Reason, Status, object};
use serde_json::Value;

use crate::physical_clusters::ClusterClientError;

/// Returns the response for a pod without a node: an empty log, or the refusal to enter it.
pub(super) fn without_host(pod: &Value, stream: PodStream, container: Option<&str>) -> Result<Response<Body>, Status> {
    let name = object::name(pod);
    if stream != PodStream::PortForward {
        check_container(pod, container)?;
    }
    match stream {
        PodStream::Log => Ok(empty(StatusCode::NO_CONTENT)),
        PodStream::Exec | PodStream::Attach | PodStream::PortForward => {
            Err(Status::bad_request(format!("pod {name} does not have a host assigned")))
        }
    }
}

fn check_container(pod: &Value, container: Option<&str>) -> Result<(), Status> {
    let name = object::name(pod);
    let names = |list: &str| {
        let all = pod["spec"][list].as_array().into_iter().flatten();
        all.filter_map(|container| container["name"].as_str()).collect::<Vec<_>>()
    };
    let (all, plain) =
        ([names("initContainers"), names("containers"), names("ephemeralContainers")], names("containers"));
    let all = all.concat();
    let why = match container {
        Some(wanted) if all.contains(&wanted) => return Ok(()),
        None if plain.len() == 1 => return Ok(()),
        Some(wanted) => format!("container {wanted} is not valid for pod {name}"),
        None if plain.is_empty() => format!("a container name must be specified for pod {name}"),
        None => format!("a container name must be specified for pod {name}, choose one of: [{}]", all.join(" ")),
    };
    Err(Status::bad_request(why))
}

/// Returns a response without a body.
pub(super) fn empty(code: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = code;
    response
}

/// Returns a text response as kubelets send it.
pub(super) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = empty(code);
    *response.body_mut() = full(text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Returns the status when the physical cluster `cluster` cannot be reached. Details of the connection are for
/// administrators only.
pub(super) fn no_client(cluster: &str, error: &ClusterClientError) -> Status {
    let why = match error {
        ClusterClientError::Unknown => "is not registered any more",
        ClusterClientError::Unusable(_) => "cannot be reached: its connection cannot be used",
        ClusterClientError::Failed(_) => {
            return Status::internal("the connection of the physical cluster cannot be read");
        }
    };
    Status::new(Reason::ServiceUnavailable, format!("physical cluster {cluster:?} {why}"))
}

/// Returns the status for a failure on the physical cluster `cluster`.
pub(super) fn failed(cluster: &str, pod: &str, stream: PodStream, error: StreamError) -> Status {
    match error {
        StreamError::NoSuchPod => Status::not_found(&GroupResource::new("", "pods"), pod),
        StreamError::NodeNetwork => Status::new(Reason::Forbidden, format!("pod {pod} has the network of its node")),
        StreamError::Denied(_) => {
            let what = stream.subresource();
            unavailable(format!("physical cluster {cluster:?} does not allow its connection to open pods/{what}"))
        }
        error => unreachable(cluster, error),
    }
}

/// Returns a 503.
pub(super) fn unavailable(why: String) -> Status {
    Status::new(Reason::ServiceUnavailable, why)
}

/// Returns the status for a failure that is not about the object.
pub(super) fn unreachable(cluster: &str, error: StreamError) -> Status {
    match error {
        StreamError::Refused { code, reason, message } => Status::foreign(code, &reason, message, None),
        StreamError::Garbled(_) => {
            Status::internal(format!("the answer of physical cluster {cluster:?} makes no sense"))
        }
        StreamError::Unreachable(_) | StreamError::Denied(_) | StreamError::NoSuchPod | StreamError::NodeNetwork => {
            unavailable(format!("physical cluster {cluster:?} cannot be reached"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_without_a_node_is_answered_as_kubernetes_does() {
        let one = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a"}]}});
        let two = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        for (pod, stream, container, expected) in [
            (&one, PodStream::Log, None, ""),
            (&two, PodStream::Log, Some("i"), ""),
            (&two, PodStream::Log, None, "a container name must be specified for pod web, choose one of: [i a b]"),
            (&one, PodStream::Log, Some("x"), "container x is not valid for pod web"),
            (&one, PodStream::Exec, None, "pod web does not have a host assigned"),
            (&one, PodStream::Attach, Some("x"), "container x is not valid for pod web"),
            (&two, PodStream::PortForward, None, "pod web does not have a host assigned"),
        ] {
            let answer = without_host(pod, stream, container);
            let (code, why) = answer.map_or_else(|e| (e.code(), e.message().to_owned()), |_| (200, String::new()));
            assert_eq!((code, why.as_str()), (if expected.is_empty() { 200 } else { 400 }, expected));
        }
    }

    #[test]
    fn failures_name_the_physical_cluster_and_nothing_of_its_connection() {
        let secret = || "User \"system:serviceaccount:portolan:syncer\" at 10.0.0.1:6443".to_owned();
        for (error, code, expected) in [
            (StreamError::NoSuchPod, 404, "pods \"web\" not found"),
            (StreamError::Unreachable(secret()), 503, "physical cluster \"east\" cannot be reached"),
            (
                StreamError::Denied(secret()),
                503,
                "physical cluster \"east\" does not allow its connection to open pods/exec",
            ),
            (
                StreamError::Refused {
                    code: 400,
                    reason: "BadRequest".into(),
                    message: "container x is not valid".into(),
                },
                400,
                "container x is not valid",
            ),
        ] {
            let status = failed("east", "web", PodStream::Exec, error);
            assert_eq!((status.code(), status.message()), (code, expected));
        }
    }
}
