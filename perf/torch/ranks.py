"""Ranks as forked processes that act when they are told to, so that systems can take turns."""

import json
import os
import pathlib
import resource
import signal
import statistics
import sys
import time
import traceback


def use_tree():
    """Has `import pbox` find this checkout's package."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "worker" / "python"))


def median_ratio(runs, others):
    """Returns the median of the ratios of the times, turn by turn."""
    return statistics.median(run["ms"] / other["ms"] for run, other in zip(runs, others))


def cpu_seconds():
    """Returns the CPU time of this process, of all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process_cpu_seconds(pid):
    """Returns the CPU time of another process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Ranks:
    """Forks the ranks. `prepare(rank)` runs in each rank's process and returns the function that
    each turn calls. This process must have no threads but the main one. A rank that fails ends the
    program."""

    _ends = set()  # this process's ends of the pipes to all ranks

    def __init__(self, world_size, prepare):
        self._ranks = []
        for rank in range(world_size):
            commands, results = os.pipe(), os.pipe()
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                _serve(rank, prepare, commands, results, self._ends)
            os.close(commands[0])
            os.close(results[1])
            self._ends.update((commands[1], results[0]))
            self._ranks.append((child, commands[1], results[0]))
        self._buffers = {results: b"" for _, _, results in self._ranks}
        self._collect()  # every rank is prepared

    def turn(self):
        """Has every rank run once. Returns their results, and the time of the start."""
        start = time.monotonic()
        for _, commands, _ in self._ranks:
            os.write(commands, b"1")
        return self._collect(), start

    def _collect(self):
        return [self._read(results) for _, _, results in self._ranks]

    def _read(self, results):
        while b"\n" not in self._buffers[results]:
            piece = os.read(results, 65536)
            if not piece:
                self.close()
                raise SystemExit("a rank has failed")
            self._buffers[results] += piece
        line, _, self._buffers[results] = self._buffers[results].partition(b"\n")
        return json.loads(line)

    def close(self):
        """Ends the ranks. Rank 0 is the last, because its store serves the others: their threads of
        torch 1.13 spin once the store has gone."""
        for child, commands, results in reversed(self._ranks):
            os.close(commands)  # ends the rank
            os.close(results)
            self._ends.difference_update((commands, results))
            os.waitpid(child, 0)
        self._ranks = []


def _serve(rank, prepare, commands, results, parents_ends):
    """The main program of a rank's process, given its pipes. Does not return."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for end in (commands[1], results[0], *parents_ends):
            os.close(end)
        run = prepare(rank)
        os.write(results[1], b"null\n")
        while os.read(commands[0], 1):
            os.write(results[1], json.dumps(run()).encode() + b"\n")
        status = 0
    except BaseException:  # pylint: disable=broad-except; the process ends here
        traceback.print_exc()
    finally:
        # Threads of torch and of the box's client may run; nothing is to be saved.
        os._exit(status)  # pylint: disable=protected-access
