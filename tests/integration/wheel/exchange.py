"""One rank that uses an installed wheel: it must find the libraries in the wheel, and sum."""

import os
import pathlib
import sys

import numpy

import pbox
from pbox import _library

folder = pathlib.Path(sys.argv[1]).resolve()
assert folder in pathlib.Path(pbox.__file__).resolve().parents, pbox.__file__
assert (pathlib.Path(pbox.__file__).parent / "py.typed").exists(), "the wheel lacks py.typed"
with pbox.LocalBox() as box:
    del os.environ["PBOX_BUILD_DIR"]  # from here on nothing leads to the build
    assert folder in pathlib.Path(_library.load()._name).resolve().parents, _library.load()._name
    with pbox.Client(box=box.control, mode="collective", rank=0, world_size=1) as client:
        client.join()
        array = numpy.arange(100000, dtype="float32")
        client.wait_collective(client.collective("all_reduce", array))
        assert (array == numpy.arange(100000)).all(), "the sum of one rank is its value"
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="ascii")
    assert "libprotobuf-lite.so" in maps and "/usr/lib" not in "".join(
        line for line in maps.splitlines() if "libprotobuf" in line), "a library of the system"
print("the wheel works")
