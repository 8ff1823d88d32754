//! What admission notes of one request for who reads the log of what was done: one line, whatever was noted.

use parking_lot::Mutex;
use portolan_types::LogicalClusterPath;

/// Longest text of a line, in bytes: keys, values and all.
const MAX_TEXT: usize = 1 << 10;
/// Longest name of who or what is noted of, in bytes.
const MAX_NAME: usize = 256;

/// What a request is, for the log.
#[derive(Debug, Default)]
pub(crate) struct About {
    cluster: String,
    resource: String,
    namespace: String,
    name: String,
    user: String,
}

impl About {
    pub(crate) fn new(
        cluster: &LogicalClusterPath,
        resource: &str,
        (namespace, name): (&str, &str),
        user: &str,
    ) -> Self {
        let [cluster, resource, namespace, name, user] =
            [&**cluster, resource, namespace, name, user].map(|text| cut(text, MAX_NAME).to_owned());
        Self { cluster, resource, namespace, name, user }
    }
}

/// Goes to the log when the request is over.
#[derive(Debug, Default)]
pub(crate) struct Notes(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Apart, since most requests note nothing and all are moved about.
    about: Option<Box<About>>,
    /// `key=value` each, as Rust writes texts, so that none ends the line.
    text: String,
    /// Those that there was no room for.
    left_out: u64,
}

impl Notes {
    /// Notes something, once. What there is no room for is counted: whoever makes policies may note any number of things.
    pub(crate) fn add(&self, key: &str, value: &str, about: impl FnOnce() -> About) {
        let mut noted = self.0.lock();
        if noted.left_out > 0 {
            noted.left_out += 1;
            return;
        }
        let room = MAX_TEXT.saturating_sub(noted.text.len());
        let note = format!("{}={:?}", cut(key, MAX_NAME), cut(value, MAX_TEXT));
        // A write that is tried again would note it again.
        if noted.text.contains(&note) {
            return;
        }
        if note.len() + 2 > room {
            noted.left_out += 1;
        }
        if noted.text.is_empty() {
            noted.about = Some(Box::new(about()));
            noted.text = cut(&note, MAX_TEXT).to_owned();
        } else if note.len() + 2 <= room {
            noted.text.push_str("; ");
            noted.text.push_str(&note);
        }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let Noted { about, text, left_out } = self.0.get_mut();
        let Some(about) = about else { return };
        tracing::info!(
            cluster = about.cluster,
            resource = about.resource,
            namespace = about.namespace,
            name = about.name,
            user = about.user,
            text,
            left_out,
            "admission annotations"
        );
    }
}

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_number_of_notes_there_is_one_line_of_a_bounded_length() {
        let notes = Notes::default();
        for (key, value) in [("a", "1"), ("b", "two\nlines"), ("a", "1")] {
            notes.add(key, value, About::default);
        }
        let text = |notes: &Notes| {
            let noted = notes.0.lock();
            (noted.text.clone(), noted.left_out)
        };
        assert_eq!(text(&notes), (r#"a="1"; b="two\nlines""#.to_owned(), 0));
        (0..30_000).for_each(|n| notes.add("k", &format!("{n} {}", "x".repeat(500)), About::default));
        let (line, left_out) = text(&notes);
        assert!(line.len() <= MAX_TEXT && line.contains("k=\"0 xx"), "{line}");
        assert_eq!(left_out, 29_999);
        let long = Notes::default();
        long.add("k", &"ä".repeat(1 << 20), About::default);
        assert!((MAX_TEXT - 1..=MAX_TEXT).contains(&text(&long).0.len()));
    }
}
