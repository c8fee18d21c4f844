"""Ranks in networks of their own, which reach the box and not one another, train over the backend
pbox."""

import os
import socket

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import networks
import pbox.torch
from support import gradients_of, init_process_group, make_model, shard_loss, weights_of

STEPS = 4


def _trained(rank):
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    collected = []
    for step in range(STEPS):
        optimizer.zero_grad()
        shard_loss(model, step, rank).backward()
        optimizer.step()
        collected += gradients_of(model)
    dist.destroy_process_group()
    return collected + weights_of(model)


def train_apart(options):
    networks.start_group(options, "pbox")
    return _trained(options["rank"])


def train_over_gloo(options, store):
    init_process_group(options, store)
    return _trained(options["rank"])


def reach(options):
    """Returns whether a rank reaches the box and the other rank."""
    networks.start_group(options, "pbox")
    addresses = [None, None]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((networks.BOX, 9))
        dist.all_gather_object(addresses, probe.getsockname()[0])
    with socket.socket() as listener:
        listener.bind((addresses[options["rank"]], 0))
        listener.listen()
        ports = [None, None]
        dist.all_gather_object(ports, listener.getsockname()[1])
        other = 1 - options["rank"]
        try:
            socket.create_connection((addresses[other], ports[other]), timeout=5).close()
            reached = None
        except OSError as error:
            reached = os.strerror(error.errno)
        dist.barrier()
    return addresses, reached


def fail_over_gloo(options):
    try:
        networks.start_group(options, "gloo", timeout_s=5)
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        return str(error)
    return None


class NetworksTest(networks.NetworksTestCase):
    def test_ranks_do_not_reach_one_another(self):
        for addresses, reached in self.run_apart(reach):
            self.assertEqual(addresses, ["10.77.0.2", "10.77.0.3"])
            self.assertEqual(reached, "Network is unreachable")

    def test_gloos_group_cannot_be_made_there(self):
        for error in self.run_apart(fail_over_gloo):
            self.assertIsNotNone(error)

    def test_ddp_has_the_bits_of_gloo_on_loopback(self):
        # The sum of two numbers does not depend on their order.
        ours = self.run_apart(train_apart)
        gloos = self.run_ranks(train_over_gloo, 2, self.temporary_path("store"))
        for mine, other in zip(ours, gloos):
            self.assertEqual(len(mine), (STEPS + 1) * 6)
            for array, expected in zip(mine, other, strict=True):
                numpy.testing.assert_array_equal(array, expected)


if __name__ == "__main__":
    networks.main()
