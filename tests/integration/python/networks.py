"""A network for the box and one for each rank. A cable leads from each rank to the box, and there
is no route between ranks. So a rank reaches the box and nothing else."""

import contextlib
import ctypes
import datetime
import os
import subprocess
import sys
import unittest

import torch.distributed as dist

import pbox
from support import BoxTestCase, store_options

BOX = "10.77.0.1"
CABLE = "cable"  # the name of each rank's interface
_SKIPPED = 77  # SKIP_RETURN_CODE of the ctest
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _enter(path):
    """Moves this thread, and its later threads and children, into the network."""
    with open(path, "rb") as network:
        _check(_libc.setns(network.fileno(), _CLONE_NEWNET), f"cannot enter the network {path}")


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Networks:
    """Networks of a box and of `world_size` ranks, which end with the processes in them and with
    close(). `ranks` has the path of each rank's network."""

    def __init__(self, world_size):
        self._files = []
        self._home = self._keep()
        try:
            self._box = self._make()
            with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as forwarding:
                forwarding.write("0")
            _ip("addr", "add", f"{BOX}/32", "dev", "lo")
            self.ranks = [self._add_rank(rank) for rank in range(world_size)]
        except BaseException:
            self.close()
            raise
        finally:
            _enter(self._home)

    def _keep(self):
        self._files.append(open("/proc/thread-self/ns/net", "rb"))
        return f"/proc/{os.getpid()}/fd/{self._files[-1].fileno()}"

    def _make(self):
        """Moves this thread into a new network. Returns the network's path."""
        _check(_libc.unshare(_CLONE_NEWNET), "cannot make a network namespace")
        _ip("link", "set", "lo", "up")
        return self._keep()

    def _add_rank(self, rank):
        path, address, box_end = self._make(), f"10.77.0.{2 + rank}", f"{CABLE}{rank}"
        _ip("link", "add", CABLE, "type", "veth", "peer", "name", box_end, "netns", self._box)
        _ip("addr", "add", f"{address}/32", "dev", CABLE)
        _ip("link", "set", CABLE, "up")
        _enter(self._box)
        _ip("link", "set", box_end, "up")
        _ip("route", "add", f"{address}/32", "dev", box_end)
        _enter(path)
        _ip("route", "add", f"{BOX}/32", "dev", CABLE)
        return path

    @contextlib.contextmanager
    def at_box(self):
        """Inside this context, this thread, its threads and children are in the box's network."""
        _enter(self._box)
        try:
            yield
        finally:
            _enter(self._home)

    def close(self):
        for file in self._files:
            file.close()


class NetworksTestCase(BoxTestCase):
    """A test whose box and ranks are in networks of their own. Skipped where none can be
    made."""

    RANKS = 2

    @classmethod
    def setUpClass(cls):
        impossible = why_impossible()
        if impossible is not None:
            raise unittest.SkipTest(impossible)
        cls.networks = Networks(cls.RANKS)
        cls.addClassCleanup(cls.networks.close)
        with cls.networks.at_box():
            cls.box = pbox.LocalBox(f"--box.listen={BOX}", "--security.insecure=true",
                                    "--security.insecure_off_loopback=true")
        cls.addClassCleanup(cls.box.close)

    def run_apart(self, function, *arguments):
        """Runs `function(options, *arguments)` in one process per rank. Returns the results. The
        function must call start_group(), which enters the rank's network. The group's store is in
        the box's network."""
        with self.networks.at_box():
            store = dist.TCPStore(BOX, 0, None, True, wait_for_workers=False, **store_options())
        return self.run_ranks(function, self.RANKS, *arguments, networks=self.networks.ranks,
                              store_port=store.port)


def start_group(options, backend, timeout_s=60):
    """Enters this rank's network and makes the default group."""
    _enter(options["networks"][options["rank"]])
    os.environ["PBOX_BOX"] = options["box"]
    os.environ["PBOX_JOB"] = options["job"]
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    timeout = datetime.timedelta(seconds=timeout_s)
    store = dist.TCPStore(BOX, options["store_port"], None, False, timeout, **store_options())
    dist.init_process_group(backend, store=store, rank=options["rank"],
                            world_size=options["world_size"], timeout=timeout)


def why_impossible():
    """Returns why no such networks can be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        Networks(1).close()
    except FileNotFoundError:
        return "there is no program ip (iproute2)"
    except OSError as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"this kernel makes no virtual cable: {error.stderr.strip()}"
    return None


def main():
    """Runs the tests of a program, all of which need networks. Where no networks can be made, exits
    with the status that ctest counts as skipped."""
    impossible = why_impossible()
    if impossible is not None:
        print(f"skipped: {impossible}")
        sys.exit(_SKIPPED)
    unittest.main()
