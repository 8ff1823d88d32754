//! Resource usage that a physical cluster reports at `metrics.k8s.io`, read for one request, item by item.

use std::{fmt, time::Duration};

use bytes::Bytes;
use kube::Client;
use portolan_types::{LogicalClusterId, annotations};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};

use crate::{
    client::{DownstreamClient, encode},
    streams::StreamError,
};

/// Deadline of the head of an answer. The clients of `metrics.k8s.io` wait for all physical clusters.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest time for the text of an answer: it holds room that others wait for.
const TEXT: Duration = Duration::from_secs(2);
/// Largest answer, in bytes: about 5,000 pods.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Largest item, in bytes: a pod with some hundred containers. Larger ones are skipped.
const MAX_ITEM: usize = 64 * 1024;

/// Reads the `PodMetrics` of all pods that a physical cluster runs for a logical cluster, and passes each to `take`.
/// `room` is awaited once the answer has started, and held until the end.
///
/// # Errors
/// [`StreamError`]; 404 where no metrics-server runs.
pub async fn pods<R>(
    client: &Client,
    cluster: LogicalClusterId,
    room: impl Future<Output = R>,
    take: impl FnMut(&Value),
) -> Result<(), StreamError> {
    let selector = format!("{}={cluster}", annotations::DOWN_CLUSTER);
    let path = format!("/apis/metrics.k8s.io/v1beta1/pods?labelSelector={}", encode(&selector));
    read(client, &path, room, take).await
}

/// Reads the `NodeMetrics` of all nodes of a physical cluster, as [`pods`] does.
///
/// # Errors
/// [`StreamError`]; 404 where no metrics-server runs.
pub async fn nodes<R>(
    client: &Client,
    room: impl Future<Output = R>,
    take: impl FnMut(&Value),
) -> Result<(), StreamError> {
    read(client, "/apis/metrics.k8s.io/v1beta1/nodes", room, take).await
}

async fn read<R>(
    client: &Client,
    path: &str,
    room: impl Future<Output = R>,
    take: impl FnMut(&Value),
) -> Result<(), StreamError> {
    let client = DownstreamClient::new(client.clone(), ANSWER).bounded(MAX_ANSWER);
    let (text, _room) = client.text_in_room(path, room, TEXT).await?;
    visit_items(&text, take)
}

/// Passes each item of a list to `take`. Only one is a tree at a time.
fn visit_items(text: &Bytes, mut take: impl FnMut(&Value)) -> Result<(), StreamError> {
    let mut found = false;
    let list = ListVisitor { take: &mut take, found: &mut found };
    let mut parser = serde_json::Deserializer::from_slice(text);
    parser.deserialize_map(list).map_err(|error| StreamError::Garbled(error.to_string()))?;
    if found { Ok(()) } else { Err(StreamError::Garbled("a list without items".into())) }
}

struct ListVisitor<'a, F> {
    take: &'a mut F,
    found: &'a mut bool,
}

impl<'de, F: FnMut(&Value)> Visitor<'de> for ListVisitor<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                *self.found = true;
                map.next_value_seed(ItemsVisitor { take: self.take })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct ItemsVisitor<'a, F> {
    take: &'a mut F,
}

impl<'de, F: FnMut(&Value)> DeserializeSeed<'de> for ItemsVisitor<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&Value)> Visitor<'de> for ItemsVisitor<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<&RawValue>()? {
            let parsed = (item.get().len() <= MAX_ITEM).then(|| serde_json::from_str::<Value>(item.get()));
            if let Some(Ok(item)) = parsed {
                (self.take)(&item);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    fn names(text: &str) -> Result<Vec<String>, StreamError> {
        let mut names = Vec::new();
        visit_items(&Bytes::from(text.to_owned()), |item| names.push(item["name"].as_str().unwrap_or("?").to_owned()))?;
        Ok(names)
    }

    #[test]
    fn items_are_passed_on_one_by_one() {
        let large = format!(r#"{{"items":[{{"name":"{}"}},{{"name":"b"}}]}}"#, "x".repeat(MAX_ITEM));
        for (text, expected) in [
            (r#"{"kind":"PodMetricsList","items":[{"name":"a"},{"name":"b"}],"metadata":{}}"#, Some(vec!["a", "b"])),
            (r#"{"items":[]}"#, Some(vec![])),
            (large.as_str(), Some(vec!["b"])),
            (r#"{"items":7}"#, None),
            (r#"{"kind":"PodMetricsList"}"#, None),
            ("[]", None),
            (r#"{"items":[{"name":"a"}"#, None),
        ] {
            let found = names(text).ok();
            assert_eq!(found, expected.map(|names| names.into_iter().map(str::to_owned).collect()), "{text:.80}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_physical_cluster_takes_no_room() {
        let silent = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
        let mut is_taken = false;
        let room = async { is_taken = true };
        let read = nodes(&Client::new(silent, "default"), room, |_| ()).await;
        assert!(matches!(read, Err(StreamError::Unreachable(_))));
        assert!(!is_taken);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_gives_its_room_back() {
        let slow = tower::service_fn(|_: Request<Body>| async {
            let pieces = futures::stream::pending::<Result<Bytes, std::io::Error>>();
            let frames = futures::StreamExt::map(pieces, |piece| piece.map(http_body::Frame::data));
            Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(frames)))
        });
        let begun = tokio::time::Instant::now();
        let read = nodes(&Client::new(slow, "default"), async {}, |_| ()).await;
        assert!(matches!(read, Err(StreamError::Unreachable(_))));
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}
