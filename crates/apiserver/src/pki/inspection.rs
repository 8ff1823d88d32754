//! Inspection of certificates for operators.

use jiff::Timestamp;
use portolan_types::seams::seconds_text;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _};

use super::{UnusablePair, certified};

const DAY_SECONDS: i64 = 86_400;

/// Certificate and key as found, both PEM.
#[derive(Clone, Copy)]
pub struct InspectedPair<'a> {
    /// Certificate, or a chain that begins with it.
    pub certificate: &'a str,
    /// Its key.
    pub key: &'a str,
}

/// Result of an inspection of a usable certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// End of its validity.
    pub ends: Timestamp,
    /// Full days until then.
    pub days_left: i64,
}

/// Inspects a certificate that has to be valid now and to have `names`.
///
/// # Errors
/// The fault. A certificate that is not valid now names the time of this machine, whose clock may be wrong.
pub fn inspect_certificate(
    pair: InspectedPair<'_>,
    names: &[String],
    now: Timestamp,
) -> Result<CertificateFacts, String> {
    let chain = certified(pair.certificate, pair.key).map_err(|why| match why {
        UnusablePair::Certificate(what) => format!("the certificate file {what}"),
        UnusablePair::Key(what) | UnusablePair::Together(what) => format!("the key file {what}"),
    })?;
    let leaf = chain.cert.first().ok_or("there is no certificate")?;
    let (_, certificate) = X509Certificate::from_der(leaf).map_err(|error| error.to_string())?;
    let time = |seconds: i64| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    let (begins, ends) =
        (time(certificate.validity().not_before.timestamp()), time(certificate.validity().not_after.timestamp()));
    if now < begins {
        return Err(format!(
            "it is valid from {} on, and this machine's clock says {}; fix: set the clock",
            seconds_text(begins),
            seconds_text(now)
        ));
    }
    if now >= ends {
        return Err(format!(
            "it has expired at {}, and this machine's clock says {}",
            seconds_text(ends),
            seconds_text(now)
        ));
    }
    let held = names_of(&certificate);
    let missing: Vec<&str> =
        names.iter().filter(|name| !held.contains(&name.to_lowercase())).map(String::as_str).collect();
    if !missing.is_empty() {
        return Err(format!("it lacks {}; it has {}", missing.join(", "), held.join(", ")));
    }
    Ok(CertificateFacts { ends, days_left: (ends.as_second() - now.as_second()) / DAY_SECONDS })
}

fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten().map(|san| &san.value.general_names);
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_lowercase()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|ip| std::net::IpAddr::from(ip).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|ip| std::net::IpAddr::from(ip).to_string()),
        },
        _ => None,
    };
    names.into_iter().flatten().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn pair() -> (String, String) {
        let mut params = CertificateParams::new(["Plane.example.com".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 12, 31));
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn faults_are_reported_with_their_reason() {
        let ((certificate, key), (_, other)) = (pair(), pair());
        let pair = InspectedPair { certificate: &certificate, key: &key };
        let inspect = |pair, names: &[&str], now: &str| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            inspect_certificate(pair, &names, now.parse().unwrap())
        };
        let good = inspect(pair, &["plane.example.com", "10.0.0.1"], "2026-12-01T00:00:00Z").unwrap();
        assert_eq!(good.days_left, 30);
        for (case, pair, names, now, words) in [
            ("expired", pair, &[][..], "2027-01-01T00:00:00Z", "it has expired at 2026-12-31"),
            ("a clock that is behind", pair, &[], "2025-01-01T00:00:00Z", "fix: set the clock"),
            (
                "a missing name",
                pair,
                &["other.example.com"],
                "2026-06-01T00:00:00Z",
                "it lacks other.example.com; it has",
            ),
            ("another key", InspectedPair { key: &other, ..pair }, &[], "2026-06-01T00:00:00Z", "the key file is not"),
            ("no key", InspectedPair { key: "", ..pair }, &[], "2026-06-01T00:00:00Z", "the key file holds no private"),
            (
                "no certificate",
                InspectedPair { certificate: "", ..pair },
                &[],
                "2026-06-01T00:00:00Z",
                "holds no certif",
            ),
        ] {
            let why = inspect(pair, names, now).unwrap_err();
            assert!(why.contains(words), "{case}: {why}");
        }
    }
}
