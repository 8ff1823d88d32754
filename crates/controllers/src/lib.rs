//! The loops that every logical cluster needs.
