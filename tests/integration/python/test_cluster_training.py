"""The demo's training through three boxes, each with its own cable, and three members of etcd. One
box after the other is killed, stopped, cut off or drained. The weights must be equal on all ranks,
bit for bit. Apart from rounding, they must equal those of training in one process."""

import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pbox
import pbox.local_box
import pbox.torch
from support import program

TREE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TREE / "tools" / "demo_training"))
import digits
import ranks
import training

SKIPPED = 77  # SKIP_RETURN_CODE of the ctest
CLONE_NEWNET = 0x40000000
WORKERS = 4
DEADLINE_S = 60
SILENT_S = 5  # longer than a lease
SWITCH = "10.79.0.1"
NOBODY = 65534  # rank 0's user id, so that its packets can be routed apart from the others'
NOWHERE_TABLE = 100


def train_in_order(rank):
    """Like training.averaged_by_the_box, but an epoch's last batch waits for the epoch's gate: a
    file that appears when the disturbance that began after the previous epoch is over."""
    dist.init_process_group("gloo", init_method=rank.rendezvous, rank=rank.index,
                            world_size=rank.world_size)
    model = digits.make_model()
    parallel = DistributedDataParallel(model)
    if rank.index == 0:
        os.seteuid(NOBODY)
    box, _, gates = rank.box.partition(" ")
    hook = pbox.torch.DDPCommHook(parallel, box=box, job="digits",
                                  **{**training.DEADLINES, "wait_timeout_ms": 1000 * DEADLINE_S})
    parallel.register_comm_hook(None, hook)
    optimizer = training.sgd(model)
    train, _ = digits.load()
    for epoch in range(rank.epochs):
        batches = list(digits.batches(train, epoch, rank.world_size))
        for number, shares in enumerate(batches):
            if number + 1 == len(batches):
                await_value(lambda: os.path.exists(f"{gates}/{epoch}"), f"gate {epoch}")
            optimizer.zero_grad()
            digits.loss_of(parallel, shares[rank.index]).backward()
            optimizer.step()
        rank.report(recoveries=hook.client.statistics()["recoveries"])
    rank.finish(digits.weights_of(model))
    hook.close()
    os.seteuid(os.getuid())
    dist.destroy_process_group()


def train_alone(epochs):
    """The oracle: the same training in this process, without boxes; ranks are added in order."""
    model = digits.make_model()
    optimizer = training.sgd(model)
    train, test = digits.load()
    for epoch in range(epochs):
        for shares in digits.batches(train, epoch, WORKERS):
            sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for share in shares:
                optimizer.zero_grad()
                digits.loss_of(model, share).backward()
                for total, parameter in zip(sums, model.parameters()):
                    total += parameter.grad
            for total, parameter in zip(sums, model.parameters()):
                parameter.grad = total / WORKERS
            optimizer.step()
    return digits.weights_of(model), digits.accuracy(model, test)


def await_value(read, what, timeout_s=3 * DEADLINE_S):
    """Returns what `read` returns, once that counts as true."""
    deadline = time.monotonic() + timeout_s
    while not (value := read()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not true after {timeout_s} s: {what}")
        time.sleep(0.02)
    return value


def configure(*lines):
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True,
                   capture_output=True)


def own_network():
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def must(status):
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Rack:
    """A switch, which is this process's network from now on, and a cable from it to each box. All
    of it ends with this process."""

    def __init__(self, boxes):
        self._c = ctypes.CDLL(None, use_errno=True)
        must(self._c.unshare(CLONE_NEWNET))
        self._switch = own_network()
        configure("link set lo up", "link add bridge type bridge stp_state 0",
                  f"addr add {SWITCH}/24 dev bridge", "link set bridge up",
                  "link add nowhere type veth peer name void", "link set nowhere up",
                  "link set void up", f"route add default dev nowhere table {NOWHERE_TABLE}")
        self.networks, self.addresses = {}, {}
        for index, box in enumerate(boxes):
            must(self._c.unshare(CLONE_NEWNET))
            self.networks[box] = own_network()
            configure("link set lo up")
            must(self._c.setns(self._switch, CLONE_NEWNET))
            self.addresses[box] = f"10.79.0.{10 + index}"
            path = f"/proc/{os.getpid()}/fd/{self.networks[box]}"
            configure(f"link add to-{box} type veth peer name cable netns {path}",
                      f"link set to-{box} master bridge up")
            with self.at(box):
                configure(f"addr add {self.addresses[box]}/24 dev cable", "link set cable up")

    @contextlib.contextmanager
    def at(self, box):
        """Processes that are started inside this context run on the box."""
        must(self._c.setns(self.networks[box], CLONE_NEWNET))
        try:
            yield
        finally:
            must(self._c.setns(self._switch, CLONE_NEWNET))

    @contextlib.contextmanager
    def cut(self, box):
        """Cuts the box off: inside this context no packet reaches or leaves it."""
        configure(f"link set to-{box} down")
        try:
            yield
        finally:
            configure(f"link set to-{box} up")


    @contextlib.contextmanager
    def cut_for_nobody(self, box):
        """Inside this context rank 0's packets to the box are lost; the other ranks reach it."""
        address = self.addresses[box]
        rule = f"pref 10 uidrange {NOBODY}-{NOBODY} to {address}/32 lookup {NOWHERE_TABLE}"
        configure(f"neigh replace {address} lladdr 02:00:00:00:00:01 dev nowhere nud permanent",
                  f"rule add {rule}")
        try:
            yield
        finally:
            configure(f"rule del {rule}")


