//! Certificates of agents: signed by request, with exactly the identity of the requester.

use portolan_types::{
    Seams, Status,
    agent::{AGENTS, AgentId},
};
use rcgen::{
    CertificateSigningRequestParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa,
    KeyUsagePurpose, PublicKeyData as _,
};
use sha2::{Digest as _, Sha256};

use super::{Pki, certificates};

/// Life of an agent's certificate. The agent renews it after two thirds.
const LIFE_SECONDS: i64 = 30 * 24 * 3600;
/// Time before the issue from which a certificate is valid, for clocks that are behind.
const BACKDATED_SECONDS: i64 = 300;
/// OID of the uid in a subject.
const UID: [u64; 8] = [1, 3, 6, 1, 4, 1, 57683, 2];
/// Largest certificate signing request, in bytes.
const MAX_REQUEST: usize = 16 * 1024;

/// Parsed request for the certificate of an agent.
pub(crate) struct AgentCertificateRequest(CertificateSigningRequestParams);

impl AgentCertificateRequest {
    /// Parses a certificate signing request (PEM) of `agent`. Its subject must be empty or exactly that of the agent,
    /// without extensions.
    ///
    /// # Errors
    /// 400 for text that is not a request, or is not signed by its key; 403 for another identity.
    pub(crate) fn parse(pem: &str, agent: &AgentId) -> Result<Self, Status> {
        let invalid = |why: String| Status::bad_request(format!("request is not a certificate signing request: {why}"));
        if pem.len() > MAX_REQUEST {
            return Err(invalid(format!("it is longer than {MAX_REQUEST} bytes")));
        }
        let request = CertificateSigningRequestParams::from_pem(pem).map_err(|error| invalid(error.to_string()))?;
        let params = &request.params;
        let asks_for_more = !params.subject_alt_names.is_empty()
            || !params.key_usages.is_empty()
            || !params.extended_key_usages.is_empty()
            || params.is_ca != IsCa::NoCa;
        if asks_for_more {
            return Err(refused("a request for the certificate of an agent has no extensions"));
        }
        let subject: Vec<(DnType, String)> =
            params.distinguished_name.iter().map(|(kind, value)| (kind.clone(), text(value))).collect();
        let own = [(DnType::CommonName, agent.user_name()), (DnType::OrganizationName, AGENTS.to_owned())];
        if !subject.is_empty() && subject != own {
            return Err(refused("the subject of the request is not the agent itself"));
        }
        Ok(Self(request))
    }

    /// Returns its public key.
    pub(crate) fn public_key(&self) -> &[u8] {
        self.0.public_key.der_bytes()
    }
}

fn refused(why: &str) -> Status {
    Status::new(portolan_types::Reason::Forbidden, why)
}

/// Returns the text of a part of a subject; empty for forms that no agent uses.
fn text(value: &DnValue) -> String {
    match value {
        DnValue::Utf8String(text) => text.clone(),
        DnValue::PrintableString(text) => text.as_str().to_owned(),
        _ => String::new(),
    }
}

impl Pki {
    /// Issues the certificate of an agent, PEM.
    ///
    /// # Errors
    /// A failure to sign.
    pub(crate) fn certify_agent(
        &self,
        request: AgentCertificateRequest,
        agent: &AgentId,
        seams: &Seams,
    ) -> Result<String, Status> {
        let AgentCertificateRequest(mut request) = request;
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, agent.user_name());
        name.push(DnType::OrganizationName, AGENTS);
        name.push(DnType::CustomDnType(UID.to_vec()), agent.uid.to_string());
        let params = &mut request.params;
        params.distinguished_name = name;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        certificates::set_validity(params, (-BACKDATED_SECONDS, LIFE_SECONDS), seams);
        self.authority.certify(&request).map_err(Status::internal)
    }

    /// Returns the SHA-256 of the authority's certificate, DER, by which agents recognize the server.
    pub(crate) fn authority_pin(&self) -> [u8; 32] {
        let der = super::pem::certificates(&self.ca).ok().and_then(|all| all.into_iter().next());
        Sha256::digest(der.as_deref().unwrap_or_default()).into()
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterId;
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;
    use crate::{ApiServerConfig, authn::user_of_certificate};

    fn east() -> AgentId {
        AgentId { workspace: LogicalClusterId::ROOT, name: "east".parse().unwrap(), uid: "u-1".parse().unwrap() }
    }

    fn request(subject: &[(DnType, &str)], change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        subject.iter().for_each(|(kind, text)| params.distinguished_name.push(kind.clone(), *text));
        change(&mut params);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    #[test]
    fn a_certificate_has_exactly_the_identity_of_the_agent() {
        let seams = Seams::seeded(1, "2026-01-01T10:00:00Z".parse().unwrap());
        let pki = Pki::open(&ApiServerConfig::in_memory(seams.clone())).unwrap();
        let name = east().user_name();
        let own = [(DnType::CommonName, name.as_str()), (DnType::OrganizationName, AGENTS)];
        for subject in [&own[..], &[]] {
            let parsed = AgentCertificateRequest::parse(&request(subject, |_| {}), &east()).unwrap();
            let certificate = pki.certify_agent(parsed, &east(), &seams).unwrap();
            let der = super::super::pem::certificates(&certificate).unwrap();
            let user = user_of_certificate(&der[0]).unwrap();
            assert_eq!((user.name.as_str(), user.uid.as_str()), (name.as_str(), "u-1"));
            assert_eq!(user.groups, [AGENTS, "system:authenticated"]);
            let end = crate::authn::end_of_certificate(&der[0]).unwrap();
            assert_eq!(end, "2026-01-31T10:00:00Z".parse().unwrap());
        }
    }

    #[test]
    fn requests_for_anything_else_are_refused() {
        let name = east().user_name();
        let (common, group) = ((DnType::CommonName, name.as_str()), (DnType::OrganizationName, AGENTS));
        let other = (DnType::CommonName, "system:portolan:agent:root:west");
        let masters = (DnType::OrganizationName, "system:masters");
        for (case, request, code) in [
            ("another agent", request(&[other, group.clone()], |_| {}), 403),
            ("no group", request(std::slice::from_ref(&common), |_| {}), 403),
            ("another group", request(&[common.clone(), masters.clone()], |_| {}), 403),
            ("one more group", request(&[common.clone(), group.clone(), masters], |_| {}), 403),
            (
                "a name of a server",
                request(&[], |params| params.subject_alt_names.push(SanType::DnsName("a".try_into().unwrap()))),
                403,
            ),
            (
                "a server",
                request(&[], |params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth)),
                403,
            ),
            ("garbage", "garbage".into(), 400),
            ("nothing", String::new(), 400),
            ("too much", "-".repeat(MAX_REQUEST + 1), 400),
        ] {
            let refused = AgentCertificateRequest::parse(&request, &east()).err().expect(case);
            assert_eq!(refused.code(), code, "{case}: {refused:?}");
        }
    }
}
