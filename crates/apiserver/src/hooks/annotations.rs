//! Admission annotations of one request, written to the log as one line.

use parking_lot::Mutex;
use portolan_types::LogicalClusterPath;

/// Longest text of a line, in bytes, keys and values included.
const MAX_TEXT: usize = 1 << 10;
/// Longest name in a line, in bytes.
const MAX_NAME: usize = 256;

/// Identity of a request in the log.
#[derive(Debug, Default)]
pub(crate) struct AnnotatedRequest {
    cluster: String,
    resource: String,
    namespace: String,
    name: String,
    user: String,
}

impl AnnotatedRequest {
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

/// Annotations, logged when the request ends.
#[derive(Debug, Default)]
pub(crate) struct AuditAnnotations(Mutex<AnnotationText>);

#[derive(Debug, Default)]
struct AnnotationText {
    /// Boxed, because most requests have none.
    about: Option<Box<AnnotatedRequest>>,
    /// `key=value` pairs with values quoted as in Rust, so that none breaks the line.
    text: String,
    /// The annotations, for audit events.
    pairs: Vec<(String, String)>,
    /// Number of annotations that did not fit.
    left_out: u64,
}

impl AuditAnnotations {
    /// Adds an annotation once. Annotations that do not fit are counted, because a policy may add any number.
    pub(crate) fn add(&self, key: &str, value: &str, about: impl FnOnce() -> AnnotatedRequest) {
        let mut noted = self.0.lock();
        if noted.left_out > 0 {
            noted.left_out += 1;
            return;
        }
        let room = MAX_TEXT.saturating_sub(noted.text.len());
        let note = format!("{}={:?}", cut(key, MAX_NAME), cut(value, MAX_TEXT));
        // A retried write adds it again.
        if noted.text.contains(&note) {
            return;
        }
        if note.len() + 2 > room {
            noted.left_out += 1;
        }
        if noted.text.is_empty() {
            noted.about = Some(Box::new(about()));
            noted.text = cut(&note, MAX_TEXT).to_owned();
            noted.pairs.push((cut(key, MAX_NAME).to_owned(), cut(value, MAX_TEXT).to_owned()));
        } else if note.len() + 2 <= room {
            noted.text.push_str("; ");
            noted.text.push_str(&note);
            noted.pairs.push((cut(key, MAX_NAME).to_owned(), value.to_owned()));
        }
    }

    /// Visits the annotations that fitted.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&str, &str)) {
        self.0.lock().pairs.iter().for_each(|(key, value)| visit(key, value));
    }
}

impl Drop for AuditAnnotations {
    fn drop(&mut self) {
        let AnnotationText { about, text, left_out, .. } = self.0.get_mut();
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
    fn annotations_are_one_line_of_bounded_length() {
        let notes = AuditAnnotations::default();
        for (key, value) in [("a", "1"), ("b", "two\nlines"), ("a", "1")] {
            notes.add(key, value, AnnotatedRequest::default);
        }
        let text = |notes: &AuditAnnotations| {
            let noted = notes.0.lock();
            (noted.text.clone(), noted.left_out)
        };
        assert_eq!(text(&notes), (r#"a="1"; b="two\nlines""#.to_owned(), 0));
        (0..30_000).for_each(|n| notes.add("k", &format!("{n} {}", "x".repeat(500)), AnnotatedRequest::default));
        let (line, left_out) = text(&notes);
        assert!(line.len() <= MAX_TEXT && line.contains("k=\"0 xx"), "{line}");
        assert_eq!(left_out, 29_999);
        let long = AuditAnnotations::default();
        long.add("k", &"ä".repeat(1 << 20), AnnotatedRequest::default);
        assert!((MAX_TEXT - 1..=MAX_TEXT).contains(&text(&long).0.len()));
    }
}
