//! Flags for etcd.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use http::Uri;
use portolan_apiserver::pki::{UnusablePair, certificates, certified};
use portolan_store::{EtcdConfig, SecretString};

use super::server::ServerStore;

/// Default prefix of keys.
const PREFIX: &str = "/portolan/";

/// Flags of `--store etcd`.
#[derive(Args, Debug, Default)]
pub(crate) struct EtcdFlags {
    /// URLs of etcd's members, such as https://10.0.0.1:2379, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    etcd_endpoints: Vec<String>,
    /// Prefix of all keys in etcd, for several control planes on one etcd [default: /portolan/].
    #[arg(long, value_name = "PREFIX")]
    etcd_prefix: Option<String>,
    /// CA certificates that verify etcd's, PEM.
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate of the server for etcd, PEM.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// User of etcd, if it authenticates by password.
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// File with that user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdFlags {
    /// Returns true if the flags name an etcd.
    pub(crate) fn is_given(&self) -> bool {
        !self.etcd_endpoints.is_empty()
    }

    /// # Errors
    /// Fails if a flag is given although the objects are not in etcd.
    pub(crate) fn refuse_for(&self, store: ServerStore) -> anyhow::Result<()> {
        let given = [
            ("--etcd-endpoints", !self.etcd_endpoints.is_empty()),
            ("--etcd-prefix", self.etcd_prefix.is_some()),
            ("--etcd-cafile", self.etcd_cafile.is_some()),
            ("--etcd-certfile", self.etcd_certfile.is_some()),
            ("--etcd-keyfile", self.etcd_keyfile.is_some()),
            ("--etcd-user", self.etcd_user.is_some()),
            ("--etcd-password-file", self.etcd_password_file.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => bail!("{flag} is for --store etcd, not for --store {}", store.name()),
            None => Ok(()),
        }
    }

    /// Reads the named files.
    pub(crate) fn read(&self) -> anyhow::Result<EtcdConfig> {
        ensure!(!self.etcd_endpoints.is_empty(), "--store etcd needs --etcd-endpoints");
        if let Some(endpoint) = self.etcd_endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            bail!("--etcd-endpoints: {endpoint:?} is no URL such as https://10.0.0.1:2379");
        }
        let prefix = self.etcd_prefix.as_deref().unwrap_or(PREFIX);
        ensure!(!prefix.is_empty(), "--etcd-prefix must not be empty");
        let identity = match (&self.etcd_certfile, &self.etcd_keyfile) {
            (Some(certificate), Some(key)) => Some(pair(certificate, key)?),
            (Some(_), None) | (None, Some(_) | None) => None,
        };
        let user = match (&self.etcd_user, &self.etcd_password_file) {
            (Some(name), Some(file)) => Some((name.clone(), SecretString(password(file)?))),
            (Some(_), None) | (None, Some(_) | None) => None,
        };
        Ok(EtcdConfig {
            endpoints: self.etcd_endpoints.clone(),
            prefix: prefix.to_owned(),
            ca: self.etcd_cafile.as_deref().map(authorities).transpose()?,
            identity,
            user,
        })
    }
}

fn is_endpoint(text: &str) -> bool {
    text.parse::<Uri>().is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some())
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

fn authorities(path: &Path) -> anyhow::Result<String> {
    let text = text(path)?;
    certificates(&text).map_err(|what| anyhow!("--etcd-cafile: {} {what}", path.display()))?;
    Ok(text)
}

fn pair(certificate: &Path, key: &Path) -> anyhow::Result<(String, SecretString)> {
    let pair = (text(certificate)?, text(key)?);
    match certified(&pair.0, &pair.1) {
        Ok(_) => Ok((pair.0, SecretString(pair.1))),
        Err(UnusablePair::Certificate(what)) => bail!("--etcd-certfile: {} {what}", certificate.display()),
        Err(UnusablePair::Key(what)) => bail!("--etcd-keyfile: {} {what}", key.display()),
        Err(UnusablePair::Together(_)) => {
            bail!("--etcd-keyfile: {} is not the key of the certificate in {}", key.display(), certificate.display())
        }
    }
}

