//! Trace of a decision, and the smallest change after which it would be another.

mod nearest;

use serde_json::{Value, json};

pub use self::nearest::NearestChange;
use self::nearest::nearest;
use crate::{
    cluster_facts::ClusterFacts,
    decide::{PlacementDecision, PlacementInputs, PlacementPlanner, place},
    exclusion_reason::ExclusionReason,
    filters::{FILTERS, overfull, unknown_expression},
    policy::LeveledPolicy,
};

/// Verdict of one filter about one physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterVerdict {
    /// Name of the filter.
    pub filter: &'static str,
    /// True if the physical cluster passes.
    pub passed: bool,
    /// Stable word of a refusal.
    pub reason: &'static str,
    /// Sentence of a refusal, or of a pass for another reason than that it fits.
    pub message: String,
}

/// Trace of one physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTrace {
    /// Name.
    pub name: String,
    /// Verdicts in the order of the filters.
    pub verdicts: Vec<FilterVerdict>,
    /// 100 for an empty one, 0 for a full one.
    pub score: i64,
    /// Numbers that order those that fit, the most important first. Higher is better.
    pub scores: [(&'static str, i64); 6],
    /// True if it was chosen.
    pub chosen: bool,
    /// Its replicas, if they are divided.
    pub replicas: Option<i64>,
    /// Stable word of the reason why it was rejected.
    pub reason: Option<&'static str>,
    /// Sentence of the filter that rejected it, or of the preferred physical clusters.
    pub message: Option<String>,
}

/// Trace of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyTrace {
    /// `policy web-everywhere of root`.
    pub title: String,
    /// Level: 0 is the namespace.
    pub level: u32,
    /// `decides`, `constrains`, `is about other objects`, …
    pub verdict: String,
}

/// The whole trace of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `deployment/web`.
    pub object: String,
    /// The decision's one line.
    pub summary: String,
    /// Sentences about copies that stay, if any.
    pub notes: Vec<String>,
    /// All policies, most specific first.
    pub policies: Vec<PolicyTrace>,
    /// All physical clusters, by name.
    pub clusters: Vec<ClusterTrace>,
    /// The smallest change after which another physical cluster would be chosen, if there is one.
    pub nearest: Option<NearestChange>,
}

/// Explains the decision that [`place`] makes of the same question.
pub fn explain(question: &PlacementInputs) -> Explanation {
    let decision = place(question);
    let planner = PlacementPlanner::new(question);
    let clusters = planner.clusters.iter().map(|c| trace(&planner, c, &decision)).collect();
    Explanation {
        object: question.workload.title(),
        summary: decision.summary(),
        notes: decision.held.clone(),
        policies: policies(question, &planner),
        clusters,
        nearest: nearest(&planner, &decision),
    }
}

fn trace(planner: &PlacementPlanner, cluster: &ClusterFacts, decision: &PlacementDecision) -> ClusterTrace {
    let verdict = |filter: &crate::filters::ClusterFilter| {
        let refusal = (filter.check)(&planner.ctx, cluster).err();
        FilterVerdict {
            filter: filter.name,
            passed: refusal.is_none(),
            reason: refusal.map_or("", ExclusionReason::word),
            message: match refusal {
                Some(_) => (filter.message)(&planner.ctx, cluster),
                None if filter.name == "policy" => unknown_expression(&planner.ctx, cluster).unwrap_or_default(),
                None if filter.name == "room" => overfull(&planner.ctx, cluster).unwrap_or_default(),
                None => String::new(),
            },
        }
    };
    let uid = &cluster.info.uid;
    let chosen = decision.chosen.iter().find(|c| c.uid == *uid);
    let reason = decision.rejected.iter().find(|r| r.uid == *uid).map(|r| r.reason);
    let verdicts: Vec<_> = FILTERS.iter().map(verdict).collect();
    let refusal =
        |reason: ExclusionReason| verdicts.iter().find(|v| v.reason == reason.word()).map(|v| v.message.clone());
    ClusterTrace {
        name: cluster.info.name.clone(),
        message: reason.map(|reason| refusal(reason).unwrap_or_else(|| format!("it is {}", reason.phrase()))),
        verdicts,
        score: 100 - cluster.load_percent(),
        scores: planner.candidate(cluster, None).scores(),
        chosen: chosen.is_some(),
        replicas: chosen.and_then(|c| c.replicas),
        reason: reason.map(ExclusionReason::word),
    }
}

