"""A pboxd on this machine's loopback, for a first try, a notebook or a test."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from ._library import checkout_folder
from .errors import Unavailable

_PR_SET_PDEATHSIG = 1
# Keep the box apart from the machine's own box: it uses neither its configuration nor its ports.
_ARGUMENTS = ("--config=/dev/null", "--control.port=0", "--admin.port=0", "--data.port_first=0",
              "--cluster.state_directory=none", "--recorder.directory=none")


def find_pboxd() -> str:
    """Returns the pboxd of PBOX_BUILD_DIR, of the checkout's release build, or of PATH."""
    folder = os.environ.get("PBOX_BUILD_DIR") or checkout_folder() / "build" / "release"
    path = pathlib.Path(folder) / "bin" / "pboxd"
    if path.exists():
        return str(path)
    installed = shutil.which("pboxd")
    if installed is None:
        raise Unavailable(
            f"pboxd is neither at {path} nor in PATH: build it, or set PBOX_BUILD_DIR")
    return installed


class LocalBox:
    """Starts pboxd on free ports. close(), or the end of the `with` block, stops it.

    `arguments` are arguments of pboxd, "--key=value", and override those that this class sets.
    `control` and `admin` are the box's addresses, "host:port". `process` is the running pboxd. With
    `keep`, the box outlives this process unless it is closed.

        with pbox.LocalBox() as box, pbox.Client(box=box.control, ...) as client:
    """

    control: str
    admin: str
    log_path: str
    process: subprocess.Popen[bytes]

    def __init__(self, *arguments: str, keep: bool = False, ready_timeout_s: float = 30) -> None:
        given = {argument.partition("=")[0] for argument in arguments}
        command = [find_pboxd(), *arguments, *(argument for argument in _ARGUMENTS
                                               if argument.partition("=")[0] not in given)]
        # A file, not a pipe: it need not be drained, and it can be read after the box has died.
        self._log = tempfile.NamedTemporaryFile(prefix="pboxd-", suffix=".log", delete=not keep)
        self.log_path = self._log.name
        # In its own session, so that Ctrl-C reaches only the trainer, which then stops the box.
        start = functools.partial(
            subprocess.Popen, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self._log, start_new_session=True)
        self._closed = threading.Event()
        self.process = start() if keep else _start_with_parent(start, self._closed)
        try:
            self.control, self.admin = self._read_addresses(ready_timeout_s)
        except BaseException:
            self.close()
            raise

    def _read_addresses(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(max(0, deadline - time.monotonic())):
                piece = os.read(self.process.stdout.fileno(), 4096)
                text += piece
                for line in text.decode(errors="replace").splitlines(keepends=True):
                    if line.startswith("pboxd ready ") and line.endswith("\n"):
                        fields = dict(field.split("=", 1) for field in line.split()[2:])
                        return fields["control"], fields["admin"]
                if not piece:
                    self.process.wait()
                    raise Unavailable(f"pboxd exited with status {self.process.returncode}: "
                                      f"{self.log_tail()}")
        raise Unavailable(f"pboxd was not ready after {timeout_s} s: {self.log_tail()}")

    def log_tail(self, bytes_max: int = 2000) -> str:
        """Returns the end of what the box wrote to its standard error."""
        text = pathlib.Path(self.log_path).read_text(errors="replace")
        return text[-bytes_max:].strip() or "it wrote nothing to its log"

    def close(self, grace_s: float = 10) -> None:
        """Stops the box with SIGTERM, and with SIGKILL if it is still running after grace_s."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._closed.set()
        self.process.stdout.close()
        self._log.close()

    def __enter__(self) -> LocalBox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _die_with_parent():
    """Returns a preexec_fn that makes a child end if the thread that starts it ends."""
    prctl = ctypes.CDLL(None).prctl  # looked up here: a forked child should load nothing
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _start_with_parent(start, closed):
    """Starts a box that ends if this process is killed. `start` makes its Popen, `closed` is set
    once it has ended."""
    start = functools.partial(start, preexec_fn=_die_with_parent())
    if threading.current_thread() is threading.main_thread():
        return start()
    # Linux takes the thread that has forked for the parent, so that thread must outlive the box.
    started = concurrent.futures.Future()

    def run():
        try:
            started.set_result(start())
        except BaseException as error:  # pylint: disable=broad-except; result() raises it
            started.set_exception(error)
        else:
            closed.wait()

    threading.Thread(target=run, name="pbox-local-box", daemon=True).start()
    return started.result()
