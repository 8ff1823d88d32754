//! Metrics of failover, read from the scheduler on each scrape.

use portolan_scheduler::FailoverStats;
use prometheus::{
    GaugeVec, IntCounter, IntGauge, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Source of the numbers.
pub(crate) type FailoverStatsSource = Box<dyn Fn() -> FailoverStats + Send + Sync>;

/// Collector of four families without labels, and one with a series per physical cluster.
pub(crate) struct FailoverMetrics {
    source: FailoverStatsSource,
    lost: IntGauge,
    suspended: IntGauge,
    waiting: IntGauge,
    evictions: IntCounter,
    silences: GaugeVec,
}

impl FailoverMetrics {
    pub(crate) fn new(source: FailoverStatsSource) -> Self {
        let clearly = "names and labels are constants";
        let gauge = |name: &str, help: &str| IntGauge::new(name, help).expect(clearly);
        let age = Opts::new(
            "portolan_physical_cluster_heartbeat_age_seconds",
            "Time since the last heartbeat of a physical cluster, as this server has heard it.",
        );
        Self {
            source,
            lost: gauge("portolan_physical_clusters_lost", "Physical clusters that are not heard of."),
            suspended: gauge(
                "portolan_failover_suspended",
                "Lost physical clusters whose objects stay, as most look lost at once.",
            ),
            waiting: gauge(
                "portolan_failover_evictions_waiting",
                "Objects that will leave a lost physical cluster when their slot comes.",
            ),
            evictions: IntCounter::new(
                "portolan_failover_evictions_total",
                "Objects that were let off lost physical clusters by this server.",
            )
            .expect(clearly),
            silences: GaugeVec::new(age, &["cluster", "uid"]).expect(clearly),
        }
    }

    fn read(&self) {
        let stats = (self.source)();
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.lost.set(number(stats.lost));
        self.suspended.set(number(stats.suspended));
        self.waiting.set(number(stats.waiting));
        self.evictions.inc_by(stats.evictions.saturating_sub(self.evictions.get()));
        self.silences.reset();
        for (uid, name, silence) in stats.silences {
            self.silences.with_label_values(&[name.as_str(), uid.as_str()]).set(silence.as_secs_f64());
        }
    }
}

impl Collector for FailoverMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let counts = [self.lost.desc(), self.suspended.desc(), self.waiting.desc(), self.evictions.desc()];
        counts.into_iter().flatten().chain(self.silences.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        let counts = [self.lost.collect(), self.suspended.collect(), self.waiting.collect(), self.evictions.collect()];
        counts.into_iter().flatten().chain(self.silences.collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_last_scrape() {
        let stats = || FailoverStats {
            lost: 1,
            evictions: 7,
            silences: vec![("u".parse().unwrap(), "east".into(), Duration::from_secs(3))],
            ..FailoverStats::default()
        };
        let metrics = FailoverMetrics::new(Box::new(stats));
        metrics.collect();
        let families = metrics.collect();
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name).unwrap();
            let metric = &family.get_metric()[0];
            metric.get_gauge().get_value() + metric.get_counter().get_value()
        };
        assert_eq!(value("portolan_physical_clusters_lost"), 1.0);
        assert_eq!(value("portolan_failover_evictions_total"), 7.0, "it is a total, not a sum of scrapes");
        assert_eq!(value("portolan_physical_cluster_heartbeat_age_seconds"), 3.0);
    }
}
