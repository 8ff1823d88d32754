//! Standard output and standard error of a command.

use std::io::{self, IsTerminal as _, Write};

use crate::cli::output;

/// Output streams of a command. Results go to standard output; warnings, hints and progress to standard error.
pub(crate) struct Terminal {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    has_bars: bool,
}

impl Terminal {
    /// Returns the streams of this process. Progress bars are drawn if standard error is a terminal that can.
    pub(crate) fn system() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let has_bars = io::stderr().is_terminal() && !is_dumb;
        Self { out: Box::new(io::stdout()), err: Box::new(io::stderr()), has_bars }
    }

    /// Returns streams that write to `out` and `err`, without progress bars.
    #[cfg(test)]
    pub(crate) fn to(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        Self { out: Box::new(out), err: Box::new(err), has_bars: false }
    }

    /// Returns true if progress bars can be drawn.
    pub(crate) fn has_bars(&self) -> bool {
        self.has_bars
    }

    /// Prints text to standard output, made [`output::visible`].
    ///
    /// # Errors
    /// A failed write; [`output::OutputClosed`] if the reader has left.
    pub(crate) fn print(&mut self, text: &str) -> anyhow::Result<()> {
        output::explained(self.out.write_all(output::visible(text).as_bytes()).and_then(|()| self.out.flush()))
    }

    /// Prints a line to standard output.
    ///
    /// # Errors
    /// As for [`Terminal::print`].
    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.print(&format!("{text}\n"))
    }

    /// Prints a line to standard error, made [`output::visible`]. A failure is ignored, because it cannot be reported.
    pub(crate) fn note(&mut self, text: &str) {
        let _ = writeln!(self.err, "{}", output::visible(text)).and_then(|()| self.err.flush());
    }
}

/// Stream that keeps its text, for tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct CapturedOutput(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl CapturedOutput {
    /// Returns all text that was written.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
