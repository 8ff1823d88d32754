//! Tests of content negotiation.

use super::*;

#[test]
fn clients_get_the_first_form_that_is_there() {
    let all = FormOffer { shown: OfferedForms::Table, protobuf: true, routed: &[] };
    let review = FormOffer { shown: OfferedForms::Metadata, protobuf: false, ..all };
    let document = FormOffer::document(&[]);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let of_one = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    let of_list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let (json, plain) = (ResponseFormat::Json, ObjectForm::Object);
    for (accept, offer, expected) in [
        ("*/*", all, Some((json, plain))),
        ("application/yaml", all, Some((ResponseFormat::Yaml, plain))),
        ("*/*, application/yaml", all, Some((ResponseFormat::Yaml, plain))),
        ("application/vnd.kubernetes.protobuf,application/json", all, Some((ResponseFormat::Protobuf, plain))),
        ("application/vnd.kubernetes.protobuf, */*", review, Some((json, plain))),
        ("application/vnd.kubernetes.protobuf", review, None),
        (
            &format!("application/json;as=Table;v=v2;g=meta.k8s.io,{table},application/json"),
            all,
            Some((json, ObjectForm::Table)),
        ),
        (table, review, None),
        ("application/*", FormOffer { routed: OBJECT_TYPES, ..all }, None),
        ("text/html, */*;q=0.1", FormOffer { routed: OBJECT_TYPES, ..all }, Some((json, plain))),
        (of_one, all, Some((ResponseFormat::Protobuf, ObjectForm::Metadata(MetadataShape::One)))),
        (of_list, review, Some((json, ObjectForm::Metadata(MetadataShape::List)))),
        ("text/html", all, None),
        ("application/json;q=0.5, application/yaml", all, Some((ResponseFormat::Yaml, plain))),
        ("application/json;q=0", all, Some((json, plain))),
        ("application/json;q=0, application/yaml;q=0.1", all, Some((ResponseFormat::Yaml, plain))),
        ("application/json;q=NaN", all, Some((json, plain))),
        // kube-apiserver answers in YAML here (docs/compatibility.md).
        ("*/*, application/yaml;q=0.1", all, Some((json, plain))),
        ("application/yaml;q=0.1, */*", all, Some((json, plain))),
        ("application/yaml, application/json", all, Some((ResponseFormat::Yaml, plain))),
        ("application/*;stream=watch", all, Some((json, plain))),
        ("application/yaml;stream=watch, application/json", all, Some((json, plain))),
        ("application/json;stream=other", all, None),
        ("application/json;sv=v1", all, Some((json, plain))),
        ("application/json;sv=v1", document, None),
        ("application/json;sv=v2", all, None),
        ("application/json;g=meta.k8s.io;v=v1", all, None),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", document, None),
        ("application/json;as=", all, Some((json, plain))),
        ("json", all, None),
        ("*", all, Some((json, plain))),
        ("*/json", all, None),
        (&format!("{}application/yaml", "text/x, ".repeat(10_000)), all, Some((ResponseFormat::Yaml, plain))),
        ("application/json;as=Table;v=v1;g=meta.k8s.io, application/json", all, Some((json, ObjectForm::Table))),
        (",, ,", all, None),
        ("", all, Some((json, plain))),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        let got = negotiate(&headers, offer).ok().map(|a| (a.media, a.form));
        assert_eq!(got, expected, "{accept}");
    }
    assert!(negotiate(&HeaderMap::new(), all).is_ok());
    let mut two = HeaderMap::new();
    two.append(ACCEPT, "application/yaml".parse().unwrap());
    two.append(ACCEPT, "application/json".parse().unwrap());
    assert_eq!(
        negotiate(&two, all).map(|a| a.media),
        Ok(ResponseFormat::Yaml),
        "Go reads the first of several headers"
    );
}

#[test]
fn a_document_goes_in_the_first_form_that_is_named() {
    let offers = [("application/json", 1), ("application/x", 2)];
    for (accept, expected) in [
        ("", Some(1)),
        ("application/x", Some(2)),
        ("*/x", Some(2)),
        ("application/*;q=0.1", Some(1)),
        ("application/json;q=0.1, application/x", Some(2)),
        ("application/json;q=0", Some(1)),
        ("text/plain", None),
        (",", None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        assert_eq!(preferred(&headers, &offers), expected, "{accept}");
    }
}

#[test]
fn the_aggregated_document_is_served_on_request() {
    let named = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for (accept, expected) in [
        (format!("application/json;{named},application/json"), Some(ResponseFormat::Json)),
        (format!("application/json,application/yaml;{named}"), Some(ResponseFormat::Yaml)),
        (format!("application/vnd.kubernetes.protobuf;{named};profile=nopeer"), Some(ResponseFormat::Protobuf)),
        ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList".into(), None),
        ("application/json".into(), None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        assert_eq!(aggregated(&headers), expected, "{accept}");
    }
}
