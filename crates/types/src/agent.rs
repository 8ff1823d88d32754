//! Identity of an agent: the physical cluster that it serves.

use std::fmt;

use crate::names::{InvalidName, LogicalClusterId, ObjectName, Uid};

/// Header by which the server asks an agent to act as the account for users' requests in place of its own.
pub const IDENTITY_HEADER: &str = "x-portolan-identity";
/// Value of [`IDENTITY_HEADER`].
pub const ACCESS_IDENTITY: &str = "access";
/// Group of agents, in their certificates.
pub const AGENTS: &str = "system:portolan:agents";
/// Group of agents that have a bootstrap token only.
pub const AGENT_BOOTSTRAPPERS: &str = "system:portolan:agent-bootstrappers";
/// Prefix of the names of agents.
const PREFIX: &str = "system:portolan:agent:";

/// Identity of an agent. It is bound to one registration: a physical cluster that is registered again under the same
/// name has another uid, and needs another credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId {
    /// Logical cluster of the registration.
    pub workspace: LogicalClusterId,
    /// Name of the `PhysicalCluster`.
    pub name: ObjectName,
    /// Its uid.
    pub uid: Uid,
}

impl AgentId {
    /// Returns the name of the user, as in the common name of the certificate.
    pub fn user_name(&self) -> String {
        format!("{PREFIX}{}:{}", self.workspace, self.name)
    }

    /// Parses the name and the uid of a user.
    ///
    /// # Errors
    /// The name is not that of an agent, or the uid is missing.
    pub fn of_user(name: &str, uid: &str) -> Result<Self, InvalidName> {
        let rule = "an agent is named system:portolan:agent:<workspace id>:<physical cluster>";
        let invalid = || InvalidName::new(name, rule);
        let (workspace, cluster) =
            name.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')).ok_or_else(invalid)?;
        Ok(Self { workspace: workspace.parse()?, name: cluster.parse()?, uid: uid.parse()? })
    }
}

/// Path of the request for a certificate.
pub const CERTIFICATE_PATH: &str = "/portolan/v1/agent/certificate";
/// Path of the call that opens a tunnel.
pub const TUNNEL_PATH: &str = "/portolan.tunnel.v1.Tunnel/Connect";

/// Bootstrap token of an agent: `portolan-agent_<uid>_<secret>`, and for people with `_<pin>`, the SHA-256 of the
/// authority's certificate in hexadecimal, by which the agent recognizes the server.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    /// Uid of the physical cluster.
    pub uid: Uid,
    /// Random part.
    pub secret: String,
    /// SHA-256 of the authority's certificate, DER.
    pub pin: Option<[u8; 32]>,
}

impl BootstrapToken {
    const PREFIX: &'static str = "portolan-agent_";
    const RULE: &'static str = "a bootstrap token is portolan-agent_<uid>_<secret>_<pin>";

    /// Returns true if `text` looks like one.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(Self::PREFIX)
    }

    /// Parses a token.
    ///
    /// # Errors
    /// The text has another form. The error does not show it.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName::new("", Self::RULE);
        let mut parts = text.strip_prefix(Self::PREFIX).ok_or_else(invalid)?.split('_');
        let (uid, secret, pin) = (parts.next(), parts.next(), parts.next());
        let (Some(uid), Some(secret), None) = (uid, secret, parts.next()) else { return Err(invalid()) };
        if secret.is_empty() || !secret.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(invalid());
        }
        let pin = pin.map(|pin| parse_pin(pin).ok_or_else(invalid)).transpose()?;
        Ok(Self { uid: uid.parse().map_err(|_| invalid())?, secret: secret.to_owned(), pin })
    }

    /// Returns the part that the server checks.
    pub fn bearer(&self) -> String {
        format!("{}{}_{}", Self::PREFIX, self.uid, self.secret)
    }

    /// Returns the whole text, for the agent.
    pub fn text(&self) -> String {
        let pin = self.pin.map(|pin| pin.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        pin.map_or_else(|| self.bearer(), |pin| format!("{}_{pin}", self.bearer()))
    }
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapToken").field("uid", &self.uid).finish_non_exhaustive()
    }
}

fn parse_pin(text: &str) -> Option<[u8; 32]> {
    let mut pin = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in pin.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(pin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_and_never_shown() {
        let token = BootstrapToken { uid: "a-1".parse().unwrap(), secret: "s3cret".into(), pin: Some([7; 32]) };
        assert_eq!(token.bearer(), "portolan-agent_a-1_s3cret");
        assert_eq!(BootstrapToken::parse(&token.text()).unwrap(), token);
        assert_eq!(BootstrapToken::parse(&token.bearer()).unwrap().pin, None);
        assert!(!format!("{token:?}").contains("s3cret"));
        for text in ["", "portolan-agent_", "portolan-agent_a_", "portolan-agent_a_b_c", "portolan-agent_a_b!", "x_a_b"]
        {
            let refused = BootstrapToken::parse(text).unwrap_err().to_string();
            let secret = text.strip_prefix(BootstrapToken::PREFIX).unwrap_or(text);
            assert!(secret.is_empty() || !refused.contains(secret), "{refused}");
        }
        assert!(BootstrapToken::parse(&format!("{}_", token.text())).is_err());
    }

    #[test]
    fn identities_are_read_back_exactly() {
        for (workspace, name, user) in
            [(LogicalClusterId::ROOT, "east", "system:portolan:agent:root:east"), (LogicalClusterId::new(7), "a.b", "")]
        {
            let id = AgentId { workspace, name: name.parse().unwrap(), uid: "u-1".parse().unwrap() };
            assert_eq!(AgentId::of_user(&id.user_name(), "u-1").unwrap(), id);
            assert!(user.is_empty() || id.user_name() == user);
        }
        for (name, uid) in [
            ("system:portolan:agent:root:east", ""),
            ("system:portolan:agent:root", "u"),
            ("system:portolan:agent:root:", "u"),
            ("system:portolan:agent:nowhere:east", "u"),
            ("system:portolan:agents:root:east", "u"),
            ("east", "u"),
        ] {
            assert!(AgentId::of_user(name, uid).is_err(), "{name} {uid}");
        }
    }
}