fn password(path: &Path) -> anyhow::Result<String> {
    let text = text(path)?.trim_end().to_owned();
    ensure!(
        !text.is_empty(),
        "--etcd-password-file: {} holds no password: one line of text is expected",
        path.display()
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use portolan_apiserver::{ApiServerConfig, pki::Pki};
    use portolan_types::Seams;

    use super::*;

    #[test]
    fn referenced_objects_are_read_and_missing_ones_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            Some(path)
        };
        let mut flags = EtcdFlags::default();
        assert!(flags.read().unwrap_err().to_string().contains("--etcd-endpoints"));
        for wrong in ["10.0.0.1:2379", "a", "ftp://a:2379", ""] {
            flags.etcd_endpoints = vec!["http://a:2379".into(), wrong.into()];
            assert!(flags.read().unwrap_err().to_string().contains("is no URL"), "{wrong}");
        }
        flags.etcd_endpoints = vec!["http://a:2379".into(), "https://[::1]:2379".into()];
        flags.etcd_user = Some("root".into());
        flags.etcd_password_file = file("password", "secret\n");
        let Pki { ca, admin, server, .. } = Pki::open(&ApiServerConfig::in_memory(Seams::system())).unwrap();
        flags.etcd_cafile = file("ca", &ca);
        flags.etcd_certfile = file("certificate", &admin.certificate);
        flags.etcd_keyfile = file("key", &admin.key);
        let read = flags.read().unwrap();
        assert_eq!((read.user, read.ca), (Some(("root".into(), SecretString("secret".into()))), Some(ca.clone())));
        assert_eq!(read.identity, Some((admin.certificate.clone(), SecretString(admin.key.clone()))));
        for (case, name, content, words) in [
            ("no certificate", "ca", "PEM", ["--etcd-cafile: ", "ca holds no certificate: PEM is expected"]),
            ("a key", "certificate", &admin.key, ["--etcd-certfile: ", "certificate holds no certificate"]),
            ("garbage", "key", "garbage", ["--etcd-keyfile: ", "key holds no private key: PEM is expected"]),
            ("another key", "key", &server.key, ["--etcd-keyfile: ", "is not the key of the certificate in "]),
            ("nothing", "password", "\n", ["--etcd-password-file: ", "password holds no password"]),
        ] {
            let path = folder.path().join(name);
            let kept = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, content).unwrap();
            let refused = flags.read().unwrap_err().to_string();
            assert!(words.iter().all(|words| refused.contains(words)), "{case}: {refused}");
            std::fs::write(&path, [0xff]).unwrap();
            assert!(flags.read().unwrap_err().to_string().contains(&path.display().to_string()), "no text: {name}");
            std::fs::write(&path, kept).unwrap();
        }
        flags.etcd_cafile = Some(folder.path().join("nowhere"));
        assert!(flags.read().unwrap_err().to_string().contains("nowhere"));
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            server: super::super::server::ServerArgs,
        }
        let folder = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", folder.path().join("data").display());
        for (flags, words) in [
            (
                vec!["--store=sled", "--etcd-endpoints=http://a:2379"],
                "--etcd-endpoints is for --store etcd, not for --store sled",
            ),
            (vec!["--etcd-prefix=/p/"], "--etcd-prefix is for --store etcd, not for --store redb"),
            (vec!["--store=memory", "--etcd-user=u", "--etcd-password-file=f"], "--etcd-user is for --store etcd"),
            (vec!["--store=etcd"], "--store etcd needs --etcd-endpoints"),
        ] {
            let args = ["server", data.as_str()].into_iter().chain(flags.iter().copied());
            let line = <Line as clap::Parser>::try_parse_from(args).unwrap_or_else(|error| panic!("{error}"));
            let refusal = line.server.storage().unwrap_err().to_string();
            assert!(refusal.contains(words), "{flags:?}: {refusal}");
        }
    }
}
