//! Bounds, stabilization and pace of scaling, as kube-controller-manager applies them (`horizontal.go`). Pure.

use serde_json::Value;

/// Window in which the highest recommendation holds when nothing is set, in seconds.
const SCALE_DOWN_WINDOW: i64 = 300;
/// Longest window that a behavior may set, in seconds.
const MAX_WINDOW: i64 = 3600;
/// Most entries of a history: one each 15 s for the longest window, and a few more.
const MAX_HISTORY: usize = 256;

/// Number of replicas at a time, in seconds.
type TimedCount = (i64, i64);

/// Earlier recommendations and changes of one autoscaler. They are in memory only, as in kube-controller-manager.
#[derive(Clone, Debug, Default)]
pub(super) struct ScalingHistory {
    recommendations: Vec<TimedCount>,
    /// Replicas that were added.
    added: Vec<TimedCount>,
    /// Replicas that were removed.
    removed: Vec<TimedCount>,
}

impl ScalingHistory {
    /// Takes the present number as the first recommendation.
    pub(super) fn begin(&mut self, current: i64, now: i64) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Notes a change of the number of replicas.
    pub(super) fn note_change(&mut self, from: i64, to: i64, now: i64) {
        let events = if to > from { &mut self.added } else { &mut self.removed };
        push((now, (to - from).abs()), events);
    }
}

fn push(entry: TimedCount, entries: &mut Vec<TimedCount>) {
    entries.retain(|(at, _)| *at > entry.0 - MAX_WINDOW);
    if entries.len() >= MAX_HISTORY {
        entries.remove(0);
    }
    entries.push(entry);
}

/// Desired number before bounds, and the bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScalingRequest<'a> {
    pub(super) current: i64,
    pub(super) desired: i64,
    pub(super) least: i64,
    pub(super) most: i64,
    /// `spec.behavior`.
    pub(super) behavior: &'a Value,
    /// Present time, in seconds.
    pub(super) now: i64,
}

/// Reason and message of a condition.
pub(super) type Cause = (&'static str, &'static str);

/// Number after stabilization and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScalingOutcome {
    pub(super) desired: i64,
    /// Cause of the condition `AbleToScale`.
    pub(super) able: Cause,
    /// Status and cause of the condition `ScalingLimited`.
    pub(super) limited: (bool, Cause),
}

const READY: Cause = ("ReadyForNewScale", "recommended size matches current size");
const HIGHEST: Cause = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const LOWEST: Cause = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: Cause = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: Cause = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: Cause = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FAST_UP: Cause =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: Cause =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

