//! Figures and the table of them.

use std::fmt::Write;
use std::time::Duration;

/// A named figure. The name is the same for every server.
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: Unit,
}

impl Figure {
    pub(super) fn new(name: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self { name: name.into(), value, unit }
    }

    pub(super) fn millis(name: impl Into<String>, value: Duration) -> Self {
        Self::new(name, value.as_secs_f64() * 1000.0, Unit::Millis)
    }
}

/// Unit of a figure. It decides how the figure is printed and compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    PerSecond,
    MicrosOfCpu,
    MillisOfCpu,
    Millis,
    Micros,
    MiB,
    Bytes,
    Count,
    Times,
}

impl Unit {
    fn text(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::MicrosOfCpu => "µs CPU",
            Self::MillisOfCpu => "ms CPU",
            Self::Millis => "ms",
            Self::Micros => "µs",
            Self::MiB => "MiB",
            Self::Bytes => "bytes",
            Self::Count => "",
            Self::Times => "×",
        }
    }

    /// Returns how many times better `other` is than `first`.
    fn better(self, first: f64, other: f64) -> Option<String> {
        let times = match self {
            Self::PerSecond => other / first,
            Self::MicrosOfCpu | Self::MillisOfCpu | Self::Millis | Self::Micros | Self::MiB | Self::Bytes => {
                first / other
            }
            Self::Count | Self::Times => return None,
        };
        times.is_finite().then(|| format!("{times:.1} ×"))
    }
}

/// Table with a column per server. Values of all servers but the first are followed by their ratio to the first one.
pub(super) struct FigureTable {
    servers: Vec<&'static str>,
}

impl FigureTable {
    pub(super) fn new(servers: Vec<&'static str>) -> Self {
        Self { servers }
    }

    /// Returns the header, two lines of Markdown.
    pub(super) fn head(&self) -> String {
        format!("| | {} |\n|---|{}\n", self.servers.join(" | "), "---:|".repeat(self.servers.len()))
    }

    /// Returns a row for each name of a figure. `figures` has a list per server, in which figures may be missing.
    pub(super) fn rows(&self, columns: &[Vec<Figure>]) -> String {
        let mut names: Vec<&str> = Vec::new();
        for figure in columns.iter().flatten() {
            if !names.contains(&figure.name.as_str()) {
                names.push(&figure.name);
            }
        }
        names.into_iter().map(|name| row(name, columns)).collect()
    }
}

fn row(name: &str, columns: &[Vec<Figure>]) -> String {
    let cells: Vec<Option<&Figure>> =
        columns.iter().map(|column| column.iter().find(|figure| figure.name == name)).collect();
    let mut out = format!("| {name} |");
    for (at, cell) in cells.iter().enumerate() {
        let Some(figure) = cell else {
            out += " – |";
            continue;
        };
        let _ = write!(out, " {}", digits(figure.value));
        let unit = figure.unit.text();
        out += if unit.is_empty() { "" } else { " " };
        out += unit;
        let first = cells[0].filter(|_| at > 0).and_then(|first| figure.unit.better(first.value, figure.value));
        let _ = first.map_or(Ok(()), |times| write!(out, " ({times})"));
        out += " |";
    }
    out + "\n"
}

/// Formats a number with three significant digits.
fn digits(value: f64) -> String {
    let decimals = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_compared_with_the_first_row_by_row() {
        let figure = |name: &str, value, unit| Figure::new(name, value, unit);
        let table = FigureTable::new(vec!["slow", "fast", "other"]);
        let columns = [
            vec![figure("create", 1000.0, Unit::PerSecond), figure("create, CPU", 900.0, Unit::MicrosOfCpu)],
            vec![figure("create, CPU", 90.0, Unit::MicrosOfCpu), figure("create", 5000.0, Unit::PerSecond)],
            vec![figure("only here", 7.0, Unit::MiB)],
        ];
        assert_eq!(
            table.head() + &table.rows(&columns),
            "| | slow | fast | other |\n|---|---:|---:|---:|\n\
             | create | 1000 /s | 5000 /s (5.0 ×) | – |\n\
             | create, CPU | 900 µs CPU | 90.0 µs CPU (10.0 ×) | – |\n\
             | only here | – | – | 7.00 MiB |\n"
        );
    }
}
