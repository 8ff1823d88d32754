//! Names of images, as `distribution/reference` reads them.

/// Longest tag.
const MAX_TAG: usize = 128;
/// Longest repository name.
const MAX_NAME: usize = 255;
/// Fewest hexadecimal digits of a digest.
const MIN_DIGEST: usize = 32;

/// Checks the name of an image.
///
/// # Errors
/// The message that the container runtime's parser gives.
pub(super) fn check(image: &str) -> Result<(), String> {
    let invalid = || "invalid reference format".to_owned();
    let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest)));
    let after_slash = rest.rfind('/').map_or(0, |at| at + 1);
    let tag_at = rest[after_slash..].find(':').map(|at| at + after_slash);
    let (name, tag) = tag_at.map_or((rest, None), |at| (&rest[..at], Some(&rest[at + 1..])));
    let (domain, path) = split_domain(name);
    if path.chars().any(|c| c.is_ascii_uppercase()) {
        let shown = if domain.is_none() && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
        return Err(format!("invalid reference format: repository name ({shown}) must be lowercase"));
    }
    let is_valid = domain.is_none_or(is_domain)
        && name.len() <= MAX_NAME
        && path.split('/').all(is_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    if is_valid { Ok(()) } else { Err(invalid()) }
}

/// The first part is a host when it has a dot, a port or capitals, or is `localhost`.
fn split_domain(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, path)) if first.contains(['.', ':']) || first == "localhost" || first.to_lowercase() != first => {
            (Some(first), path)
        }
        _ => (None, name),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = domain.rsplit_once(':').map_or((domain, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let edges = label.starts_with('-') || label.ends_with('-');
        !label.is_empty() && !edges && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let is_address = host.starts_with('[') && host.ends_with(']');
    let is_port = |port: &str| !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
    port.is_none_or(is_port) && (is_address || host.split('.').all(is_label))
}

/// Lower case letters and digits, with single dots, one or two underscores, or dashes between.
fn is_component(component: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let edges = component.starts_with(is_plain) && component.ends_with(is_plain);
    let separators = component.split(is_plain).filter(|separator| !separator.is_empty());
    let is_separator = |separator: &str| matches!(separator, "." | "_" | "__") || separator.chars().all(|c| c == '-');
    edges && separators.into_iter().all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= MAX_TAG && tag.starts_with(is_word) && tag.chars().all(|c| is_word(c) || c == '.' || c == '-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let is_algorithm = algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
        && algorithm.chars().all(|c| c.is_ascii_alphanumeric() || "+.-_".contains(c));
    is_algorithm && hex.len() >= MIN_DIGEST && hex.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_by_the_container_runtime() {
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for image in ["nginx", "a/b-c__d.e:v1_2.3", "gcr.io/a/b", "localhost/a", "h:5000/a:1", &digest] {
            assert_eq!(check(image), Ok(()), "{image}");
        }
        for (image, expected) in [
            ("Nginx:1", "invalid reference format: repository name (library/Nginx) must be lowercase"),
            ("gcr.io/Team/app", "invalid reference format: repository name (Team/app) must be lowercase"),
            ("", "invalid reference format"),
            ("nginx:", "invalid reference format"),
            ("nginx:a:b", "invalid reference format"),
            ("-nginx", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("my image", "invalid reference format"),
            ("nginx@sha256:12", "invalid reference format"),
        ] {
            assert_eq!(check(image), Err(expected.to_owned()), "{image}");
        }
    }
}
