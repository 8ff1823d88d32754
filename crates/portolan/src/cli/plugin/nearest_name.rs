//! Guess of the name that a user meant.

/// Most edits by which a name may differ from a guess, per three characters.
const EDITS_PER_THREE: usize = 1;

/// Returns the most similar of some names, if one is similar enough.
pub(crate) fn nearest<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let bound = (wanted.chars().count() / 3).max(1) * EDITS_PER_THREE;
    let distance = |name: &'n str| (strsim::damerau_levenshtein(wanted, name), name);
    names.into_iter().map(distance).filter(|(edits, _)| (1..=bound).contains(edits)).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_guessed() {
        for (wanted, expected) in
            [("ehop", Some("shop")), ("hsop", Some("shop")), ("tema-1", Some("team-1")), ("other", None), ("x", None)]
        {
            assert_eq!(nearest(wanted, ["shop", "team-1", "team-22"]), expected, "{wanted}");
        }
    }
}
