//! The group `batch`: jobs and cron jobs.

pub(super) mod cron;
mod cron_jobs;
mod failure_policy;
mod indexes;
mod job_status;
mod jobs;

use super::rules::{
    Rules,
    Step::{Became, Given, Is, Metadata, MetadataChange},
};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "Job",
        Rules {
            create: &[Metadata, Given(jobs::generated_selector), Is(jobs::check)],
            update: &[Metadata, Given(jobs::generated_selector), Is(jobs::check), MetadataChange, Became(jobs::update)],
            subresources: &[("status", &[MetadataChange, Became(job_status::update)])],
        },
    ),
    (
        "CronJob",
        Rules {
            create: &[Metadata, Is(cron_jobs::new)],
            update: &[MetadataChange, Became(cron_jobs::update)],
            subresources: &[],
        },
    ),
];
