//! `portolan kubeconfig create`: a client certificate of the user's own, in place of the administrator's.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_apiserver::pki::{CertificateUser, IssuedUserCertificate, Kubeconfig, issue_user_certificate, kubeconfig};
use portolan_types::{LogicalClusterPath, Seams};

use super::{NamedServer, is_missing, read_admin};
use crate::cli::{output, values};

/// Longest life of a user's certificate.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Most bytes of a user's or a group's name in a certificate (RFC 5280).
const NAME_BYTES: usize = 64;
/// Prefix of names that Kubernetes gives a meaning.
const RESERVED: &str = "system:";

/// Create a kubeconfig for a user, with a client certificate of her own. It grants nothing: bind roles to the user or
/// her groups in the workspaces where she may work. It can be revoked before its time, as docs/access.md explains.
#[derive(Args)]
pub(crate) struct KubeconfigCreateArgs {
    /// Name of the user.
    #[arg(value_parser = certificate_text)]
    user: String,
    /// Data directory of the server, with the key of its authority.
    #[arg(long)]
    data_dir: PathBuf,
    /// Group of the user; may be repeated.
    #[arg(long = "group", value_name = "GROUP", value_parser = certificate_text)]
    groups: Vec<String>,
    /// Path of the workspace that the context points to.
    #[arg(long, default_value = "root")]
    workspace: String,
    /// Life of the certificate, as 12h or 30m; at most 366 days (8784h).
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = lifetime)]
    ttl: Duration,
    /// Name of the server in the kubeconfig; by default the name in admin.kubeconfig.
    #[arg(long, value_name = "NAME", value_parser = values::server_name)]
    name: Option<String>,
}

/// Parses a name of a user or a group.
fn certificate_text(text: &str) -> Result<String, String> {
    if text.starts_with(RESERVED) {
        return Err(format!("names that begin with {RESERVED} belong to the system"));
    }
    if text.is_empty() || text.len() > NAME_BYTES || text.chars().any(char::is_control) {
        return Err(format!("it is no name of 1 to {NAME_BYTES} bytes without control characters"));
    }
    Ok(text.to_owned())
}

fn lifetime(text: &str) -> Result<Duration, String> {
    match values::time(text)? {
        time if (Duration::from_secs(60)..=LONGEST).contains(&time) => Ok(time),
        _ => Err("it must be between 1 minute and 366 days (8784h)".into()),
    }
}

impl KubeconfigCreateArgs {
    /// Prints the kubeconfig.
    ///
    /// # Errors
    /// A workspace that the server does not have, or keys that cannot be used.
    pub(super) fn run(self) -> anyhow::Result<()> {
        let workspace = self.workspace()?;
        let of_admin = super::for_workspace(&read_admin(&self.data_dir)?, &workspace, None)?;
        if crate::cli::runtime()?.block_on(is_missing(&of_admin)) {
            bail!("the server has no workspace {workspace}");
        }
        let seams = Seams::system();
        let (text, serial) = self.create(&seams)?;
        output::print(&text)?;
        let until = seams.clock.now() + jiff::SignedDuration::try_from(self.ttl)?;
        let revoked = self.data_dir.join("pki/revoked-certificates");
        eprintln!(
            "user {user} until {until:.0}; to revoke it earlier, add this line to {}:\nserial:{serial}  # {user}",
            revoked.display(),
            user = self.user
        );
        Ok(())
    }

    /// Issues the certificate, and returns the kubeconfig and the serial number.
    ///
    /// # Errors
    /// Keys that cannot be used.
    pub(crate) fn create(&self, seams: &Seams) -> anyhow::Result<(String, String)> {
        let user = CertificateUser { name: &self.user, groups: &self.groups, lifetime: self.ttl };
        let issued = issue_user_certificate(&self.data_dir, &user, seams)?;
        let text = self.text(&read_admin(&self.data_dir)?, &self.workspace()?, &issued)?;
        Ok((text, issued.serial))
    }

    fn workspace(&self) -> anyhow::Result<LogicalClusterPath> {
        self.workspace.parse().with_context(|| format!("{:?} is no path of a workspace", self.workspace))
    }

    fn text(
        &self,
        admin: &str,
        workspace: &LogicalClusterPath,
        issued: &IssuedUserCertificate,
    ) -> anyhow::Result<String> {
        let admin: serde_json::Value = serde_saphyr::from_str(admin).context("admin.kubeconfig is damaged")?;
        let server = NamedServer::of(&admin, self.name.as_deref())?;
        // Names with other characters than these would need quotes in YAML.
        let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let user: String = self.user.chars().map(plain).collect();
        Ok(kubeconfig(&Kubeconfig {
            server: format!("{}/clusters/{workspace}", server.host),
            context: &format!("{workspace}@{}", server.name),
            user: &format!("{user}@{}", server.name),
            ca: &issued.ca,
            client: &issued.client,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_system_and_endless_lives_are_refused() {
        for (text, is_fine) in [
            ("ann", true),
            ("ann@example.com", true),
            ("Ann Ömer", true),
            ("", false),
            ("system:masters", false),
            ("system:serviceaccount:default:a", false),
            ("a\nb", false),
        ] {
            assert_eq!(certificate_text(text).is_ok(), is_fine, "{text:?}");
        }
        assert!(certificate_text(&"a".repeat(65)).is_err());
        for (text, is_fine) in
            [("24h", true), ("1m", true), ("8784h", true), ("8785h", false), ("5s", false), ("0", false)]
        {
            assert_eq!(lifetime(text).is_ok(), is_fine, "{text:?}");
        }
    }
}
