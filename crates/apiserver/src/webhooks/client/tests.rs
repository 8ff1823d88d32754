//! Tests of the client of webhooks.

use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::*;

#[test]
fn allowed_webhook_addresses() {
    for (address, strict, local) in [
        ("203.0.113.7:443", true, true),
        ("10.0.0.1:443", false, true),
        ("127.0.0.1:443", false, true),
        ("[::1]:443", false, true),
        ("169.254.169.254:80", false, false),
        ("[::ffff:169.254.169.254]:80", false, false),
        ("[fd00:ec2::254]:80", false, false),
        ("0.0.0.0:443", false, false),
    ] {
        let address = address.parse().unwrap();
        let may = |allow_local| WebhookAddresses { allow_local }.check(address).is_ok();
        assert_eq!((may(false), may(true)), (strict, local), "{address}");
    }
}

#[test]
fn the_timeout_is_added_to_the_url() {
    for (url, expected) in [
        ("https://a:8443", "https://a:8443/?timeout=5s"),
        ("https://a/", "https://a/?timeout=5s"),
        ("https://a/b/c", "https://a/b/c?timeout=5s"),
    ] {
        assert_eq!(with_timeout(url, Duration::from_secs(5)), expected);
    }
}

/// Serves one response without a length, and closes the connection without a close_notify.
async fn abrupt(answer: &'static [u8]) -> (SocketAddr, String) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(Arc::new(tls)).accept(stream).await.unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(answer).await.unwrap();
        stream.flush().await.unwrap();
        stream.into_inner().0.shutdown().await.unwrap();
    });
    (address, own.cert.pem())
}

#[tokio::test]
async fn closing_without_close_notify_ends_a_response_without_length() {
    let posted = async |answer| {
        let (address, bundle) = abrupt(answer).await;
        let clients = WebhookClients::new(WebhookAddresses { allow_local: true });
        let url = format!("https://{address}/");
        let review = vec![Bytes::from_static(b"{}")];
        let address = WebhookAddress { url: &url, service: None, ca_bundle: bundle.as_bytes(), identity: None };
        let call = WebhookRequestBody { timeout: Duration::from_secs(10), review };
        let answered = clients.post(LogicalClusterId::ROOT, address, call);
        answered.await.map(|answered| answered.body)
    };
    assert_eq!(posted(b"HTTP/1.1 200 OK\r\n\r\n{\"a\": 1}").await.as_deref(), Ok(&b"{\"a\": 1}"[..]));
    let cut = posted(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"a\": 1}").await;
    assert!(cut.is_err(), "{cut:?}");
}
