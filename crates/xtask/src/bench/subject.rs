//! A server being measured, whichever it is.

use std::path::Path;

use anyhow::Result;

use crate::harness::control_plane::{ControlPlane, Durability};
use crate::harness::kubeconfig::Kubeconfig;
use crate::harness::{portolan::Portolan, tools::Tools};

/// Running, and started by us.
pub(super) enum Subject {
    Kube(ControlPlane),
    Portolan(Portolan),
}

impl Subject {
    /// etcd with its log synced, kube-apiserver with its defaults, and nothing else.
    pub(super) fn kube(tools: &Tools, dir: &Path) -> Result<Self> {
        ControlPlane::start(tools, dir, Durability::Synced).map(Self::Kube)
    }

    /// `portolan server` with its defaults.
    pub(super) fn portolan(program: &Path, tools: &Tools, dir: &Path) -> Result<Self> {
        Portolan::start(program, tools, dir).map(Self::Portolan)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Kube(_) => "kube-apiserver + etcd",
            Self::Portolan(_) => "portolan",
        }
    }

    /// All processes of the server.
    pub(super) fn pids(&self) -> Vec<u32> {
        match self {
            Self::Kube(plane) => plane.pids(),
            Self::Portolan(server) => vec![server.pid()],
        }
    }

    /// An administrator by client certificate, as both servers hand one out.
    pub(super) fn kubeconfig(&self) -> &Kubeconfig {
        match self {
            Self::Kube(plane) => plane.kubeconfig(),
            Self::Portolan(server) => server.kubeconfig(),
        }
    }

    /// Stops it cleanly.
    pub(super) fn stop(&self) -> Result<()> {
        match self {
            Self::Kube(plane) => plane.stop(),
            Self::Portolan(server) => server.stop(),
        }
    }

    /// Starts it on its data and returns as soon as `/readyz` says so.
    pub(super) fn start_again(&mut self) -> Result<()> {
        match self {
            Self::Kube(plane) => plane.restart(),
            Self::Portolan(server) => server.restart(),
        }
    }
}
