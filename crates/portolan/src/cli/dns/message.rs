//! Messages of DNS (RFC 1035): one question of class IN. Pure, and bounded: names have at most 255 bytes, and
//! no pointer is followed.

use std::net::IpAddr;

/// Largest query that is read, in bytes: a question and the options of EDNS.
pub(super) const MAX_QUERY: usize = 1232;
/// Largest answer over UDP to a client without EDNS, in bytes.
pub(super) const MAX_ANSWER: usize = 512;
/// Largest message over TCP, in bytes.
pub(super) const MAX_MESSAGE: usize = u16::MAX as usize;
/// Bit in the third byte of an answer: it is cut, and the client asks again over TCP.
const TRUNCATED: u8 = 0b10;
const HEADER: usize = 12;
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;
const CLASS_IN: u16 = 1;
const A: u16 = 1;
const AAAA: u16 = 28;
const CNAME: u16 = 5;
/// Pointer to the name of the question, which follows the header.
const QUESTION_NAME: u16 = 0xc000 | 12;
/// Most records of a forwarded answer that are read.
const MAX_RECORDS: u16 = 256;
/// Time for which clients keep an answer, in seconds: addresses change when objects move.
const TTL: u32 = 5;

/// Question of a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Question<'a> {
    /// Identifier of the query.
    id: u16,
    is_recursion_desired: bool,
    /// Name in lower case, without the last dot.
    pub(super) name: String,
    /// Type of the records that are asked for.
    kind: u16,
    /// Question as it came.
    bytes: &'a [u8],
}

/// Result code of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultCode {
    NoError = 0,
    ServerFailure = 2,
    NameError = 3,
    Refused = 5,
}

/// Parses a query; `None` if it cannot be answered.
pub(super) fn parse(query: &[u8]) -> Option<Question<'_>> {
    let header = query.get(..HEADER)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let is_query = header[2] & 0b1111_1000 == 0;
    if !is_query || word(4) != 1 || word(6) != 0 || word(8) != 0 || query.len() > MAX_QUERY {
        return None;
    }
    let (mut name, mut at) = (String::new(), HEADER);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // Longer ones are pointers, which a question has no use for.
        if length > MAX_LABEL || name.len() + length + 2 > MAX_NAME {
            return None;
        }
        let label = query.get(at..at + length)?;
        if !label.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'.') {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        at += length;
    }
    let tail = query.get(at..at + 4)?;
    let kind = u16::from_be_bytes([tail[0], tail[1]]);
    let is_internet = u16::from_be_bytes([tail[2], tail[3]]) == CLASS_IN;
    let bytes = &query[HEADER..at + 4];
    is_internet.then(|| Question { id: word(0), is_recursion_desired: header[2] & 1 == 1, name, kind, bytes })
}

