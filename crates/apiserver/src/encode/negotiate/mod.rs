//! Content negotiation.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use http::{HeaderMap, header::ACCEPT};
use portolan_types::{Reason, Status};

use super::accept::{AcceptRange, first};

/// Serialization of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ResponseFormat {
    Json,
    Yaml,
    Protobuf,
}

/// Representation of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ObjectForm {
    /// The whole object.
    Object,
    /// Rows and columns.
    Table,
    /// The metadata, as one object or as a list.
    Metadata(MetadataShape),
}

/// Shape of requested metadata: of one object or of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MetadataShape {
    One,
    List,
}

/// Version of `meta.k8s.io` of tables and metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// Negotiated serialization and form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NegotiatedForm {
    pub(crate) media: ResponseFormat,
    pub(crate) form: ObjectForm,
    pub(crate) meta: MetaVersion,
    /// True if the media type has the parameter `pretty`.
    pub(crate) pretty: bool,
}

impl NegotiatedForm {
    /// Returns the form of the whole object.
    pub(crate) fn plain(media: ResponseFormat) -> Self {
        Self { media, form: ObjectForm::Object, meta: MetaVersion::V1, pretty: false }
    }
}

/// Representations that an endpoint offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormOffer {
    pub(crate) shown: OfferedForms,
    /// True if the whole object has a protobuf form.
    pub(crate) protobuf: bool,
    /// Media types of the route, of which the client must name one first; empty where any will do.
    pub(crate) routed: &'static [&'static str],
}

/// Forms that an answer can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferedForms {
    /// Only the whole object: it is not an object of a resource (kube-apiserver's `DefaultEndpointRestrictions`).
    ObjectOnly,
    /// Also its metadata.
    Metadata,
    /// Also its metadata and a table.
    Table,
}

impl FormOffer {
    /// Returns the offer of a document with a single form.
    pub(crate) fn document(routed: &'static [&'static str]) -> Self {
        Self { shown: OfferedForms::ObjectOnly, protobuf: true, routed }
    }
}

/// Media types of responses about one object.
pub(crate) const OBJECT_TYPES: &[&str] = &["application/json", "application/yaml", PROTOBUF];
/// Media types of responses about many objects, which can be watched.
pub(crate) const LIST_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    PROTOBUF,
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Serializations in the order of preference for a client that accepts any.
const MEDIA: [(ResponseFormat, &str); 3] = [
    (ResponseFormat::Json, "json"),
    (ResponseFormat::Yaml, "yaml"),
    (ResponseFormat::Protobuf, "vnd.kubernetes.protobuf"),
];

/// Returns the best form that the client accepts. Without an `Accept` header it is JSON.
///
/// # Errors
/// 406 when the client accepts none.
pub(crate) fn negotiate(headers: &HeaderMap, offer: FormOffer) -> Result<NegotiatedForm, Status> {
    route(headers, offer.routed)?;
    let accept = accept(headers);
    if accept.is_empty() {
        return Ok(NegotiatedForm::plain(ResponseFormat::Json));
    }
    best(&accept, |clause, media| choose(clause, media, offer)).ok_or_else(not_acceptable)
}

/// Returns the 406 for a form of objects that watch events do not have.
pub(crate) fn no_stream() -> Status {
    none_of("application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch")
}

/// Checks that the client names one of the media types of the route, with any parameters.
///
/// # Errors
/// 406 of kube-apiserver's router otherwise.
pub(crate) fn route(headers: &HeaderMap, routed: &[&str]) -> Result<(), Status> {
    let accept = accept(headers);
    let names_one = |range: &str| {
        let named = range.split_once(';').map_or(range, |(named, _)| named).trim_matches(' ');
        named == "*/*" || routed.contains(&named)
    };
    if routed.is_empty() || accept.is_empty() || accept.split(',').any(names_one) {
        Ok(())
    } else {
        Err(unroutable(routed))
    }
}

/// Returns the serialization of aggregated discovery, or `None` if the client does not ask for it. Other forms in the
/// header do not matter, in any order.
pub(crate) fn aggregated(headers: &HeaderMap) -> Option<ResponseFormat> {
    let wanted = [("as", "APIGroupDiscoveryList"), ("g", "apidiscovery.k8s.io"), ("v", "v2")];
    best(&accept(headers), |clause, media| {
        let is_wanted = wanted.iter().all(|(name, value)| clause.parameter(name) == Some(*value));
        (is_wanted && is_possible(clause, media, "")).then_some(media)
    })
}

