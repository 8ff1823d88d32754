//! Unified diffs of texts, line for line as Python's `difflib` makes them (kube-apiserver uses a port of it).

use std::collections::HashMap;

/// Lines of context around a change.
const CONTEXT: usize = 3;
/// Longer texts are not compared: their difference would not help, and take long.
const MAX_LINES: usize = 20_000;
/// Maximum of steps: texts that share lines at too many positions are not compared.
const MAX_STEPS: usize = 2_000_000;

/// Places in both texts that are the same: where it starts in each, and how many lines it has.
#[derive(Clone, Copy)]
struct Match {
    a: usize,
    b: usize,
    size: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Equal,
    Changed,
}

/// Replacement of lines `a.0..a.1` by lines `b.0..b.1`.
#[derive(Clone, Copy)]
struct Step {
    tag: Tag,
    a: (usize, usize),
    b: (usize, usize),
}

/// Returns the difference of two texts; empty if they are equal.
pub(super) fn unified(old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
    if a.len() > MAX_LINES || b.len() > MAX_LINES {
        return String::new();
    }
    let mut out = String::new();
    for group in groups(steps(&a, &b, MAX_STEPS).unwrap_or_default()) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let header = format!("@@ -{} +{} @@\n", range(first.a.0, last.a.1), range(first.b.0, last.b.1));
        out.push_str(&header);
        let mut lines = |sign: char, lines: &[&str]| {
            for line in lines {
                out.push(sign);
                out.push_str(line);
                out.push('\n');
            }
        };
        for step in &group {
            if step.tag == Tag::Equal {
                lines(' ', &a[step.a.0..step.a.1]);
            } else {
                lines('-', &a[step.a.0..step.a.1]);
                lines('+', &b[step.b.0..step.b.1]);
            }
        }
    }
    out
}

fn range(start: usize, stop: usize) -> String {
    match stop - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

/// Returns the positions of each line of `b`; in long texts, frequent lines are left out.
fn places<'t>(b: &[&'t str]) -> HashMap<&'t str, Vec<usize>> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in b.iter().enumerate() {
        places.entry(line).or_default().push(at);
    }
    if b.len() >= 200 {
        let often = b.len() / 100 + 1;
        places.retain(|_, list| list.len() <= often);
    }
    places
}

/// Returns `None` if it takes more steps than are `left`.
fn longest(
    a: &[&str],
    b: &[&str],
    places: &HashMap<&str, Vec<usize>>,
    within: Step,
    left: &mut usize,
) -> Option<Match> {
    let ((a_low, a_high), (b_low, b_high)) = (within.a, within.b);
    let mut best = Match { a: a_low, b: b_low, size: 0 };
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    for (i, line) in a.iter().enumerate().take(a_high).skip(a_low) {
        let mut next = HashMap::new();
        let all = places.get(line).map_or(&[][..], Vec::as_slice);
        let inside = &all[all.partition_point(|j| *j < b_low)..all.partition_point(|j| *j < b_high)];
        *left = left.checked_sub(1 + inside.len())?;
        for &j in inside {
            let size = j.checked_sub(1).and_then(|before| lengths.get(&before)).copied().unwrap_or(0) + 1;
            next.insert(j, size);
            if size > best.size {
                best = Match { a: i + 1 - size, b: j + 1 - size, size };
            }
        }
        lengths = next;
    }
    while best.a > a_low && best.b > b_low && a[best.a - 1] == b[best.b - 1] {
        best = Match { a: best.a - 1, b: best.b - 1, size: best.size + 1 };
    }
    while best.a + best.size < a_high && best.b + best.size < b_high && a[best.a + best.size] == b[best.b + best.size] {
        best.size += 1;
    }
    Some(best)
}

