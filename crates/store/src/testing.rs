//! Damage to stores, for tests of their readers.

use std::{fs, path::Path};

/// Flips a bit at each occurrence of `text` in the file of a closed redb store; returns the number of occurrences. Like
/// `cargo xtask torture --bit-flips`, but at a chosen position.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn damage(dir: &Path, text: &str) -> std::io::Result<usize> {
    let path = dir.join("store.redb");
    let mut bytes = fs::read(&path)?;
    let is_text = |at: &usize| bytes[*at..].starts_with(text.as_bytes());
    let places: Vec<usize> = (0..bytes.len()).filter(is_text).collect();
    places.iter().for_each(|at| bytes[*at] ^= 1);
    fs::write(&path, bytes)?;
    Ok(places.len())
}
