//! Addresses by which the server and the physical cluster reach each other.

use anyhow::{Context as _, bail};
use portolan_tunnel::agent::ServerUrl;

/// Returns the address of the server for an agent: `named`, else that of the workspace's kubeconfig.
///
/// # Errors
/// No address of a server, or one that means the agent's own machine.
pub(super) fn agent_server(named: Option<&str>, upstream: &str) -> anyhow::Result<String> {
    let url: ServerUrl = named.unwrap_or(upstream).parse().with_context(|| named.unwrap_or(upstream).to_owned())?;
    if named.is_none() && is_local(&url.host) {
        bail!(
            "the address of the server in your kubeconfig, {url}, leads the agent to its own machine; name an address that the \
             physical cluster can reach with --agent-server https://HOST:PORT, and start the server with --tls-san HOST"
        );
    }
    Ok(url.to_string())
}

/// Reports that the server cannot reach an address of the user's own machine.
pub(super) fn check_direct(member: &str, report: &mut (dyn FnMut(&str) + Send)) {
    let host = member.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    if is_local(&host) {
        report(&format!(
            "! the server reaches {member} only on the same machine and with --allow-loopback-clusters; otherwise use --agent"
        ));
    }
}

/// Returns true for addresses of the machine that uses them.
fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let by_address = host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified());
    by_address || host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_not_sent_to_its_own_machine() {
        for (named, upstream, expected) in [
            (None, "https://portolan.example.com/clusters/root", "https://portolan.example.com:443"),
            (None, "https://127.0.0.1:6443/clusters/root", ""),
            (None, "https://[::1]:6443/", ""),
            (None, "https://localhost:6443/", ""),
            (None, "https://0.0.0.0:6443/", ""),
            (Some("https://10.0.0.1:6443"), "https://127.0.0.1:6443/", "https://10.0.0.1:6443"),
            // The user knows that both are on one machine.
            (Some("https://127.0.0.1:6443"), "https://127.0.0.1:6443/", "https://127.0.0.1:6443"),
            (Some("http://10.0.0.1"), "https://10.0.0.1/", ""),
        ] {
            let found = agent_server(named, upstream);
            assert_eq!(found.unwrap_or_default(), expected, "{named:?} {upstream}");
        }
    }

    #[test]
    fn a_local_member_is_noted() {
        for (member, notes) in [("https://127.0.0.1:6443/", 1), ("https://10.0.0.1:6443/", 0)] {
            let mut lines = Vec::new();
            check_direct(member, &mut |line| lines.push(line.to_owned()));
            assert_eq!(lines.len(), notes, "{member}");
        }
    }
}
