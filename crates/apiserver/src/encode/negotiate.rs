//! What form of answer a client accepts.

use std::borrow::Cow;

use http::{HeaderMap, header::ACCEPT};
use portolan_types::{Reason, Status};

use super::accept::{Clause, first};

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Media {
    Json,
    Yaml,
    Protobuf,
}

/// What of an object is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// All of it.
    Object,
    /// Rows and columns.
    Table,
    /// Its metadata, as one object or as a list.
    Metadata(Many),
}

/// Whether a client asks for the metadata of one object or of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Many {
    One,
    List,
}

/// The version of `meta.k8s.io` that tables and metadata are shown in.
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

/// The form that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Accepted {
    pub(crate) media: Media,
    pub(crate) form: Form,
    pub(crate) meta: MetaVersion,
    /// Asked for as a parameter of the media type.
    pub(crate) pretty: bool,
}

impl Accepted {
    /// The object itself.
    pub(crate) fn plain(media: Media) -> Self {
        Self { media, form: Form::Object, meta: MetaVersion::V1, pretty: false }
    }
}

/// What an endpoint can answer with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) shown: Shown,
    /// Protobuf of the object itself.
    pub(crate) protobuf: bool,
    /// The media types of the route, of which one must be named before anything else is looked at; empty where any may be.
    pub(crate) routed: &'static [&'static str],
}

/// What can be shown of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Nothing but itself: it is no object of a resource (upstream's `DefaultEndpointRestrictions`).
    Itself,
    /// Also its metadata.
    Metadata,
    /// That, and a table.
    Table,
}

impl Offer {
    /// A document that has no other form.
    pub(crate) fn document(routed: &'static [&'static str]) -> Self {
        Self { shown: Shown::Itself, protobuf: true, routed }
    }
}

/// The media types of answers about one object.
pub(crate) const OBJECT_TYPES: &[&str] = &["application/json", "application/yaml", PROTOBUF];
/// The media types of answers about many objects, which can be watched.
pub(crate) const LIST_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    PROTOBUF,
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The forms of objects, in the order in which a client gets them that takes any.
const MEDIA: [(Media, &str); 3] =
    [(Media::Json, "json"), (Media::Yaml, "yaml"), (Media::Protobuf, "vnd.kubernetes.protobuf")];

/// The first form that fits of what the client accepts, best first. No `Accept` at all is JSON.
///
/// # Errors
/// 406 when nothing fits.
pub(crate) fn negotiate(headers: &HeaderMap, offer: Offer) -> Result<Accepted, Status> {
    route(headers, offer.routed)?;
    let accept = accept(headers);
    if accept.is_empty() {
        return Ok(Accepted::plain(Media::Json));
    }
    best(&accept, |clause, media| choose(clause, media, offer)).ok_or_else(not_acceptable)
}

/// 406 of what is agreed on as a form of objects, and none that events can be written in.
pub(crate) fn no_stream() -> Status {
    none_of("application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch")
}

/// A route is one for those who name one of its media types, whatever else they say of it.
///
/// # Errors
/// 406, of upstream's router, for others.
pub(crate) fn route(headers: &HeaderMap, routed: &[&str]) -> Result<(), Status> {
    let accept = accept(headers);
    let names_one = |range: &str| {
        let named = range.split_once(';').map_or(range, |(named, _)| named).trim_matches(' ');
        named == "*/*" || routed.contains(&named)
    };
    match routed.is_empty() || accept.is_empty() || accept.split(',').any(names_one) {
        true => Ok(()),
        false => Err(unroutable(routed)),
    }
}

/// In which form a client wants one document for all groups; `None` when it does not want one. Other forms that it takes do not
/// count, wherever they stand.
pub(crate) fn aggregated(headers: &HeaderMap) -> Option<Media> {
    let wanted = [("as", "APIGroupDiscoveryList"), ("g", "apidiscovery.k8s.io"), ("v", "v2")];
    best(&accept(headers), |clause, media| {
        let is_wanted = wanted.iter().all(|(name, value)| clause.parameter(name) == Some(*value));
        (is_wanted && is_possible(clause, media, "")).then_some(media)
    })
}

