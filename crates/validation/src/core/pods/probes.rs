//! Probes and lifecycle hooks of containers.

use super::{
    super::super::{Errors, names, selectors, view::At},
    Part,
};

/// Hooks and probes of a container.
pub(super) fn check(part: &Part<'_>, container: &At<'_>, errors: &mut Errors) {
    let grace = part.spec.int("terminationGracePeriodSeconds");
    let lifecycle = container.child("lifecycle");
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = lifecycle.present(hook) {
            handler(&hook, &["exec", "httpGet", "tcpSocket", "sleep"], grace, errors);
        }
    }
    if lifecycle.has("stopSignal") {
        stop_signal(part, &lifecycle, errors);
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.present(name) {
            check_probe(name, &probe, grace, errors);
        }
    }
}

fn check_probe(name: &str, probe: &At<'_>, grace: Option<i64>, errors: &mut Errors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], grace, errors);
    let numbers = ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    probe.nonnegatives(&numbers, errors);
    let own = "terminationGracePeriodSeconds";
    if probe.int(own).is_some_and(|seconds| seconds <= 0) {
        errors.invalid(probe.path(own), probe.get(own), "must be greater than 0");
    }
    if name == "readinessProbe" {
        if probe.has(own) {
            errors.invalid(probe.path(own), probe.get(own), "must not be set for readinessProbes");
        }
    } else if probe.number("successThreshold") != 1 {
        errors.invalid(probe.path("successThreshold"), &probe.number("successThreshold").into(), "must be 1");
    }
}

fn handler(at: &At<'_>, kinds: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut set = kinds.iter().filter(|kind| at.has(kind));
    let Some(first) = set.next() else {
        errors.required(&at.path, "must specify a handler type");
        return;
    };
    let action = at.child(first);
    match *first {
        "exec" if action.count("command") == 0 => errors.required(action.path("command"), ""),
        "httpGet" => {
            action.needs("path", errors);
            selectors::port(&action, "port", errors);
            action.supported("scheme", &["HTTP", "HTTPS"], errors);
            for header in action.items("httpHeaders") {
                let name = header.text("name");
                errors.invalid_each(action.path("httpHeaders"), &name.into(), names::http_header(name));
            }
        }
        "tcpSocket" => selectors::port(&action, "port", errors),
        "grpc" => action.in_range("port", (1, 65_535), errors),
        "sleep" => {
            let seconds = action.number("seconds");
            if let Some(grace) = grace.filter(|grace| seconds < 0 || seconds > *grace) {
                let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.invalid(&action.path, &seconds.into(), &why);
            }
        }
        _ => {}
    }
    for other in set {
        errors.forbidden(at.path(other), "may not specify more than 1 handler type");
    }
}

const SIGNALS: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

fn stop_signal(part: &Part<'_>, lifecycle: &At<'_>, errors: &mut Errors) {
    match part.spec.present("os").as_ref().map(|os| os.text("name")) {
        None => {
            let why = "may not be set for containers with empty `spec.os.name`";
            errors.forbidden(lifecycle.path("stopSignal"), why);
        }
        Some("windows") => lifecycle.supported("stopSignal", &["SIGKILL", "SIGTERM"], errors),
        Some("linux") => lifecycle.supported("stopSignal", &SIGNALS, errors),
        Some(_) => {}
    }
}
