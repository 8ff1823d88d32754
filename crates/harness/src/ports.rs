//! Free TCP ports on loopback.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// Start of the range, below the kernel's ephemeral ports (from 32768), so that no outgoing connection takes a port
/// before the server binds it.
const RANGE: std::ops::Range<u16> = 18_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Returns a free port. One process never gets the same port twice; different processes start at different positions.
pub fn free_port() -> Result<u16> {
    let width = RANGE.end - RANGE.start;
    let start = u16::try_from(u32::from(width / 97) * (std::process::id() % 97))?;
    for _ in 0..width {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = RANGE.start + (start + step % width) % width;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 in {RANGE:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports = [(); 50].map(|()| free_port().unwrap());
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert!(ports.iter().all(|port| RANGE.contains(port)));
    }
}
