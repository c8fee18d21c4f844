"""Runs every panel's query in Debian's Prometheus, which scrapes a real box under load."""

import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import numpy

import pbox
from support import BoxTestCase, free_port

ROOT = pathlib.Path(__file__).resolve().parents[3]
DASHBOARDS = ROOT / "tools" / "dashboards"
UNPACKED = ROOT / "build" / "deb" / "prometheus" / "usr" / "bin"
DEADLINE_S = 100
COLUMNS = 24


def find(program):
    return shutil.which(program, path=f"{os.environ['PATH']}:{UNPACKED}")


def require(test, program):
    """If a program is missing, prints the reason in the form that tools/test collects."""
    if find(program) is None:
        why = f"no {program} here; tools/test unpacks Debian's package prometheus for it"
        print(f"skipped: {why}")
        test.skipTest(why)


def dashboards():
    return {path: json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            for path in sorted(glob.glob(str(DASHBOARDS / "grafana" / "*.json")))}


def queries():
    """Yields (dashboard and panel, query) for every target."""
    for page in dashboards().values():
        for panel in page["panels"]:
            for target in panel["targets"]:
                yield f"{page['title']}: {panel['title']}", target["expr"]


def exchange_until(options, stop_path, slow_rank):
    """Exchanges one array until the file exists; the slow rank takes a little longer."""
    with pbox.Client(**options) as client:
        values = numpy.ones(100_000, dtype=numpy.float32)
        tensor = client.register("layer", values)
        client.join()
        while True:
            # The sum tells all ranks whether any of them has seen the file, so all end in the same
            # round.
            values.fill(1.0 if os.path.exists(stop_path) else 0.0)
            if options["rank"] == slow_rank:
                time.sleep(0.02)
            client.push_pull(tensor, values)
            client.wait(tensor)
            if values[0] > 0:
                return


def train_until(options, stop_path, model):
    """A rank of a job in mode optimize with a consistency model other than BSP."""
    with pbox.Client(mode="optimize", recovery="none", **model, **options) as client:
        weights = numpy.zeros(10_000, dtype=numpy.float32)
        client.set_optimizer("sgd", 0.1)
        tensor = client.register("layer", weights)
        client.join()
        client.init_weights(tensor, weights)
        client.wait(tensor)
        while not os.path.exists(stop_path):
            time.sleep(0.005 * (1 + options["rank"]))
            client.push_pull(tensor, numpy.ones_like(weights), weights)
            client.wait(tensor)


class Prometheus:
    """Debian's Prometheus with this tree's rules and the box as its only target."""

    def __init__(self, folder, target):
        self.where = f"http://127.0.0.1:{free_port()}"
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "rule_files": [str(DASHBOARDS / "prometheus" / "pbox.rules.yml")],
                  "scrape_configs": [{"job_name": "pbox",
                                      "static_configs": [{"targets": [target]}]}]}
        path = os.path.join(folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML
        with open(os.path.join(folder, "log"), "wb") as log:
            self.process = subprocess.Popen(
                [find("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.where[len('http://'):]}"], stdout=log, stderr=log)

    def close(self):
        self.process.kill()
        self.process.wait()

    def ask(self, query):
        """Returns the current samples, a list of (labels, value); None if there is no answer."""
        url = f"{self.where}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return None
        return [(series["metric"], float(series["value"][1])) for series in result]


def filled_in(expr):
    for name, value in (("$__rate_interval", "10s"), ("$box", ".*"), ("$job", ".*")):
        expr = expr.replace(name, value)
    return expr


class Dashboards(BoxTestCase):

    def test_files_are_what_the_table_of_panels_makes(self):
        subprocess.run([sys.executable, str(DASHBOARDS / "make_dashboards.py"), "--check"],
                       check=True)

    def test_panels_have_their_place_and_name_only_known_variables(self):
        pages = dashboards()
        self.assertEqual(len(pages), 4)
        for path, page in pages.items():
            known = {entry["name"] for entry in page["templating"]["list"]} | {"__rate_interval"}
            taken = set()
            self.assertEqual(len({panel["id"] for panel in page["panels"]}), len(page["panels"]))
            for panel in page["panels"]:
                at = panel["gridPos"]
                self.assertLessEqual(at["x"] + at["w"], COLUMNS)
                cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                         for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(cells & taken, f"{path}: {panel['title']} overlaps another panel")
                taken |= cells
                used = set(re.findall(r"\$\{?(\w+)", json.dumps(panel)))
                self.assertLessEqual(used, known, panel["title"])
                self.assertTrue(panel["description"] and panel["fieldConfig"]["defaults"]["unit"])

    def test_every_metric_that_is_named_is_one_of_the_box(self):
        with urllib.request.urlopen(f"http://{self.box.admin}/metrics", timeout=10) as answer:
            exported = set(re.findall(r"^# TYPE (\w+)", answer.read().decode(), re.M))
        text = "".join(expr for _, expr in queries())
        text += (DASHBOARDS / "prometheus" / "pbox.rules.yml").read_text(encoding="utf-8")
        named = {re.sub(r"_bucket$", "", name)
                 for name in re.findall(r"(?<![\w:])pbox_\w+(?![\w:])", text)}
        self.assertEqual(named - exported, set())

    def test_every_query_returns_data_of_a_box_under_load(self):
        require(self, "prometheus")
        folder = tempfile.TemporaryDirectory(prefix="pbox-prometheus-")
        self.addCleanup(folder.cleanup)
        stop_path = os.path.join(folder.name, "stop")
        prometheus = Prometheus(folder.name, self.box.admin)
        self.addCleanup(prometheus.close)
        load = self.start_ranks(exchange_until, 3, stop_path, 2)
        for job, model in (("stale", {"sync": "ssp", "staleness": 2}),
                           ("drop", {"sync": "drop", "quorum": 1})):
            ranks = self.start_ranks(train_until, 2, stop_path, model, job=job)
            self.addCleanup(ranks.close)
        # This box has no keys, hence no series pbox_keys_*; test_service_rotation checks those.
        remaining = [(name, expr) for name, expr in queries() if "pbox_keys_" not in expr] + [
            ("recorded", 'training_job_rank:pbox_worker_late_seconds:rate5m{rank="2"} > 0'),
            ("recorded", "instance_pipeline:pbox_pipeline_busy:ratio_rate5m")]
        deadline = time.monotonic() + DEADLINE_S
        while remaining and time.monotonic() < deadline:
            time.sleep(1)
            remaining = [(name, expr) for name, expr in remaining
                         if not any(value == value for _, value in
                                    prometheus.ask(filled_in(expr)) or [])]
        self.assertEqual(remaining, [], "these queries returned no data")
        latest = prometheus.ask("topk(1, pbox_worker_late_seconds_total)")
        self.assertEqual(latest[0][0]["rank"], "2")
        with open(stop_path, "w", encoding="utf-8"):
            pass
        for rank in range(3):
            load.result(rank)


class Rules(unittest.TestCase):

    def test_rules_are_clean_and_pass_their_tests(self):
        require(self, "promtool")
        for command in (["check", "rules", "pbox.rules.yml"], ["test", "rules",
                                                               "pbox.rules.test.yml"]):
            done = subprocess.run([find("promtool"), *command], cwd=DASHBOARDS / "prometheus",
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
