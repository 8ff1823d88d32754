//! Reference of a program: a section per command, with its usage and flags.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::cell;

/// Heading of the flags that every command has.
const SHARED: &str = "Options of every command";

/// Returns the page of a program.
pub(super) fn page(mut command: Command) -> String {
    command.build();
    let mut page = String::new();
    let shared: Vec<&Arg> = command.get_arguments().filter(|arg| is_shared(arg)).collect();
    section(&command, &mut page);
    if !shared.is_empty() {
        let _ = writeln!(page, "## {SHARED}\n");
        table(&shared, &mut page);
    }
    page
}

fn is_shared(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(SHARED)
}

fn section(command: &Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    if page.is_empty() {
        let _ = writeln!(page, "{}\n", about(command));
    } else {
        let _ = writeln!(page, "## {name}\n\n{}\n", about(command));
    }
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: "));
    let is_own = |arg: &&Arg| !is_shared(arg) && !arg.is_hide_set() && !is_builtin(arg);
    let own: Vec<&Arg> = command.get_arguments().filter(is_own).collect();
    table(&own, page);
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set()) {
        section(inner, page);
    }
}

fn is_builtin(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

fn about(command: &Command) -> String {
    command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default().replace('<', "&lt;")
}

fn table(args: &[&Arg], page: &mut String) {
    if args.is_empty() {
        return;
    }
    let _ = writeln!(page, "| flag | meaning | default |\n|---|---|---|");
    for arg in args {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<String> = arg.get_default_values().iter().map(|value| value.display().to_string()).collect();
        let is_switch = !arg.get_action().takes_values();
        let default =
            if is_switch || defaults.is_empty() { String::new() } else { format!("`{}`", defaults.join(",")) };
        let _ = writeln!(page, "| `{}` | {} | {default} |", signature(arg).replace('|', "\\|"), cell(&help));
    }
    page.push('\n');
}

/// Formats a flag with its short form and its value.
fn signature(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let takes_values = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    match (arg.get_long(), takes_values) {
        (Some(long), true) => format!("{short}--{long} <{names}>"),
        (Some(long), false) => format!("{short}--{long}"),
        (None, _) => format!("{short}<{names}>"),
    }
}
