//! Texts for `Warning` headers, collected while a request is served: no more of them than the headers take.

use std::collections::HashSet;

use parking_lot::Mutex;

/// Most characters of all texts together.
pub(crate) const MAX_WARNINGS: usize = 4 << 10;
/// Most characters of one text where all together are too long.
pub(crate) const MAX_WARNING: usize = 256;

/// Each text once, in the order in which they came. Apart, since most requests are told nothing and all are moved about.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<Option<Box<Told>>>);

#[derive(Debug, Default)]
struct Told {
    texts: Vec<String>,
    known: HashSet<String>,
    /// Characters that they take when each is cut.
    length: usize,
}

impl Warnings {
    /// Adds a text, unless it has been told or there is no room for it: whoever answers may say any number of things.
    pub(crate) fn add(&self, text: String) {
        let mut told = self.0.lock();
        let told = told.get_or_insert_default();
        if text.is_empty() || told.length >= MAX_WARNINGS || !told.known.insert(text.clone()) {
            return;
        }
        told.length += text.chars().take(MAX_WARNING).count();
        told.texts.push(text);
    }

    /// What has been told, for the answer; then there is nothing.
    pub(crate) fn take(&self) -> Vec<String> {
        self.0.lock().take().map(|told| told.texts).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_once_and_no_more_than_headers_take() {
        let warnings = Warnings::default();
        for text in ["b", "a", "", "b"] {
            warnings.add(text.into());
        }
        assert_eq!(warnings.take(), ["b", "a"]);
        (0..100_000).for_each(|n| warnings.add(format!("{n:>5}")));
        assert_eq!(warnings.take().len(), MAX_WARNINGS.div_ceil(5));
        (0..100).for_each(|n| warnings.add(format!("{n}{}", "x".repeat(1000))));
        assert_eq!(warnings.take().len(), MAX_WARNINGS / MAX_WARNING);
    }
}
