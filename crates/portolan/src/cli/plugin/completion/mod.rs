//! Completion of command lines, in the protocol of kubectl's plugins: candidates by line, then a directive.

mod candidates;

use std::{ffi::OsString, time::Duration};

use clap::{ArgAction, Command};

use self::candidates::candidates;
use super::{context::PluginContext, flags::KubectlFlags, kubeconfig_files::UserEnvironment, terminal::Terminal};

/// Time for the server to answer: completion must not make the shell hang.
const PATIENCE: Duration = Duration::from_secs(2);
/// Directive of Cobra: complete no file names.
const NO_FILES: &str = ":4";
/// Directive of Cobra: complete file names.
const FILES: &str = ":0";
/// Directive of Cobra: add no space, and complete no file names.
const NO_SPACE: &str = ":6";

/// Sort of value that the last word stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompletedValue {
    Subcommand,
    Flag,
    Context,
    User,
    Namespace,
    PhysicalCluster,
    Workspace,
    WorkspaceType,
    Object,
    /// Type of objects of a physical cluster, or the name of one.
    MemberObject,
    Policy,
    File,
    Nothing,
}

/// Position in a command line: the command, and the sort of its last word.
struct CompletionPosition<'c> {
    command: &'c Command,
    value: CompletedValue,
    flags: KubectlFlags,
    /// Values of a flag with a fixed set.
    words: Vec<String>,
    /// Arguments of the command before the last word.
    arguments: Vec<String>,
    /// First physical cluster that the flags name.
    member: Option<String>,
}

/// Prints the candidates for the last argument. It never fails: a shell has no use for an error.
pub(super) async fn complete(
    command: Command,
    args: &[OsString],
    environment: UserEnvironment,
    terminal: Terminal,
) -> u8 {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut command = command;
    command.build();
    let (last, before) = args.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let position = locate(&command, before, last);
    let mut ctx = PluginContext::new(position.flags.clone(), environment, terminal);
    let asked = tokio::time::timeout(PATIENCE, candidates(&mut ctx, &position, last)).await;
    let mut found = asked.ok().and_then(Result::ok).unwrap_or_default();
    found.retain(|candidate| candidate.starts_with(last));
    found.sort();
    found.dedup();
    let directive = match position.value {
        CompletedValue::File => FILES,
        CompletedValue::Object if !last.contains('/') && position.arguments.is_empty() => NO_SPACE,
        CompletedValue::Policy if !last.contains('/') => NO_SPACE,
        CompletedValue::MemberObject if !last.contains('/') && position.command.get_name() == "adopt" => NO_SPACE,
        _ if !found.is_empty() && found.iter().all(|candidate| candidate.ends_with('=')) => NO_SPACE,
        _ => NO_FILES,
    };
    let lines: String = found.iter().map(|candidate| format!("{candidate}\n")).collect();
    let _ = ctx.terminal.print(&format!("{lines}{directive}\n"));
    0
}

/// Finds the command of a line and the sort of its last word.
fn locate<'c>(command: &'c Command, before: &[String], last: &str) -> CompletionPosition<'c> {
    let mut at = CompletionPosition {
        command,
        value: CompletedValue::Nothing,
        flags: KubectlFlags::default(),
        words: Vec::new(),
        arguments: Vec::new(),
        member: None,
    };
    let mut words = before.iter();
    let mut pending = None;
    while let Some(word) = words.next() {
        pending = None;
        if let Some(flag) = word.strip_prefix('-') {
            let (name, inline) =
                flag.trim_start_matches('-').split_once('=').map_or((flag, None), |(n, v)| (n, Some(v)));
            let name = name.trim_start_matches('-');
            match (inline, takes_value(at.command, name)) {
                (Some(value), _) => note(&mut at, name, value),
                (None, true) => match words.next() {
                    Some(value) => note(&mut at, name, value),
                    None => pending = Some(name),
                },
                (None, false) => {}
            }
        } else if let Some(inner) = at.command.find_subcommand(word).filter(|_| at.arguments.is_empty()) {
            at.command = inner;
        } else {
            at.arguments.push(word.clone());
        }
    }
    match pending {
        Some(name) => {
            at.value = flag_value(name);
            at.words = possible_values(at.command, name);
        }
        None if last.starts_with('-') => at.value = CompletedValue::Flag,
        None => at.value = positional(at.command, &at.arguments),
    }
    at
}

fn find_arg<'c>(command: &'c Command, name: &str) -> Option<&'c clap::Arg> {
    let short = name.chars().next().filter(|_| name.chars().count() == 1);
    command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(name) || short.is_some_and(|short| arg.get_short() == Some(short)))
}

fn takes_value(command: &Command, name: &str) -> bool {
    let needs_one = |arg: &clap::Arg| {
        let optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
        matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) && !optional
    };
    find_arg(command, name).is_some_and(needs_one)
}

fn possible_values(command: &Command, name: &str) -> Vec<String> {
    let values = find_arg(command, name).map(clap::Arg::get_possible_values).unwrap_or_default();
    values.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name().to_owned()).collect()
}

