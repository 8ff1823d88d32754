//! Tests of the options of lists.

use super::*;

#[test]
fn versions_and_matches_combine_as_in_kube_apiserver() {
    let at = |n| ResourceVersion::new(n).unwrap();
    for (version, matching, limited, expected) in [
        ("", "", false, Ok(ReadAt::Latest)),
        ("0", "", true, Ok(ReadAt::AnyCached)),
        ("5", "", false, Ok(ReadAt::NotOlderThan(at(5)))),
        ("5", "", true, Ok(ReadAt::Exactly(at(5)))),
        ("5", "Exact", false, Ok(ReadAt::Exactly(at(5)))),
        ("5", "NotOlderThan", true, Ok(ReadAt::NotOlderThan(at(5)))),
        ("0", "NotOlderThan", false, Ok(ReadAt::AnyCached)),
        ("00", "Exact", false, Ok(ReadAt::Latest)),
        ("05", "", false, Ok(ReadAt::NotOlderThan(at(5)))),
        ("+5", "", false, Err(400)),
        ("-1", "", false, Err(400)),
        ("1e9", "", false, Err(400)),
        ("18446744073709551616", "", false, Err(400)),
    ] {
        assert_eq!(
            read_at(version, matching, limited).map_err(|s| s.code()),
            expected,
            "{version} {matching} {limited}"
        );
    }
}

#[test]
fn all_causes_are_reported_together() {
    for (causes, expected) in [
        (match_causes("", "", false), vec![]),
        (match_causes("5", "Exact", false), vec![]),
        (match_causes("", "Exact", true), vec!["unless resourceVersion is provided", "when continue is provided"]),
        (
            match_causes("", "Newer", false),
            vec!["unless resourceVersion", r#""Newer": supported values: "Exact", "NotOlderThan", """#],
        ),
        (match_causes("0", "Exact", false), vec![r#""exact" is forbidden for resourceVersion "0""#]),
        (watch_causes(Some(true), "NotOlderThan", false), vec![]),
        (watch_causes(Some(false), "", false), vec!["sendInitialEvents requires"]),
        (watch_causes(None, "Exact", false), vec!["unless sendInitialEvents", r#"values: "NotOlderThan""#]),
    ] {
        let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
        assert_eq!(messages.len(), expected.len(), "{messages:?}");
        assert!(messages.iter().zip(&expected).all(|(message, part)| message.contains(part)), "{messages:?}");
    }
}

#[test]
fn a_selected_name_counts_where_all_can_be_read() {
    for (query, expected) in [
        ("fieldSelector=metadata.name%3Da", Some("a")),
        ("fieldSelector=x%3D1,metadata.name%3D%3Da", Some("a")),
        ("fieldSelector=metadata.name!%3Da", None),
        ("fieldSelector=metadata.name%3D..", None),
        ("fieldSelector=metadata.name%3Da%2Fb", None),
        ("fieldSelector=metadata.name%3D", None),
        ("fieldSelector=metadata.name%3Da&limit=x", None),
        ("fieldSelector=metadata.name%3Da,x", None),
        ("labelSelector=metadata.name%3Da", None),
    ] {
        let query = Query::parse(Some(query)).unwrap();
        assert_eq!(selected_name(&query).as_deref(), expected, "{query:?}");
    }
}
