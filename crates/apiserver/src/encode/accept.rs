//! `Accept` header as kube-apiserver's library (`munnerz/goautoneg`) parses it: no range is refused for its quality,
//! and malformed ranges are skipped. The order differs for headers in which a wildcard has a higher quality than a
//! type: there the library's order contradicts itself, and quality comes first here.

use std::cmp::Ordering;

use portolan_types::number;

/// Media range of an `Accept` header.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptRange<'a> {
    pub(super) main: &'a str,
    pub(super) sub: &'a str,
    quality: f64,
    parameters: &'a str,
}

/// Returns the first usable result of the ranges, best first.
pub(super) fn first<T>(header: &str, good_for: impl Fn(&AcceptRange<'_>) -> Option<T>) -> Option<T> {
    sorted(header).iter().find_map(good_for)
}

/// Parses and sorts the ranges, best first.
fn sorted(header: &str) -> Vec<AcceptRange<'_>> {
    let mut all: Vec<_> = parts(header, ',').filter_map(AcceptRange::parse).collect();
    all.sort_by(AcceptRange::preference);
    all
}

impl<'a> AcceptRange<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (range, parameters) = cut(trim(text), ';');
        let (main, sub) = cut(range, '/');
        let main = trim(main);
        let sub = match (sub, cut(sub, '/')) {
            ("", _) if main == "*" => "*",
            ("", _) => return None,
            (_, (sub, "")) => trim(sub),
            _ => return None,
        };
        let mut clause = Self { main, sub, quality: 1.0, parameters };
        if let Some(text) = clause.values("q").last() {
            clause.quality = quality(text);
        }
        Some(clause)
    }

    /// Returns the value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.values(name).last().map(trim)
    }

    /// Returns all values of a parameter, of which the last counts. Empty values and those with `=` are skipped.
    fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let pairs = parts(self.parameters, ';').map(|part| cut(part, '='));
        let named = pairs.filter(move |(key, value)| trim(key) == name && !value.is_empty());
        named.map(|(_, value)| cut(value, '=')).filter(|(_, more)| more.is_empty()).map(|(value, _)| value)
    }

    /// Compares two ranges, the preferred one first: by quality, then types before wildcards.
    fn preference(&self, other: &Self) -> Ordering {
        let wildcards = |range: &Self| (range.main == "*", range.sub == "*");
        other.quality.total_cmp(&self.quality).then_with(|| wildcards(self).cmp(&wildcards(other)))
    }
}

/// Splits text at the first separator.
fn cut(text: &str, separator: char) -> (&str, &str) {
    text.split_once(separator).unwrap_or((text, ""))
}

/// Splits text at each separator; empty text has no parts, and a trailing separator adds none.
fn parts(mut rest: &str, separator: char) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let part;
        (part, rest) = (!rest.is_empty()).then(|| cut(rest, separator))?;
        Some(part)
    })
}

fn trim(text: &str) -> &str {
    text.trim_matches(' ')
}

/// Parses a quality as `strconv.ParseFloat` with 32 bits; 0 for malformed text and NaN. Zero has no sign.
fn quality(text: &str) -> f64 {
    let parsed = number::float(text).map_or(0.0, |quality| f64::from(quality as f32));
    if parsed.is_nan() || parsed == 0.0 { 0.0 } else { parsed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(header: &str) -> String {
        let shown = |clause: &AcceptRange<'_>| format!("{}/{}", clause.main, clause.sub);
        sorted(header).iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ranges_are_read_as_goautoneg_reads_them() {
        for (header, expected) in [
            ("", ""),
            (",, ,", ""),
            ("a/b", "a/b"),
            (" a / b ;c=d, c/d", "a/b c/d"),
            ("*", "*/*"),
            ("*/", "*/*"),
            ("json, a/, a/b/c, a/b/", "a/b"),
            ("\ta/b", "\ta/b"),
            ("A/b,a/B", "A/b a/B"),
        ] {
            assert_eq!(order(header), expected, "{header:?}");
        }
    }

    #[test]
    fn the_best_range_is_first() {
        for (header, expected) in [
            ("a/1;q=0.1,a/2;q=0.9,a/3;q=0.5", "a/2 a/3 a/1"),
            ("a/1;q=0,a/2;q=-1,a/3;q=2", "a/3 a/1 a/2"),
            ("a/1;q=0,a/2", "a/2 a/1"),
            // Malformed text is 0, and a number out of range is the largest one.
            ("a/1;q=x,a/2;q=0.1", "a/2 a/1"),
            ("a/1;q= 0.5,a/2;q=0.1", "a/2 a/1"),
            ("a/1;q=1,a/2;q=1e99", "a/2 a/1"),
            ("a/1;q=0.9;q=0.1,a/2;q=0.5", "a/2 a/1"),
            ("a/1; q =0.1,a/2;q=0.5", "a/2 a/1"),
            // A parameter without a value is skipped.
            ("a/1;q=,a/2;q", "a/1 a/2"),
            ("a/1;q=0.1=2,a/2", "a/1 a/2"),
            // NaN is 0.
            ("a/1;q=NaN,a/2,*/*;q=NaN", "a/2 a/1 */*"),
            ("a/1;q=-0,a/2;q=0", "a/1 a/2"),
            ("a/1;q=-nan,a/2;q=0.5", "a/2 a/1"),
            ("a/1,a/2;q=Inf", "a/2 a/1"),
            ("a/1;q=0.1_1,a/2;q=0.1", "a/1 a/2"),
            ("a/1;q=_1,a/2;q=0.1", "a/2 a/1"),
            ("a/1;q=0x1p-2,a/2;q=0.5,a/3;q=0.1", "a/2 a/1 a/3"),
            ("a/1;q=0x1,a/2;q=0.5", "a/2 a/1"),
            ("*/*,a/*,a/1", "a/1 a/* */*"),
            // Quality comes before wildcards, also where kube-apiserver's order contradicts itself.
            ("*/*,a/1;q=0.5", "*/* a/1"),
            ("a/1;q=0.5,*/*", "*/* a/1"),
            ("a/*;q=0.5,a/1;q=0.1", "a/* a/1"),
        ] {
            assert_eq!(order(header), expected, "{header:?}");
        }
    }

    #[test]
    fn parameters_are_split_at_the_first_equals_sign() {
        let header = "a/b; as = Table ;v=v1;v=v2;g=;x=1=2;y=1=;z;  ";
        let [clause] = sorted(header)[..] else { panic!("one range") };
        for (name, expected) in
            [("as", Some("Table")), ("v", Some("v2")), ("g", None), ("x", None), ("y", Some("1")), ("z", None)]
        {
            assert_eq!(clause.parameter(name), expected, "{name}");
        }
    }

    #[test]
    fn there_may_be_many_ranges() {
        for count in [2, 1000, 1001, 5000] {
            let ranges: Vec<String> = (0..count).map(|n| format!("a/{n};q={}.5", n * 7919 % count)).collect();
            let header = ranges.join(",");
            let best = (0..count).find(|n| n * 7919 % count == count - 1).map(|n| n.to_string());
            let found = |good: bool| first(&header, |clause| good.then(|| clause.sub.to_owned()));
            assert_eq!((found(true), found(false)), (best, None), "{count}");
        }
    }
}
