//! Texts for `Warning` headers, collected while a request is served and bounded by the length of the headers.

use std::collections::HashSet;

use parking_lot::Mutex;

/// Most characters of all texts.
pub(crate) const MAX_WARNINGS: usize = 4 << 10;
/// Maximum characters of one text if all texts together are too long.
pub(crate) const MAX_WARNING: usize = 256;

/// Distinct texts in order of arrival. Boxed, because most requests have none.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<Option<Box<WarningTexts>>>);

#[derive(Debug, Default)]
struct WarningTexts {
    texts: Vec<String>,
    known: HashSet<String>,
    /// Characters of all texts after truncation.
    length: usize,
}

impl Warnings {
    /// Adds a text once, up to the bound: a webhook may return any number.
    pub(crate) fn add(&self, text: String) {
        let mut told = self.0.lock();
        let told = told.get_or_insert_default();
        if text.is_empty() || told.length >= MAX_WARNINGS || !told.known.insert(text.clone()) {
            return;
        }
        told.length += text.chars().take(MAX_WARNING).count();
        told.texts.push(text);
    }

    /// Takes the texts for the response.
    pub(crate) fn take(&self) -> Vec<String> {
        self.0.lock().take().map(|told| told.texts).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_distinct_and_bounded() {
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
