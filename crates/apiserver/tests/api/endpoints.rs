//! Discovery, OpenAPI, health and version.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{
    common::{Answer, Faulty, MAPS, Plane, config_map},
    custom::{WIDGETS, define, widgets},
};
use portolan_types::Seams;
use serde_json::json;

#[tokio::test]
async fn health_version_and_numbers() {
    let admin = Plane::new().await.admin();
    for path in ["/livez", "/readyz", "/healthz", "/readyz/ping"] {
        assert_eq!(admin.get(path).await.expect(200).text(), "ok");
    }
    assert!(admin.get("/readyz?verbose").await.expect(200).text().ends_with("readyz check passed\n"));
    admin.get("/readyz/nope").await.expect(404);
    for (path, is_nosniff) in [("/livez", true), ("/readyz?verbose", true), ("/readyz/ping", false)] {
        let answer = admin.get(path).await.expect(200);
        assert_eq!(answer.headers.contains_key("x-content-type-options"), is_nosniff, "{path}");
    }
    let version = admin.get("/version").await.expect(200).json();
    assert_eq!(
        (&version["major"], &version["minor"], &version["gitVersion"]),
        (&json!("1"), &json!("36"), &json!("v1.36.3+portolan"))
    );
    let text = admin.get("/metrics").await.expect(200).text();
    assert!(text.contains("apiserver_request_total{") && text.contains("verb=\"GET\""), "{text}");
    assert!(!text.contains("root"), "no logical cluster in labels");
    admin.post("/api/v1/namespaces/default/configmaps", config_map("a", json!({}))).await.expect(201);
    admin.merge("/api/v1/namespaces/default/configmaps/a", json!({"data": {"k": "w"}})).await.expect(200);
    admin.get("/api/v1/namespaces/default/configmaps").await.expect(200);
    admin.delete("/api/v1/namespaces/default/configmaps/a").await.expect(200);
    let text = admin.get("/metrics").await.expect(200).text();
    for operation in ["get", "list", "create", "update", "delete"] {
        let labels = format!("{{group=\"\",operation=\"{operation}\",resource=\"configmaps\"}}");
        for name in ["etcd_request_duration_seconds_count", "etcd_requests_total"] {
            assert!(text.contains(&format!("{name}{labels}")), "{name}{labels} in {text}");
        }
    }
    for (operation, step) in [("UPDATE", "admit"), ("UPDATE", "validate"), ("DELETE", "admit"), ("DELETE", "validate")]
    {
        let name = "apiserver_admission_step_admission_duration_seconds";
        let labels = format!("operation=\"{operation}\",rejected=\"false\",type=\"{step}\"");
        for line in [
            format!("{name}_count{{{labels}}} 1"),
            format!("{name}_summary_count{{{labels}}} 1"),
            format!("{name}_summary{{{labels},quantile=\"0.99\"}} 0."),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
    for name in [
        "apiserver_request_duration_seconds_bucket{",
        "apiserver_request_sli_duration_seconds_bucket{",
        "apiserver_response_sizes_bucket{",
        "authorization_attempts_total{result=\"allowed\"}",
        "authentication_attempts{result=\"success\"}",
        "authenticated_user_requests{username=\"other\"}",
        "authorization_duration_seconds_bucket{result=\"allowed\",le=\"0.001\"}",
        "apiserver_request_total{code=\"200\",component=\"\",dry_run=\"\",group=\"\",resource=\"\",scope=\"\",subresource=\"/readyz\",\
         verb=\"GET\",version=\"\"} 3",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"writes\"} ",
        "apiserver_flowcontrol_current_executing_seats{flow_schema=\"logical-clusters\",priority_level=\"reads\"} 1",
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"logical-clusters\",priority_level=\"writes\"} 4",
        "apiserver_flowcontrol_request_wait_duration_seconds_count{execute=\"true\",flow_schema=\"logical-clusters\",\
         priority_level=\"writes\"} 4",
        "apiserver_flowcontrol_request_execution_seconds_count{flow_schema=\"logical-clusters\",priority_level=\"writes\",\
         type=\"regular\"} 4",
        "process_resident_memory_bytes ",
        "process_max_fds ",
        "process_start_time_seconds ",
        "kubernetes_build_info{build_date=\"\",compiler=\"rustc\",git_commit=\"\",git_tree_state=\"\",git_version=\"v1.36.3+portolan\",\
         go_version=\"\",major=\"1\",minor=\"36\",platform=\"",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
}

#[tokio::test]
async fn results_of_health_checks_have_their_own_metric() {
    struct Failing(AtomicBool);
    impl portolan_apiserver::hooks::ReadyCheck for Failing {
        fn name(&self) -> &str {
            "store"
        }
        fn check(&self) -> Result<(), String> {
            if self.0.load(Ordering::Relaxed) { Err("it is full".into()) } else { Ok(()) }
        }
    }
    let store = Arc::new(Failing(AtomicBool::new(true)));
    let check = store.clone();
    let plane = Plane::with(|config| config.hooks.ready.push(check)).await;
    let admin = plane.admin();
    admin.get("/readyz").await.expect(500);
    store.0.store(false, Ordering::Relaxed);
    for path in ["/readyz", "/readyz?exclude=store", "/livez", "/healthz", "/readyz/store"] {
        admin.get(path).await.expect(200);
    }
    let answer = admin.get("/metrics/slis").await.expect(200);
    let kind = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    assert_eq!(answer.headers["content-type"], kind);
    let text = answer.text();
    for line in [
        r#"kubernetes_healthcheck{name="ping",type="livez"} 1"#,
        r#"kubernetes_healthcheck{name="store",type="readyz"} 1"#,
        r#"kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1"#,
        r#"kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 3"#,
        r#"kubernetes_healthchecks_total{name="store",status="error",type="readyz"} 1"#,
        r#"kubernetes_healthchecks_total{name="store",status="success",type="readyz"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let started = text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds ")).unwrap();
    let age = Seams::system().clock.now().as_second() as f64 - started.parse::<f64>().unwrap();
    assert!((-2.0..86_400.0).contains(&age), "{started}");
    assert!(admin.get("/").await.expect(200).json()["paths"].to_string().contains("\"/metrics/slis\""));
    assert!(!admin.get("/metrics").await.expect(200).text().contains("kubernetes_healthcheck"));
    plane.as_user("ann").get("/metrics/slis").await.expect(403);
}

#[tokio::test]
async fn token_keys_are_served_in_the_accepted_media_types() {
    let admin = Plane::new().await.admin();
    let (keys, configuration) = ("/openid/v1/jwks", "/.well-known/openid-configuration");
    let answer = admin.get(keys).await.expect(200);
    assert_eq!(answer.json()["keys"][0]["alg"], "ES256");
    assert_eq!(
        (&answer.headers["content-type"], &answer.headers["cache-control"]),
        (&"application/jwk-set+json".parse().unwrap(), &"public, max-age=3600".parse().unwrap())
    );
    assert_eq!(admin.get(configuration).await.expect(200).json()["issuer"], "https://kubernetes.default.svc");
    for (path, accept, code) in [
        (keys, "application/jwk-set+json", 200),
        (keys, "text/x, */*;q=0", 200),
        (keys, "application/json", 406),
        (keys, "application/*", 406),
        (configuration, "application/json;q=0.1", 200),
        (configuration, "application/jwk-set+json", 406),
    ] {
        let answer = admin.send("GET", path, &[("accept", accept)], "").await;
        assert_eq!(answer.code, code, "{path} as {accept}");
        if code == 406 {
            let known = if path == keys { "application/jwk-set+json" } else { "application/json" };
            assert_eq!(answer.message(), format!("406: Not Acceptable\n\nAvailable representations: {known}"));
        }
    }
}

#[tokio::test]
async fn discovery_in_both_forms() {
    let admin = Plane::new().await.admin();
    let aggregated =
        [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")];
    let answer = admin.send("GET", "/apis", &aggregated, "").await.expect(200);
    assert_eq!(answer.headers["content-type"], "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    assert_eq!(answer.json()["kind"], "APIGroupDiscoveryList");
    let etag = answer.headers["etag"].to_str().unwrap().to_owned();
    let again = [aggregated[0], ("if-none-match", etag.as_str())];
    let unchanged = admin.send("GET", "/apis", &again, "").await.expect(304);
    assert!(unchanged.bytes.is_empty() && !unchanged.headers.contains_key("content-type"));
    let core = admin.send("GET", "/api", &aggregated, "").await.expect(200).json();
    assert_eq!(core["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(admin.get("/api").await.expect(200).json()["kind"], "APIVersions");
    assert_eq!(admin.get("/apis/").await.expect(200).json()["kind"], "APIGroupList");
    assert_eq!(admin.get("/apis/apps").await.expect(200).json()["kind"], "APIGroup");
    assert_eq!(admin.get("/apis/apps/v1").await.expect(200).json()["kind"], "APIResourceList");
    admin.get("/apis/nope.io").await.expect(404);
    for (path, code) in [("/api", 405), ("/api/v1", 405), ("/apis/apps/v1", 405), ("/version", 405), ("/apis", 200)] {
        assert_eq!(admin.send("HEAD", path, &[], "").await.code, code, "HEAD {path}");
    }
    for (path, code) in [
        ("/apis", 200),
        ("/apis/apps", 200),
        ("/openapi/v3", 200),
        ("/api", 405),
        ("/version", 405),
        ("/snapshot", 405),
    ] {
        assert_eq!(admin.send("OPTIONS", path, &[], "").await.code, code, "OPTIONS {path}");
    }
    assert!(admin.get("/").await.expect(200).json()["paths"].to_string().contains("/apis/apps/v1"));
}

#[tokio::test]
async fn openapi_documents_have_stable_addresses() {
    let admin = Plane::new().await.admin();
    let index = admin.get("/openapi/v3").await.expect(200).json();
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash="));
    let document = admin.get(&url).await.expect(200);
    assert_eq!(document.headers["cache-control"], "public, immutable");
    assert!(document.json()["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"].is_object());
    let moved = admin.get("/openapi/v3/apis/apps/v1?hash=bad").await.expect(301);
    assert_eq!(moved.headers["location"].to_str().unwrap(), format!("/clusters/root{url}"));
    admin.get("/openapi/v3/apis/nope.io/v1").await.expect(404);
}

#[tokio::test]
async fn openapi_documents_of_shared_paths_are_equal_for_all() {
    let admin = Plane::new().await.admin();
    define(&admin, widgets()).await;
    let index = admin.get("/openapi/v3").await.expect(200).json();
    for (name, path, id) in [
        ("api", "/api/", "getCoreAPIVersions"),
        ("apis", "/apis/", "getAPIVersions"),
        ("apis/apps", "/apis/apps/", "getAppsAPIGroup"),
        ("version", "/version/", "getCodeVersion"),
        ("openid/v1/jwks", "/openid/v1/jwks/", "getServiceAccountIssuerOpenIDKeyset"),
        (
            ".well-known/openid-configuration",
            "/.well-known/openid-configuration/",
            "getServiceAccountIssuerOpenIDConfiguration",
        ),
    ] {
        let url = index["paths"][name]["serverRelativeURL"].as_str().unwrap();
        let document = admin.get(url).await.expect(200).json();
        assert_eq!(document["paths"][path]["get"]["operationId"], id, "{name}");
        let swagger = admin.get("/openapi/v2").await.expect(200).json();
        assert_eq!(swagger["paths"][path]["get"]["operationId"], id, "{name}");
    }
    assert!(index["paths"]["apis/example.dev"].is_null(), "as upstream, groups of definitions have none");
    for name in ["nothing", "apis/nothing.example.com", "apis/apps/v1/deployments"] {
        assert!(admin.get(&format!("/openapi/v3/{name}")).await.expect(404).bytes.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn openapi_documents_are_kept_by_their_hash() {
    let seams = Seams { clock: Seams::seeded(0, "2026-01-01T00:00:00Z".parse().unwrap()).clock, ..Seams::system() };
    let admin = Plane::with(|config| config.seams = seams).await.admin();
    let index = admin.get("/openapi/v3").await.expect(200).json();
    let by_hash = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let hash = by_hash.rsplit_once('=').unwrap().1;
    let (own, other) = (format!("\"{hash}\""), "\"other\"".to_owned());
    let (both, immutable, fresh) = (format!("{other}, W/{own}"), "public, immutable", "no-cache, private");
    for (case, path, known, code, caching, expires) in [
        ("by its hash", &*by_hash, None, 200, immutable, "Fri, 01 Jan 2027 00:00:00 GMT"),
        ("by its hash, known", &by_hash, Some(&own), 304, immutable, "Fri, 01 Jan 2027 00:00:00 GMT"),
        ("by its name", "/openapi/v3/api/v1", None, 200, fresh, ""),
        ("by its name, known", "/openapi/v3/api/v1", Some(&own), 304, fresh, ""),
        ("among others", "/openapi/v3/api/v1", Some(&both), 304, fresh, ""),
        ("another one is known", "/openapi/v3/api/v1", Some(&other), 200, fresh, ""),
    ] {
        let headers: Vec<(&str, &str)> = known.iter().map(|known| ("if-none-match", known.as_str())).collect();
        let answer = admin.send("GET", path, &headers, "").await.expect(code);
        let header = |name: &str| answer.headers.get(name).map_or("", |value| value.to_str().unwrap());
        assert_eq!((header("etag"), header("cache-control"), header("expires")), (&*own, caching, expires), "{case}");
        assert_eq!(header("vary"), "Accept", "{case}");
        assert_eq!(answer.bytes.is_empty(), code == 304, "{case}");
        assert_eq!(answer.headers.contains_key("content-type"), code == 200, "{case}");
    }
    let moved = admin.get("/openapi/v3/api/v1?hash=other").await.expect(301);
    assert_eq!(moved.headers["location"].to_str().unwrap(), format!("/clusters/root{by_hash}"));
    assert_eq!(moved.headers["etag"].to_str().unwrap(), own);
    assert!(!moved.headers.contains_key("expires"));
    let swagger = admin.get("/openapi/v2").await.expect(200);
    let known = [("if-none-match", swagger.headers["etag"].to_str().unwrap())];
    assert!(admin.send("GET", "/openapi/v2", &known, "").await.expect(304).bytes.is_empty());
}

#[tokio::test]
async fn every_answer_has_an_audit_id_and_none_is_cached() {
    let admin = Plane::new().await.admin();
    for path in ["/api/v1/namespaces/default", "/nope"] {
        let answer = admin.get(path).await;
        assert!(answer.headers.contains_key("audit-id"));
        let own = admin.send("GET", path, &[("audit-id", "from-the-client")], "").await;
        assert_eq!(own.headers["audit-id"], "from-the-client");
        assert_eq!(answer.headers["cache-control"].to_str().unwrap_or_default(), "no-cache, private");
    }
}

#[tokio::test]
async fn pods_out_of_reach_have_a_condition() {
    let admin = Plane::new().await.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let made = admin.post("/api/v1/namespaces/default/pods", pod).await.expect(201).json();
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    let answer = admin.get("/api/v1/namespaces/default/pods/p/log").await.expect(405);
    assert!(answer.message().contains("is not supported by this version"));
    admin.get("/api/v1/namespaces/default/pods/nope/log").await.expect(404);
    admin.get("/api/v1/namespaces/default/pods/p/proxy/x").await.expect(503);
    let evict = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {}}});
    admin.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await.expect(201);
    admin.merge("/api/v1/namespaces/default/pods/p/status", json!({"status": {"phase": "Running"}})).await.expect(200);
    let refused = admin.post("/api/v1/namespaces/default/pods/p/eviction", evict.clone()).await.expect(429);
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "DisruptionBudget");
    admin.delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets/b").await.expect(200);
    admin.post("/api/v1/namespaces/default/pods/p/eviction", evict).await.expect(201);
    admin.get("/api/v1/namespaces/default/pods/p").await.expect(404);
}

#[tokio::test]
async fn pods_are_bound_once() {
    let admin = Plane::new().await.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    admin.post(pods, pod).await.expect(201);
    let bind = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let made = admin.get(&format!("{pods}/p")).await.expect(200).json();
    let with = |key: &str, value: &str| {
        let mut bind = bind.clone();
        bind["metadata"][key] = value.into();
        bind
    };
    for (case, bind, says) in [
        ("of another uid", with("uid", "other"), "UID in precondition: other"),
        ("of another state", with("resourceVersion", "1"), "ResourceVersion in precondition: 1"),
    ] {
        let refused = admin.post(&format!("{pods}/p/binding"), bind).await.expect(409);
        assert!(refused.message().contains(says), "{case}: {}", refused.message());
    }
    admin.post(&format!("{pods}/p/binding"), with("name", "q")).await.expect(400);
    let bind = with("uid", made["metadata"]["uid"].as_str().unwrap());
    admin.post(&format!("{pods}/p/binding"), bind.clone()).await.expect(201);
    let bound = admin.get(&format!("{pods}/p")).await.expect(200).json();
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["status"]["conditions"][0]["type"]),
        (&json!("n"), &json!("PodScheduled"))
    );
    admin.post(&format!("{pods}/p/binding"), bind).await.expect(409);
}

#[tokio::test]
async fn the_whole_store_is_handed_to_whom_everything_is_allowed() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
    admin.post("/api/v1/namespaces/default/secrets", secret).await.expect(201);
    let bytes = admin.get("/snapshot").await.expect(200).bytes;
    let snapshot = portolan_store::inspect(&*bytes).unwrap();
    assert!(snapshot.objects > 1 && snapshot.bytes == bytes.len() as u64, "{snapshot:?}");
}

#[tokio::test]
async fn deprecated_versions_warn_also_on_errors() {
    let admin = Plane::new().await.admin();
    let parts = admin.get("/api/v1/componentstatuses").await.expect(200);
    assert_eq!(parts.headers["warning"], "299 - \"v1 ComponentStatus is deprecated in v1.19+\"");
    assert_eq!(parts.json()["items"].as_array().map(Vec::len), Some(3));
    let one = admin.get("/api/v1/componentstatuses/scheduler").await.expect(200).json();
    assert_eq!(one["conditions"][0]["status"], "True");
    let none = admin.get("/api/v1/namespaces/default/endpoints/none").await.expect(404);
    assert!(none.headers["warning"].to_str().unwrap().contains("use discovery.k8s.io/v1 EndpointSlice"));
}

#[tokio::test]
async fn reasons_of_bad_health_are_for_the_administrator() {
    struct Sick;
    impl portolan_apiserver::hooks::ReadyCheck for Sick {
        fn name(&self) -> &str {
            "sick"
        }
        fn check(&self) -> Result<(), String> {
            Err("the secret reason".into())
        }
    }
    let plane = Plane::with(|config| config.hooks.ready.push(std::sync::Arc::new(Sick))).await;
    let admin = plane.admin().get("/readyz?verbose&exclude=nothing").await.expect(500).text();
    assert!(admin.contains("[-]sick failed: the secret reason"), "{admin}");
    assert!(admin.contains("warn: some health checks cannot be excluded: no matches for \"nothing\""), "{admin}");
    let ann = plane.as_user("ann").get("/readyz").await.expect(500).text();
    assert!(ann.contains("[-]sick failed: reason withheld") && !ann.contains("secret"), "{ann}");
}

/// The server has just opened its store and cached nothing when the store becomes unreachable.
#[tokio::test(start_paused = true)]
async fn health_answers_at_once_while_the_store_does_not() {
    struct Etcd;
    impl portolan_apiserver::hooks::ReadyCheck for Etcd {
        fn name(&self) -> &str {
            "etcd"
        }
        fn check(&self) -> Result<(), String> {
            Err("tcp connect error at 10.1.2.3".into())
        }
        fn is_vital(&self) -> bool {
            true
        }
    }
    let store = Faulty::over(portolan_store::memory());
    let mut config = portolan_apiserver::ApiServerConfig::in_memory(portolan_types::Seams::system());
    config.hooks.ready.push(std::sync::Arc::new(Etcd));
    let plane = Plane::on(store.clone(), config).await;
    store.fall_silent();
    let grants = plane.api.use_grants(portolan_types::LogicalClusterId::ROOT).await;
    assert!(grants.is_err(), "what was known of root is forgotten");
    let (stranger, admin) = (plane.as_user("stranger"), plane.admin());
    let began = tokio::time::Instant::now();
    for path in ["/livez", "/healthz", "/readyz"] {
        let text = stranger.get(path).await.expect(500).text();
        assert!(text.contains("[+]ping ok\n") && text.contains("[-]etcd failed: reason withheld\n"), "{path}: {text}");
        assert!(text.ends_with(&format!("{} check failed\n", &path[1..])), "{text}");
        assert!(admin.get(path).await.expect(500).text().contains("[-]etcd failed: tcp connect error"), "{path}");
        stranger.get(&format!("{path}?exclude=etcd")).await.expect(200);
        stranger.send("POST", path, &[], "").await.expect(500);
    }
    admin.get("/livez/ping").await.expect(200);
    admin.get("/livez/etcd").await.expect(500);
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_millis(100), "no probe waits for the store: {took:?}");
    stranger.get("/livez/ping").await.expect(504);
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "who may ask is not waited for");
    let refused = stranger.get(MAPS).await.expect(503).json();
    assert_eq!(refused["message"], "the storage cannot be reached at present");
}

#[tokio::test]
async fn openapi_documents_have_one_hash_in_all_forms() {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    let admin = Plane::new().await.admin();
    let document = "/openapi/v3/apis/apps/v1";
    let etag = admin.get(document).await.expect(200).headers["etag"].to_str().unwrap().to_owned();
    let both = |first: &str, second: &str| format!("{first}, {second}");
    for (accept, media) in [
        (PROTOBUF.to_owned(), "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"),
        (both(PROTOBUF, "application/json"), "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"),
        (both("application/json", PROTOBUF), "application/json"),
        (both("application/json;q=0.5", PROTOBUF), "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"),
        (both("*/*", PROTOBUF), "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"),
        ("*/*".to_owned(), "application/json"),
    ] {
        let answer = admin.send("GET", document, &[("accept", &accept)], "").await.expect(200);
        assert_eq!(
            (&answer.headers["content-type"], &answer.headers["etag"]),
            (&media.parse().unwrap(), &etag.parse().unwrap()),
            "{accept}"
        );
        for known in [etag.clone(), format!("W/{etag}"), format!("\"other\", {etag}"), "*".to_owned()] {
            let headers = [("accept", accept.as_str()), ("if-none-match", known.as_str())];
            let unchanged = admin.send("GET", document, &headers, "").await.expect(304);
            assert!(unchanged.bytes.is_empty(), "{accept}: {known}");
        }
        let headers = [("accept", accept.as_str()), ("if-none-match", "\"other\"")];
        admin.send("GET", document, &headers, "").await.expect(200);
    }
    admin.send("GET", document, &[("accept", "text/html")], "").await.expect(406);
    let old = admin.get("/openapi/v2").await.expect(200);
    let protobuf = [("accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")];
    let packed = admin.send("GET", "/openapi/v2", &protobuf, "").await.expect(200);
    assert_eq!(old.headers["etag"], packed.headers["etag"]);
    assert_ne!(old.bytes, packed.bytes);
}

#[tokio::test]
async fn a_conflicting_old_path_is_reported_to_permitted_watchers() {
    let plane = Plane::new().await;
    let path = "/api/v1/watch/namespaces/default/pods/p?fieldSelector=metadata.name=q";
    plane.as_user("nobody").get(path).await.expect(403);
    let refused = plane.admin().get(path).await.expect(400);
    assert_eq!(refused.message(), "fieldSelector metadata.name doesn't match requested name");
}

/// Returns true for the page of Go's `http.NotFound`.
fn is_page(answer: &Answer) -> bool {
    let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap());
    answer.text() == "404 page not found\n"
        && header("content-type") == Some("text/plain; charset=utf-8")
        && header("x-content-type-options") == Some("nosniff")
        && header("cache-control") == Some("no-cache, private")
        && header("audit-id").is_some()
}

#[tokio::test]
async fn unknown_paths_are_404_in_plain_text() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    define(&admin, widgets()).await;
    let group = "/apis/example.dev";
    for (case, method, path) in [
        ("a path", "GET", "/nothing/at/all".to_owned()),
        ("a method", "POST", "/nothing".into()),
        ("a check", "GET", "/livez/nothing".into()),
        ("a group", "GET", "/apis/nothing.example.com".into()),
        ("a version of a group", "GET", "/apis/nothing.example.com/v1".into()),
        ("a resource of a group", "GET", "/apis/nothing.example.com/v1/things".into()),
        ("a version of a custom resource", "GET", format!("{group}/v9/widgets")),
        ("versions of a group of custom resources", "GET", format!("{group}/v9")),
        ("a custom resource", "GET", format!("{group}/v1/things")),
        ("one custom resource in no namespace", "GET", format!("{group}/v1/widgets/a")),
        ("a new custom resource in no namespace", "POST", format!("{group}/v1/widgets")),
        ("all custom resources in no namespace", "DELETE", format!("{group}/v1/widgets")),
    ] {
        let answer = admin.send(method, &path, &[("accept", "application/yaml")], "").await.expect(404);
        assert!(is_page(&answer), "{case}: {:?} {}", answer.headers, answer.text());
    }
    for (case, method, path, expected) in [
        ("a version", "GET", "/api/v9".to_owned(), "the server could not find the requested resource"),
        ("a built-in group", "GET", "/apis/apps/v9".into(), "the server could not find the requested resource"),
        ("a built-in resource", "GET", "/api/v1/things".into(), "the server could not find the requested resource"),
        ("below a document", "GET", "/version/1".into(), "the server could not find the requested resource"),
        ("part of a custom resource", "GET", format!("{WIDGETS}/a/scale"), "widgets.example.dev \"a\" not found"),
    ] {
        let answer = admin.send(method, &path, &[], "").await.expect(404);
        assert_eq!(answer.message(), expected, "{case}");
    }
    let stranger = plane.as_user("eve").get("/nothing").await.expect(403).json();
    assert_eq!(stranger["message"], "forbidden: User \"eve\" cannot get path \"/nothing\"");
}