class Etcd:
    """An etcd of three members, at the switch."""

    def __init__(self, folder):
        self.members = []
        peers = ",".join(f"m{index}=http://{SWITCH}:{2380 + 10 * index}" for index in range(3))
        for index in range(3):
            client, peer = (f"http://{SWITCH}:{port + 10 * index}" for port in (2379, 2380))
            self.members.append(subprocess.Popen(
                [find_etcd(), f"--name=m{index}", f"--data-dir={folder}/m{index}",
                 f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                 f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                 f"--initial-cluster={peers}", "--log-level=error", "--logger=zap"],
                stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                preexec_fn=pbox.local_box._die_with_parent()))
        self.endpoints = ",".join(f"{SWITCH}:{2379 + 10 * index}" for index in range(3))

    def close(self):
        for member in self.members:
            member.kill()
            member.wait()


class Cluster:
    """Boxes by name; some may be dead."""

    def __init__(self, rack, etcd):
        self.rack, self.etcd, self.boxes = rack, etcd, {}

    def start(self, name):
        address = self.rack.addresses[name]
        with self.rack.at(name):
            self.boxes[name] = pbox.LocalBox(
                f"--box.name={name}", f"--box.listen={address}", f"--admin.listen={address}",
                "--control.port=9541", "--admin.port=9540", "--security.insecure=true",
                "--security.insecure_off_loopback=true", "--pipeline.count=1",
                "--pipeline.pin=off", "--cluster.store=etcd", "--cluster.name=digits",
                f"--cluster.endpoints={self.etcd.endpoints}", "--cluster.lease_ttl_s=2",
                "--cluster.rebalance=false")
        self.await_leader()

    def kill(self, name):
        box = self.boxes.pop(name)
        box.process.kill()
        box.close()

    def page(self, name):
        """Returns the box's view of the cluster; None if it does not answer."""
        url = f"http://{self.rack.addresses[name]}:9540/api/v1/boxes"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError):
            return None

    def agreed_leader(self):
        """Returns the leader, if all boxes agree on it and on the members; otherwise None."""
        leaders = set()
        for name in self.boxes:
            page = self.page(name)
            if page is None or {box["name"] for box in page["boxes"]} != set(self.boxes):
                return None
            leaders.add(page["leader"])
        leader = leaders.pop()
        return leader if not leaders and leader in self.boxes else None

    def await_leader(self):
        """Waits until all boxes agree on the members and on a leader, and returns it. They may
        disagree at any time: a busy machine delays a box for longer than its lease."""
        return await_value(self.agreed_leader, "the boxes agree on a leader")

    def parts(self):
        """Returns the number of parts of each box. Even after an agreement the leader's page may
        lack a box whose lease has run out on a busy machine."""
        def read():
            page = self.page(self.await_leader())
            parts = {box["name"]: box["parts"] for box in page["boxes"]} if page else {}
            return parts if parts.keys() == self.boxes.keys() else None
        return await_value(read, "the leader shows all boxes")

    def follower(self):
        """Returns a box that has parts of the job and does not lead."""
        leader = self.await_leader()
        return next(name for name, parts in self.parts().items() if parts > 0 and name != leader)

    def control(self):
        return ",".join(f"{address}:9541" for address in self.rack.addresses.values())

    def drain(self, name, undo=False):
        flags = ["--undo"] if undo else ["--wait"]
        other = next(other for other in self.boxes if other != name)
        subprocess.run([program("pboxctl"), "drain", name, *flags, "--admin",
                        f"{self.rack.addresses[other]}:9540"], check=True, capture_output=True)

    def close(self):
        for name in list(self.boxes):
            self.kill(name)


