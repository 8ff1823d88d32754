"""What the Python suites share: how a check is named and reported, and how to wait."""

import json
import time
import traceback

from kubernetes import client, config

PATIENCE = 60


class Suite:
    """Checks in order. Each may build on those before it."""

    def __init__(self):
        self.checks = []

    def check(self, says):
        """Adds a function under the sentence that it looks after."""
        def add(function):
            self.checks.append((says, function))
            return function
        return add

    def run(self):
        """Prints a line for each check, after what went wrong in it, and one at the end. Returns the exit code."""
        failed = 0
        for says, function in self.checks:
            start = time.monotonic()
            try:
                function()
                passed = True
            except Exception:
                traceback.print_exc(file=_Stdout())
                passed, failed = False, failed + 1
            line = {"says": says, "seconds": round(time.monotonic() - start, 3), "passed": passed}
            print("check " + json.dumps(line), flush=True)
        print("end", flush=True)
        return 1 if failed else 0


class _Stdout:
    def write(self, text):
        print(text, end="", flush=True)


def connect():
    """The logical cluster that $KUBECONFIG names."""
    config.load_kube_config()
    return client.ApiClient()


def until(what, look):
    """Looks again and again until it gives something true, and gives that."""
    start = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() - start > PATIENCE:
            raise AssertionError(f"{what}: not within {PATIENCE} s")
        time.sleep(0.05)


def gone(what, get):
    """Waits until a get is answered 404."""
    def look():
        try:
            get()
            return False
        except client.ApiException as error:
            if error.status == 404:
                return True
            raise
    until(what + " is gone", look)


def refused(status, reason, call):
    """Wants a call to be refused, and gives the Status."""
    try:
        call()
    except client.ApiException as error:
        answer = json.loads(error.body)
        assert error.status == status and answer["reason"] == reason, f"{error.status} {error.body}"
        return answer
    raise AssertionError(f"not refused with {status} {reason}")
