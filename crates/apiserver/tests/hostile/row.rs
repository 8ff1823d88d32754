//! The format of a row.

use std::{collections::BTreeMap, fmt, io::Write as _};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use serde::Deserialize;

/// An attack of the threat model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Summary of the attack.
    pub attack: String,
    /// True if the server may call webhooks on this machine: `${hooks}` is their URL, `${bundle}` their CA.
    #[serde(default)]
    pub hooks: bool,
    /// Steps that prepare the attack.
    #[serde(default)]
    pub given: Vec<Step>,
    /// Variants of the attack.
    #[serde(default)]
    pub requests: Vec<Step>,
    /// Tests of attacks that need more than requests.
    #[serde(default)]
    pub held_by: Vec<Held>,
}

/// A test elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Aspect of the attack that the test covers.
    pub case: String,
    /// Its file, from the root of the repository.
    pub file: String,
    pub test: String,
}

impl Held {
    /// Returns a complaint if the reference is wrong.
    pub fn complaint(&self) -> Option<String> {
        let file = format!("{}/../../{}", env!("CARGO_MANIFEST_DIR"), self.file);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let there = text.contains(&format!("fn {}(", self.test));
        (!there).then(|| format!("{}: no test {} in {}", self.case, self.test, self.file))
    }
}

/// One request and its answer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default)]
    pub case: String,
    /// `tenant` (owner of `root:t`), `admin`, `nobody`, or `Bearer …`.
    #[serde(default = "tenant", rename = "as")]
    pub who: String,
    /// Method and target; `${name}` is replaced by a value that an earlier step kept.
    pub send: String,
    #[serde(default)]
    pub headers: BTreeMap<String, Header>,
    #[serde(default)]
    pub body: Text,
    /// True if the body is sent compressed.
    #[serde(default)]
    pub gzip: bool,
    /// True if the body is sent without its length.
    #[serde(default)]
    pub chunked: bool,
    /// Number of concurrent copies; `${n}` in the body is the number of the copy.
    #[serde(default)]
    pub times: usize,
    /// Exact number of copies with each status code.
    #[serde(default)]
    pub codes: BTreeMap<u16, usize>,
    /// Status codes of the other copies.
    #[serde(default)]
    pub or: Vec<u16>,
    #[serde(default)]
    pub code: u16,
    pub reason: Option<String>,
    /// Part of the answer.
    pub says: Option<String>,
    /// Text that the answer must not contain.
    #[serde(default)]
    pub says_not: Vec<String>,
    /// JSON pointers into the answer.
    #[serde(default)]
    pub is: BTreeMap<String, String>,
    #[serde(default)]
    pub is_not: BTreeMap<String, String>,
    /// Headers of the answer.
    #[serde(default)]
    pub answered: BTreeMap<String, String>,
    /// Values for later steps: name and JSON pointer.
    #[serde(default)]
    pub keep: BTreeMap<String, String>,
    /// Milliseconds of CPU in a release build.
    cpu_ms: Option<u64>,
    /// Bound on memory; eight times the body if absent.
    pub memory: Option<Memory>,
}

/// Bound on the memory of a request that is not proportional to its body, with the reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub mib: usize,
    pub why: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Once(String),
    Often { times: usize, text: String },
}

/// Text of parts, each repeated `times` times. `#` in a repeated part is replaced by the number of the repetition.
#[derive(Deserialize, Default)]
#[serde(transparent)]
pub struct Text(Vec<Part>);

/// The value of a header, in one piece or in parts.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Header {
    Whole(String),
    Parts(Text),
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(text) => f.write_str(text),
            Self::Parts(text) => text.fmt(f),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Once(text) => f.write_str(text),
            Part::Often { times, text } if text.contains('#') => {
                (0..*times).try_for_each(|n| f.write_str(&text.replace('#', &n.to_string())))
            }
            Part::Often { times, text } => f.write_str(&text.repeat(*times)),
        })
    }
}

fn tenant() -> String {
    "tenant".into()
}

impl Step {
    pub fn cpu_ms(&self) -> u64 {
        self.cpu_ms.unwrap_or(250)
    }

    pub fn body(&self) -> Bytes {
        let text = self.body.to_string();
        if self.gzip {
            let mut out = GzEncoder::new(Vec::new(), Compression::best());
            out.write_all(text.as_bytes()).unwrap();
            out.finish().unwrap().into()
        } else {
            text.into()
        }
    }
}
