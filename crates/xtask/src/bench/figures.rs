//! Figures and the table of them.

use std::fmt::Write;

/// A named figure. The name is the same for every server.
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: Unit,
}

/// What a figure counts, and so how it is printed and compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    PerSecond,
    MicrosOfCpu,
    MillisOfCpu,
    Millis,
    MiB,
    Count,
}

impl Unit {
    fn text(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::MicrosOfCpu => "µs CPU",
            Self::MillisOfCpu => "ms CPU",
            Self::Millis => "ms",
            Self::MiB => "MiB",
            Self::Count => "",
        }
    }

    /// How many times better `other` is than `first`.
    fn better(self, first: f64, other: f64) -> String {
        match self {
            Self::PerSecond => format!("{:.1}", other / first),
            Self::MicrosOfCpu | Self::MillisOfCpu | Self::Millis | Self::MiB => format!("{:.1}", first / other),
            Self::Count => String::new(),
        }
    }
}

/// A column per server; the rows are the first server's figures.
#[derive(Default)]
pub(super) struct Table {
    columns: Vec<(String, Vec<Figure>)>,
}

impl Table {
    pub(super) fn push(&mut self, server: &str, figures: Vec<Figure>) {
        self.columns.push((server.to_owned(), figures));
    }

    /// A Markdown table; with two servers, the last column says how many times better the second is.
    pub(super) fn markdown(&self) -> String {
        let mut out = "| |".to_owned();
        for (server, _) in &self.columns {
            out += &format!(" {server} |");
        }
        let compared = self.columns.len() == 2;
        out += if compared { " times better |\n|---|" } else { "\n|---|" };
        out += &"---:|".repeat(self.columns.len() + usize::from(compared));
        out.push('\n');
        let rows = self.columns.first().map_or(0, |(_, figures)| figures.len());
        for row in 0..rows {
            self.row(row, &mut out);
        }
        out
    }

    fn row(&self, row: usize, out: &mut String) {
        let figures: Vec<&Figure> = self.columns.iter().filter_map(|(_, figures)| figures.get(row)).collect();
        if let Some(first) = figures.first() {
            let _ = write!(out, "| {} |", first.name);
            for figure in &figures {
                let _ = write!(out, " {} {} |", digits(figure.value), figure.unit.text());
            }
            if let [first, second] = figures[..] {
                let _ = write!(out, " {} |", first.unit.better(first.value, second.value));
            }
            out.push('\n');
        }
    }
}

/// Three digits that say something, no more.
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
    fn a_table_of_two_servers_compares_them() {
        let figures = |rate, cpu| {
            vec![
                Figure { name: "create".to_owned(), value: rate, unit: Unit::PerSecond },
                Figure { name: "create, CPU".to_owned(), value: cpu, unit: Unit::MicrosOfCpu },
            ]
        };
        let mut table = Table::default();
        table.push("slow", figures(1000.0, 900.0));
        table.push("fast", figures(5000.0, 90.0));
        assert_eq!(
            table.markdown(),
            "| | slow | fast | times better |\n|---|---:|---:|---:|\n\
             | create | 1000 /s | 5000 /s | 5.0 |\n| create, CPU | 900 µs CPU | 90.0 µs CPU | 10.0 |\n"
        );
    }
}
