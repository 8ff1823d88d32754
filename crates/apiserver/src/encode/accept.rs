//! `Accept`, as the library reads it that kube-apiserver negotiates with (`munnerz/goautoneg`): nothing is refused for its quality,
//! what it cannot read it passes over, and the order that it sorts by contradicts itself where qualities and wildcards do.

use portolan_types::number;

use super::go_sort;

/// A media range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clause<'a> {
    pub(super) main: &'a str,
    pub(super) sub: &'a str,
    quality: f64,
    parameters: &'a str,
}

/// Ranges that are sorted. Nobody keeps more: of those the best is sought in one pass, as an order that is one would have it.
const MAX_SORTED: usize = 1000;

/// What the best of the ranges is good for that are good for anything.
pub(super) fn first<T>(header: &str, good_for: impl Fn(&Clause<'_>) -> Option<T>) -> Option<T> {
    if all(header).nth(MAX_SORTED).is_none() {
        return sorted(header).iter().find_map(good_for);
    }
    let good = all(header).filter_map(|clause| Some((clause, good_for(&clause)?)));
    let best = good.reduce(|best, next| if next.0.is_before(&best.0) { next } else { best });
    best.map(|(_, what)| what)
}

fn all(header: &str) -> impl Iterator<Item = Clause<'_>> {
    parts(header, ',').filter_map(Clause::parse)
}

/// Best first.
fn sorted(header: &str) -> Vec<Clause<'_>> {
    let mut all: Vec<_> = all(header).collect();
    go_sort::sort(&mut all, Clause::is_before);
    all
}

impl<'a> Clause<'a> {
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

    /// The value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.values(name).last().map(trim)
    }

    /// All values of a parameter, of which the last one counts. Those that are empty or have an `=` are none.
    fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let pairs = parts(self.parameters, ';').map(|part| cut(part, '='));
        let named = pairs.filter(move |(key, value)| trim(key) == name && !value.is_empty());
        named.map(|(_, value)| cut(value, '=')).filter(|(_, more)| more.is_empty()).map(|(value, _)| value)
    }

    /// Whether it goes before another. Of two ranges each may go before the other.
    fn is_before(&self, other: &Self) -> bool {
        self.quality > other.quality || (self.main != "*" && other.main == "*") || (self.sub != "*" && other.sub == "*")
    }
}

/// What stands before a separator, and what behind it.
fn cut(text: &str, separator: char) -> (&str, &str) {
    text.split_once(separator).unwrap_or((text, ""))
}

/// The parts between separators; none of an empty text, nor behind the last separator.
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

/// A quality as `strconv.ParseFloat` reads 32 bits, 0 for what it does not.
fn quality(text: &str) -> f64 {
    number::float(text).map_or(0.0, |quality| f64::from(quality as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(header: &str) -> String {
        let shown = |clause: &Clause<'_>| format!("{}/{}", clause.main, clause.sub);
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
            // What is no number is 0, and what is too large the largest.
            ("a/1;q=x,a/2;q=0.1", "a/2 a/1"),
            ("a/1;q= 0.5,a/2;q=0.1", "a/2 a/1"),
            ("a/1;q=1,a/2;q=1e99", "a/2 a/1"),
            ("a/1;q=0.9;q=0.1,a/2;q=0.5", "a/2 a/1"),
            ("a/1; q =0.1,a/2;q=0.5", "a/2 a/1"),
            // Without a value there is no parameter.
            ("a/1;q=,a/2;q", "a/1 a/2"),
            ("a/1;q=0.1=2,a/2", "a/1 a/2"),
            // NaN is neither more nor less.
            ("a/1;q=NaN,a/2,*/*;q=NaN", "a/1 a/2 */*"),
            ("a/1;q=-nan,a/2;q=0.5", "a/2 a/1"),
            ("a/1,a/2;q=Inf", "a/2 a/1"),
            ("a/1;q=0.1_1,a/2;q=0.1", "a/1 a/2"),
            ("a/1;q=_1,a/2;q=0.1", "a/2 a/1"),
            ("a/1;q=0x1p-2,a/2;q=0.5,a/3;q=0.1", "a/2 a/1 a/3"),
            ("a/1;q=0x1,a/2;q=0.5", "a/2 a/1"),
            ("*/*,a/*,a/1", "a/1 a/* */*"),
            // Either goes before the other: the one that is behind.
            ("*/*,a/1;q=0.5", "a/1 */*"),
            ("a/1;q=0.5,*/*", "*/* a/1"),
            ("a/*;q=0.5,a/1;q=0.1", "a/1 a/*"),
        ] {
            assert_eq!(order(header), expected, "{header:?}");
        }
    }

    #[test]
    fn parameters_are_what_stands_behind_the_first_equals_sign() {
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
