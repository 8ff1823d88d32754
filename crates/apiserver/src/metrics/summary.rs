//! Summaries like kube-apiserver's, with quantiles of recent hours, which the Prometheus library lacks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{
    core::{Collector, Desc},
    proto::{LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary},
};
use tokio::time::Instant;

/// Quantiles that component-base reports by default.
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];
/// Number of parts of the quantiles' time window; the oldest part is dropped as a whole.
const PARTS: u64 = 5;
/// Factor between classes of values, so a quantile is exact to 2 %.
const GROWTH: f64 = 1.02;
/// Range of values in seconds, from a microsecond to a quarter of an hour: about a thousand classes.
const RANGE: (f64, f64) = (1e-6, 1e3);

/// Summaries by labels. Cheap to clone.
#[derive(Clone)]
pub(super) struct SummaryVec<const N: usize> {
    desc: Desc,
    part: Duration,
    started: Instant,
    all: Arc<Mutex<BTreeMap<[&'static str; N], SummarySamples>>>,
}

/// Samples with the same labels.
#[derive(Default)]
struct SummarySamples {
    count: u64,
    sum: f64,
    /// Samples per class, for each part of the time window.
    recent: BTreeMap<u64, BTreeMap<u16, u64>>,
}

impl<const N: usize> SummaryVec<N> {
    /// Creates summaries with quantiles over the last `age`, or at least four fifths of it.
    pub(super) fn new(name: &str, help: &str, labels: &[&str; N], age: Duration) -> prometheus::Result<Self> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?;
        Ok(Self { desc, part: age / PARTS as u32, started: Instant::now(), all: Arc::default() })
    }

    /// Records a value in seconds. The number of label sets must be small.
    pub(super) fn observe(&self, labels: [&'static str; N], value: f64) {
        let now = self.now();
        let mut all = self.all.lock();
        let seen = all.entry(labels).or_default();
        seen.forget(now);
        seen.count += 1;
        seen.sum += value;
        *seen.recent.entry(now).or_default().entry(class(value)).or_default() += 1;
    }

    /// Returns the current part of the time window.
    fn now(&self) -> u64 {
        self.started.elapsed().as_secs() / self.part.as_secs().max(1)
    }
}

impl SummarySamples {
    fn forget(&mut self, now: u64) {
        self.recent.retain(|part, _| part + PARTS > now);
    }

    fn summary(&self) -> Summary {
        let mut classes: BTreeMap<u16, u64> = BTreeMap::new();
        for (class, count) in self.recent.values().flatten() {
            *classes.entry(*class).or_default() += count;
        }
        let mut summary = Summary::default();
        summary.set_sample_count(self.count);
        summary.set_sample_sum(self.sum);
        summary.set_quantile(QUANTILES.map(|of| quantile(of, &classes)).to_vec());
        summary
    }
}

impl<const N: usize> Collector for SummaryVec<N> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = self.now();
        let metric = |(labels, seen): (&[&'static str; N], &mut SummarySamples)| {
            seen.forget(now);
            let mut metric = Metric::from_label(self.pairs(labels));
            metric.set_summary(seen.summary());
            metric
        };
        let metrics = self.all.lock().iter_mut().map(metric).collect();
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::SUMMARY);
        family.set_metric(metrics);
        vec![family]
    }
}

impl<const N: usize> SummaryVec<N> {
    /// Returns the label pairs, ordered by name.
    fn pairs(&self, values: &[&'static str; N]) -> Vec<LabelPair> {
        let pair = |(name, value): (&String, &&'static str)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value((*value).to_owned());
            pair
        };
        let mut pairs: Vec<_> = self.desc.variable_labels.iter().zip(values).map(pair).collect();
        pairs.sort_by(|one, other| one.name().cmp(other.name()));
        pairs
    }
}

/// Returns the class of a value. Values outside the range count to its ends.
fn class(value: f64) -> u16 {
    let (least, most) = RANGE;
    ((value.clamp(least, most) / least).ln() / GROWTH.ln()).round() as u16
}

/// Returns a quantile; NaN without samples, as in kube-apiserver.
fn quantile(of: f64, classes: &BTreeMap<u16, u64>) -> Quantile {
    let count: u64 = classes.values().sum();
    let rank = ((of * count as f64).ceil() as u64).max(1);
    let found = classes.iter().scan(0, |before, (class, count)| {
        *before += count;
        Some((*class, *before))
    });
    let class = { found }.find(|(_, upto)| *upto >= rank);
    let mut quantile = Quantile::default();
    quantile.set_quantile(of);
    quantile.set_value(class.map_or(f64::NAN, |(class, _)| RANGE.0 * GROWTH.powi(i32::from(class))));
    quantile
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn new_summary() -> (SummaryVec<2>, Registry) {
        let summary = SummaryVec::new("s", "Help.", &["type", "operation"], 5 * HOUR).unwrap();
        let registry = Registry::new();
        registry.register(Box::new(summary.clone())).unwrap();
        (summary, registry)
    }

    fn text(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    fn quantile_value(registry: &Registry, of: &str) -> f64 {
        let begin = format!("s{{operation=\"CREATE\",type=\"admit\",quantile=\"{of}\"}} ");
        text(registry).lines().find_map(|line| line.strip_prefix(&begin)).unwrap().parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn quantiles_are_exact_to_two_percent() {
        let (summary, registry) = new_summary();
        for n in 1..=1024 {
            summary.observe(["admit", "CREATE"], f64::from(n) / 1024.0);
        }
        for (of, expected) in [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)] {
            let found = quantile_value(&registry, of);
            assert!((found / expected - 1.0).abs() <= 0.011, "{of}: {found}");
        }
        let text = text(&registry);
        for line in [
            "# HELP s Help.",
            "# TYPE s summary",
            "s_sum{operation=\"CREATE\",type=\"admit\"} 512.5",
            "s_count{operation=\"CREATE\",type=\"admit\"} 1024",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quantiles_forget_and_counts_do_not() {
        let (summary, registry) = new_summary();
        summary.observe(["admit", "CREATE"], 1.0);
        tokio::time::advance(4 * HOUR).await;
        summary.observe(["admit", "CREATE"], 0.001);
        assert!(quantile_value(&registry, "0.99") > 0.9, "four hours are remembered");
        tokio::time::advance(HOUR).await;
        assert!(quantile_value(&registry, "0.99") < 0.0011, "five are not");
        tokio::time::advance(5 * HOUR).await;
        assert!(quantile_value(&registry, "0.5").is_nan(), "there is nothing to tell of");
        assert!(text(&registry).contains("s_count{operation=\"CREATE\",type=\"admit\"} 2"));
    }

    #[test]
    fn values_beyond_the_range_count_to_its_ends() {
        let last = class(RANGE.1);
        assert_eq!([0.0, -1.0, 1e-9, f64::INFINITY, 1e9].map(class), [0, 0, 0, last, last]);
        assert!(last < 1100, "{last} classes at most take room");
    }
}
