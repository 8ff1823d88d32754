//! Transcript of a page: the page again, with the outputs that its commands have printed.

use std::ops::Range;

/// Returns a page in which each range of lines, counted from 0, is replaced by the lines of a text. The ranges are in
/// the order of the page, and do not overlap.
pub(crate) fn with_outputs(page: &str, printed: &[(Range<usize>, String)]) -> String {
    let lines: Vec<&str> = page.lines().collect();
    let (mut kept, mut next) = (Vec::new(), 0);
    for (range, output) in printed {
        kept.extend_from_slice(&lines[next..range.start]);
        // kubectl pads the last column.
        kept.extend(output.lines().map(str::trim_end).filter(|line| !line.is_empty()));
        next = range.end;
    }
    kept.extend_from_slice(&lines[next..]);
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::commands::CommandPage;
    use super::*;

    #[test]
    fn outputs_are_replaced_where_they_stand() {
        let page = "# A\n```console\n$ one \\\n  more\nold\nolder\n$ two\n$ cat <<E\nx\nE\nx\n```\nend\n";
        let read = CommandPage::parse(page).unwrap().unwrap();
        let outputs = ["new  \n", "2\n\n", "x\ny\n"].map(str::to_owned);
        let printed: Vec<_> = read.commands.into_iter().map(|command| command.shown).zip(outputs).collect();
        let expected = "# A\n```console\n$ one \\\n  more\nnew\n$ two\n2\n$ cat <<E\nx\nE\nx\ny\n```\nend\n";
        assert_eq!(with_outputs(page, &printed), expected);
    }
}