impl ScalingRequest<'_> {
    /// Returns the number after stabilization and bounds, and notes the recommendation.
    pub(super) fn limit(self, history: &mut ScalingHistory) -> ScalingOutcome {
        let (stabilized, able) =
            if self.behavior.is_null() { self.stabilize(history) } else { self.stabilize_by_behavior(history) };
        push((self.now, self.desired), &mut history.recommendations);
        let (desired, cause) = if self.behavior.is_null() {
            self.limit_desired(stabilized)
        } else {
            self.bound_by_behavior(stabilized, history)
        };
        let able = if stabilized == self.desired { READY } else { able };
        ScalingOutcome { desired, able, limited: (desired != stabilized, cause) }
    }

    /// Returns the highest recommendation of the window.
    fn stabilize(self, history: &ScalingHistory) -> (i64, Cause) {
        let since = self.now - SCALE_DOWN_WINDOW;
        let recent = history.recommendations.iter().filter(|(at, _)| *at > since).map(|(_, count)| *count);
        (recent.chain([self.desired]).max().unwrap_or(self.desired), HIGHEST)
    }

    fn window(self, direction: &str, default: i64) -> i64 {
        let seconds = self.behavior[direction]["stabilizationWindowSeconds"].as_i64().unwrap_or(default);
        seconds.clamp(0, MAX_WINDOW)
    }

    fn stabilize_by_behavior(self, history: &ScalingHistory) -> (i64, Cause) {
        let recent = |window: i64| {
            let since = self.now - window;
            history.recommendations.iter().filter(move |(at, _)| *at > since).map(|(_, count)| *count)
        };
        let up = recent(self.window("scaleUp", 0)).chain([self.desired]).min().unwrap_or(self.desired);
        let down = recent(self.window("scaleDown", SCALE_DOWN_WINDOW)).chain([self.desired]).max();
        let stabilized = self.current.max(up).min(down.unwrap_or(self.desired));
        (stabilized, if self.desired >= self.current { LOWEST } else { HIGHEST })
    }

    fn limit_desired(self, desired: i64) -> (i64, Cause) {
        let pace = (self.current.saturating_mul(2)).max(4);
        let (most, cause) = if self.most > pace { (pace, TOO_FAST_UP) } else { (self.most, TOO_MANY) };
        match desired {
            desired if desired < self.least => (self.least, TOO_FEW),
            desired if desired > most => (most, cause),
            desired => (desired, WITHIN),
        }
    }

    fn bound_by_behavior(self, desired: i64, history: &ScalingHistory) -> (i64, Cause) {
        if desired > self.current {
            let pace = self.pace_up(history).max(self.current);
            let (most, cause) = if self.most > pace { (pace, TOO_FAST_UP) } else { (self.most, TOO_MANY) };
            if desired > most {
                return (most, cause);
            }
        } else if desired < self.current {
            let pace = self.pace_down(history).min(self.current);
            let (least, cause) = if self.least < pace { (pace, TOO_FAST_DOWN) } else { (self.least, TOO_FEW) };
            if desired < least {
                return (least, cause);
            }
        }
        (desired, WITHIN)
    }

    /// Returns the number at the beginning of a period.
    fn begun_with(self, history: &ScalingHistory, policy: &Value) -> i64 {
        let since = self.now - policy["periodSeconds"].as_i64().unwrap_or(15).clamp(1, MAX_WINDOW);
        let sum = |events: &[TimedCount]| -> i64 {
            events.iter().filter(|(at, _)| *at > since).map(|(_, count)| *count).fold(0, i64::saturating_add)
        };
        self.current.saturating_sub(sum(&history.added)).saturating_add(sum(&history.removed))
    }

    fn pace_up(self, history: &ScalingHistory) -> i64 {
        let default = [("Pods", 4), ("Percent", 100)];
        let reached = |begun: i64, kind: &str, value: i64| match kind {
            "Percent" => (begun as f64 * (1.0 + value as f64 / 100.0)).ceil() as i64,
            _ => begun.saturating_add(value),
        };
        let paces = self.paces("scaleUp", (&default, history), reached);
        match self.selection("scaleUp") {
            "Disabled" => self.current,
            "Min" => paces.min().unwrap_or(self.current),
            _ => paces.max().unwrap_or(self.current),
        }
    }

    fn pace_down(self, history: &ScalingHistory) -> i64 {
        let reached = |begun: i64, kind: &str, value: i64| match kind {
            "Percent" => (begun as f64 * (1.0 - value as f64 / 100.0)) as i64,
            _ => begun.saturating_sub(value),
        };
        let paces = self.paces("scaleDown", (&[("Percent", 100)], history), reached);
        match self.selection("scaleDown") {
            "Disabled" => self.current,
            "Min" => paces.max().unwrap_or(self.current),
            _ => paces.min().unwrap_or(self.current),
        }
    }

    fn selection(&self, direction: &str) -> &str {
        self.behavior[direction]["selectPolicy"].as_str().unwrap_or("Max")
    }

    /// Returns the numbers that the policies of a direction permit.
    fn paces<'a>(
        self,
        direction: &str,
        (default, history): (&'a [(&'a str, i64)], &'a ScalingHistory),
        reached: impl Fn(i64, &str, i64) -> i64 + 'a,
    ) -> impl Iterator<Item = i64> + 'a {
        let policies = self.behavior[direction]["policies"].as_array().filter(|policies| !policies.is_empty());
        let paces: Vec<i64> = match policies {
            None => default
                .iter()
                .map(|(kind, value)| reached(self.begun_with(history, &Value::Null), kind, *value))
                .collect(),
            Some(policies) => policies
                .iter()
                .map(|policy| {
                    let value = policy["value"].as_i64().unwrap_or(0);
                    reached(self.begun_with(history, policy), policy["type"].as_str().unwrap_or_default(), value)
                })
                .collect(),
        };
        paces.into_iter()
    }
}
