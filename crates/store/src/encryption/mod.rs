//! Encryption of objects at rest: a layer between the users of a store and its engine. The engine, the history,
//! snapshots and backups contain encrypted bodies; headers stay readable, for selectors and garbage collection.
//!
//! A sealed body is `portolan:enc:<provider>:v1:<key name>:`, the splice offset, random bytes and the ciphertext. It is
//! bound to the logical cluster, the address and the uid of its object: elsewhere it cannot be opened.

mod cipher;
mod envelope;
mod keyring;
mod layer;
mod replace;
mod resealed;
#[cfg(test)]
mod tests;

pub use cipher::{EncryptionKey, EncryptionProvider};
pub use keyring::{EncryptionRule, Keyring, ResourcePattern};
pub use layer::EncryptedStore;
pub use replace::{ReplaceError, interrupted_rewrite, rewrite_embedded};
pub use resealed::{EncryptionReport, ResealedStore, examine_encryption};
