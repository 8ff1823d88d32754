//! Policies, cluster facts and a workload give a placement and its explanation. Pure.