impl Question<'_> {
    /// Returns an answer over UDP with the addresses of the type that was asked for. It is marked as truncated if not
    /// all fit.
    pub(super) fn answer(&self, code: ResultCode, addresses: &[IpAddr]) -> Vec<u8> {
        self.answer_within(MAX_ANSWER, code, addresses)
    }

    /// Returns an answer of at most `limit` bytes.
    pub(super) fn answer_within(&self, limit: usize, code: ResultCode, addresses: &[IpAddr]) -> Vec<u8> {
        let mut answer = self.head(code);
        self.add_addresses(&mut answer, QUESTION_NAME, limit, addresses);
        answer
    }

    /// Returns the same question about another name; `None` if that is not a name.
    pub(super) fn about(&self, name: &str) -> Option<Vec<u8>> {
        let mut query = self.id.to_be_bytes().to_vec();
        query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        query.extend(encoded(name)?);
        query.extend(self.kind.to_be_bytes());
        query.extend(CLASS_IN.to_be_bytes());
        Some(query)
    }

    /// Returns an answer of at most `limit` bytes: the name stands for `target`, which has the addresses of the answer
    /// `found` of another resolver. `None` if the message would be invalid.
    pub(super) fn alias(&self, limit: usize, target: &str, found: &[u8]) -> Option<Vec<u8>> {
        let code = match found.get(3)? & 0b1111 {
            0 => ResultCode::NoError,
            3 => ResultCode::NameError,
            _ => return None,
        };
        let (mut answer, name) = (self.head(code), encoded(target)?);
        add_record(&mut answer, QUESTION_NAME, CNAME, &name);
        if answer.len() > limit {
            let mut cut = self.head(code);
            cut[2] |= TRUNCATED;
            return Some(cut);
        }
        let pointer = 0xc000 | u16::try_from(answer.len() - name.len()).ok()?;
        answer[2] |= found[2] & TRUNCATED;
        self.add_addresses(&mut answer, pointer, limit, &addresses_of(found)?);
        Some(answer)
    }

    /// Returns the header and the question of an answer without records.
    fn head(&self, code: ResultCode) -> Vec<u8> {
        let mut answer = Vec::with_capacity(MAX_ANSWER);
        answer.extend(self.id.to_be_bytes());
        // A response, authoritative, recursion available.
        answer.extend([0b1000_0100 | u8::from(self.is_recursion_desired), 0b1000_0000 | code as u8]);
        answer.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        answer.extend(self.bytes);
        answer
    }

    fn add_addresses(&self, answer: &mut Vec<u8>, owner: u16, limit: usize, addresses: &[IpAddr]) {
        for address in addresses {
            let (kind, bytes) = match address {
                IpAddr::V4(address) => (A, address.octets().to_vec()),
                IpAddr::V6(address) => (AAAA, address.octets().to_vec()),
            };
            if kind != self.kind {
                continue;
            }
            if answer.len() + HEADER + bytes.len() > limit {
                answer[2] |= TRUNCATED;
                break;
            }
            add_record(answer, owner, kind, &bytes);
        }
    }
}

/// Adds a record to an answer. `owner` is a pointer to its name.
fn add_record(answer: &mut Vec<u8>, owner: u16, kind: u16, data: &[u8]) {
    answer.extend(owner.to_be_bytes());
    answer.extend(kind.to_be_bytes());
    answer.extend(CLASS_IN.to_be_bytes());
    answer.extend(TTL.to_be_bytes());
    answer.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
    answer.extend(data);
    let count = u16::from_be_bytes([answer[6], answer[7]]) + 1;
    answer[6..8].copy_from_slice(&count.to_be_bytes());
}

/// Returns a name as labels; `None` if it is not a name.
fn encoded(name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        let is_label = !label.is_empty() && label.len() <= MAX_LABEL;
        bytes.push(u8::try_from(label.len()).ok().filter(|_| is_label)?);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    (bytes.len() <= MAX_NAME).then_some(bytes)
}

/// Returns the addresses in an answer to one question, for any names.
fn addresses_of(answer: &[u8]) -> Option<Vec<IpAddr>> {
    let word = |at: usize| Some(u16::from_be_bytes([*answer.get(at)?, *answer.get(at + 1)?]));
    let (mut at, mut addresses) = (after_name(answer, HEADER)? + 4, Vec::new());
    for _ in 0..word(6)?.min(MAX_RECORDS) {
        at = after_name(answer, at)?;
        // Type, class and time to live come before the length.
        let (kind, length) = (word(at)?, usize::from(word(at + 8)?));
        let data = answer.get(at + 10..at + 10 + length)?;
        match kind {
            A => addresses.push(IpAddr::from(<[u8; 4]>::try_from(data).ok()?)),
            AAAA => addresses.push(IpAddr::from(<[u8; 16]>::try_from(data).ok()?)),
            _ => {}
        }
        at += 10 + length;
    }
    Some(addresses)
}

/// Returns the end of the name at an offset. Pointers are not followed.
fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            0xc0.. => return Some(at + 2),
            length if usize::from(length) <= MAX_LABEL => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

/// Returns true if `answer` is a response to `query`: of the same identifier and question.
pub(super) fn is_answer_to(query: &[u8], answer: &[u8]) -> bool {
    let Some(question) = parse(query) else { return false };
    let end = HEADER + question.bytes.len();
    let is_response = answer.get(2).is_some_and(|flags| flags & 0b1000_0000 != 0);
    let has_same_id = answer.get(..2) == query.get(..2);
    is_response
        && has_same_id
        && answer.get(HEADER..end).is_some_and(|bytes| bytes.eq_ignore_ascii_case(question.bytes))
}

