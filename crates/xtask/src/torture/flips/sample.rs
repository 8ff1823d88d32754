//! The objects in a store whose bits are flipped, and how what a server answers compares with them.

use std::collections::{BTreeMap, HashSet};
use std::ops::AddAssign;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value as Json, json};

use crate::client::Client;
use crate::harness::kubeconfig::Kubeconfig;

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
/// Of so many objects one is written once more, and one is deleted.
const WRITTEN_TWICE: usize = 3;
const DELETED: usize = 10;

/// How many objects of which sizes, by turns.
pub(super) struct Plan {
    count: usize,
    sizes: &'static [usize],
}

/// Pages of every kind, and little to copy.
pub(super) const SMALL: Plan = Plan { count: 150, sizes: &[30, 400, 2500, 60, 9000] };
/// More than any engine keeps in memory, so that a running server reads it again.
pub(super) const LARGE: Plan = Plan { count: 120, sizes: &[600_000, 2000] };

/// What was written, and acknowledged.
pub(super) struct Sample {
    /// The last state of each name: version and text, `None` for one that was deleted.
    last: BTreeMap<String, Option<(String, String)>>,
    /// All that was ever written under a name.
    ever: HashSet<(String, String)>,
}

/// How answers compare with what was written.
#[derive(Clone, Copy, Default)]
pub(super) struct Looked {
    pub(super) right: usize,
    /// An error was answered.
    pub(super) told: usize,
    /// It is missing, or as it was before.
    pub(super) hidden: usize,
}

impl AddAssign for Looked {
    fn add_assign(&mut self, other: Self) {
        self.right += other.right;
        self.told += other.told;
        self.hidden += other.hidden;
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn map(name: &str, text: &str) -> Bytes {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}).to_string().into()
}

/// Version and text of an object.
fn state(object: &Json) -> Result<(String, String)> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).map(str::to_owned);
    let version = text("/metadata/resourceVersion").context("an object without a version")?;
    Ok((version, text("/data/text").context("an object without its text")?))
}

impl Sample {
    /// Writes objects, some of them twice, and deletes some.
    pub(super) fn write(config: &Kubeconfig, plan: &Plan) -> Result<Self> {
        runtime()?.block_on(async {
            let client = Client::connect(config, 1).await?;
            let mut sample = Self { last: BTreeMap::new(), ever: HashSet::new() };
            for number in 0..plan.count {
                let (name, size) = (format!("m{number}"), plan.sizes[number % plan.sizes.len()]);
                let text = |round: usize| format!("{round} of {name} {}", "x".repeat(size));
                let mut answer = client.send(Method::POST, COLLECTION, map(&name, &text(1))).await?.success()?;
                sample.ever.insert((name.clone(), text(1)));
                let path = format!("{COLLECTION}/{name}");
                if number % WRITTEN_TWICE == 0 {
                    answer = client.send(Method::PUT, &path, map(&name, &text(2))).await?.success()?;
                    sample.ever.insert((name.clone(), text(2)));
                }
                let mut last = Some(state(&serde_json::from_slice(&answer)?)?);
                if number % DELETED == 0 {
                    client.send(Method::DELETE, &path, Bytes::new()).await?.success()?;
                    last = None;
                }
                sample.last.insert(name, last);
            }
            Ok(sample)
        })
    }

    /// A write beside the sample, so that a server that is killed has one that it had not come to rest after.
    pub(super) fn touch(&self, config: &Kubeconfig) -> Result<()> {
        runtime()?.block_on(async {
            let client = Client::connect(config, 1).await?;
            client.send(Method::POST, COLLECTION, map("beside", "beside")).await?.success().map(drop)
        })
    }

    /// Asks for each object, and for all of them.
    ///
    /// # Errors
    /// When something is answered that was never written there.
    pub(super) fn look(&self, config: &Kubeconfig) -> Result<Looked> {
        runtime()?.block_on(async {
            let (client, mut looked) = (Client::connect(config, 1).await?, Looked::default());
            for name in self.last.keys() {
                let answer = client.send(Method::GET, &format!("{COLLECTION}/{name}"), Bytes::new()).await?;
                match answer.status {
                    StatusCode::OK => looked += self.judge(name, Some(&serde_json::from_slice(&answer.body)?))?,
                    StatusCode::NOT_FOUND => looked += self.judge(name, None)?,
                    status => looked.told += usize::from(told(status, &answer.body)?),
                }
            }
            let answer = client.send(Method::GET, COLLECTION, Bytes::new()).await;
            // A list that cannot be read to its end is cut off.
            let answer = match answer {
                Ok(answer) if answer.status == StatusCode::OK => answer,
                Ok(answer) => {
                    looked.told += usize::from(told(answer.status, &answer.body)?);
                    return Ok(looked);
                }
                Err(_) => {
                    looked.told += 1;
                    return Ok(looked);
                }
            };
            let list: Json = serde_json::from_slice(&answer.body)?;
            let items = list["items"].as_array().context("a list without items")?;
            let named = |item: &Json| item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let items: BTreeMap<String, &Json> = items.iter().map(|item| (named(item), item)).collect();
            for name in self.last.keys() {
                looked += self.judge(name, items.get(name).copied())?;
            }
            Ok(looked)
        })
    }

    fn judge(&self, name: &str, found: Option<&Json>) -> Result<Looked> {
        let expected = self.last.get(name).and_then(Option::as_ref);
        let found = found.map(state).transpose().with_context(|| format!("{name} was made up"))?;
        if found.as_ref() == expected {
            return Ok(Looked { right: 1, ..Looked::default() });
        }
        if let Some((_, text)) = found
            && !self.ever.contains(&(name.to_owned(), text.clone()))
        {
            bail!("{name} was made up: {}", text.chars().take(200).collect::<String>());
        }
        Ok(Looked { hidden: 1, ..Looked::default() })
    }
}

/// An answer that says of itself that it is none.
fn told(status: StatusCode, body: &[u8]) -> Result<bool> {
    ensure!(status.is_server_error(), "a read was answered {status}: {}", String::from_utf8_lossy(body));
    Ok(true)
}
