//! Check that a certificate and a private key belong together, with the messages of Go's `crypto/tls`.

use ring::signature::{Ed25519KeyPair, KeyPair as _};
use x509_parser::{
    der_parser::{
        ber::BerObjectContent,
        der::{DerObject, parse_der},
        oid,
    },
    prelude::{FromDer, X509Certificate},
    public_key::PublicKey,
};

use super::pem::{self, Block};

/// Returns the fault of a PEM pair; `None` if the key is the certificate's.
pub fn pair_fault(certificate: &[u8], key: &[u8]) -> Option<String> {
    check(&String::from_utf8_lossy(certificate), &String::from_utf8_lossy(key)).err()
}

fn is_private(block: &Block) -> bool {
    block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY")
}

fn labels(blocks: &[Block]) -> String {
    format!("[{}]", blocks.iter().map(|block| block.label.as_str()).collect::<Vec<_>>().join(" "))
}

fn check(certificate: &str, key: &str) -> Result<(), String> {
    let blocks = pem::blocks(certificate);
    let Some(certificate) = blocks.iter().find(|block| block.label == "CERTIFICATE") else {
        return Err(match blocks.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [one] if is_private(one) => {
                "tls: failed to find certificate PEM data in certificate input, but did find a \
                 private key; PEM inputs may have been switched"
                    .to_owned()
            }
            skipped => format!(
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
                 following types: {}",
                labels(skipped)
            ),
        });
    };
    let blocks = pem::blocks(key);
    let Some(key) = blocks.iter().find(|block| is_private(block)) else {
        return Err(match blocks.as_slice() {
            [] => "tls: failed to find any PEM data in key input".to_owned(),
            [one] if one.label == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
            }
            skipped => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM \
                 blocks of the following types: {}",
                labels(skipped)
            ),
        });
    };
    let (_, certificate) =
        X509Certificate::from_der(&certificate.data).map_err(|_| "x509: malformed certificate".to_owned())?;
    let public = Public::of(&certificate)?;
    let private = private(&key.data).ok_or_else(|| "tls: failed to parse private key".to_owned())?;
    match (private, public) {
        (Public::Rsa(own), Public::Rsa(its))
        | (Public::Ed25519(own), Public::Ed25519(its))
        | (Public::Ec(Some(own)), Public::Ec(Some(its)))
            if own != its =>
        {
            Err("tls: private key does not match public key".to_owned())
        }
        (Public::Rsa(_), Public::Rsa(_))
        | (Public::Ed25519(_), Public::Ed25519(_))
        | (Public::Ec(_), Public::Ec(_)) => Ok(()),
        _ => Err("tls: private key type does not match public key type".to_owned()),
    }
}

/// Public key without its encoding, for comparison.
#[derive(Debug, PartialEq)]
enum Public {
    /// The modulus.
    Rsa(Vec<u8>),
    /// The point; private keys need not name it.
    Ec(Option<Vec<u8>>),
    Ed25519(Vec<u8>),
}

impl Public {
    fn of(certificate: &X509Certificate<'_>) -> Result<Self, String> {
        let info = &certificate.tbs_certificate.subject_pki;
        match info.parsed() {
            Ok(PublicKey::RSA(key)) => Ok(Self::Rsa(unsigned(key.modulus))),
            Ok(PublicKey::EC(point)) => Ok(Self::Ec(Some(point.data().to_vec()))),
            _ if info.algorithm.algorithm == oid!(1.3.101.112) => {
                Ok(Self::Ed25519(info.subject_public_key.data.to_vec()))
            }
            _ => Err("tls: unknown public key algorithm".to_owned()),
        }
    }
}

/// Returns a number without the zeros before it.
fn unsigned(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().skip_while(|byte| *byte == 0).collect()
}

/// Returns the public side of a private key in one of three formats.
fn private(der: &[u8]) -> Option<Public> {
    let (_, object) = parse_der(der).ok()?;
    rsa(&object).or_else(|| wrapped(&object)).or_else(|| elliptic(&object))
}

fn part<'o, 'd>(object: &'o DerObject<'d>, at: usize) -> Option<&'o DerObject<'d>> {
    object.as_sequence().ok()?.get(at)
}

/// Parses PKCS #1: version, modulus, exponents and factors.
fn rsa(object: &DerObject<'_>) -> Option<Public> {
    let numbers = object.as_sequence().ok()?;
    let all: Option<Vec<&[u8]>> = numbers.iter().map(integer).collect();
    all.filter(|all| all.len() >= 9).map(|all| Public::Rsa(unsigned(all[1])))
}

