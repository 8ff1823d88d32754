//! Context of a running command: flags, kubeconfig files, streams, and a session with the server.

use std::time::Duration;

use super::{
    flags::KubectlFlags,
    kubeconfig_files::{KubeconfigFiles, UserEnvironment},
    session::ApiSession,
    terminal::Terminal,
};

/// Interval at which a command reads an object that it waits for.
pub(crate) const POLL: Duration = Duration::from_millis(200);

/// Context of a command. Tests run commands with streams and a home directory of their own.
pub(crate) struct PluginContext {
    pub(crate) flags: KubectlFlags,
    pub(crate) environment: UserEnvironment,
    pub(crate) terminal: Terminal,
    session: Option<ApiSession>,
}

impl PluginContext {
    /// Makes the context. It reads no file and sends no request.
    pub(crate) fn new(flags: KubectlFlags, environment: UserEnvironment, terminal: Terminal) -> Self {
        Self { flags, environment, terminal, session: None }
    }

    /// Loads the kubeconfig files.
    ///
    /// # Errors
    /// The errors of [`KubeconfigFiles::load`].
    pub(crate) fn files(&self) -> anyhow::Result<KubeconfigFiles> {
        KubeconfigFiles::load(self.flags.kubeconfig.as_deref(), &self.environment)
    }

    /// Makes the session with the server, once per command.
    ///
    /// # Errors
    /// The errors of [`ApiSession::open`].
    pub(crate) async fn connect(&mut self) -> anyhow::Result<()> {
        if self.session.is_none() {
            self.session = Some(ApiSession::open(&self.files()?, &self.flags).await?);
        }
        Ok(())
    }

    /// Returns the session.
    ///
    /// # Panics
    /// Panics before [`PluginContext::connect`], which every command that needs the server calls first.
    pub(crate) fn session(&self) -> &ApiSession {
        self.session.as_ref().expect("the command connects before it asks")
    }

    /// Prints the server's warnings since the last call, as kubectl does.
    pub(crate) fn print_warnings(&mut self) {
        let warnings = self.session.as_ref().map(ApiSession::take_warnings);
        for warning in warnings.into_iter().flatten() {
            self.terminal.note(&format!("Warning: {warning}"));
        }
    }
}
