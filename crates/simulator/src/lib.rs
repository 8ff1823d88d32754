//! A physical cluster in process.
