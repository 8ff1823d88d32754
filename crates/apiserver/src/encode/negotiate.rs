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
    /// Its metadata.
    Metadata,
}

/// The form that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Accepted {
    pub(crate) media: Media,
    pub(crate) form: Form,
}

/// What an endpoint can answer with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Tables and metadata alone.
    pub(crate) forms: bool,
    /// Protobuf of the object itself.
    pub(crate) protobuf: bool,
}

/// The first acceptable form, by quality and then order. No `Accept` at all is JSON.
///
/// # Errors
/// 406 when nothing fits.
pub(crate) fn negotiate(headers: &HeaderMap, offer: Offer) -> Result<Accepted, Status> {
    let json = Accepted { media: Media::Json, form: Form::Object };
    let mut ranges: Vec<(u16, Range<'_>)> = Vec::new();
    for value in headers.get_all(ACCEPT) {
        let text = value.to_str().ok().filter(|text| text.len() <= MAX_ACCEPT).ok_or_else(not_acceptable)?;
        ranges.extend(text.split(',').filter(|r| !r.trim().is_empty()).map(Range::parse));
    }
    if ranges.len() > MAX_RANGES {
        return Err(not_acceptable());
    }
    if ranges.is_empty() {
        return Ok(json);
    }
    ranges.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
    let fits = ranges.iter().filter(|(quality, _)| *quality > 0).find_map(|(_, range)| range.choose(offer));
    // Whoever only takes protobuf can still tell from the content type that JSON came: every Go client does.
    let knows_json =
        || ranges.iter().any(|(_, r)| r.media == "application/vnd.kubernetes.protobuf" && r.shown_as.is_none());
    fits.or_else(|| knows_json().then_some(json)).ok_or_else(not_acceptable)
}

struct Range<'a> {
    media: &'a str,
    shown_as: Option<&'a str>,
    group: &'a str,
    version: &'a str,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> (u16, Self) {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let mut range = Self { media, shown_as: None, group: "", version: "" };
        let mut quality = 1000;
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "as" => range.shown_as = Some(value),
                "g" => range.group = value,
                "v" => range.version = value,
                "q" => quality = value.parse::<f32>().map_or(0, |q| (q.clamp(0.0, 1.0) * 1000.0) as u16),
                _ => {}
            }
        }
        (quality, range)
    }

    fn choose(&self, offer: Offer) -> Option<Accepted> {
        let media = match self.media {
            "application/json" | "*/*" | "application/*" => Media::Json,
            "application/yaml" => Media::Yaml,
            "application/vnd.kubernetes.protobuf" => Media::Protobuf,
            _ => return None,
        };
        let form = match self.shown_as {
            None => Form::Object,
            Some(_) if !offer.forms || self.group != "meta.k8s.io" || self.version != "v1" => return None,
            Some("Table") => Form::Table,
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Form::Metadata,
            Some(_) => return None,
        };
        let possible = media != Media::Protobuf || (offer.protobuf && form == Form::Object);
        possible.then_some(Accepted { media, form })
    }
}

fn not_acceptable() -> Status {
    Status::new(
        Reason::NotAcceptable,
        "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_first_form_that_is_there() {
        let all = Offer { forms: true, protobuf: true };
        let review = Offer { forms: false, protobuf: false };
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        let (json, plain) = (Media::Json, Form::Object);
        for (accept, offer, expected) in [
            ("*/*", all, Some((json, plain))),
            ("application/yaml", all, Some((Media::Yaml, plain))),
            ("application/vnd.kubernetes.protobuf,application/json", all, Some((Media::Protobuf, plain))),
            ("application/vnd.kubernetes.protobuf, */*", review, Some((json, plain))),
            ("application/vnd.kubernetes.protobuf", review, Some((json, plain))),
            (
                &format!("{table},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"),
                all,
                Some((json, Form::Table)),
            ),
            (table, review, None),
            (metadata, all, Some((json, Form::Metadata))),
            ("text/html", all, None),
            ("application/json;q=0.5, application/yaml", all, Some((Media::Yaml, plain))),
            ("application/json;q=0", all, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            let got = negotiate(&headers, offer).ok().map(|a| (a.media, a.form));
            assert_eq!(got, expected, "{accept}");
        }
        assert!(negotiate(&HeaderMap::new(), all).is_ok());
    }
}
