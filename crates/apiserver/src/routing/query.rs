//! Query parameters, decoded once.

use std::borrow::Cow;

use portolan_types::{Status, number};

/// Parameters of a request, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `a=b&c=d`.
    ///
    /// # Errors
    /// 400 when a part is not UTF-8 after percent decoding.
    pub(crate) fn parse(text: Option<&str>) -> Result<Self, Status> {
        let parts = text.unwrap_or_default().split('&').filter(|part| !part.is_empty());
        let pairs = parts.map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decode(key)?, decode(value)?))
        });
        pairs.collect::<Result<_, Status>>().map(Self)
    }

    /// Inserts a parameter before all others.
    pub(crate) fn put(&mut self, key: &str, value: String) {
        self.0.insert(0, (key.to_owned(), value));
    }

    /// Returns the first value of a parameter; `None` when it is missing.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Returns the first value; empty when it is missing.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    /// Returns all values of a parameter.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Returns a boolean: true if present with any value but 0 and false, as in the API machinery's conversion of
    /// queries.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
    }

    /// Returns a boolean that must be explicitly true, as in Go's `strconv.ParseBool`.
    pub(crate) fn strict_flag(&self, key: &str) -> bool {
        matches!(self.get(key), Some("1" | "t" | "T" | "true" | "True" | "TRUE"))
    }

    /// Returns an optional boolean.
    pub(crate) fn optional_flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|_| self.flag(key))
    }

    /// Parses an integer.
    ///
    /// # Errors
    /// 400 when it is malformed.
    pub(crate) fn number(&self, key: &str) -> Result<Option<i64>, Status> {
        let parse = |text| number::parse(text).map_err(Status::bad_request);
        self.get(key).map(parse).transpose()
    }
}

fn decode(text: &str) -> Result<String, Status> {
    let spaced: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    percent_encoding::percent_decode_str(&spaced)
        .decode_utf8()
        .map(Cow::into_owned)
        .map_err(|_| Status::bad_request("query parameters are encoded in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query =
            Query::parse(Some("watch&labelSelector=a%3Db%2Cc&x=1+2&dryRun=All&dryRun=B&watch=false&no=False&n=7"))
                .unwrap();
        assert!(query.flag("watch") && query.flag("x") && !query.flag("missing") && !query.strict_flag("x"));
        assert_eq!((query.text("labelSelector"), query.text("x")), ("a=b,c", "1 2"));
        assert_eq!(query.all("dryRun").collect::<Vec<_>>(), ["All", "B"]);
        assert_eq!(query.number("n"), Ok(Some(7)));
        assert!(query.number("x").is_err() && query.number("watch").is_err());
        assert!(Query::parse(Some("a=%ff")).is_err());
    }
}
