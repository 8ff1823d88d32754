//! The loop around placement.
