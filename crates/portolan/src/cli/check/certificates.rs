//! Checks of certificates: those in the data directory, and the administrator's own one.

use std::path::{Path, PathBuf};

use clap::Args;
use portolan_apiserver::pki::{InspectedPair, inspect_certificate};
use portolan_types::Seams;

use super::{super::values, CheckFinding};

/// Days before its end from which a certificate that nothing renews is warned of.
const SOON: i64 = 14;

/// Flags of certificates, as the server has them.
#[derive(Args, Debug, Default)]
#[group(skip)]
pub(super) struct CertificateFlags {
    /// Name that clients use, as for the server; may be repeated.
    #[arg(long = "tls-san", value_name = "NAME", value_parser = values::certificate_name)]
    tls_sans: Vec<String>,
    /// Certificate chain that the server would present.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
}

/// Checks the certificates.
pub(super) fn look(data_dir: &Path, flags: &CertificateFlags) -> Vec<(&'static str, CheckFinding)> {
    let pki = data_dir.join("pki");
    let mut findings = Vec::new();
    for (what, name) in [("authority", "ca"), ("server cert", "server"), ("admin cert", "admin")] {
        let files = [pki.join(format!("{name}.crt")), pki.join(format!("{name}.key"))];
        if !files.iter().any(|file| file.exists()) {
            continue;
        }
        let names: &[String] = if name == "server" { &flags.tls_sans } else { &[] };
        // A start replaces all but the authority.
        findings.push((what, finding(&files, names, name != "ca")));
    }
    if findings.is_empty() {
        findings.push(("certificates", CheckFinding::Good("a start makes them".into())));
    }
    if let Some((certificate, key)) = flags.tls_cert_file.clone().zip(flags.tls_private_key_file.clone()) {
        findings.push(("own certificate", finding(&[certificate, key], &[], false)));
    }
    findings
}

fn finding(files: &[PathBuf; 2], names: &[String], is_renewed: bool) -> CheckFinding {
    let [certificate, key] = match files.each_ref().map(|file| {
        std::fs::read_to_string(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))
    }) {
        [Ok(certificate), Ok(key)] => [certificate, key],
        [Err(why), _] | [_, Err(why)] => return CheckFinding::Bad(why),
    };
    let place = files[0].display();
    let pair = InspectedPair { certificate: &certificate, key: &key };
    match inspect_certificate(pair, names, Seams::system().clock.now()) {
        Ok(facts) if facts.days_left < SOON && !is_renewed => {
            CheckFinding::Warning(format!("{place} ends in {} days, and nothing renews it", facts.days_left))
        }
        Ok(facts) => CheckFinding::Good(format!("{place} is valid for {} days", facts.days_left)),
        Err(why) if is_renewed => CheckFinding::Warning(format!("{place}: {why}; a start replaces it")),
        Err(why) => CheckFinding::Bad(format!("{place}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use portolan_apiserver::{ApiServerConfig, pki::Pki};

    use super::*;

    fn texts(dir: &Path, flags: &CertificateFlags) -> Vec<String> {
        let text = |(name, found): (&str, CheckFinding)| match found {
            CheckFinding::Good(text) => format!("{name} ok {text}"),
            CheckFinding::Warning(text) => format!("{name} warning {text}"),
            CheckFinding::Bad(text) => format!("{name} failed {text}"),
        };
        look(dir, flags).into_iter().map(text).collect()
    }

    #[test]
    fn certificates_are_looked_at_before_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("data");
        assert_eq!(texts(&dir, &CertificateFlags::default()), ["certificates ok a start makes them"]);
        let config = ApiServerConfig::in_directory(dir.clone(), Seams::system());
        Pki::open(&config).unwrap();
        let found = texts(&dir, &CertificateFlags::default());
        assert_eq!(found.len(), 3);
        assert!(found[1].starts_with("server cert ok") && found[1].ends_with("days"), "{found:?}");
        let files = (dir.join("pki/server.crt"), dir.join("pki/admin.key"));
        let flags = CertificateFlags {
            tls_sans: vec!["plane.example.com".into()],
            tls_cert_file: Some(files.0),
            tls_private_key_file: Some(files.1),
        };
        let found = texts(&dir, &flags);
        assert!(found[1].contains("warning") && found[1].contains("it lacks plane.example.com"), "{found:?}");
        assert!(found[3].starts_with("own certificate failed") && found[3].contains("is not the key"), "{found:?}");
        std::fs::remove_file(dir.join("pki/ca.key")).unwrap();
        assert!(texts(&dir, &flags)[0].contains("ca.key cannot be read"));
    }
}