fn policies(question: &PlacementInputs, planner: &PlacementPlanner) -> Vec<PolicyTrace> {
    let rules = &planner.ctx.rules;
    let verdict = |p: &LeveledPolicy| match p.policy.fault() {
        _ if !p.policy.is_about(question.workload) => "is about other objects".to_owned(),
        None if p.policy.selection_failure(question.workload).is_some() => {
            let why = p.policy.selection_failure(question.workload).unwrap_or_default();
            format!("may be about it: its resources.cel failed: {why}")
        }
        _ if p.policy.is_constraint() => "constrains".to_owned(),
        Some(fault) => format!("is passed over: {fault}"),
        None if rules.winner == Some(p) => match question.workload.pin {
            Some(_) => "decides, but for the pin".to_owned(),
            None => "decides".to_owned(),
        },
        None => "is less specific, of lower priority or younger".to_owned(),
    };
    // Its changes of copies hold whether or not it decides.
    let verdict = |p: &LeveledPolicy| {
        let spec = &p.policy.spec;
        let holds = p.policy.fault().is_none() && p.policy.is_about(question.workload);
        if holds && !(spec.overrides.is_empty() && spec.yields.is_empty()) {
            format!("{}, and changes copies", verdict(p))
        } else {
            verdict(p)
        }
    };
    let mut traces: Vec<_> = question
        .policies
        .iter()
        .map(|p| PolicyTrace { title: p.title(), level: p.level, verdict: verdict(p) })
        .collect();
    traces.sort_by(|a, b| (a.level, &a.title).cmp(&(b.level, &b.title)));
    traces
}

impl Explanation {
    /// Returns the trace as `status` of a `PlacementExplanation`.
    pub fn to_value(&self) -> Value {
        let verdict = |v: &FilterVerdict| match (v.passed, v.message.is_empty()) {
            (true, true) => json!({"filter": v.filter, "passed": true}),
            (true, false) => json!({"filter": v.filter, "passed": true, "message": v.message}),
            (false, _) => json!({"filter": v.filter, "passed": false, "reason": v.reason, "message": v.message}),
        };
        let cluster = |c: &ClusterTrace| {
            let verdicts: Vec<_> = c.verdicts.iter().map(verdict).collect();
            let scores: Vec<_> = c.scores.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let mut trace =
                json!({"name": c.name, "chosen": c.chosen, "score": c.score, "verdicts": verdicts, "scores": scores});
            if let Some(replicas) = c.replicas {
                trace["replicas"] = replicas.into();
            }
            if let (Some(reason), Some(message)) = (c.reason, &c.message) {
                trace["reason"] = reason.into();
                trace["message"] = message.as_str().into();
            }
            trace
        };
        let policy = |p: &PolicyTrace| json!({"policy": p.title, "level": p.level, "verdict": p.verdict});
        let mut status = json!({
            "summary": self.summary,
            "notes": self.notes,
            "policies": self.policies.iter().map(policy).collect::<Vec<_>>(),
            "clusters": self.clusters.iter().map(cluster).collect::<Vec<_>>(),
        });
        if let Some(nearest) = &self.nearest {
            status["nearest"] = nearest.to_value();
        }
        status
    }

    /// Returns the trace as text: a line per policy and per physical cluster, refusals in sentences.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}: {}\n", self.object, self.summary);
        self.notes.iter().for_each(|note| text.push_str(&format!("  {note}\n")));
        for policy in &self.policies {
            text.push_str(&format!("  {} {}\n", policy.title, policy.verdict));
        }
        for cluster in &self.clusters {
            let refused = cluster.verdicts.iter().filter(|v| !v.message.is_empty()).map(|v| v.message.as_str());
            let mut refusals: Vec<_> = refused.collect();
            if refusals.is_empty() {
                refusals.extend(cluster.message.as_deref());
            }
            let replicas = cluster.replicas.map(|n| format!(" with {n} replicas")).unwrap_or_default();
            let verdict = match (cluster.chosen, cluster.reason) {
                (true, _) => format!("chosen{replicas}"),
                (false, Some(reason)) => reason.to_owned(),
                (false, None) => "not considered".into(),
            };
            let why = if refusals.is_empty() { String::new() } else { format!(": {}", refusals.join("; ")) };
            text.push_str(&format!("  {} (score {}) {verdict}{why}\n", cluster.name, cluster.score));
        }
        if let Some(nearest) = &self.nearest {
            text.push_str(&format!(
                "  nearest {} ({}): {}\n",
                nearest.physical_cluster, nearest.filter, nearest.change
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests;
