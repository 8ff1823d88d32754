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

/// The form that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Accepted {
    pub(crate) media: Media,
    pub(crate) form: Form,
    /// Asked for as a parameter of the media type.
    pub(crate) pretty: bool,
}

impl Accepted {
    /// The object itself.
    pub(crate) fn plain(media: Media) -> Self {
        Self { media, form: Form::Object, pretty: false }
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
}

/// The first acceptable form, by quality, then the more specific one, then in order. No `Accept` at all is JSON.
///
/// # Errors
/// 406 when nothing fits.
pub(crate) fn negotiate(headers: &HeaderMap, offer: Offer) -> Result<Accepted, Status> {
    let mut ranges: Vec<(u16, Range<'_>)> = Vec::new();
    for value in headers.get_all(ACCEPT) {
        let text = value.to_str().ok().filter(|text| text.len() <= MAX_ACCEPT).ok_or_else(|| not_acceptable(offer))?;
        ranges.extend(text.split(',').filter(|r| !r.trim().is_empty()).map(Range::parse));
    }
    if ranges.len() > MAX_RANGES {
        return Err(not_acceptable(offer));
    }
    if ranges.is_empty() {
        return Ok(Accepted::plain(Media::Json));
    }
    ranges.sort_by_key(|(quality, range)| (std::cmp::Reverse(*quality), range.media == "*/*", range.is_open()));
    let fits = ranges.iter().filter(|(quality, _)| *quality > 0).find_map(|(_, range)| range.choose(offer));
    fits.ok_or_else(|| not_acceptable(offer))
}

struct Range<'a> {
    media: &'a str,
    shown_as: Option<&'a str>,
    group: &'a str,
    version: &'a str,
    pretty: bool,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> (u16, Self) {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let mut range = Self { media, shown_as: None, group: "", version: "", pretty: false };
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
        (quality, range)
    }

    fn is_open(&self) -> bool {
        self.media.ends_with("/*")
    }

    fn choose(&self, offer: Offer) -> Option<Accepted> {
        let media = match self.media {
            "application/json" | "*/*" | "application/*" => Media::Json,
            "application/yaml" if !offer.stream => Media::Yaml,
            "application/vnd.kubernetes.protobuf" => Media::Protobuf,
            _ => return None,
        };
        let form = match self.shown_as {
            None => Form::Object,
            Some(_) if self.group != "meta.k8s.io" || self.version != "v1" => return None,
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
        possible.then_some(Accepted { media, form, pretty: self.pretty })
    }
}

fn not_acceptable(offer: Offer) -> Status {
    let types = match offer.stream {
        true => "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
        false => "application/json, application/yaml, application/vnd.kubernetes.protobuf",
    };
    Status::new(Reason::NotAcceptable, format!("only the following media types are accepted: {types}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_first_form_that_is_there() {
        let all = Offer { table: true, protobuf: true, stream: false };
        let review = Offer { table: false, protobuf: false, stream: false };
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
                &format!("application/json;as=Table;v=v1beta1;g=meta.k8s.io,{table},application/json"),
                all,
                Some((json, Form::Table)),
            ),
            (table, review, None),
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
}
