//! The group admissionregistration.k8s.io.

mod bindings;
mod expressions;
mod matching;
mod policies;
mod webhooks;

use super::rules::{
    Rules,
    Step::{Given, Is, Metadata},
};

pub(super) use webhooks::client as webhook_client;

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "MutatingWebhookConfiguration",
        Rules {
            create: &[Metadata, Given(webhooks::mutating)],
            update: &[Metadata, Given(webhooks::mutating)],
            subresources: &[],
        },
    ),
    (
        "ValidatingWebhookConfiguration",
        Rules {
            create: &[Metadata, Given(webhooks::validating)],
            update: &[Metadata, Given(webhooks::validating)],
            subresources: &[],
        },
    ),
    (
        "ValidatingAdmissionPolicy",
        Rules {
            create: &[Metadata, Given(policies::validating)],
            update: &[Metadata, Given(policies::validating)],
            subresources: &[("status", &[Is(policies::status)])],
        },
    ),
    (
        "MutatingAdmissionPolicy",
        Rules {
            create: &[Metadata, Given(policies::mutating)],
            update: &[Metadata, Given(policies::mutating)],
            subresources: &[],
        },
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        Rules {
            create: &[Metadata, Is(bindings::validating)],
            update: &[Metadata, Is(bindings::validating)],
            subresources: &[],
        },
    ),
    (
        "MutatingAdmissionPolicyBinding",
        Rules {
            create: &[Metadata, Is(bindings::mutating)],
            update: &[Metadata, Is(bindings::mutating)],
            subresources: &[],
        },
    ),
];