/// Returns a query for the addresses of a name, for the tests.
#[cfg(test)]
pub(super) fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(CLASS_IN.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers() {
        let bytes = query("Web.Shop.svc", A);
        let question = parse(&bytes).unwrap();
        assert_eq!((question.name.as_str(), question.kind), ("web.shop.svc", A));
        let addresses: Vec<IpAddr> = vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        let answer = question.answer(ResultCode::NoError, &addresses);
        assert!(is_answer_to(&bytes, &answer));
        assert_eq!(&answer[6..8], &[0, 1], "one address is of the type that was asked for");
        assert!(answer.ends_with(&[0, 4, 10, 0, 0, 7]));
        let none = question.answer(ResultCode::NameError, &[]);
        assert_eq!((none[3] & 15, &none[6..8]), (3, &[0_u8, 0][..]));
    }

    #[test]
    fn an_answer_never_exceeds_a_packet() {
        let name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(59)].join(".");
        let addresses: Vec<IpAddr> = (0..=255).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        let bytes = query(&name, A);
        let question = parse(&bytes).unwrap();
        let answer = question.answer(ResultCode::NoError, &addresses);
        assert!(answer.len() <= MAX_ANSWER && answer[7] > 10, "{} bytes, {} addresses", answer.len(), answer[7]);
        assert_eq!(answer[2] & TRUNCATED, TRUNCATED, "the client asks again over TCP");
        let whole = question.answer_within(MAX_MESSAGE, ResultCode::NoError, &addresses);
        assert_eq!((&whole[6..8], whole[2] & TRUNCATED), (&[1_u8, 0][..], 0), "256 addresses");
    }

    #[test]
    fn an_alias_has_the_addresses_of_the_name_that_it_stands_for() {
        let bytes = query("db.shop.svc", A);
        let question = parse(&bytes).unwrap();
        let asked = question.about("db.example.com").unwrap();
        let outside = parse(&asked).unwrap();
        assert_eq!((outside.name.as_str(), outside.kind), ("db.example.com", A));
        let found = outside.answer(ResultCode::NoError, &["192.0.2.1".parse().unwrap()]);
        let answer = question.alias(MAX_ANSWER, "db.example.com", &found).unwrap();
        assert!(is_answer_to(&bytes, &answer) && answer.ends_with(&[192, 0, 2, 1]), "{answer:?}");
        assert_eq!(&answer[6..8], &[0, 2], "the alias and the address");
        assert!(answer.windows(16).any(|part| part == &b"\x02db\x07example\x03com\0"[..]));
        assert_eq!(addresses_of(&answer), Some(vec!["192.0.2.1".parse().unwrap()]), "the pointers are right");
        let absent = question.alias(MAX_ANSWER, "db.example.com", &outside.answer(ResultCode::NameError, &[])).unwrap();
        assert_eq!((absent[3] & 15, absent[7]), (3, 1));
        assert_eq!(question.alias(MAX_ANSWER, "db.example.com", &outside.answer(ResultCode::ServerFailure, &[])), None);
        for (case, target) in [("nothing", ""), ("an empty label", "a..b"), ("a dot at the end", "a.")] {
            assert_eq!(question.about(target), None, "{case}");
        }
        for length in 0..found.len() {
            assert_eq!(question.alias(MAX_ANSWER, "db.example.com", &found[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn hostile_packets_get_no_answer() {
        let good = query("web", A);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (case, bytes) in [
            ("nothing", Vec::new()),
            ("a cut header", good[..11].to_vec()),
            ("a cut question", good[..good.len() - 1].to_vec()),
            ("a response", with(2, 0x81)),
            ("another operation", with(2, 0x29)),
            ("two questions", with(5, 2)),
            ("no question", with(5, 0)),
            ("an answer within", with(7, 1)),
            ("a pointer for a name", with(12, 0xc0)),
            ("a label past the end", with(12, 60)),
            ("a dot in a label", with(13, b'.')),
            ("a byte that is no letter", with(13, 0)),
            ("another class", with(good.len() - 1, 3)),
            ("too long a name", query(&vec!["a".repeat(63); 4].join("."), A)),
            ("too large a packet", [good.clone(), vec![0; MAX_QUERY]].concat()),
        ] {
            assert_eq!(parse(&bytes), None, "{case}");
        }
        for length in 0..good.len() {
            assert_eq!(parse(&good[..length]), None, "the first {length} bytes");
        }
    }
}