/// What of the offered media types a client wants most; the first one where it says nothing.
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

/// What a client accepts: of several headers the first, as Go reads them.
fn accept(headers: &HeaderMap) -> Cow<'_, str> {
    headers.get(ACCEPT).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default()
}

/// What the first of the best ranges is good for, with the first media type that it names.
fn best<T>(accept: &str, good_for: impl Fn(&Clause<'_>, Media) -> Option<T>) -> Option<T> {
    let names = |clause: &Clause<'_>, sub: &str| match (clause.main, clause.sub) {
        ("*", "*") | ("application", "*") => true,
        (main, own) => main == "application" && own == sub,
    };
    first(accept, |clause| {
        MEDIA.iter().filter(|(_, sub)| names(clause, sub)).find_map(|(media, _)| good_for(clause, *media))
    })
}

/// Whether an endpoint knows what a range says of streams and of the server's version.
fn is_possible(clause: &Clause<'_>, media: Media, server_version: &str) -> bool {
    let stream = clause.parameter("stream").unwrap_or_default();
    let version = clause.parameter("sv").unwrap_or_default();
    (stream.is_empty() || (stream == "watch" && media != Media::Yaml))
        && (version.is_empty() || version == server_version)
}

fn choose(clause: &Clause<'_>, media: Media, offer: Offer) -> Option<Accepted> {
    let server_version = if offer.shown == Shown::Itself { "" } else { "v1" };
    if !is_possible(clause, media, server_version) {
        return None;
    }
    let pretty = clause.parameter("pretty") == Some("1");
    let converted = ["as", "g", "v"].map(|name| clause.parameter(name));
    if converted == [None; 3] {
        let has_form = media != Media::Protobuf || offer.protobuf;
        return has_form.then_some(Accepted { pretty, ..Accepted::plain(media) });
    }
    let [shown_as, group, version] = converted.map(Option::unwrap_or_default);
    let meta = match (group, version) {
        ("meta.k8s.io", "v1") => MetaVersion::V1,
        ("meta.k8s.io", "v1beta1") => MetaVersion::V1Beta1,
        _ => return None,
    };
    let form = match (shown_as, offer.shown) {
        (_, Shown::Itself) => return None,
        ("Table", Shown::Table) if media != Media::Protobuf => Form::Table,
        ("PartialObjectMetadata", _) => Form::Metadata(Many::One),
        ("PartialObjectMetadataList", _) => Form::Metadata(Many::List),
        _ => return None,
    };
    Some(Accepted { media, form, meta, pretty })
}

fn not_acceptable() -> Status {
    none_of("application/json, application/yaml, application/vnd.kubernetes.protobuf")
}

fn none_of(types: &str) -> Status {
    Status::new(Reason::NotAcceptable, format!("only the following media types are accepted: {types}"))
}

