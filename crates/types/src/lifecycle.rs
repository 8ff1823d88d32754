//! Stages of a logical cluster in which it waits for steps, as kcp names them: initializers before it is ready, and
//! terminators before its content is deleted.

use sha2::{Digest as _, Sha224};

/// Initializer that ends when the default bindings of the types are bound; kcp's.
pub const BINDINGS_INITIALIZER: &str = "system:apibindings";
/// Longest value of a label, and so the length of the key of a step's label in kcp.
const LABEL_LENGTH: usize = 63;

/// Stage of a logical cluster that has steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifecycleStage {
    /// Before it is ready; its steps are initializers.
    Initializing,
    /// Before its content is deleted; its steps are terminators.
    Terminating,
}

impl LifecycleStage {
    /// Both stages, in their order.
    pub const ALL: [Self; 2] = [Self::Initializing, Self::Terminating];

    /// Returns the name of its virtual workspace in URLs.
    pub fn view(self) -> &'static str {
        match self {
            Self::Initializing => "initializingworkspaces",
            Self::Terminating => "terminatingworkspaces",
        }
    }

    /// Returns the word for a step, which is also the field of a WorkspaceType that asks for one.
    pub fn step(self) -> &'static str {
        match self {
            Self::Initializing => "initializer",
            Self::Terminating => "terminator",
        }
    }

    /// Returns the field of the steps in `spec` and `status`.
    pub fn steps(self) -> &'static str {
        match self {
            Self::Initializing => "initializers",
            Self::Terminating => "terminators",
        }
    }

    /// Returns the verb on a WorkspaceType that lets a provider end its step.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Initializing => "initialize",
            Self::Terminating => "terminate",
        }
    }

    /// Returns the label of a pending step, as `initialization.InitializerToLabel` of kcp does.
    pub fn label(self, step: &str) -> (String, String) {
        let prefix = format!("{}.internal.kcp.io/", self.step());
        let hash: String = Sha224::digest(step).iter().map(|byte| format!("{byte:02x}")).collect();
        (format!("{prefix}{}", &hash[..LABEL_LENGTH - prefix.len()]), hash)
    }
}

/// Returns true for the key of a label that only the server writes.
pub fn is_step_label(key: &str) -> bool {
    LifecycleStage::ALL.iter().any(|stage| {
        key.split_once('/').is_some_and(|(prefix, _)| prefix.strip_suffix(".internal.kcp.io") == Some(stage.step()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_kcp() {
        let (key, value) = LifecycleStage::Initializing.label("root:universal");
        assert_eq!((key.len(), value.len()), (63, 56));
        assert!(key.starts_with("initializer.internal.kcp.io/") && value.starts_with(key.split_once('/').unwrap().1));
        assert!(is_step_label(&key) && is_step_label(&LifecycleStage::Terminating.label("root:a").0));
        assert!(!is_step_label("example.internal.kcp.io/a") && !is_step_label("app"));
    }
}
