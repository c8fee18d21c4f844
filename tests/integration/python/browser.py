"""A headless Chromium, controlled over its debugging pipe (Chrome DevTools Protocol)."""

import base64
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time


class Browser:
    """One page. `problems` lists the warnings and errors that it wrote to its console."""

    def __init__(self, program, timeout_s=60):
        self.problems = []
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="pbox-browser-")
        read_end, self._out = os.pipe()
        self._in, write_end = os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--disable-dev-shm-usage", "--no-first-run", "--window-size=1200,1000",
                   f"--user-data-dir={self._folder.name}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read_end} 4>&{write_end}', "bash", *command],
            pass_fds=(read_end, write_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        os.close(read_end)
        os.close(write_end)
        self._pending = b""
        self._number = 0
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target,
                                  flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        os.killpg(self._process.pid, signal.SIGKILL)  # Chromium starts processes of its own
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._folder.cleanup()
            except OSError:  # a process that is ending may still write files
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._next(deadline)
            self._note(answer)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.protocol === 'http:'")

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression):
        """Waits until the expression is true."""
        deadline = time.monotonic() + self._timeout_s
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise AssertionError(f"the expression did not become true: {expression}")
            time.sleep(0.1)

    def prefer(self, scheme):
        """Sets the preferred color scheme, "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self):
        """Returns a screenshot as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def _next(self, deadline):
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_READ)
            while b"\0" not in self._pending:
                if not selector.select(max(0, deadline - time.monotonic())):
                    raise AssertionError("the browser does not answer")
                read = os.read(self._in, 65536)
                if not read:
                    raise AssertionError("the browser has ended")
                self._pending += read
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error"):
            self.problems.append(str(parameters["entry"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("warning", "error"):
            self.problems.append(str(parameters["args"]))
