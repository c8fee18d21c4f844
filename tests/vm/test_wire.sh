#!/usr/bin/env bash
# In the guest: `pbox-perf wire --port rdma` measures over Soft-RoCE. That it works, not how fast:
# test_wire.sh PBOX_PERF
set -euo pipefail
figures=$("$1" wire --port rdma --device rxe0 --load-device rxe1 --turns 1 --seconds 2 --json |
  tail -n 1)
printf '%s\n' "$figures"
/usr/bin/python3 - "$figures" <<'END'
import json
import sys

figures = json.loads(sys.argv[1])
assert figures["goodput_gbytes"] > 0, "nothing was absorbed"
assert figures["queue_pair_errors"] == 0, "a queue pair broke"
assert figures["staged_packets"] == 0, "results did not leave from the chunk's own memory"
for name in ("ib_send_bw", "ib_write_bw"):
    assert figures["peers"][name]["wire_over_peer"] > 0, name
END
