//! Gets, lists and watches of the created object.

use super::GeneratorInput;
use crate::step::{METADATA, METADATA_LIST, PROTOBUF, Step, TABLE};

pub(super) fn steps(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let mut steps = gets(subject);
    if subject.resource.can("list") {
        steps.extend(lists(subject));
        steps.extend(refused_lists(subject));
    }
    if subject.resource.can("watch") {
        steps.extend(watches(subject));
    }
    steps
}

fn gets(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let get = |name: &str, rest: &str| Step::get(&format!("get: {name}"), subject.object(rest));
    let mut steps = vec![
        get("JSON", ""),
        get("YAML", "").accept("application/yaml"),
        get("protobuf", "").accept(PROTOBUF),
        get("the first type that fits", "").accept("application/xml, application/yaml;q=0.5, application/json;q=0.4"),
        get("any type", "").accept("*/*"),
        get("a table", "").accept(TABLE),
        get("a table with objects", "?includeObject=Object").accept(TABLE),
        get("a table without objects", "?includeObject=None").accept(TABLE),
        get("a table with an unknown object", "?includeObject=Some").accept(TABLE),
        get("metadata", "").accept(METADATA),
        get("metadata in protobuf", "").accept(&METADATA.replace("application/json", PROTOBUF)),
        get("metadata in YAML", "").accept(&METADATA.replace("application/json", "application/yaml")),
        get("pretty", "?pretty=true"),
        get("an unknown type", "").accept("application/xml"),
        get("at any revision", "?resourceVersion=0"),
        get("at a revision to come", "?resourceVersion=99999999999"),
        get("at a revision that is none", "?resourceVersion=x"),
        get("what is not there", "-missing"),
        get("a subresource that is not there", "/nothing"),
        Step::new("get: POST is not allowed", "POST", subject.object("")).json(subject.base.clone()),
    ];
    for subresource in ["status", "scale"].into_iter().filter(|name| subject.resource.has(name)) {
        steps.push(get(subresource, &format!("/{subresource}")));
        steps.push(get(&format!("{subresource} as a table"), &format!("/{subresource}")).accept(TABLE));
        steps.push(get(&format!("{subresource} in protobuf"), &format!("/{subresource}")).accept(PROTOBUF));
    }
    steps
}

fn lists(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let list = |name: &str, query: &str| Step::get(&format!("list: {name}"), subject.own(query));
    let named = format!("&fieldSelector=metadata.name%3D{}", subject.name);
    let mut steps = vec![
        list("JSON", ""),
        list("YAML", "").accept("application/yaml"),
        list("protobuf", "").accept(PROTOBUF),
        list("a table", "").accept(TABLE),
        list("a table with objects", "&includeObject=Object").accept(TABLE),
        list("metadata", "").accept(METADATA_LIST),
        list("metadata in protobuf", "").accept(&METADATA_LIST.replace("application/json", PROTOBUF)),
        list("metadata in YAML", "").accept(&METADATA_LIST.replace("application/json", "application/yaml")),
        list("metadata of the wrong kind", "").accept(METADATA),
        list("pretty", "&pretty=true"),
        list("a limit", "&limit=1"),
        list("at any revision", "&resourceVersion=0"),
        list("by name", &named),
        list("by another name", "&fieldSelector=metadata.name%21%3Dother"),
    ];
    if subject.resource.namespaced {
        let everywhere = |query: &str| subject.own(query).replace("/namespaces/${ns}", "");
        steps.push(Step::get("list: in all namespaces", everywhere("")));
        steps.push(Step::get("list: in a namespace by field", everywhere("&fieldSelector=metadata.namespace%3D${ns}")));
        steps.push(Step::get("list: in a namespace that is not there", subject.own("").replace("${ns}", "missing")));
    }
    steps
}

fn refused_lists(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let list = |name: &str, query: &str| Step::get(&format!("list: {name}"), subject.collection(query));
    vec![
        list("an unknown field", "?fieldSelector=spec.nothing%3Da"),
        list("a field selector of no sense", "?fieldSelector=a"),
        list("a label selector of no sense", "?labelSelector=a%3D%3D%3Db"),
        list("a label key of no sense", "?labelSelector=-a-"),
        list("a match without a revision", "?resourceVersionMatch=Exact"),
        list("an unknown match", "?resourceVersion=1&resourceVersionMatch=Some"),
        list("a continue token of no sense", "?continue=abc&limit=1"),
        list("a limit of no sense", "?limit=x"),
        list("an unknown type", "").accept("application/xml"),
    ]
}

fn watches(subject: &GeneratorInput<'_>) -> Vec<Step> {
    let watch = |name: &str, query: &str| {
        Step::get(&format!("watch: {name}"), subject.own(&format!("&watch=true&timeoutSeconds=1{query}")))
    };
    let whole = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let after = "&resourceVersion=${/metadata/resourceVersion}";
    vec![
        watch("from the state", ""),
        watch("as tables", "").accept(TABLE),
        watch("as metadata", "").accept(METADATA),
        watch("in protobuf", "").accept(PROTOBUF),
        watch("as metadata in protobuf", "").accept(&METADATA.replace("application/json", PROTOBUF)),
        watch("in an unknown type", "").accept("application/xml"),
        watch("the whole list first", whole),
        watch("after the creation", after),
        watch("with a match alone", "&resourceVersionMatch=NotOlderThan&resourceVersion=1"),
        watch("as YAML", "").accept("application/yaml"),
    ]
}