fn integer<'o>(object: &'o DerObject<'_>) -> Option<&'o [u8]> {
    match &object.content {
        BerObjectContent::Integer(bytes) => Some(bytes),
        _ => None,
    }
}

/// Parses PKCS #8: version, algorithm, and the key in the algorithm's own format.
fn wrapped(object: &DerObject<'_>) -> Option<Public> {
    let algorithm = part(part(object, 1)?, 0)?.as_oid().ok()?;
    let (_, inner) = parse_der(part(object, 2)?.as_slice().ok()?).ok()?;
    if *algorithm == oid!(1.2.840.113549.1.1.1) {
        rsa(&inner)
    } else if *algorithm == oid!(1.2.840.10045.2.1) {
        elliptic(&inner)
    } else if *algorithm == oid!(1.3.101.112) {
        let pair = Ed25519KeyPair::from_seed_unchecked(inner.as_slice().ok()?).ok()?;
        Some(Public::Ed25519(pair.public_key().as_ref().to_vec()))
    } else {
        None
    }
}

/// Parses SEC 1: version, secret, and optionally curve and point.
fn elliptic(object: &DerObject<'_>) -> Option<Public> {
    let parts = object.as_sequence().ok()?;
    if parts.first()?.as_u32().ok()? != 1 || parts.get(1)?.as_slice().is_err() {
        return None;
    }
    let point = parts.iter().skip(2).find(|part| part.header.tag().0 == 1);
    let point = point.and_then(|part| parse_der(part.as_slice().ok()?).ok());
    let point = point.and_then(|(_, bits)| bits.as_bitstring().ok().map(|bits| bits.data.to_vec()));
    Some(Public::Ec(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(label: &str, der: &str) -> String {
        format!("-----BEGIN {label}-----\n{der}\n-----END {label}-----\n")
    }

    const RSA_KEY: &str = "MIIBOgIBAAJBAKSjMCkX1VQEnMgssrH3/cbveaBGr5f7lpXFVECMhEEDVNjWRVXy+zy+M06HsSUzTGKH0kTbrJkSqR9udLgYmuEC\
        AwEAAQJAFsE/TM6we3ZPvRMAd7yQ5MgAhXh/mH/7ZiPp6yoAtYNplt554B7Dqte4ImTpiIeglqUcIcOGFp3SvZqj/oiNgQIhANMw\
        uYFia0Hj55QdE7K7WugkTaCkagKlWk362hAgFP+5AiEAx5HW/jYZHICXrq1+vEug2lC4Kk90Ni+Gk3UlDQEFeGkCIERLKGHvurGX\
        Coc6E+mjbpVNUBEXufRbFmXLLgMy7Ld5AiBKcp1BN+0mNNJg11fv5kabKoGJRxqTHCeX2pt3vmnMAQIhAKQCYD6Z1cvXmCD0hxCq\
        DsV2INLd64vmq6wdLdZ3K4Xq";
    const RSA: &str = "MIIBcTCCARugAwIBAgIUc9R9QK9lEkOYwyMEiWLv8lxJvrUwDQYJKoZIhvcNAQELBQAwDDEKMAgGA1UEAwwBYTAgFw0yNjExMjIx\
        NzI4MTVaGA8yMTI2MTAyOTE3MjgxNVowDDEKMAgGA1UEAwwBYTBcMA0GCSqGSIb3DQEBAQUAA0sAMEgCQQCkozApF9VUBJzILLKx\
        9/3G73mgRq+X+5aVxVRAjIRBA1TY1kVV8vs8vjNOh7ElM0xih9JE26yZEqkfbnS4GJrhAgMBAAGjUzBRMB0GA1UdDgQWBBSfG/x4\
        byAlOgNUzYf8L5IhHFyFnTAfBgNVHSMEGDAWgBSfG/x4byAlOgNUzYf8L5IhHFyFnTAPBgNVHRMBAf8EBTADAQH/MA0GCSqGSIb3\
        DQEBCwUAA0EAjUAmUkzKFxyFdIyYnz1NhzfFl6SO3XQEoL23LFWh8E+ecdn/qXKwAenyk2rFDhs+9rPS4gDO8vMzlkv0lB/Q3w==";
    const EC_KEY: &str = "MHcCAQEEIM7benZOeTc6BMgR/AVwSxjaJtjfHFCnVBPMANRoX2Q8oAoGCCqGSM49AwEHoUQDQgAElHdeIsOd0jTRDELDBXDZT5W+\
        mjAcuaK4jELrti/saOpRvNTFEyNAJvkSiDueT1HvMYAdExt8tWylSzBVO3sUTw==";
    const OTHER_EC_KEY: &str = "MHcCAQEEINs0RO20EhwD3xZBJqd+t0oJrrXmjHn85a0+x5KekJNhoAoGCCqGSM49AwEHoUQDQgAEp6401pSU3O5HUDMpgEULqdIa\
        6hoQYb/F6VbNh+mAbHg/2X6vfymCbSMrMAzyFX7jsz8zg7gmGC8nABXIMQVEeA==";
    const EC: &str = "MIIBbzCCARWgAwIBAgIUNiVmgb2c2+DtYMRT/ReekbKihBwwCgYIKoZIzj0EAwIwDDEKMAgGA1UEAwwBYTAgFw0yNjExMjIxNzI4\
        MTVaGA8yMTI2MTAyOTE3MjgxNVowDDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJR3XiLDndI00QxCwwVw\
        2U+VvpowHLmiuIxC67Yv7GjqUbzUxRMjQCb5Eog7nk9R7zGAHRMbfLVspUswVTt7FE+jUzBRMB0GA1UdDgQWBBT40dNDVhijcDc7\
        a/pAziVvthRcZzAfBgNVHSMEGDAWgBT40dNDVhijcDc7a/pAziVvthRcZzAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gA\
        MEUCIQCX2Imx4xON0CNlKpP1p+zkcnOmTNblpAbqEKiXp7j/2gIgYGb8bi3TrxVW30Dwzcf8A2PNdTE4rb+2pBETvcQcErk=";
    const ED_KEY: &str = "MC4CAQAwBQYDK2VwBCIEIMEAbDNptNgZJoS2jYyqy3sm/m0iABobkIIAJctULyrX";
    const OTHER_ED_KEY: &str = "MC4CAQAwBQYDK2VwBCIEIMoVkCNich6nODsTeFko9JrZQKC7mhKcDun7KYfixHdE";
    const ED: &str = "MIIBLjCB4aADAgECAhRYz0Xg+2J7t6/DuxwglJjuk+cpuTAFBgMrZXAwDDEKMAgGA1UEAwwBYTAgFw0yNjExMjIxNzI4MTVaGA8y\
        MTI2MTAyOTE3MjgxNVowDDEKMAgGA1UEAwwBYTAqMAUGAytlcAMhACUVzH7Cl2EXYNQTXadIxT3cnetRXhAzf2rN4Uk1JTu0o1Mw\
        UTAdBgNVHQ4EFgQUo+ANRuhHXC2s5UhPIAvpyyefBhEwHwYDVR0jBBgwFoAUo+ANRuhHXC2s5UhPIAvpyyefBhEwDwYDVR0TAQH/\
        BAUwAwEB/zAFBgMrZXADQQB1AbIJhZq6yv06LYAkCyIqEI1W/kO+9Jd4jTsn0rWGbShMn4Eh+Jf277G2RH3iy5AwDeXgjFLLvVNK\
        +CRxj20J";

    #[test]
    fn a_key_that_does_not_fit_its_certificate_is_reported() {
        let certificate = |der: &str| pem("CERTIFICATE", der);
        let (rsa, ec, ed) = (certificate(RSA), certificate(EC), certificate(ED));
        let (plain, sec1) = (|der: &str| pem("PRIVATE KEY", der), |der: &str| pem("EC PRIVATE KEY", der));
        let rsa_key = pem("RSA PRIVATE KEY", RSA_KEY);
        for (certificate, key, expected) in [
            (&rsa, &rsa_key, None),
            (&ec, &sec1(EC_KEY), None),
            (&ed, &plain(ED_KEY), None),
            (&ec, &sec1(OTHER_EC_KEY), Some("tls: private key does not match public key")),
            (&ed, &plain(OTHER_ED_KEY), Some("tls: private key does not match public key")),
            (&rsa, &plain(ED_KEY), Some("tls: private key type does not match public key type")),
            (&rsa, &plain("aGk="), Some("tls: failed to parse private key")),
            (&certificate("aGk="), &rsa_key, Some("x509: malformed certificate")),
            (&String::new(), &rsa_key, Some("tls: failed to find any PEM data in certificate input")),
            (&rsa, &"x".to_owned(), Some("tls: failed to find any PEM data in key input")),
            (&rsa, &rsa, Some("tls: found a certificate rather than a key in the PEM for the private key")),
            (
                &rsa_key,
                &rsa_key,
                Some(
                    "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
                ),
            ),
            (
                &pem("X", "aGk="),
                &rsa_key,
                Some(
                    "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [X]",
                ),
            ),
        ] {
            assert_eq!(pair_fault(certificate.as_bytes(), key.as_bytes()).as_deref(), expected);
        }
    }
}
