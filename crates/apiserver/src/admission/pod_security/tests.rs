use serde_json::json;

use super::*;

fn labelled(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn refused(level: PodSecurityLevel, minor: u32, spec: &Value) -> String {
    let version =
        if minor == 0 { policy::PodSecurityVersion::Latest } else { policy::PodSecurityVersion::Minor(minor) };
    let annotations = json!({});
    details(&violations(PodSecurityStandard { level, version }, Some(&annotations), spec))
}

#[test]
fn labels_set_the_policy() {
    for (case, labels, expected, wrong) in [
        ("nothing is asked", json!({}), ["privileged:latest", "privileged:latest", "privileged:latest"], 0),
        (
            "who enforces warns of templates, too",
            json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "v1.30"}),
            ["baseline:v1.30", "privileged:latest", "baseline:v1.30"],
            0,
        ),
        (
            "each mode has its own",
            json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/audit": "restricted", "pod-security.kubernetes.io/audit-version": "v1.25"}),
            ["baseline:latest", "restricted:v1.25", "restricted:latest"],
            0,
        ),
        (
            "an unknown level is enforced as restricted, and does not warn",
            json!({"pod-security.kubernetes.io/enforce": "strict", "pod-security.kubernetes.io/warn-version": "1.2"}),
            ["restricted:latest", "privileged:latest", "privileged:latest"],
            2,
        ),
    ] {
        let (policy, causes) = PodSecuritySettings::of(&labelled(labels));
        let shown = [policy.enforce, policy.audit, policy.warn].map(|standard| standard.to_string());
        assert_eq!(shown, expected, "{case}");
        assert_eq!(causes.len(), wrong, "{case}: {causes:?}");
    }
}

#[test]
fn baseline_violations() {
    for (spec, expected) in [
        (json!({"containers": [{"name": "a"}]}), ""),
        (
            json!({"hostNetwork": true, "hostPID": true, "containers": []}),
            "host namespaces (hostNetwork=true, hostPID=true)",
        ),
        (
            json!({"containers": [{"name": "a", "securityContext": {"privileged": true}}]}),
            r#"privileged (container "a" must not set securityContext.privileged=true)"#,
        ),
        (
            json!({"containers": [{"name": "a", "securityContext": {"capabilities": {"add": ["SYS_ADMIN", "NET_RAW", "KILL"]}}}]}),
            r#"non-default capabilities (container "a" must not include "NET_RAW", "SYS_ADMIN" in securityContext.capabilities.add)"#,
        ),
        (
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}]}),
            r#"hostPath volumes (volumes "v", "w")"#,
        ),
        (
            json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}, {"hostPort": 81}]}, {"name": "b", "ports": [{"hostPort": 80}]}]}),
            r#"hostPort (containers "a", "b" use hostPorts 80, 81)"#,
        ),
        (
            json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "h", "port": 1}}}]}),
            r#"probe or lifecycle host (container "a" uses probe or lifecycle host "h")"#,
        ),
        (
            json!({"securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}}, "containers": [{"name": "a", "securityContext": {"seLinuxOptions": {"role": "r"}}}]}),
            r#"seLinuxOptions (pod and container "a" set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be set; role may not be set)"#,
        ),
        (
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]}}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}, "appArmorProfile": {"type": "Unconfined"}, "windowsOptions": {"hostProcess": true}}}),
            r#"forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined"), seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined"), hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)"#,
        ),
        (
            json!({"containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]}),
            r#"procMount (container "a" must not set securityContext.procMount to "Unmasked")"#,
        ),
        (json!({"hostUsers": false, "containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]}), ""),
    ] {
        assert_eq!(refused(PodSecurityLevel::Baseline, 0, &spec), expected, "{spec}");
    }
}

#[test]
fn restricted_violations() {
    let good = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let with = |key: &str, value: Value| {
        let mut context = good.clone();
        context[key] = value;
        json!({"containers": [{"name": "a", "securityContext": context}]})
    };
    for (minor, spec, expected) in [
        (0, json!({"containers": [{"name": "a", "securityContext": good}]}), ""),
        (
            0,
            json!({"containers": [{"name": "a"}]}),
            r#"allowPrivilegeEscalation != false (container "a" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "a" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#,
        ),
        (
            10,
            json!({"containers": [{"name": "a"}]}),
            r#"allowPrivilegeEscalation != false (container "a" must set securityContext.allowPrivilegeEscalation=false), runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true)"#,
        ),
        (0, with("runAsUser", json!(0)), r#"runAsUser=0 (container "a" must not set runAsUser=0)"#),
        (
            0,
            with("runAsNonRoot", json!(false)),
            r#"runAsNonRoot != true (container "a" must not set securityContext.runAsNonRoot=false)"#,
        ),
        (
            0,
            with("capabilities", json!({"drop": ["ALL"], "add": ["CHOWN", "NET_BIND_SERVICE"]})),
            r#"unrestricted capabilities (container "a" must not include "CHOWN" in securityContext.capabilities.add)"#,
        ),
        (
            0,
            json!({"volumes": [{"name": "a", "secret": {}}, {"name": "b", "hostPath": {}}, {"name": "c"}]}),
            r#"restricted volume types (volumes "b", "c" use restricted volume types "hostPath", "unknown")"#,
        ),
    ] {
        assert_eq!(refused(PodSecurityLevel::Restricted, minor, &spec), expected, "{spec}");
    }
}
