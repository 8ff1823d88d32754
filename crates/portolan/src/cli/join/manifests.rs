//! Manifests that a physical cluster gets: the rights of the syncer, and the agent.

use std::io::Write as _;

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};

/// Image of the agent.
pub(super) const IMAGE: &str = concat!("ghcr.io/portolan-dev/portolan:v", env!("CARGO_PKG_VERSION"));

/// Namespace, account and roles of the syncer, and the Secret with its token.
const RIGHTS: &str = include_str!("../../../../../manifests/syncer/rbac.yaml");
/// Agent, with placeholders.
const AGENT: &str = include_str!("../../../../../manifests/agent/agent.yaml");
/// DNS responder, with a placeholder.
const DNS: &str = include_str!("../../../../../manifests/dns/dns.yaml");

/// Returns the rights of the syncer. An agent needs no token without an end: its pod has one of its own.
///
/// # Errors
/// The manifest has lost its Secret.
pub(super) fn rights(with_token: bool) -> anyhow::Result<String> {
    if with_token {
        return Ok(RIGHTS.to_owned());
    }
    let is_secret = |document: &&str| document.lines().any(|line| line == "kind: Secret");
    let documents: Vec<&str> = RIGHTS.split("\n---\n").collect();
    let secrets = documents.iter().filter(|document| is_secret(document)).count();
    anyhow::ensure!(secrets == 1, "manifests/syncer/rbac.yaml has {secrets} Secrets");
    Ok(documents.into_iter().filter(|document| !is_secret(document)).collect::<Vec<_>>().join("\n---\n"))
}

/// Returns the manifest of the agent.
pub(super) fn agent(server: &str, token: &str, image: &str) -> String {
    AGENT.replace("PORTOLAN_SERVER", server).replace("PORTOLAN_TOKEN", token).replace("PORTOLAN_IMAGE", image)
}

/// Returns the manifest of the DNS responder.
pub(super) fn dns(image: &str) -> String {
    DNS.replace("PORTOLAN_IMAGE", image)
}

/// Returns one line for a shell that applies a manifest. Its address and its token are inside, so nothing is
/// downloaded.
///
/// # Errors
/// None that can occur in memory.
pub(super) fn command(manifest: &str) -> anyhow::Result<String> {
    let plain: Vec<&str> = manifest.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain.join("\n").as_bytes()).context("compressing the manifest")?;
    let packed = STANDARD.encode(encoder.finish().context("compressing the manifest")?);
    Ok(format!("echo {packed} | base64 -d | gunzip | kubectl apply -f -"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::cli::cluster_api::{objects_of, path_of};

    #[test]
    fn the_responder_is_where_the_syncer_looks_for_it() {
        let objects = objects_of(&dns("image:1")).unwrap();
        let paths: Vec<String> = objects.iter().map(|object| path_of(object).unwrap()).collect();
        assert!(paths.contains(&"/api/v1/namespaces/portolan/services/portolan-dns".to_owned()), "{paths:?}");
        let responder = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let pod = &responder["spec"]["template"]["spec"];
        assert_eq!((&pod["containers"][0]["image"], &pod["dnsPolicy"]), (&"image:1".into(), &"Default".into()));
    }

    #[test]
    fn the_command_unpacks_to_the_manifest() {
        let manifest = format!("{}\n---\n{}", rights(false).unwrap(), agent("https://a:443", "t0ken", "image:1"));
        let line = command(&manifest).unwrap();
        assert!(!line.contains('\n') && line.len() < 4_000, "{} bytes", line.len());
        let packed = line.split(' ').nth(1).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&STANDARD.decode(packed).unwrap()[..]).read_to_string(&mut text).unwrap();
        assert!(text.contains("--server=https://a:443") && text.contains("token: t0ken"), "{text}");
        assert!(text.contains("image: image:1") && !text.contains("PORTOLAN_"), "{text}");
        let objects = objects_of(&text).unwrap();
        let paths: Vec<String> = objects.iter().map(|object| path_of(object).unwrap()).collect();
        assert!(paths.contains(&"/apis/apps/v1/namespaces/portolan/deployments/portolan-agent".to_owned()));
        assert!(!text.contains("service-account-token"), "the agent's pod has a token of its own");
        assert_eq!(
            objects_of(&rights(true).unwrap()).unwrap().len(),
            objects_of(&rights(false).unwrap()).unwrap().len() + 1
        );
    }

    /// The account downstream may not become more than it is (G28).
    #[test]
    fn the_rights_are_least() {
        for object in objects_of(&format!("{}\n---\n{AGENT}", rights(true).unwrap())).unwrap() {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            for rule in object["rules"].as_array().into_iter().flatten() {
                let text = rule.to_string();
                assert!(!text.contains("\"*\""), "{kind}: {text}");
                for word in ["escalate", "bind", "impersonate", "nodes/proxy", "roles", "certificatesigningrequests"] {
                    assert!(!text.contains(word), "{kind}: {text}");
                }
                let mints_tokens = text.contains("serviceaccounts/token");
                let is_named = rule["resourceNames"].as_array().is_some_and(|names| names.len() == 1);
                assert!(!mints_tokens || (kind == "Role" && is_named), "{kind}: {text}");
            }
        }
    }
}
