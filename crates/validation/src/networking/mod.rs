//! The group networking.k8s.io.

mod addresses;
mod ingresses;
mod policies;

use super::rules::{
    Rules,
    Step::{Became, Is, Metadata, MetadataChange},
};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "Ingress",
        Rules {
            create: &[Metadata, Is(ingresses::good), Is(ingresses::annotation)],
            update: &[MetadataChange, Metadata, Is(ingresses::good)],
            subresources: &[("status", &[MetadataChange, Became(ingresses::status)])],
        },
    ),
    (
        "IngressClass",
        Rules {
            create: &[Metadata, Is(ingresses::class)],
            update: &[MetadataChange, Became(ingresses::class_update), Metadata, Is(ingresses::class)],
            subresources: &[],
        },
    ),
    (
        "NetworkPolicy",
        Rules {
            create: &[Metadata, Is(policies::new)],
            update: &[MetadataChange, Became(policies::update)],
            subresources: &[],
        },
    ),
    (
        "IPAddress",
        Rules {
            create: &[Metadata, Is(addresses::address)],
            update: &[Metadata, Is(addresses::address), MetadataChange, Became(addresses::address_update)],
            subresources: &[],
        },
    ),
    (
        "ServiceCIDR",
        Rules {
            create: &[Metadata, Is(addresses::cidrs)],
            update: &[MetadataChange, Became(addresses::cidrs_update)],
            subresources: &[],
        },
    ),
];
