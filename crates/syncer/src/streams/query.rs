//! Query parameters that are passed downstream.

/// The pairs of `query` whose key is one of `options`, as they were written.
pub(super) fn known_options(options: &[&str], query: &str) -> String {
    let is_known = |pair: &&str| options.contains(&pair.split('=').next().unwrap_or_default());
    query.split('&').filter(is_known).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_options_go_down() {
        let options = ["command", "stdin"];
        for (query, expected) in [
            ("command=sh&command=-c&command=a%26b&dryRun=All", "command=sh&command=-c&command=a%26b"),
            ("stdin&&stdin=1&fieldManager=x", "stdin&stdin=1"),
            ("comm%61nd=sh", ""),
            ("", ""),
        ] {
            assert_eq!(known_options(&options, query), expected);
        }
    }
}