/// Returns the offered media type that the client prefers; the first if it has no preference.
pub(crate) fn preferred<T: Copy>(headers: &HeaderMap, offers: &[(&str, T)]) -> Option<T> {
    let accept = accept(headers);
    let accept = if accept.is_empty() { "*/*" } else { &*accept };
    first(accept, |clause| {
        let fits = |(media, _): &&(&str, T)| {
            let (main, sub) = media.split_once('/').unwrap_or((*media, ""));
            [(clause.main, main), (clause.sub, sub)].iter().all(|(asked, is)| *asked == "*" || asked == is)
        };
        offers.iter().find(fits).map(|(_, offer)| *offer)
    })
}

/// Returns the `Accept` header; of several the first, as in Go.
fn accept(headers: &HeaderMap) -> Cow<'_, str> {
    headers.get(ACCEPT).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default()
}

/// Returns the first usable result of the best ranges, with the first media type that it matches.
fn best<T>(accept: &str, good_for: impl Fn(&AcceptRange<'_>, ResponseFormat) -> Option<T>) -> Option<T> {
    let names = |clause: &AcceptRange<'_>, sub: &str| match (clause.main, clause.sub) {
        ("*", "*") | ("application", "*") => true,
        (main, own) => main == "application" && own == sub,
    };
    first(accept, |clause| {
        MEDIA.iter().filter(|(_, sub)| names(clause, sub)).find_map(|(media, _)| good_for(clause, *media))
    })
}

/// Returns true if an endpoint supports the stream and server version that a range asks for.
fn is_possible(clause: &AcceptRange<'_>, media: ResponseFormat, server_version: &str) -> bool {
    let stream = clause.parameter("stream").unwrap_or_default();
    let version = clause.parameter("sv").unwrap_or_default();
    (stream.is_empty() || (stream == "watch" && media != ResponseFormat::Yaml))
        && (version.is_empty() || version == server_version)
}

fn choose(clause: &AcceptRange<'_>, media: ResponseFormat, offer: FormOffer) -> Option<NegotiatedForm> {
    let server_version = if offer.shown == OfferedForms::ObjectOnly { "" } else { "v1" };
    if !is_possible(clause, media, server_version) {
        return None;
    }
    let pretty = clause.parameter("pretty") == Some("1");
    let converted = ["as", "g", "v"].map(|name| clause.parameter(name));
    if converted == [None; 3] {
        let has_form = media != ResponseFormat::Protobuf || offer.protobuf;
        return has_form.then_some(NegotiatedForm { pretty, ..NegotiatedForm::plain(media) });
    }
    let [shown_as, group, version] = converted.map(Option::unwrap_or_default);
    let meta = match (group, version) {
        ("meta.k8s.io", "v1") => MetaVersion::V1,
        ("meta.k8s.io", "v1beta1") => MetaVersion::V1Beta1,
        _ => return None,
    };
    let form = match (shown_as, offer.shown) {
        (_, OfferedForms::ObjectOnly) => return None,
        ("Table", OfferedForms::Table) if media != ResponseFormat::Protobuf => ObjectForm::Table,
        ("PartialObjectMetadata", _) => ObjectForm::Metadata(MetadataShape::One),
        ("PartialObjectMetadataList", _) => ObjectForm::Metadata(MetadataShape::List),
        _ => return None,
    };
    Some(NegotiatedForm { media, form, meta, pretty })
}

fn not_acceptable() -> Status {
    none_of("application/json, application/yaml, application/vnd.kubernetes.protobuf")
}

fn none_of(types: &str) -> Status {
    Status::new(Reason::NotAcceptable, format!("only the following media types are accepted: {types}"))
}

/// Returns the 406 of kube-apiserver's router.
fn unroutable(routed: &[&str]) -> Status {
    let known = routed.join(", ");
    Status::generic(Reason::NotAcceptable, format!("406: Not Acceptable\n\nAvailable representations: {known}"))
}
