"""Checks the commands in the documents. Commands that only look are run, word for word, against a
real box and a job. For all others the options must exist. Every symptom and message that the
documents quote must occur in a program's source.

The box has the ports that the documents assume, in a network namespace of this test's own."""

import ctypes
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

import numpy

import pbox

TREE = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ["PBOX_BUILD_DIR"]) / "bin"
SKIPPED = 77  # SKIP_RETURN_CODE of the ctest
CLONE_NEWNET = 0x40000000
TIMEOUT_S = 60
JOB = "JOB"  # stands for a job's name in the documents

PROGRAMS = {name: BIN / name for name in ("pboxd", "pboxctl", "pbox-perf", "pbox-sim")}
PROGRAMS |= {f"tools/{name}": TREE / "tools" / name for name in ("demo", "test", "tidy")}
PROGRAMS |= {"tests/vm/run": TREE / "tests/vm/run"}
# The test only checks these commands' options against --help.
NOT_RUN = {
    "pboxd": "serves until it is stopped; this test runs one",
    "pbox-perf": "measures for minutes",
    "pbox-sim": "covered by its own tests",
    "tools/demo": "trains for a minute", "tools/test": "runs this test",
    "tools/tidy": "is a test itself",
    "tests/vm/run": "covered by its own tests; has no --help",
    "pboxctl top": "runs until it is interrupted",
    "pboxctl drain": "needs a cluster: test_service_parts drains boxes",
    "pboxctl restore": "needs a snapshot: test_service_snapshot has one",
    "pboxctl sync": "needs a job of another model than bsp: test_sync has one",
    "pboxctl snapshot": "needs a job in mode optimize: test_service_snapshot has one",
    "pboxctl plan --topology": "needs another machine's description: test_pboxctl_plan has one",
    "pboxctl keys": "needs an authority: run_examples makes one, as docs/security.md shows",
    "pboxctl doctor": "on the box it checks the machine, which may lack something here",
}
RUN_ALL_THE_SAME = ("pboxctl doctor --to",)
# Placeholders that the reader replaces.
OWN = {"BOX": "127.0.0.1"}
# Placeholders for which this test has no value.
UNKNOWN = {"SCENARIO", "COMMAND", "FILE"}
# Commands that need arguments. Without them, `pboxctl replay` only mentions the command.
NEED_ARGUMENTS = ("recorder", "replay", "trace")


def documents():
    skipped = {"build", ".git"}
    return [path for path in sorted(TREE.rglob("*.md"))
            if not skipped & set(path.relative_to(TREE).parts)]


def words_of(text):
    """Returns a command's words, without sudo, variable settings, comments and brackets."""
    text = re.sub(r"\s+", " ", text.split(" #")[0]).strip().replace("[", "").replace("]", "")
    try:
        words = shlex.split(text)
    except ValueError:  # not a command
        return []
    while words and (words[0] == "sudo" or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
        words.pop(0)
    if words:
        words[0] = re.sub("^build/release/bin/", "", words[0])
    return words


def commands():
    """Returns all commands of our programs in the documents as (document, words), each once."""
    found = {}
    for path in documents():
        text = path.read_text(encoding="utf-8")
        spans = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", text)
        spans += [line for line in text.splitlines() if line.startswith("    ")]
        for span in spans:
            words = words_of(span)
            # A program's name alone is not a command, and "pboxd ready ..." is its output.
            if len(words) < 2 or words[0] not in PROGRAMS or words[1] == "ready":
                continue
            is_name = len(words) == 2 and words[1] in NEED_ARGUMENTS
            if is_name or UNKNOWN & set(words):
                continue
            found.setdefault(tuple(words), path.relative_to(TREE))
    return [(document, list(words)) for words, document in found.items()]


def run(words, folder):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S,
                          check=False)


def help_of(words):
    """Returns the help text of the command or subcommand."""
    subcommands = words[1:2] if words[0] in ("pboxctl", "pbox-perf") else []
    said = run([str(PROGRAMS[words[0]]), *subcommands, "--help"], TREE)
    return said.stdout + said.stderr if said.returncode == 0 else None


def is_run(words):
    line = " ".join(words)
    if line.startswith(RUN_ALL_THE_SAME):
        return True
    return not any(line == name or line.startswith(name + " ") for name in NOT_RUN)


