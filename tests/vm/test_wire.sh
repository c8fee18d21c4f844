#!/usr/bin/env bash
# In the guest: `pbox-perf wire --port rdma` works over Soft-RoCE; speed is not tested:
# test_wire.sh PBOX_PERF
set -euo pipefail
figures=$("$1" wire --port rdma --device rxe0 --load-device rxe1 --turns 1 --seconds 2 --json |
  tail -n 1)
printf '%s\n' "$figures"
/usr/bin/python3 - "$figures" <<'END'
import json
import sys

figures = json.loads(sys.argv[1])
for mode in ("send", "write_imm"):
    of_mode = figures["modes"][mode]
    assert of_mode["goodput_gbytes"] > 0, "nothing was absorbed"
    assert of_mode["queue_pair_errors"] == 0, "a queue pair broke"
    assert of_mode["staged_packets"] == 0, "results did not leave from the chunk's own memory"
    assert (of_mode["landed_packets"] > 0) == (mode == "write_imm"), "not the mode"
    for name in ("ib_send_bw", "ib_write_bw"):
        assert of_mode["peers"][name]["wire_over_peer"] > 0, name
END