/// What upstream's router says of what it knows nothing about.
fn unroutable(routed: &[&str]) -> Status {
    let known = routed.join(", ");
    Status::generic(Reason::NotAcceptable, format!("406: Not Acceptable\n\nAvailable representations: {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_first_form_that_is_there() {
        let all = Offer { shown: Shown::Table, protobuf: true, routed: &[] };
        let review = Offer { shown: Shown::Metadata, protobuf: false, ..all };
        let document = Offer::document(&[]);
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let of_one = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        let of_list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let (json, plain) = (Media::Json, Form::Object);
        for (accept, offer, expected) in [
            ("*/*", all, Some((json, plain))),
            ("application/yaml", all, Some((Media::Yaml, plain))),
            ("*/*, application/yaml", all, Some((Media::Yaml, plain))),
            ("application/vnd.kubernetes.protobuf,application/json", all, Some((Media::Protobuf, plain))),
            ("application/vnd.kubernetes.protobuf, */*", review, Some((json, plain))),
            ("application/vnd.kubernetes.protobuf", review, None),
            (
                &format!("application/json;as=Table;v=v2;g=meta.k8s.io,{table},application/json"),
                all,
                Some((json, Form::Table)),
            ),
            (table, review, None),
            ("application/*", Offer { routed: OBJECT_TYPES, ..all }, None),
            ("text/html, */*;q=0.1", Offer { routed: OBJECT_TYPES, ..all }, Some((json, plain))),
            (of_one, all, Some((Media::Protobuf, Form::Metadata(Many::One)))),
            (of_list, review, Some((json, Form::Metadata(Many::List)))),
            ("text/html", all, None),
            ("application/json;q=0.5, application/yaml", all, Some((Media::Yaml, plain))),
            ("application/json;q=0", all, Some((json, plain))),
            ("application/json;q=0, application/yaml;q=0.1", all, Some((Media::Yaml, plain))),
            ("application/json;q=NaN", all, Some((json, plain))),
            ("*/*, application/yaml;q=0.1", all, Some((Media::Yaml, plain))),
            ("application/yaml;q=0.1, */*", all, Some((json, plain))),
            ("application/yaml, application/json", all, Some((Media::Yaml, plain))),
            ("application/*;stream=watch", all, Some((json, plain))),
            ("application/yaml;stream=watch, application/json", all, Some((json, plain))),
            ("application/json;stream=other", all, None),
            ("application/json;sv=v1", all, Some((json, plain))),
            ("application/json;sv=v1", document, None),
            ("application/json;sv=v2", all, None),
            ("application/json;g=meta.k8s.io;v=v1", all, None),
            ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", document, None),
            ("application/json;as=", all, Some((json, plain))),
            ("json", all, None),
            ("*", all, Some((json, plain))),
            ("*/json", all, None),
            (&format!("{}application/yaml", "text/x, ".repeat(10_000)), all, Some((Media::Yaml, plain))),
            ("application/json;as=Table;v=v1;g=meta.k8s.io, application/json", all, Some((json, Form::Table))),
            (",, ,", all, None),
            ("", all, Some((json, plain))),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            let got = negotiate(&headers, offer).ok().map(|a| (a.media, a.form));
            assert_eq!(got, expected, "{accept}");
        }
        assert!(negotiate(&HeaderMap::new(), all).is_ok());
        let mut two = HeaderMap::new();
        two.append(ACCEPT, "application/yaml".parse().unwrap());
        two.append(ACCEPT, "application/json".parse().unwrap());
        assert_eq!(negotiate(&two, all).map(|a| a.media), Ok(Media::Yaml), "Go reads the first of several headers");
    }

    #[test]
    fn a_document_goes_in_the_first_form_that_is_named() {
        let offers = [("application/json", 1), ("application/x", 2)];
        for (accept, expected) in [
            ("", Some(1)),
            ("application/x", Some(2)),
            ("*/x", Some(2)),
            ("application/*;q=0.1", Some(1)),
            ("application/json;q=0.1, application/x", Some(2)),
            ("application/json;q=0", Some(1)),
            ("text/plain", None),
            (",", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(preferred(&headers, &offers), expected, "{accept}");
        }
    }

    #[test]
    fn one_document_for_all_groups_goes_to_those_who_name_it() {
        let named = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        for (accept, expected) in [
            (format!("application/json;{named},application/json"), Some(Media::Json)),
            (format!("application/json,application/yaml;{named}"), Some(Media::Yaml)),
            (format!("application/vnd.kubernetes.protobuf;{named};profile=nopeer"), Some(Media::Protobuf)),
            ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList".into(), None),
            ("application/json".into(), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(aggregated(&headers), expected, "{accept}");
        }
    }
}
