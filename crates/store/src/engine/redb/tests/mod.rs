//! Tests of the redb engine on disks that crash, fail and flip bits.

mod crash;
mod crash_many;
mod damaged;
mod unreadable;