/// Returns the steps from `a` to `b`, or `None` if the search takes more than `most` steps.
fn steps(a: &[&str], b: &[&str], mut most: usize) -> Option<Vec<Step>> {
    let places = places(b);
    let mut matches = Vec::new();
    let mut left = vec![Step { tag: Tag::Changed, a: (0, a.len()), b: (0, b.len()) }];
    while let Some(within) = left.pop() {
        let found = longest(a, b, &places, within, &mut most)?;
        if found.size == 0 {
            continue;
        }
        matches.push(found);
        let (a_end, b_end) = (found.a + found.size, found.b + found.size);
        if within.a.0 < found.a && within.b.0 < found.b {
            left.push(Step { a: (within.a.0, found.a), b: (within.b.0, found.b), ..within });
        }
        if a_end < within.a.1 && b_end < within.b.1 {
            left.push(Step { a: (a_end, within.a.1), b: (b_end, within.b.1), ..within });
        }
    }
    matches.sort_by_key(|found| (found.a, found.b));
    matches.push(Match { a: a.len(), b: b.len(), size: 0 });
    let (mut out, mut at) = (Vec::new(), (0, 0));
    for found in matches {
        if at != (found.a, found.b) {
            out.push(Step { tag: Tag::Changed, a: (at.0, found.a), b: (at.1, found.b) });
        }
        at = (found.a + found.size, found.b + found.size);
        let equal = Step { tag: Tag::Equal, a: (found.a, at.0), b: (found.b, at.1) };
        match out.last_mut() {
            Some(last) if last.tag == Tag::Equal => (last.a.1, last.b.1) = at,
            _ if found.size > 0 => out.push(equal),
            _ => {}
        }
    }
    Some(out)
}

/// Groups changes with their context; changes that are far apart get groups of their own.
fn groups(mut steps: Vec<Step>) -> Vec<Vec<Step>> {
    let shorten = |step: &mut Step| {
        step.a.0 = step.a.0.max(step.a.1.saturating_sub(CONTEXT));
        step.b.0 = step.b.0.max(step.b.1.saturating_sub(CONTEXT));
    };
    let cut = |step: &mut Step| {
        step.a.1 = step.a.1.min(step.a.0 + CONTEXT);
        step.b.1 = step.b.1.min(step.b.0 + CONTEXT);
    };
    if let Some(first) = steps.first_mut().filter(|step| step.tag == Tag::Equal) {
        shorten(first);
    }
    if let Some(last) = steps.last_mut().filter(|step| step.tag == Tag::Equal) {
        cut(last);
    }
    let (mut out, mut group) = (Vec::new(), Vec::new());
    for mut step in steps {
        if step.tag == Tag::Equal && step.a.1 - step.a.0 > 2 * CONTEXT {
            let mut end = step;
            cut(&mut end);
            group.push(end);
            out.push(std::mem::take(&mut group));
            shorten(&mut step);
        }
        group.push(step);
    }
    if group.iter().any(|step| step.tag == Tag::Changed) {
        out.push(group);
    }
    out.retain(|group| group.iter().any(|step| step.tag == Tag::Changed));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_shown_with_context() {
        let lines = |from: usize, to: usize| (from..to).map(|n| n.to_string()).collect::<Vec<_>>();
        let (old, mut new) = (lines(0, 30), lines(0, 30));
        assert_eq!(unified(&old.join("\n"), &old.join("\n")), "");
        new[4] = "x".into();
        new.remove(20);
        let expected =
            "@@ -2,7 +2,7 @@\n 1\n 2\n 3\n-4\n+x\n 5\n 6\n 7\n@@ -18,7 +18,6 @@\n 17\n 18\n 19\n-20\n 21\n 22\n 23\n";
        assert_eq!(unified(&old.join("\n"), &new.join("\n")), expected);
        assert_eq!(unified("a", "a\nb"), "@@ -1 +1,2 @@\n a\n+b\n");
    }

    #[test]
    fn long_texts_are_not_compared() {
        assert_eq!(unified(&"a\n".repeat(MAX_LINES), "b"), "");
    }

    #[test]
    fn texts_that_are_alike_in_too_many_places_are_not_compared() {
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let lines = |step: usize| (0..100).map(|n| names[n * step % 10].as_str()).collect::<Vec<_>>();
        let (old, new) = (lines(1), lines(7));
        // Each line is found at ten places: that is a thousand for the first match alone.
        assert!(steps(&old, &new, 1_000).is_none());
        assert!(steps(&old, &new, 100_000).is_some());
    }
}
