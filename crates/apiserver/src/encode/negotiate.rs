//! What form of answer a client accepts.

use http::{HeaderMap, header::ACCEPT};
use portolan_types::{Reason, Status};

/// Media ranges that are looked at in one `Accept`.
const MAX_RANGES: usize = 64;
/// Longest `Accept` that is looked at, in bytes.
const MAX_ACCEPT: usize = 8 * 1024;

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
    let ranges = ranges(headers).ok_or_else(|| not_acceptable(offer))?;
    if ranges.is_empty() {
        return Ok(Accepted::plain(Media::Json));
    }
    let names_one = ranges.iter().any(|range| range.media == "*/*" || offer.routed.contains(&range.media));
    if !offer.routed.is_empty() && !names_one {
        return Err(unroutable(offer.routed));
    }
    ranges.iter().find_map(|range| range.choose(offer)).ok_or_else(|| not_acceptable(offer))
}

/// In which form a client wants one document for all groups; `None` when it does not want one. Other forms that it takes do not
/// count, wherever they stand.
pub(crate) fn aggregated(headers: &HeaderMap) -> Option<Media> {
    let wanted = |range: &Range<'_>| {
        range.shown_as == Some("APIGroupDiscoveryList") && range.group == "apidiscovery.k8s.io" && range.version == "v2"
    };
    ranges(headers)?.into_iter().filter(wanted).find_map(|range| range.media())
}

/// What of the offered media types a client wants most; the first one where it says nothing.
pub(crate) fn preferred<T: Copy>(headers: &HeaderMap, offers: &[(&str, T)]) -> Option<T> {
    let ranges = ranges(headers)?;
    let wanted = ranges.iter().filter(|range| !range.refused).find_map(|range| {
        offers.iter().find(|(media, _)| matches!(range.media, "*/*" | "application/*") || range.media == *media)
    });
    wanted.or_else(|| offers.first().filter(|_| ranges.is_empty())).map(|(_, offer)| *offer)
}

/// What a client accepts, the best first, without what it refuses; `None` when it is too much to look at.
fn ranges(headers: &HeaderMap) -> Option<Vec<Range<'_>>> {
    let mut ranges: Vec<(u16, Range<'_>)> = Vec::new();
    for value in headers.get_all(ACCEPT) {
        let text = value.to_str().ok().filter(|text| text.len() <= MAX_ACCEPT)?;
        ranges.extend(text.split(',').filter(|r| !r.trim().is_empty()).map(Range::parse));
    }
    if ranges.len() > MAX_RANGES {
        return None;
    }
    ranges.sort_by_key(|(quality, range)| (std::cmp::Reverse(*quality), range.media == "*/*", range.is_open()));
    Some(ranges.into_iter().map(|(_, range)| range).collect())
}

struct Range<'a> {
    media: &'a str,
    shown_as: Option<&'a str>,
    group: &'a str,
    version: &'a str,
    pretty: bool,
    /// Its quality is 0.
    refused: bool,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> (u16, Self) {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let mut range = Self { media, shown_as: None, group: "", version: "", pretty: false, refused: false };
        let mut quality = 1000;
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "as" => range.shown_as = Some(value),
                "g" => range.group = value,
                "v" => range.version = value,
                "pretty" => range.pretty = value == "1",
                "q" => quality = value.parse::<f32>().map_or(0, |q| (q.clamp(0.0, 1.0) * 1000.0) as u16),
                _ => {}
            }
        }
        range.refused = quality == 0;
        (quality, range)
    }

    fn is_open(&self) -> bool {
        self.media.ends_with("/*")
    }

    fn media(&self) -> Option<Media> {
        match self.media {
            _ if self.refused => None,
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
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            let got = negotiate(&headers, offer).ok().map(|a| (a.media, a.form));
            assert_eq!(got, expected, "{accept}");
        }
        assert!(negotiate(&HeaderMap::new(), all).is_ok());
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
