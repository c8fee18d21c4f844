"""Tries to join a box that has keys, without keys. Prints the error; exits with 0 if there is one
that says so."""

import argparse
import sys

import numpy

import pbox


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--box", required=True, help="control address of the box, HOST:PORT")
    options = parser.parse_args(arguments)
    with pbox.Client(box=options.box, job="demo/average", rank=0, world_size=1) as client:
        client.register("tensor", numpy.zeros(16, dtype=numpy.float32))
        try:
            client.join()
        except pbox.PboxError as error:
            print(f"   {error}")
            return 0 if "PBOX_KEYS" in str(error) else 1
    print("   FAILED: the box admitted a worker without keys")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
