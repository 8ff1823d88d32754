//! A ConfigMap in protobuf, encoded without the codec: the benchmarks depend on none of Portolan's crates.

use bytes::Bytes;

pub(super) const MEDIA: &str = "application/vnd.kubernetes.protobuf";

/// Encodes a length-delimited field: a message or a text.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

/// Returns the body that a typed Go client sends to create a ConfigMap.
pub(super) fn config_map(namespace: &str, name: &str, payload: &str) -> Bytes {
    let entry = |key: &str, value: &str| [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    let metadata = [field(1, name.as_bytes()), field(3, namespace.as_bytes()), field(11, &entry("bench", "yes"))];
    let object = [field(1, &metadata.concat()), field(2, &entry("payload", payload))].concat();
    let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    [b"k8s\0".to_vec(), field(1, &kind), field(2, &object)].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_two_bytes_are_written_in_sevens() {
        assert_eq!(field(1, b"v1"), [0x0a, 2, b'v', b'1']);
        assert_eq!(field(2, &[0; 300])[..3], [0x12, 0xac, 0x02]);
    }
}
