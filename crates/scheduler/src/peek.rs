//! The few fields that tell whether a write matters to placement, read without building a tree.

use portolan_types::{
    Record,
    placement::{Phase, PlacementRecord},
};
use serde::Deserialize;

/// What of an object matters to placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Peek {
    pub(crate) generation: i64,
    pub(crate) pin: Option<String>,
    pub(crate) abandons_volumes: Option<String>,
    pub(crate) record: PlacementRecord,
}

#[derive(Default, Deserialize)]
struct Body {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    generation: i64,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "portolan.dev/pin")]
    pin: Option<String>,
    #[serde(rename = "portolan.dev/abandon-volumes")]
    abandons_volumes: Option<String>,
    #[serde(rename = "portolan.dev/placement")]
    placement: Option<String>,
}

impl Peek {
    /// An object without them is as one without a placement.
    pub(crate) fn of(record: &Record) -> Self {
        let body: Body = serde_json::from_slice(record.body()).unwrap_or_default();
        let annotations = body.metadata.annotations.unwrap_or_default();
        Self {
            generation: body.metadata.generation,
            pin: annotations.pin,
            abandons_volumes: annotations.abandons_volumes,
            record: annotations.placement.as_deref().and_then(PlacementRecord::parse).unwrap_or_default(),
        }
    }

    /// Whether a copy that `self` names has been taken off in `after`.
    pub(crate) fn lost_copies(&self, after: &Self) -> bool {
        self.record.clusters.iter().any(|c| c.phase != Phase::Projected && after.record.on(&c.uid).is_none())
    }
}

/// Whether a record's bytes mention a pin at all.
pub(crate) fn may_have_pin(record: &Record) -> bool {
    std::str::from_utf8(record.body()).is_ok_and(|body| body.contains("portolan.dev/pin"))
}
