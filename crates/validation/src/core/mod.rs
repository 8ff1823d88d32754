//! The core group.

mod claims;
mod config;
mod controllers;
mod endpoints;
mod events;
mod limits;
mod nodes;
mod persistent_volumes;
mod pods;
mod quotas;
mod services;

use super::rules::{
    Rules,
    Step::{Became, Is, Metadata, MetadataChange},
};
pub(super) use claims::spec as claim_spec;

pub(super) use events::EVENTS;
pub(super) use persistent_volumes::inline as inline_volume;
pub(super) use pods::{
    container_resource, csi_driver, is_extended, node_selector, quantity, requirements, template, template_annotations,
    tolerations,
};
pub(super) use services::{addresses as service_addresses, ingress_points};

pub(super) static RULES: &[(&str, Rules)] = &[
    (
        "ConfigMap",
        Rules {
            create: &[Metadata, Is(config::config_map)],
            update: &[MetadataChange, Became(config::config_map_update), Metadata, Is(config::config_map)],
            subresources: &[],
        },
    ),
    (
        "Endpoints",
        Rules {
            create: &[Metadata, Is(endpoints::check)],
            update: &[MetadataChange, Metadata, Became(endpoints::update)],
            subresources: &[],
        },
    ),
    ("Event", Rules { create: &[Is(events::legacy)], update: &[Is(events::legacy)], subresources: &[] }),
    (
        "LimitRange",
        Rules { create: &[Metadata, Is(limits::check)], update: &[Metadata, Is(limits::check)], subresources: &[] },
    ),
    (
        "Namespace",
        Rules {
            create: &[Metadata, Is(config::namespace)],
            update: &[Metadata, Is(config::namespace), MetadataChange],
            subresources: &[
                ("status", &[MetadataChange, Is(config::namespace_status)]),
                ("finalize", &[MetadataChange, Is(config::namespace_finalizers)]),
            ],
        },
    ),
    (
        "Node",
        Rules {
            create: &[Metadata, Is(nodes::check)],
            update: &[Metadata, Is(nodes::check), MetadataChange, Became(nodes::update)],
            subresources: &[("status", &[MetadataChange, Became(nodes::update)])],
        },
    ),
    (
        "PersistentVolume",
        Rules {
            create: &[Metadata, Is(persistent_volumes::check), Is(persistent_volumes::mount_options)],
            update: &[
                Metadata,
                Is(persistent_volumes::check),
                Is(persistent_volumes::mount_options),
                Metadata,
                Is(persistent_volumes::check),
                Became(persistent_volumes::update),
            ],
            subresources: &[],
        },
    ),
    (
        "PersistentVolumeClaim",
        Rules {
            create: &[Metadata, Is(claims::check)],
            update: &[MetadataChange, Metadata, Is(claims::check), Became(claims::update)],
            subresources: &[("status", &[MetadataChange, Is(claims::status)])],
        },
    ),
    (
        "Pod",
        Rules {
            create: &[Metadata, Is(pods::new)],
            update: &[MetadataChange, Metadata, Is(pods::pod), Became(pods::update)],
            subresources: &[
                ("status", &[MetadataChange, Became(pods::status_update)]),
                ("ephemeralcontainers", &[MetadataChange, Metadata, Is(pods::pod), Became(pods::ephemeral_update)]),
                ("resize", &[MetadataChange, Metadata, Is(pods::pod), Became(pods::resize_update)]),
            ],
        },
    ),
    (
        "PodTemplate",
        Rules {
            create: &[Metadata, Is(pods::pod_template)],
            update: &[MetadataChange, Is(pods::pod_template)],
            subresources: &[],
        },
    ),
    (
        "ReplicationController",
        Rules {
            create: &[Metadata, Is(controllers::check)],
            update: &[MetadataChange, Is(controllers::check)],
            subresources: &[("status", &[MetadataChange, Is(controllers::status)])],
        },
    ),
    (
        "ResourceQuota",
        Rules {
            create: &[Metadata, Is(quotas::spec), Is(quotas::status)],
            update: &[MetadataChange, Is(quotas::spec), Became(quotas::update)],
            subresources: &[("status", &[MetadataChange, Is(quotas::status)])],
        },
    ),
    (
        "Secret",
        Rules {
            create: &[Metadata, Is(config::secret)],
            update: &[MetadataChange, Became(config::secret_update), Metadata, Is(config::secret)],
            subresources: &[],
        },
    ),
    (
        "Service",
        Rules {
            create: &[Metadata, Is(services::new)],
            update: &[MetadataChange, Became(services::update)],
            subresources: &[("status", &[MetadataChange, Became(services::status)])],
        },
    ),
];
