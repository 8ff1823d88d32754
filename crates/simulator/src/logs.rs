//! Logs of simulated pods: canned, and saying so.

use http::{Response, header::CONTENT_TYPE};
use portolan_apiserver::{
    Body,
    hooks::{PodStream, PodStreamRequest, PodStreams},
};
use portolan_types::{BoxFuture, GroupResource, Reason, Status, object};
use serde_json::Value;

use crate::fields::{list, text};

/// Answers `pods/log`; there is nothing to run commands in.
pub(crate) struct CannedLogs;

impl PodStreams for CannedLogs {
    fn open(&self, request: PodStreamRequest) -> BoxFuture<'_, Result<Response<Body>, Status>> {
        let answer = match request.stream {
            PodStream::Log => log(&request),
            other => Err(Status::new(
                Reason::MethodNotAllowed,
                format!("pods/{}: this pod is simulated, nothing runs in it", other.subresource()),
            )),
        };
        Box::pin(async move { answer })
    }
}

fn log(request: &PodStreamRequest) -> Result<Response<Body>, Status> {
    let wanted =
        request.request.uri().query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("container="));
    let lines = lines(&request.pod, wanted)?;
    let mut response = Response::new(portolan_apiserver::full(lines));
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// A few lines of one container; the first one when none is named.
fn lines(pod: &Value, container: Option<&str>) -> Result<String, Status> {
    let name = object::name(pod);
    let mut containers =
        list(pod, "/status/containerStatuses").iter().chain(list(pod, "/status/initContainerStatuses"));
    let found = containers.find(|c| container.is_none_or(|wanted| text(c, "/name") == wanted));
    let Some(status) = found else {
        let what = container.unwrap_or_default();
        return Err(Status::bad_request(format!("container {what} is not valid for pod {name}")));
    };
    let container = text(status, "/name");
    if status.pointer("/state/waiting").is_some() {
        let reason = text(status, "/state/waiting/reason");
        return Err(Status::bad_request(format!(
            "container {container:?} in pod {name:?} is waiting to start: {reason}"
        ))
        .about(&GroupResource::new("", "pods"), name));
    }
    let started = status.pointer("/state/running/startedAt").or_else(|| status.pointer("/state/terminated/startedAt"));
    let at = started.and_then(Value::as_str).unwrap_or_default();
    let mut text = format!("{at} simulated: {container} of pod {name} started\n{at} simulated: no program runs here\n");
    if status.pointer("/state/terminated").is_some() {
        text.push_str(&format!("{at} simulated: {container} ended\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn logs_are_those_of_the_named_container_once_it_has_started() {
        let pod = json!({"metadata": {"name": "p"}, "status": {"containerStatuses": [
            {"name": "a", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
            {"name": "b", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
        ]}});
        assert!(lines(&pod, None).is_ok_and(|text| text.contains("simulated: a of pod p started")));
        for (container, expected) in [("b", "is waiting to start: ImagePullBackOff"), ("c", "is not valid for pod p")] {
            let error = lines(&pod, Some(container)).expect_err(container);
            assert!(error.message().contains(expected), "{error}");
        }
    }
}
