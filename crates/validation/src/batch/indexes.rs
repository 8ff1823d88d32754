//! Lists of indexes such as `1,3-5`.

/// Returns the intervals of a list.
fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let parts: Vec<&str> = text.split('-').collect();
    if parts.len() > 2 {
        return Err(format!(
            "the fragment {text:?} violates the requirement that an index interval can have at most two parts separated \
             by '-'"
        ));
    }
    let number = |text: &str| {
        let number: i64 = text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if number >= completions { Err(format!("too large index: {text:?}")) } else { Ok(number) }
    };
    let first = number(parts[0])?;
    let Some(last) = parts.get(1) else { return Ok((first, first)) };
    let last = number(last)?;
    if first < last {
        Ok((first, last))
    } else {
        Err(format!("non-increasing order, previous: {first}, current: {last}"))
    }
}

/// Returns the number of indexes in a list.
pub(super) fn count(list: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0, None);
    for text in list.split(',').filter(|_| !list.is_empty()) {
        let (first, end) = interval(text, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// Returns the first index that two lists share; malformed parts are ignored.
pub(super) fn shared(one: &str, other: &str, completions: i64) -> Option<i64> {
    let intervals = |list: &str| -> Vec<(i64, i64)> {
        list.split(',').filter_map(|text| interval(text, completions).ok()).collect()
    };
    // Each is behind the one before it, or the list is refused anyway.
    let mut others = intervals(other);
    others.sort_unstable();
    let overlap = |(first, last): (i64, i64)| {
        let found = others.get(others.partition_point(|(_, end)| *end < first));
        found.filter(|(start, _)| *start <= last).map(|(start, _)| first.max(*start))
    };
    intervals(one).into_iter().find_map(overlap)
}
