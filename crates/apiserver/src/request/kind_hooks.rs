//! Behavior of single built-in resources, as data: code asks for a hook and never compares the names of kinds.

use portolan_kinds::Kind;

/// Handler of a create-only resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateOnly {
    /// Binds the pod that the object names.
    Binding,
    /// Answers a question about access; `names_user` if it must name whom it is about.
    AccessReview { names_user: bool },
    /// Lists the rules of the caller.
    SelfRules,
    /// Returns the caller.
    SelfSubject,
    /// Verifies a token.
    TokenReview,
    /// Lists the logical clusters that the caller may enter.
    ClusterAccess,
    /// Exchanges a token for a client certificate.
    TokenCredential,
    /// Asks the hooks of the embedding program.
    Hooks,
}

/// Resource whose objects are computed and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComputedResource {
    /// The logical cluster's view of itself.
    LogicalCluster,
    /// The server as kcp's only shard, in root.
    Shards,
    /// Health of the components of the server.
    Components,
}

/// Behavior that a resource has besides that of all resources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KindHooks {
    /// Handler of a resource that is created and never stored.
    pub(crate) create_only: CreateOnly,
    /// Source of computed objects.
    pub(crate) computed: Option<ComputedResource>,
    /// Warning for a deletion that does not say what happens to dependents.
    pub(crate) orphan_warning: Option<&'static str>,
    /// Warning for every request.
    pub(crate) deprecation: Option<&'static str>,
    /// True if a deletion marks the object in a write of its own before it removes it.
    pub(crate) marks_before_removal: bool,
    /// True if the user who creates an object is recorded in it.
    pub(crate) records_requester: bool,
    /// True if an object is a namespace, and counts as being in itself.
    pub(crate) is_namespace: bool,
    /// True if the name `~` of root stands for an object of the caller's own.
    pub(crate) has_home: bool,
    /// True if kube-apiserver serves reads from a cache, which words errors about a resourceVersion in its own way.
    pub(crate) is_cached: bool,
}

/// Hooks of a resource without special behavior.
const PLAIN: KindHooks = KindHooks {
    create_only: CreateOnly::Hooks,
    computed: None,
    orphan_warning: None,
    deprecation: None,
    marks_before_removal: false,
    records_requester: false,
    is_namespace: false,
    has_home: false,
    is_cached: true,
};

const fn create_only(create_only: CreateOnly) -> KindHooks {
    KindHooks { create_only, ..PLAIN }
}

/// Hooks by group and resource.
static HOOKS: [(&str, &str, KindHooks); 20] = [
    ("", "bindings", create_only(CreateOnly::Binding)),
    (
        "",
        "componentstatuses",
        KindHooks {
            computed: Some(ComputedResource::Components),
            deprecation: Some("v1 ComponentStatus is deprecated in v1.19+"),
            ..PLAIN
        },
    ),
    (
        "",
        "endpoints",
        KindHooks {
            deprecation: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
            ..PLAIN
        },
    ),
    ("", "events", KindHooks { is_cached: false, ..PLAIN }),
    ("", "namespaces", KindHooks { is_namespace: true, ..PLAIN }),
    // Watchers see a pod marked before it is removed, even without a grace period.
    ("", "pods", KindHooks { marks_before_removal: true, ..PLAIN }),
    ("authentication.k8s.io", "selfsubjectreviews", create_only(CreateOnly::SelfSubject)),
    ("authentication.k8s.io", "tokenreviews", create_only(CreateOnly::TokenReview)),
    ("authorization.k8s.io", "localsubjectaccessreviews", create_only(CreateOnly::AccessReview { names_user: true })),
    ("authorization.k8s.io", "selfsubjectaccessreviews", create_only(CreateOnly::AccessReview { names_user: false })),
    ("authorization.k8s.io", "selfsubjectrulesreviews", create_only(CreateOnly::SelfRules)),
    ("authorization.k8s.io", "subjectaccessreviews", create_only(CreateOnly::AccessReview { names_user: true })),
    (
        "batch",
        "jobs",
        KindHooks {
            orphan_warning: Some(
                "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to \
                 remove them or set propagationPolicy=Orphan to suppress this warning",
            ),
            ..PLAIN
        },
    ),
    ("certificates.k8s.io", "certificatesigningrequests", KindHooks { records_requester: true, ..PLAIN }),
    ("core.kcp.io", "logicalclusters", KindHooks { computed: Some(ComputedResource::LogicalCluster), ..PLAIN }),
    ("core.kcp.io", "shards", KindHooks { computed: Some(ComputedResource::Shards), ..PLAIN }),
    ("events.k8s.io", "events", KindHooks { is_cached: false, ..PLAIN }),
    ("login.concierge.pinniped.dev", "tokencredentialrequests", create_only(CreateOnly::TokenCredential)),
    ("portolan.dev", "selfclusteraccessreviews", create_only(CreateOnly::ClusterAccess)),
    ("tenancy.kcp.io", "workspaces", KindHooks { has_home: true, ..PLAIN }),
];

/// Returns the hooks of a resource.
pub(crate) fn hooks_of_resource(group: &str, resource: &str) -> &'static KindHooks {
    static DEFAULT: KindHooks = PLAIN;
    // Names differ in length more often than groups.
    HOOKS.iter().find(|(of, name, _)| *name == resource && *of == group).map_or(&DEFAULT, |(.., hooks)| hooks)
}

/// Returns the hooks of a kind.
pub(crate) fn hooks_of_kind(kind: &Kind) -> &'static KindHooks {
    hooks_of_resource(&kind.gvk.group, &kind.resource)
}