def find_etcd():
    unpacked = TREE / "build" / "deb" / "etcd-server" / "usr" / "bin"
    return shutil.which("etcd", path=f"{os.environ['PATH']}:{unpacked}")


class ClusterTraining(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="pbox-cluster-")
        self.addCleanup(folder.cleanup)
        self.gates = pathlib.Path(folder.name)
        self.gates.chmod(0o755)
        rack = Rack(["a", "b", "c"])
        etcd = Etcd(folder.name)
        self.addCleanup(etcd.close)
        self.cluster = Cluster(rack, etcd)
        self.addCleanup(self.cluster.close)
        for name in rack.networks:
            self.cluster.start(name)

    def kill_a_box(self):
        self.cluster.kill(self.cluster.follower())
        self.cluster.await_leader()

    def add_a_box(self):
        lost = next(name for name in self.cluster.rack.networks if name not in self.cluster.boxes)
        self.cluster.start(lost)

    def kill_the_leader(self):
        self.cluster.kill(self.cluster.await_leader())
        self.cluster.await_leader()

    def kill_a_member_of_etcd(self):
        self.cluster.etcd.members[0].kill()
        time.sleep(SILENT_S)
        self.cluster.await_leader()

    def stop_a_box(self):
        process = self.cluster.boxes[self.cluster.follower()].process
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(SILENT_S)
        finally:
            process.send_signal(signal.SIGCONT)
        self.cluster.await_leader()

    def cut_a_box_off(self):
        with self.cluster.rack.cut(self.cluster.follower()):
            time.sleep(SILENT_S)
        self.cluster.await_leader()

    def cut_a_box_off_from_one_rank(self):
        name = self.cluster.follower()
        with self.cluster.rack.cut_for_nobody(name):
            await_value(lambda: self.cluster.parts()[name] == 0, "its parts have moved away")

    def drain_a_box(self):
        name = self.cluster.follower()
        self.cluster.drain(name)
        self.assertEqual(self.cluster.parts()[name], 0)
        self.cluster.drain(name, undo=True)

    def test_weights_are_those_of_training_alone_whatever_happens_to_boxes(self):
        happens = [self.kill_a_box, self.add_a_box, self.kill_the_leader, self.add_a_box,
                   self.stop_a_box, self.cut_a_box_off, self.drain_a_box,
                   self.cut_a_box_off_from_one_rank, self.kill_a_member_of_etcd]
        done, recoveries = [], []

        def on_epoch(reports):
            recoveries.append(min(report["recoveries"] for report in reports))
            if len(done) < len(happens):
                happens[len(done)]()
                done.append(happens[len(done)].__name__)
                print(time.strftime("%X"), done[-1], recoveries[-1], flush=True)
            (self.gates / str(len(done))).touch()

        (self.gates / "0").touch()
        weights = ranks.run(train_in_order, WORKERS, len(happens) + 1,
                            f"{self.cluster.control()} {self.gates}", on_epoch)
        self.assertEqual(len(done), len(happens))
        # The disturbances took effect: two boxes killed, one silent, two cut off, one drained.
        self.assertGreaterEqual(recoveries[-1], 6)
        expected, right = train_alone(len(happens) + 1)
        self.assertGreater(right, 0.9)
        for rank, mine in enumerate(weights):
            for tensor, values in mine.items():
                self.assertTrue(numpy.array_equal(values, weights[0][tensor]),
                                f"{tensor} of rank {rank} differs from rank 0's")
        # The box adds gradients as they arrive, which changes last bits.
        for tensor, values in weights[0].items():
            numpy.testing.assert_allclose(values, expected[tensor], rtol=0, atol=1e-4,
                                          err_msg=tensor)


if __name__ == "__main__":
    WHY = ("network namespaces need root" if os.geteuid() != 0 else
           "no etcd here; tools/test unpacks Debian's package etcd-server for it"
           if find_etcd() is None else None)
    if WHY is not None:
        print(f"skipped: {WHY}")
        sys.exit(SKIPPED)
    torch.set_num_threads(1)
    unittest.main()
