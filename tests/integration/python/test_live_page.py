"""The live page in headless Chromium: its numbers change, it loads nothing from other hosts, and it
reports no errors."""

import os
import shutil
import time
import unittest

import numpy

import pbox
from browser import Browser
from fake_box import FakeBox
from support import BoxTestCase

SLOW_RANK = 1


def exchange_until(options, stop_path):
    """Exchanges one array until the file exists; the slow rank takes a little longer."""
    with pbox.Client(**options) as client:
        values = numpy.ones(100_000, dtype=numpy.float32)
        tensor = client.register("<b>layer</b>", values)
        client.join()
        while True:
            # The sum tells all ranks whether any of them has seen the file, so all end in the same
            # round.
            values.fill(1.0 if os.path.exists(stop_path) else 0.0)
            if options["rank"] == SLOW_RANK:
                time.sleep(0.02)
            client.push_pull(tensor, values)
            client.wait(tensor)
            if values[0] > 0:
                return


class LivePage(BoxTestCase):

    def setUp(self):
        program = shutil.which("chromium")
        if program is None:
            print("skipped: no chromium here; it is in Debian's package of that name")
            self.skipTest("no chromium")
        self.browser = Browser(program)
        self.addCleanup(self.browser.close)

    def text(self, element):
        return self.browser.evaluate(f"document.getElementById('{element}').innerText")

    def show(self, name):
        """Saves a screenshot to the folder that PBOX_SCREENSHOTS names, if it is set."""
        picture = self.browser.screenshot()
        self.assertTrue(picture.startswith(b"\x89PNG"))
        if folder := os.environ.get("PBOX_SCREENSHOTS"):
            with open(os.path.join(folder, name + ".png"), "wb") as file:
                file.write(picture)
        return picture

    def test_page_shows_live_numbers_of_a_box_under_load(self):
        stop_path = self.temporary_path("stop")
        ranks = self.start_ranks(exchange_until, 2, stop_path, job="<i>job</i>")
        self.browser.open(f"http://{self.box.admin}/")
        received = "document.getElementById('throughput').innerText"
        self.browser.wait_for(f"/[kMG]B.s and .*[kMG]B.s/.test({received})")
        first = self.text("throughput")
        self.browser.wait_for(f"{received} !== {first!r}")
        self.browser.wait_for("document.querySelectorAll('#stragglers tr').length > 1")
        self.assertIn("<i>job</i>", self.text("jobs"))  # shown as text; no element was made of it
        self.assertIn("tensor '<b>layer</b>'", self.text("stragglers"))
        made = "[...document.querySelectorAll('i, b')].filter(e => /job|layer/.test(e.innerText))"
        self.assertEqual(self.browser.evaluate(f"{made}.length"), 0)
        self.assertIn("0", self.text("nodes"))
        self.assertIn("127.0.0.1", self.text("pipelines"))
        self.assertIn("ready", self.text("state"))
        points = "document.querySelector('#plot polyline').points.numberOfItems"
        self.browser.wait_for(f"{points} > 5")
        self.browser.wait_for("document.querySelectorAll('#jobs .rounds').length > 1")
        self.assertIn("job_started", self.text("events"))
        # A page that is opened later shows what the box has kept.
        self.browser.open(f"http://{self.box.admin}/?later")
        self.browser.wait_for("document.querySelector('#plot polyline') !== null")
        self.assertGreater(self.browser.evaluate(points), 5)
        self.assertGreater(
            self.browser.evaluate("document.querySelectorAll('#jobs .rounds').length"), 1)
        self.browser.wait_for("document.querySelectorAll('#stragglers tr').length > 1")
        self.browser.prefer("light")
        light = self.show("light")
        self.browser.prefer("dark")
        self.assertNotEqual(light, self.show("dark"))
        elsewhere = self.browser.evaluate(
            "performance.getEntriesByType('resource').map(one => one.name)"
            ".filter(name => !name.startsWith(location.origin) && !name.startsWith('data:'))")
        self.assertEqual(elsewhere, [])
        self.assertEqual(self.browser.problems, [])
        with open(stop_path, "w", encoding="utf-8"):
            pass
        for rank in range(2):
            ranks.result(rank)
        jobs = "document.getElementById('jobs').innerText"
        self.browser.wait_for(f"{jobs}.includes('no job is here')")
        # The timeline of a job stays for a while after its end.
        self.browser.wait_for(f"/<i>job<.i>\\s+over/.test({jobs})")
        self.assertIn("job_finished", self.text("events"))

    def look_at(self, pipelines, jobs):
        """Opens the page of a box with that many pipelines and jobs."""
        box = FakeBox(pipelines, jobs)
        self.addCleanup(box.close)
        self.browser.open(box.url)
        self.browser.wait_for(f"document.querySelectorAll('.core').length === {pipelines}")
        self.browser.wait_for("document.getElementById('jobs').innerText !== ''")
        self.show(f"{pipelines}-pipelines-{jobs}-jobs")
        # Nothing is wider than the window, and no pipeline takes two lines.
        self.assertTrue(self.browser.evaluate(
            "document.documentElement.scrollWidth <= innerWidth"))
        self.assertEqual(self.browser.evaluate(
            "new Set([...document.querySelectorAll('.core')].map(one => one.offsetHeight)).size"),
            1)
        self.assertEqual(self.browser.problems, [])

    def test_headings_stand_over_their_columns_however_much_a_box_has(self):
        self.look_at(64, 20)
        aligned = """[...document.querySelectorAll('table')].map(table => {
            const look = cell => getComputedStyle(cell).textAlign + cell.cellIndex;
            const [head, ...rows] = [...table.rows].map(row => [...row.cells].map(look).join());
            return rows.length > 0 && rows.every(row => row === head); })"""
        self.assertEqual(self.browser.evaluate(aligned), [True] * 4)
        self.assertEqual(self.browser.evaluate(
            "document.querySelectorAll('#jobs .strip').length"), 21)  # one job is over
        self.assertFalse(self.browser.evaluate("document.getElementById('details').open"))

    def test_page_of_an_empty_box_says_so(self):
        self.look_at(4, 0)
        self.assertIn("no job is here", self.text("jobs"))
        self.assertIn("nothing has happened", self.text("events"))
        self.assertTrue(self.browser.evaluate("document.getElementById('details').open"))

    def test_page_says_when_the_box_does_not_answer_and_goes_on_when_it_does(self):
        self.browser.open(f"http://{self.box.admin}/")
        state = "document.getElementById('state').innerText"
        self.browser.wait_for(f"{state}.includes('ready')")
        self.browser.evaluate("window.realFetch = fetch; fetch = () => Promise.reject(new "
                              "Error('away'));")
        self.browser.wait_for(f"{state}.includes('the box does not answer: away')")
        self.browser.evaluate("fetch = realFetch;")
        self.browser.wait_for(f"{state}.includes('ready')")


if __name__ == "__main__":
    unittest.main()
