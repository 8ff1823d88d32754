//! Damage, for the tests of whoever reads a store.

use std::{fs, path::Path};

/// Flips a bit of each place where `text` stands in the file of a store of the redb engine that is not open; tells how many
/// there were. As in `cargo xtask torture --bit-flips`, but at a place that is chosen.
///
/// # Errors
/// When the file cannot be read or written.
pub fn damage(dir: &Path, text: &str) -> std::io::Result<usize> {
    let path = dir.join("store.redb");
    let mut bytes = fs::read(&path)?;
    let is_text = |at: &usize| bytes[*at..].starts_with(text.as_bytes());
    let places: Vec<usize> = (0..bytes.len()).filter(is_text).collect();
    places.iter().for_each(|at| bytes[*at] ^= 1);
    fs::write(&path, bytes)?;
    Ok(places.len())
}
