//! Shares of the corpus, for runs that cannot replay all of it.

use std::fmt;
use std::str::FromStr;

/// Share `number` of `of` equal shares; written `1/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorpusShare {
    /// Number of the share, from 1 to `of`.
    pub number: usize,
    /// Number of shares.
    pub of: usize,
}

impl CorpusShare {
    /// Share of the whole corpus.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Selects every `of`th item. Neighbors take similar time, so shares do too.
    pub fn of<T>(self, items: Vec<T>) -> Vec<T> {
        items.into_iter().skip(self.number - 1).step_by(self.of).collect()
    }
}

impl Default for CorpusShare {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl fmt::Display for CorpusShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for CorpusShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err(format!("{text:?} is no share such as 1/3")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_in_exactly_one_share() {
        for count in 0..10 {
            let mut all: Vec<usize> =
                (1..=3).flat_map(|number| CorpusShare { number, of: 3 }.of((0..count).collect())).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn texts_of_shares() {
        for (text, expected) in
            [("1/1", Some((1, 1))), ("2/3", Some((2, 3))), ("0/3", None), ("4/3", None), ("3", None), ("a/b", None)]
        {
            assert_eq!(text.parse::<CorpusShare>().ok().map(|share| (share.number, share.of)), expected, "{text}");
        }
    }
}
