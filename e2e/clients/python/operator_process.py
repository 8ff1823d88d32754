"""An operator as its authors publish it, run beside a suite: `kopf run program.py`."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from suite import until


class Operator:
    """Starts and ends; what it says is kept over all of its starts."""

    def __init__(self, program, namespace):
        self._log = tempfile.NamedTemporaryFile("ab")
        self._process = None
        code = Path(__file__).with_name(program)
        arguments = ["run", "--standalone", "--verbose", "--namespace", namespace, str(code)]
        self._command = [sys.executable, "-m", "kopf", *arguments]

    def start(self):
        # In a session of its own, so that a terminal's Ctrl-C reaches it through the suite only.
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, start_new_session=True, env=os.environ)

    def watches(self, resource):
        """Waits until it has begun to watch a resource: `configmaps.v1`."""
        begun = f"Starting the watch-stream for {resource}"
        until("it has begun to watch", lambda: begun in self.said() or self._process.poll() is not None)
        assert self._process.poll() is None, self.said()[-8000:]

    def said(self):
        # Through a file of its own: a seek would move the place at which the operator writes.
        return Path(self._log.name).read_text(errors="replace")

    def wrong(self, *expected):
        """Errors that it told of, but for those with an expected text."""
        errors = [line for line in self.said().splitlines() if "ERROR" in line]
        return [line for line in errors if not any(text in line for text in expected)]

    def stop(self):
        """Ends it as a service is ended, and wants it to have ended well."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(20)
        finally:
            self._process.kill()
        assert code == 0, f"exit code {code}\n{self.said()[-8000:]}"

    def kill(self):
        if self._process is not None:
            self._process.kill()
