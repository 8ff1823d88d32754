//! Named formats: `format.dns1123Label().validate(text)`.

use super::{LibraryFunction, no_overload, urls};
use crate::program::{CelList, CelValue, EvaluationFailure};
use portolan_gocompat::base64;
use std::sync::Arc;

/// Named format with its check.
pub(crate) struct NamedFormat {
    pub(crate) name: &'static str,
    /// Length of the pattern that the cost of a check is computed from.
    pub(crate) pattern_length: u64,
    check: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for NamedFormat {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_TEXT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const LABEL_1035_TEXT: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";

static FORMATS: [NamedFormat; 13] = [
    NamedFormat { name: "dns1123Label", pattern_length: 30, check: dns_label },
    NamedFormat { name: "dns1123Subdomain", pattern_length: 60, check: dns_subdomain },
    NamedFormat { name: "dns1035Label", pattern_length: 30, check: dns_1035 },
    NamedFormat { name: "qualifiedName", pattern_length: 60, check: qualified_name },
    NamedFormat { name: "dns1123LabelPrefix", pattern_length: 30, check: |text| dns_label(&masked(text)) },
    NamedFormat { name: "dns1123SubdomainPrefix", pattern_length: 60, check: |text| dns_subdomain(&masked(text)) },
    NamedFormat { name: "dns1035LabelPrefix", pattern_length: 30, check: |text| dns_1035(&masked(text)) },
    NamedFormat { name: "labelValue", pattern_length: 40, check: label_value },
    NamedFormat { name: "uri", pattern_length: 1103, check: |text| urls::parse(text).err().into_iter().collect() },
    NamedFormat {
        name: "uuid",
        pattern_length: 70,
        check: |text| unless(is_uuid(text), "does not match the UUID format"),
    },
    NamedFormat { name: "byte", pattern_length: 84, check: |text| unless(is_base64(text), "invalid base64") },
    NamedFormat {
        name: "date",
        pattern_length: 71,
        check: |text| unless(crate::time::parse_date(text).is_some(), "invalid date"),
    },
    NamedFormat { name: "datetime", pattern_length: 71, check: |text| unless(is_date_time(text), "invalid datetime") },
];

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "validate" => |args, _| match args {
            [CelValue::Format(format), CelValue::String(text)] => {
                let problems: Vec<CelValue<'_>> = (format.check)(text).into_iter().map(CelValue::from).collect();
                Ok(if problems.is_empty() {
                    CelValue::NONE
                } else {
                    CelValue::Optional(Some(Arc::new(CelValue::List(CelList::owned(problems)))))
                })
            }
            _ => no_overload(),
        },
        "format.named" => |args, _| match args {
            [CelValue::String(name)] => {
                Ok(CelValue::Optional(find(name).map(|format| Arc::new(CelValue::Format(format)))))
            }
            _ => no_overload(),
        },
        "format.dns1123Label" => |_, _| format_by_name("dns1123Label"),
        "format.dns1123Subdomain" => |_, _| format_by_name("dns1123Subdomain"),
        "format.dns1035Label" => |_, _| format_by_name("dns1035Label"),
        "format.qualifiedName" => |_, _| format_by_name("qualifiedName"),
        "format.dns1123LabelPrefix" => |_, _| format_by_name("dns1123LabelPrefix"),
        "format.dns1123SubdomainPrefix" => |_, _| format_by_name("dns1123SubdomainPrefix"),
        "format.dns1035LabelPrefix" => |_, _| format_by_name("dns1035LabelPrefix"),
        "format.labelValue" => |_, _| format_by_name("labelValue"),
        "format.uri" => |_, _| format_by_name("uri"),
        "format.uuid" => |_, _| format_by_name("uuid"),
        "format.byte" => |_, _| format_by_name("byte"),
        "format.date" => |_, _| format_by_name("date"),
        "format.datetime" => |_, _| format_by_name("datetime"),
        _ => return None,
    })
}

