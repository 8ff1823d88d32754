//! URLs, parsed as Go's `net/url` parses request URIs: absolute URLs and absolute paths.

use super::{LibraryFunction, error, no_overload};
use crate::program::{CelList, CelMap, CelValue, EvaluationFailure, Key};
use portolan_gocompat::url::{self, escaped_path, query_unescape, split_host};
use std::collections::BTreeMap;
use std::sync::Arc;

/// URL in its parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct CelUrl {
    pub(crate) text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "url" => |args, _| match args {
            [CelValue::String(text)] => match parse(text) {
                Ok(url) => Ok(CelValue::Url(Arc::new(url))),
                Err(message) => error(format!("URL parse error during conversion from string: {message}")),
            },
            _ => no_overload(),
        },
        "isURL" => |args, _| match args {
            [CelValue::String(text)] => Ok(CelValue::Bool(parse(text).is_ok())),
            _ => no_overload(),
        },
        "getScheme" => |args, _| part(args, |url| url.scheme.clone()),
        "getHost" => |args, _| part(args, |url| url.host.clone()),
        "getHostname" => |args, _| part(args, |url| split_host(&url.host).0.to_owned()),
        "getPort" => |args, _| part(args, |url| split_host(&url.host).1.to_owned()),
        "getEscapedPath" => |args, _| part(args, |url| escaped_path(&url.path)),
        "getQuery" => query,
        _ => return None,
    })
}

fn part<'a>(args: &[CelValue<'a>], part: fn(&CelUrl) -> String) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Url(url)] => Ok(part(url).into()),
        _ => no_overload(),
    }
}

/// Parses a URL.
pub(super) fn parse(text: &str) -> Result<CelUrl, String> {
    let url::Url { scheme, host, path, query, .. } = url::parse_request_uri(text)?;
    Ok(CelUrl { text: text.to_owned(), scheme, host: host.to_owned(), path: path.to_owned(), query: query.to_owned() })
}

fn query<'a>(args: &[CelValue<'a>], context: &super::CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::Url(url)] = args else { return no_overload() };
    let mut found: BTreeMap<Key, Vec<CelValue<'a>>> = BTreeMap::new();
    for pair in url.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(name), Some(value)) = (query_unescape(name), query_unescape(value)) {
            context.meter.elements(1)?;
            found.entry(Key::String(name.into())).or_default().push(value.into());
        }
    }
    let entries = found.into_iter().map(|(name, values)| (name, CelValue::List(CelList::owned(values))));
    Ok(CelValue::Map(CelMap::owned(entries.collect())))
}
