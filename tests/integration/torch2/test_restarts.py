"""torchrun starts the ranks again and again: each start is a new job on the box, and trains."""

import os
import pathlib
import subprocess
import sys
import unittest

import support

RESTARTS = 20


class Restarts(support.BoxTestCase):
    def test_ranks_that_raise_or_are_killed_in_each_of_20_starts(self):
        done = self.temporary_path("done")
        script = pathlib.Path(__file__).with_name("restarted_rank.py")
        command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node=2", f"--max-restarts={RESTARTS}", "--monitor-interval=0.1",
                   str(script), str(RESTARTS), done]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False,
                               env={**os.environ, "PBOX_BOX": self.box.control})
        self.assertEqual(ended.returncode, 0, ended.stderr[-4000:])
        self.assertEqual(pathlib.Path(done).read_text(encoding="ascii"), str(RESTARTS))


if __name__ == "__main__":
    unittest.main()
