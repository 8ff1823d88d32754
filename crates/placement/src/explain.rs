//! The whole trace of a decision: every policy, every physical cluster, every filter's verdict, the score.

use serde_json::{Value, json};

use crate::{
    decide::{Decision, Planner, Question, place},
    facts::ClusterFacts,
    filters::{FILTERS, overfull},
    policy::LeveledPolicy,
    reason::Reason,
};

/// What one filter says of one physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Name of the filter.
    pub filter: &'static str,
    /// Whether it lets the physical cluster pass.
    pub passed: bool,
    /// The stable word of a refusal.
    pub reason: &'static str,
    /// The sentence of a refusal, or of what passes for another reason than that it fits.
    pub message: String,
}

/// All that was found about one physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTrace {
    /// Its name.
    pub name: String,
    /// One per filter, in the filters' order.
    pub verdicts: Vec<Verdict>,
    /// 100 for an empty one, 0 for a full one.
    pub score: i64,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Its part of the replicas, when they are divided.
    pub replicas: Option<i64>,
    /// Why it was left out: the stable word.
    pub reason: Option<&'static str>,
    /// The same in a sentence: of the filter that refused it, or of what was chosen before it.
    pub message: Option<String>,
}

/// What a policy had to do with the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyTrace {
    /// `policy web-everywhere of root`.
    pub title: String,
    /// Its level: 0 is the namespace.
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
    /// Why copies stay, if some do.
    pub notes: Vec<String>,
    /// Every policy of every level, most specific first.
    pub policies: Vec<PolicyTrace>,
    /// Every physical cluster, by name.
    pub clusters: Vec<ClusterTrace>,
}

/// Explains the decision that [`place`] makes of the same question.
pub fn explain(question: &Question) -> Explanation {
    let decision = place(question);
    let planner = Planner::new(question);
    let clusters = planner.clusters.iter().map(|c| trace(&planner, c, &decision)).collect();
    Explanation {
        object: question.workload.title(),
        summary: decision.summary(),
        notes: decision.held.clone(),
        policies: policies(question, &planner),
        clusters,
    }
}

fn trace(planner: &Planner, cluster: &ClusterFacts, decision: &Decision) -> ClusterTrace {
    let verdict = |filter: &crate::filters::Filter| {
        let refusal = (filter.check)(&planner.ctx, cluster).err();
        Verdict {
            filter: filter.name,
            passed: refusal.is_none(),
            reason: refusal.map_or("", Reason::word),
            message: match refusal {
                Some(_) => (filter.say)(&planner.ctx, cluster),
                None if filter.name == "room" => overfull(&planner.ctx, cluster).unwrap_or_default(),
                None => String::new(),
            },
        }
    };
    let uid = &cluster.info.uid;
    let chosen = decision.chosen.iter().find(|c| c.uid == *uid);
    let reason = decision.rejected.iter().find(|r| r.uid == *uid).map(|r| r.reason);
    let verdicts: Vec<_> = FILTERS.iter().map(verdict).collect();
    let refusal = |reason: Reason| verdicts.iter().find(|v| v.reason == reason.word()).map(|v| v.message.clone());
    ClusterTrace {
        name: cluster.info.name.clone(),
        message: reason.map(|reason| refusal(reason).unwrap_or_else(|| format!("it is {}", reason.phrase()))),
        verdicts,
        score: 100 - cluster.load_percent(),
        chosen: chosen.is_some(),
        replicas: chosen.and_then(|c| c.replicas),
        reason: reason.map(Reason::word),
    }
}

fn policies(question: &Question, planner: &Planner) -> Vec<PolicyTrace> {
    let rules = &planner.ctx.rules;
    let verdict = |p: &LeveledPolicy| match p.policy.fault() {
        _ if !p.policy.is_about(question.workload) => "is about other objects".to_owned(),
        _ if p.policy.is_constraint() => "constrains".to_owned(),
        Some(fault) => format!("is passed over: {fault}"),
        None if rules.winner == Some(p) => match question.workload.pin {
            Some(_) => "decides, but for the pin".to_owned(),
            None => "decides".to_owned(),
        },
        None => "is less specific, of lower priority or younger".to_owned(),
    };
    // What it changes on copies counts whether or not it decides where they are.
    let verdict = |p: &LeveledPolicy| {
        let spec = &p.policy.spec;
        let holds = p.policy.fault().is_none() && p.policy.is_about(question.workload);
        match holds && !(spec.overrides.is_empty() && spec.yields.is_empty()) {
            true => format!("{}, and changes copies", verdict(p)),
            false => verdict(p),
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
    /// As `status` of a `PlacementExplanation`.
    pub fn to_value(&self) -> Value {
        let verdict = |v: &Verdict| match v.passed {
            true if v.message.is_empty() => json!({"filter": v.filter, "passed": true}),
            true => json!({"filter": v.filter, "passed": true, "message": v.message}),
            false => json!({"filter": v.filter, "passed": false, "reason": v.reason, "message": v.message}),
        };
        let cluster = |c: &ClusterTrace| {
            let verdicts: Vec<_> = c.verdicts.iter().map(verdict).collect();
            let mut trace = json!({"name": c.name, "chosen": c.chosen, "score": c.score, "verdicts": verdicts});
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
        json!({
            "summary": self.summary,
            "notes": self.notes,
            "policies": self.policies.iter().map(policy).collect::<Vec<_>>(),
            "clusters": self.clusters.iter().map(cluster).collect::<Vec<_>>(),
        })
    }

    /// For people: a line per policy and per physical cluster, refusals in sentences.
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
        text
    }
}

#[cfg(test)]
mod tests;