/// Notes a flag that selects the server or a physical cluster.
fn note(at: &mut CompletionPosition<'_>, name: &str, value: &str) {
    let (flags, value) = (&mut at.flags, value.to_owned());
    match name {
        // That of a join is the kubeconfig of the physical cluster.
        "kubeconfig" if is_membership(at.command) => {}
        "cluster" | "from" => at.member = value.split(',').next().map(str::to_owned),
        "kubeconfig" => flags.kubeconfig = Some(value.into()),
        "context" => flags.context = Some(value),
        "namespace" | "n" => flags.namespace = Some(value),
        "user" => flags.user = Some(value),
        "server" | "s" => flags.server = Some(value),
        "token" => flags.token = Some(value),
        "as" => flags.impersonate = Some(value),
        "as-group" => flags.impersonate_groups.push(value),
        _ => {}
    }
}

fn is_membership(command: &Command) -> bool {
    ["join", "check", "unjoin"].contains(&command.get_name())
}

fn flag_value(name: &str) -> CompletedValue {
    match name {
        "context" | "create-context" => CompletedValue::Context,
        "user" => CompletedValue::User,
        "type" => CompletedValue::WorkspaceType,
        "delete" => CompletedValue::Policy,
        "namespace" | "n" => CompletedValue::Namespace,
        "to" | "from" | "cluster" | "cordon" | "drain" | "lose" => CompletedValue::PhysicalCluster,
        "kubeconfig" | "filename" | "f" | "expect" => CompletedValue::File,
        other if other.ends_with("-file") => CompletedValue::File,
        _ => CompletedValue::Nothing,
    }
}

fn positional(command: &Command, arguments: &[String]) -> CompletedValue {
    let is_first = arguments.is_empty();
    match command.get_name() {
        "where" => CompletedValue::Object,
        "why" | "move" | "tree" if is_single(arguments) => CompletedValue::Object,
        "get" | "adopt" => CompletedValue::MemberObject,
        "cordon" | "uncordon" | "drain" => CompletedValue::PhysicalCluster,
        "describe" | "label" | "check" | "unjoin" if is_first => CompletedValue::PhysicalCluster,
        "ws" | "use" | "kubectl-ws" if is_first => CompletedValue::Workspace,
        "create-context" if is_first => CompletedValue::Context,
        _ if command.has_subcommands() => CompletedValue::Subcommand,
        _ => CompletedValue::Nothing,
    }
}

/// Returns true if the arguments do not name an object yet: there is none, or only a type.
fn is_single(arguments: &[String]) -> bool {
    matches!(arguments, []) || matches!(arguments, [kind] if !kind.contains('/'))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_last_word_is_found_by_the_words_before_it() {
        use CompletedValue::*;
        let mut command = super::super::PluginCli::command();
        command.build();
        for (line, last, expected) in [
            ("", "", Subcommand),
            ("", "w", Subcommand),
            ("cluster", "", Subcommand),
            ("cluster cordon", "e", PhysicalCluster),
            ("cluster drain eu-1", "", PhysicalCluster),
            ("drain", "", PhysicalCluster),
            ("cluster unjoin", "", PhysicalCluster),
            ("why", "deploy/w", Object),
            ("-n shop where", "", Object),
            ("move deploy/web --to", "", PhysicalCluster),
            ("why deploy/web --cluster", "", PhysicalCluster),
            ("--context", "", Context),
            ("--context=a -n", "", Namespace),
            ("--kubeconfig", "", File),
            ("policy plan -f", "", File),
            ("ws", "", Workspace),
            ("ws use", "", Workspace),
            ("tree", "", Object),
            ("cluster list", "--", Flag),
            ("move deploy/web --dry-run", "", Nothing),
            ("move deploy", "", Object),
            ("where deploy web", "", Object),
            ("get", "", MemberObject),
            ("get pods --cluster east", "", MemberObject),
            ("get --cluster", "", PhysicalCluster),
            ("adopt deploy/web --from", "", PhysicalCluster),
            ("adopt", "", MemberObject),
            ("cluster describe eu-1", "", Nothing),
            ("cluster check eu-1 --kubeconfig", "", File),
            ("cluster join east", "", Nothing),
            ("policy plan --delete", "", Policy),
            ("policy test --expect", "", File),
            ("ws create team --type", "", WorkspaceType),
            ("ws create-context", "", Context),
            ("login --user", "", User),
            ("login --issuer-ca-file", "", File),
        ] {
            let before: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(locate(&command, &before, last).value, expected, "{line:?} {last:?}");
        }
        let words: Vec<String> = "-n shop --context a cluster list -o".split(' ').map(str::to_owned).collect();
        let at = locate(&command, &words, "");
        assert_eq!((at.flags.namespace.as_deref(), at.flags.context.as_deref()), (Some("shop"), Some("a")));
        let with_value =
            ["jsonpath=", "jsonpath-as-json=", "jsonpath-file=", "custom-columns=", "custom-columns-file="];
        assert_eq!(at.words, [&["json", "yaml", "name", "table", "wide"][..], &with_value].concat());
        let words: Vec<String> = "get pods --cluster east,west".split(' ').map(str::to_owned).collect();
        let at = locate(&command, &words, "");
        assert_eq!((at.member.as_deref(), at.arguments), (Some("east"), vec!["pods".to_owned()]));
    }
}