fn find(name: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

fn format_by_name<'a>(name: &str) -> Result<CelValue<'a>, EvaluationFailure> {
    find(name).map(CelValue::Format).ok_or_else(|| EvaluationFailure::Error(format!("no such format: {name}")))
}

fn unless(valid: bool, message: &str) -> Vec<String> {
    if valid { Vec::new() } else { vec![message.to_owned()] }
}

/// Masks the trailing dash of a prefix, after which a name would continue.
fn masked(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a"),
        _ => text.to_owned(),
    }
}

fn regex_text(text: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}'")).collect();
    let examples = if examples.is_empty() { String::new() } else { format!("e.g. {}, ", examples.join(",  or ")) };
    format!("{text} ({examples}regex used for validation is '{pattern}')")
}

fn is_label(text: &str, alphabetic_start: bool) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    let starts = if alphabetic_start { first.is_ascii_lowercase() } else { inner(*first) };
    starts && inner(*last) && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

fn checked(text: &str, most: usize, valid: bool, message: String) -> Vec<String> {
    let mut problems = Vec::new();
    if !valid {
        problems.push(message);
    }
    if text.len() > most {
        problems.push(format!("must be no more than {most} bytes"));
    }
    problems
}

fn dns_label(text: &str) -> Vec<String> {
    let long = (text.len() > 63).then(|| "must be no more than 63 bytes".to_owned());
    let wrong = (!is_label(text, false)).then(|| {
        if is_dns_subdomain_form(text) {
            "must not contain dots".to_owned()
        } else {
            regex_text(LABEL_TEXT, LABEL, &["my-name", "123-abc"])
        }
    });
    long.into_iter().chain(wrong).collect()
}

fn is_dns_subdomain_form(text: &str) -> bool {
    text.split('.').all(|label| is_label(label, false))
}

fn dns_subdomain(text: &str) -> Vec<String> {
    let long = (text.len() > 253).then(|| "must be no more than 253 bytes".to_owned());
    let wrong = (!is_dns_subdomain_form(text)).then(|| regex_text(SUBDOMAIN_TEXT, SUBDOMAIN, &["example.com"]));
    long.into_iter().chain(wrong).collect()
}

fn dns_1035(text: &str) -> Vec<String> {
    let long = (text.len() > 63).then(|| "must be no more than 63 bytes".to_owned());
    let wrong = (!is_label(text, true)).then(|| regex_text(LABEL_1035_TEXT, LABEL_1035, &["my-name", "abc-123"]));
    long.into_iter().chain(wrong).collect()
}

/// Returns true for a DNS label.
pub(super) fn is_dns_label(text: &str) -> bool {
    dns_label(text).is_empty()
}

/// Returns true for a DNS subdomain.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    dns_subdomain(text).is_empty()
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const NAME_TEXT: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn qualified_name(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                problems.extend(dns_subdomain(prefix).into_iter().map(|problem| format!("prefix part {problem}")));
            }
            name
        }
        _ => {
            let text = format!("a qualified name {NAME_TEXT}");
            let text = regex_text(&text, NAME, &["MyName", "my.name", "123-abc"]);
            return vec![format!("{text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')")];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name_part(name) {
        problems.push(format!("name part {}", regex_text(NAME_TEXT, NAME, &["MyName", "my.name", "123-abc"])));
    }
    problems
}

fn label_value(text: &str) -> Vec<String> {
    let valid = text.is_empty() || is_name_part(text);
    let text_of = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let pattern = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
    let mut problems = checked(text, 63, valid, regex_text(text_of, pattern, &["MyValue", "my_value", "12345"]));
    problems.reverse();
    problems
}

fn is_uuid(text: &str) -> bool {
    let digits: String = match text.len() {
        36 if [8, 13, 18, 23].iter().all(|place| text.as_bytes()[*place] == b'-') => text.replace('-', ""),
        32 => text.to_owned(),
        _ => return false,
    };
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_base64(text: &str) -> bool {
    !text.is_empty() && base64::read(text).is_ok()
}

fn is_date_time(text: &str) -> bool {
    crate::time::parse_timestamp(&text.to_uppercase()).is_some()
}
