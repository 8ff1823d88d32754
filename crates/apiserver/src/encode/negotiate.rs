//! What form of answer a client accepts.

use std::{borrow::Cow, cmp::Reverse};

use http::{HeaderMap, header::ACCEPT};
use portolan_types::{Reason, Status};

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
    pub(crate) table: bool,
    /// Protobuf of the object itself.
    pub(crate) protobuf: bool,
    /// It is a watch.
    pub(crate) stream: bool,
    /// The media types of the route, of which one must be named before anything else is looked at; empty where any may be.
    pub(crate) routed: &'static [&'static str],
}

impl Offer {
    /// A document that has no other form.
    pub(crate) fn document(routed: &'static [&'static str]) -> Self {
        Self { table: false, protobuf: true, stream: false, routed }
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

/// The first acceptable form, by quality, then the more specific one, then in order. No `Accept` at all is JSON.
///
/// # Errors
/// 406 when nothing fits.
pub(crate) fn negotiate(headers: &HeaderMap, offer: Offer) -> Result<Accepted, Status> {
    route(headers, offer.routed)?;
    let accept = accept(headers);
    if ranges(&accept).next().is_none() {
        return Ok(Accepted::plain(Media::Json));
    }
    best(&accept, |range| range.choose(offer)).ok_or_else(|| not_acceptable(offer))
}

/// A route is one for those who name one of its media types, whatever else they say of it.
///
/// # Errors
/// 406, of upstream's router, for others.
pub(crate) fn route(headers: &HeaderMap, routed: &[&str]) -> Result<(), Status> {
    let accept = accept(headers);
    let names_one = |range: Range<'_>| range.media == "*/*" || routed.contains(&range.media);
    let mut all = ranges(&accept).peekable();
    match routed.is_empty() || all.peek().is_none() || all.any(names_one) {
        true => Ok(()),
        false => Err(unroutable(routed)),
    }
}

/// In which form a client wants one document for all groups; `None` when it does not want one. Other forms that it takes do not
/// count, wherever they stand.
pub(crate) fn aggregated(headers: &HeaderMap) -> Option<Media> {
    let wanted = |range: &Range<'_>| {
        range.shown_as == Some("APIGroupDiscoveryList") && range.group == "apidiscovery.k8s.io" && range.version == "v2"
    };
    best(&accept(headers), |range| range.media().filter(|_| wanted(range)))
}

/// What of the offered media types a client wants most; the first one where it says nothing.
pub(crate) fn preferred<T: Copy>(headers: &HeaderMap, offers: &[(&str, T)]) -> Option<T> {
    let accept = accept(headers);
    if ranges(&accept).next().is_none() {
        return offers.first().map(|(_, offer)| *offer);
    }
    best(&accept, |range| {
        let fits = |media: &str| matches!(range.media, "*/*" | "application/*") || range.media == media;
        offers.iter().find(|(media, _)| !range.is_refused() && fits(media)).map(|(_, offer)| *offer)
    })
}

/// What a client accepts: of several headers the first, as Go reads them.
fn accept(headers: &HeaderMap) -> Cow<'_, str> {
    headers.get(ACCEPT).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default()
}

/// The media ranges, in order. There may be as many as fit into a header: nobody keeps them.
fn ranges(accept: &str) -> impl Iterator<Item = Range<'_>> {
    accept.split(',').filter(|range| !range.trim().is_empty()).map(Range::parse)
}

/// What the first of the best ranges is good for.
fn best<T>(accept: &str, good_for: impl Fn(&Range<'_>) -> Option<T>) -> Option<T> {
    let good = ranges(accept).filter_map(|range| Some((range.rank(), good_for(&range)?)));
    good.min_by_key(|(rank, _)| *rank).map(|(_, good)| good)
}

struct Range<'a> {
    media: &'a str,
    shown_as: Option<&'a str>,
    group: &'a str,
    version: &'a str,
    pretty: bool,
    /// In thousandths; none is wanted of 0.
    quality: u16,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let mut range = Self { media, shown_as: None, group: "", version: "", pretty: false, quality: 1000 };
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "as" => range.shown_as = Some(value),
                "g" => range.group = value,
                "v" => range.version = value,
                "pretty" => range.pretty = value == "1",
                "q" => range.quality = value.parse::<f32>().map_or(0, |q| (q.clamp(0.0, 1.0) * 1000.0) as u16),
                _ => {}
            }
        }
        range
    }

    fn is_refused(&self) -> bool {
        self.quality == 0
    }

    /// Those of a lower rank come first.
    fn rank(&self) -> (Reverse<u16>, bool, bool) {
        (Reverse(self.quality), self.media == "*/*", self.media.ends_with("/*"))
    }

    fn media(&self) -> Option<Media> {
        match self.media {
            _ if self.is_refused() => None,
            "application/json" | "*/*" | "application/*" => Some(Media::Json),
            "application/yaml" => Some(Media::Yaml),
            PROTOBUF => Some(Media::Protobuf),
            _ => None,
        }
    }

    fn choose(&self, offer: Offer) -> Option<Accepted> {
        let media = self.media().filter(|media| !(offer.stream && *media == Media::Yaml))?;
        let meta = match (self.shown_as, self.group, self.version) {
            (None, ..) | (_, "meta.k8s.io", "v1") => MetaVersion::V1,
            (_, "meta.k8s.io", "v1beta1") => MetaVersion::V1Beta1,
            _ => return None,
        };
        let form = match self.shown_as {
            None => Form::Object,
            Some("Table") if offer.table => Form::Table,
            Some("PartialObjectMetadata") => Form::Metadata(Many::One),
            Some("PartialObjectMetadataList") => Form::Metadata(Many::List),
            Some(_) => return None,
        };
        let possible = match (media, form) {
            (Media::Protobuf, Form::Object) => offer.protobuf,
            (Media::Protobuf, Form::Table) => false,
            (Media::Protobuf, Form::Metadata(_)) | (Media::Json | Media::Yaml, _) => true,
        };
        possible.then_some(Accepted { media, form, meta, pretty: self.pretty })
    }
}

fn not_acceptable(offer: Offer) -> Status {
    let types = match offer.stream {
        true => "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
        false => "application/json, application/yaml, application/vnd.kubernetes.protobuf",
    };
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
        let all = Offer { table: true, protobuf: true, stream: false, routed: &[] };
        let review = Offer { table: false, protobuf: false, ..all };
        let watch = Offer { stream: true, ..all };
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let of_one = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        let of_list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let (json, plain) = (Media::Json, Form::Object);
        for (accept, offer, expected) in [
            ("*/*", all, Some((json, plain))),
            ("application/yaml", all, Some((Media::Yaml, plain))),
            ("application/yaml", watch, None),
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
            ("application/json;q=0", all, None),
            ("application/json;q=NaN", all, None),
            (&format!("{}application/yaml", "text/x, ".repeat(10_000)), all, Some((Media::Yaml, plain))),
            ("application/json;as=Table;v=v1;g=meta.k8s.io, application/json", all, Some((json, Form::Table))),
            (",, ,", all, Some((json, plain))),
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
