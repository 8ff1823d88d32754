//! The flags that say how etcd is reached.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use http::Uri;
use portolan_store::{EtcdConfig, Hidden};

/// With `--store etcd`.
#[derive(Args, Debug, Default)]
pub(crate) struct EtcdFlags {
    /// URLs of etcd's members, such as https://10.0.0.1:2379, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    etcd_endpoints: Vec<String>,
    /// Beginning of all keys in etcd, for several planes on one etcd.
    #[arg(long, default_value = "/portolan/", value_name = "PREFIX")]
    etcd_prefix: String,
    /// Certificates of the authority that etcd's come from, PEM.
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// The server's certificate as a client of etcd, PEM.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// User of etcd, where it asks for one.
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// File with that user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdFlags {
    /// Reads the files that are named.
    pub(crate) fn read(&self) -> anyhow::Result<EtcdConfig> {
        ensure!(!self.etcd_endpoints.is_empty(), "--store etcd needs --etcd-endpoints");
        if let Some(endpoint) = self.etcd_endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            bail!("--etcd-endpoints: {endpoint:?} is no URL such as https://10.0.0.1:2379");
        }
        ensure!(!self.etcd_prefix.is_empty(), "--etcd-prefix must not be empty");
        let identity = match (&self.etcd_certfile, &self.etcd_keyfile) {
            (Some(certificate), Some(key)) => Some((text(certificate)?, Hidden(text(key)?))),
            (Some(_), None) | (None, Some(_) | None) => None,
        };
        let user = match (&self.etcd_user, &self.etcd_password_file) {
            (Some(name), Some(file)) => Some((name.clone(), Hidden(text(file)?.trim_end().to_owned()))),
            (Some(_), None) | (None, Some(_) | None) => None,
        };
        Ok(EtcdConfig {
            endpoints: self.etcd_endpoints.clone(),
            prefix: self.etcd_prefix.clone(),
            ca: self.etcd_cafile.as_deref().map(text).transpose()?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_read_and_what_is_missing_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            Some(path)
        };
        let mut flags = EtcdFlags { etcd_prefix: "/p/".into(), ..EtcdFlags::default() };
        assert!(flags.read().unwrap_err().to_string().contains("--etcd-endpoints"));
        for wrong in ["10.0.0.1:2379", "a", "ftp://a:2379", ""] {
            flags.etcd_endpoints = vec!["http://a:2379".into(), wrong.into()];
            assert!(flags.read().unwrap_err().to_string().contains("is no URL"), "{wrong}");
        }
        flags.etcd_endpoints = vec!["http://a:2379".into(), "https://[::1]:2379".into()];
        flags.etcd_user = Some("root".into());
        flags.etcd_password_file = file("password", "secret\n");
        flags.etcd_cafile = file("ca", "PEM");
        let read = flags.read().unwrap();
        assert_eq!((read.user, read.ca), (Some(("root".into(), Hidden("secret".into()))), Some("PEM".into())));
        flags.etcd_cafile = Some(folder.path().join("nowhere"));
        assert!(flags.read().unwrap_err().to_string().contains("nowhere"));
    }
}