class Job(threading.Thread):
    """Exchanges one array until the test ends."""

    def __init__(self, box):
        super().__init__()
        self._client = pbox.Client(box=box, job=JOB, rank=0, world_size=1)
        self._values = numpy.ones(100_000, dtype=numpy.float32)
        self._tensor = self._client.register("layer", self._values)
        self._client.join()
        self._ends = threading.Event()

    def run(self):
        while not self._ends.wait(0.01):
            self._client.push_pull(self._tensor, self._values)
            self._client.wait(self._tensor)

    def close(self):
        self._ends.set()
        self.join()
        self._client.close()


class Documents(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.box = pbox.LocalBox("--control.port=9541", "--admin.port=9540")
        cls.addClassCleanup(cls.box.close)
        cls.job = Job(cls.box.control)
        cls.job.start()
        cls.addClassCleanup(cls.job.close)

    def test_commands_that_only_look_work_word_for_word(self):
        ran = 0
        # All commands share one folder, because some read files that others write.
        folder = tempfile.TemporaryDirectory(prefix="pbox-documents-")
        self.addCleanup(folder.cleanup)
        for document, words in commands():
            if not is_run(words):
                continue
            typed = [str(PROGRAMS[words[0]]), *(OWN.get(word, word) for word in words[1:])]
            with self.subTest(document=str(document), command=" ".join(words)):
                ended = run(typed, folder.name)
                self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
                ran += 1
        self.assertGreater(ran, 8)

    def test_options_exist(self):
        helps = {}
        for document, words in commands():
            if words[0] == "tests/vm/run":
                continue
            with self.subTest(document=str(document), command=" ".join(words)):
                key = tuple(words[:2])
                helps.setdefault(key, help_of(words))
                self.assertIsNotNone(helps[key], "no such command")
                for option in re.findall(r"(?<!\S)--?[a-z][a-z0-9_.-]*", " ".join(words)):
                    known = re.search(rf"(?<!\S){re.escape(option)}(?![a-z0-9_-])", helps[key])
                    self.assertIsNotNone(known, f"no such option: {option}")

    def test_pages_answer(self):
        pages = set()
        for path in documents():
            named = r"`(?:GET )?(/(?:metrics|healthz|readyz|api/v1/[a-z/]+))`"
            pages |= set(re.findall(named, path.read_text(encoding="utf-8")))
        self.assertIn("/metrics", pages)
        for page in sorted(pages):
            with self.subTest(page=page):
                with urllib.request.urlopen(f"http://{self.box.admin}{page}", timeout=10) as answer:
                    self.assertEqual(answer.status, 200)

    def test_what_is_said_to_be_seen_is_in_the_programs(self):
        sources = "\n".join(
            path.read_text(encoding="utf-8", errors="replace")
            for folder in ("appliance", "base", "config", "nic", "pipeline", "worker")
            for path in (TREE / folder).rglob("*") if path.suffix in (".cc", ".h", ".py"))
        # A text may be split over several string literals.
        sources = re.sub(r'"\s*\n\s*"', "", sources)
        metrics = (TREE / "docs/metrics.md").read_text(encoding="utf-8")
        page = (TREE / "docs/troubleshooting.md").read_text(encoding="utf-8")
        tables = [table.partition("\n\n")[0] for table in page.split("| you see |")[1:]]
        seen = [text for table in tables for row in table.splitlines()[2:]
                for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])
                if words_of(text)[:1] != ["systemctl"]]  # a command that shows a symptom
        self.assertGreater(len(seen), 20)
        for text in seen:
            with self.subTest(text=text):
                if text.startswith("pbox_"):
                    self.assertTrue(re.sub(r"\{.*", "", text) in metrics, "no such metric")
                    continue
                # The literal parts between names and numbers that differ from case to case.
                parts = [part.strip() for part in re.split(r"\.\.\.|\b[NW]\b|'", text)]
                for part in filter(None, parts):
                    self.assertTrue(part in sources, f"no source file contains '{part}'")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: a network namespace needs root")
        sys.exit(SKIPPED)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        print("skipped: cannot make a network namespace: " + os.strerror(ctypes.get_errno()))
        sys.exit(SKIPPED)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    unittest.main()
