#!/usr/bin/env python3
"""Opens timeline pages in chromium and uses them as a person would: looks, zooms, points, clicks, types.

usage: timeline_page_test.py TIMELINE_SAMPLE [unittest arguments]      exit code 77: skipped, there is no chromium
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser, find_chromium  # noqa: E402

SAMPLE = None
GUTTER, AXIS = 168, 22  # of weft/plan/draw/page/layout.js
SHIFT = 8               # of the debugging protocol


class Opened:
    """A sample, opened. Pages are made once."""
    folder = tempfile.TemporaryDirectory()

    def __init__(self, browser, name, fragment=""):
        file = os.path.join(self.folder.name, name + ".html")
        if not os.path.exists(file):
            subprocess.run([SAMPLE, name, file], check=True)
        self.browser = browser
        browser.open(file, fragment)

    def value(self, expression):
        return self.browser.value(f"(() => {{ const page = timelinePage; return {expression}; }})()")

    def view(self):
        return self.value("[page.view.from, page.view.to]")

    def row(self, lane, rank=0, panel=0):
        """The middle of a row, in the window's pixels."""
        return self.value(f"""(() => {{
            const panel = page.panels[{panel}], box = panel.stage.getBoundingClientRect();
            const row = panel.layout.groups[{rank}].rows.find(r => r.lane === '{lane}' || r.kind === '{lane}');
            return box.top + {AXIS} - panel.scroller.scrollTop + row.y + row.h / 2; }})()""")

    def x(self, time, panel=0):
        return self.value(f"page.panels[{panel}].xOf(page.view, {time})")

    def event(self, lane, index, rank=0, panel=0):
        """[start, end, micro-batch] of the index-th event of a lane, in ns."""
        return self.value(f"""(() => {{ const t = page.panels[{panel}].model.ranks[{rank}].tracks.find(t =>
            t.lane === '{lane}'); const e = t.events;
            return [e.start[{index}], e.end[{index}], e.microBatch[{index}]]; }})()""")

    def text(self, selector):
        return self.browser.value(f"document.querySelector({json.dumps(selector)}).innerText").replace("\u202f", " ")

    def pixel(self, x, y, panel=0):
        """The colour drawn at a place of the window, as [r, g, b]."""
        return self.value(f"""(() => {{ const c = page.panels[{panel}].canvas, box = c.getBoundingClientRect();
            return [...c.getContext('2d').getImageData({x} - box.left, {y} - box.top, 1, 1).data].slice(0, 3); }})()""")


class TimelinePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()

    def tearDown(self):
        self.assertEqual(self.browser.errors, [], "the page complained")
        self.assertEqual([url for url in self.browser.requests if not url.startswith(("file:", "about:"))], [],
                         "the page asked the network")

    def open(self, name, fragment=""):
        return Opened(self.browser, name, fragment)

    def near(self, a, b, share):
        self.assertLess(abs(a - b), share, f"{a} is not near {b}")

    # What is shown

    def test_head_says_what_is_hidden(self):
        page = self.open("4x8")
        share, span = page.value("[page.models[0].overlap.shareHidden, page.models[0].span]")
        self.assertTrue(0.8 < share < 1)  # woven
        self.assertIn(f"{100 * share:.1f} % hidden", page.text(".head"))
        self.assertIn(f"{span / 1e6:.1f} ms", page.text(".head"))
        self.assertIn("4 ranks", page.text("#about"))
        self.assertIn("exposed", page.text("#legend"))

    def test_page_says_what_it_shows(self):
        page = self.open("4x8-slow")
        about = "[*E][*E][*E] · 2.3 M parameters · 4 ranks · 4 expert ranks · f32"
        self.assertEqual(self.browser.value("document.title"), "weft train: last step · " + about)
        self.assertEqual(page.text("h1"), "weft train: last step")
        self.assertTrue(page.text("#about").startswith(about + " · "))
        for panel, times in ((1, "estimated for 100.0 GFLOP/s"), (2, "measured on cpu (AVX2)")):
            head = " ".join(page.text(f".panel:nth-child({panel}) .head").split())
            self.assertIn(times, head)
            self.assertRegex(head, r"memory 300 MiB reserved, at most [\d.]+ MiB in use")

    def test_everything_has_room(self):
        self.addCleanup(self.browser.resize, 1400, 900)
        for width, parts in ((1400, ", table"), (800, ", table"), (560, "")):  # there, tables are scrolled through
            self.browser.resize(width, 900)
            for name in ("4x8-slow", "4x8"):
                page = self.open(name)
                page.value("page.toggleSummary()")
                self.browser.settle()
                cut = self.browser.value("[...document.querySelectorAll('h1, #about, #top button, .head > *" + parts + """')]
                    .filter(e => !e.hidden && e.offsetParent).filter(e => { const box = e.getBoundingClientRect();
                        return e.scrollWidth > e.clientWidth + 1 && e.tagName !== 'SPAN' || e.scrollHeight > box.height + 2
                            || box.width < 10 || box.left < 0 || box.right > innerWidth; }).map(e => e.outerHTML)""")
                self.assertEqual(cut, [], f"{name} at {width}")
                self.assertTrue(page.text("h1"))

    def test_micro_batches_are_named_whole_or_not_at_all(self):
        page = self.open("64x64")
        page.value("page.toggleRank(0)")
        for zoom in range(4):
            texts = page.value("""(() => { const texts = [], prototype = CanvasRenderingContext2D.prototype;
                const {fillText} = prototype, {drawRibbon} = Panel.prototype;
                Panel.prototype.drawRibbon = function(...all) {
                    prototype.fillText = (text) => texts.push(text);
                    drawRibbon.apply(this, all);
                    prototype.fillText = fillText;
                };
                page.draw();
                Panel.prototype.drawRibbon = drawRibbon;
                return texts; })()""")
            self.assertEqual([text for text in texts if text[0] not in "FB"], [])
            page.value("page.zoom(0.6)")
        self.assertTrue(texts)

    def test_hidden_and_exposed_agree_with_the_numbers(self):
        # The page finds the exposed parts itself to draw them; their sum must be what C++ computed.
        for name in ("4x8", "4x8-plain", "4x8-both"):
            page = self.open(name)
            for drawn, told in page.value("""page.models.flatMap(m => m.ranks.map(r =>
                    [r.exposed.end.reduce((s, e, i) => s + e - r.exposed.start[i], 0), r.overlap.exposed]))"""):
                self.near(drawn, told, 2000)  # each of up to 1000 ends is rounded to a nanosecond

    def test_lanes_have_the_colours_of_phases(self):
        page = self.open("4x8")
        colour = lambda name: page.value(f"page.theme.rgb.{name}")  # noqa: E731
        close = lambda a, b: sum(abs(p - q) for p, q in zip(a, b)) < 110  # noqa: E731  shades differ by micro-batch
        start, end, _ = page.event("exchange", 0)
        page.value(f"page.setView({start} - 1e5, {end} + 1e5)")
        self.browser.settle()
        middle = (start + end) / 2
        # The first dispatch has nothing to hide behind but the shared expert.
        exposed = page.value("page.models[0].ranks[0].exposed.start[1]")
        at = page.x(exposed + 3000)
        self.assertTrue(close(page.pixel(at, page.row("exchange") + 6), colour("exposed")))
        self.assertTrue(close(page.pixel(page.x(start) - 8, page.row("compute") + 8), colour("forward")))
        self.assertFalse(close(page.pixel(page.x(middle), page.row("update")), colour("update")))

    def test_lanes_fit_the_screen_and_tables_fill_what_is_left(self):
        for name, tables in (("1x1", True), ("4x8", False)):
            page = self.open(name)
            self.assertLessEqual(*page.value("[page.panels[0].layout.height, page.panels[0].height]"))
            self.assertEqual(page.value("!document.getElementById('tables').hidden"), tables)
            if tables:
                self.assertRegex(page.text("#tables"), r"experts\s+forward\s+compute\s+4\s+560 µs\s+13.6 %")

    def test_scheme_follows_the_system(self):
        page = self.open("4x8")
        light = page.pixel(400, page.row("memory") - 60)
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.browser.settle()
        self.assertEqual(page.value("document.documentElement.dataset.scheme"), "dark")
        self.assertLess(sum(page.value("page.theme.rgb.ground")), 150)
        self.assertNotEqual(page.pixel(400, page.row("memory") - 60), light)
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    # Zoom and movement

    def test_wheel_zooms_at_the_cursor(self):
        page = self.open("4x8")
        before, x, y = page.view(), 700, page.row("compute")
        time = page.value("page.panels[0].timeAt(page.view, 700)")
        self.browser.wheel(x, y, -240)
        after = page.view()
        self.assertLess(after[1] - after[0], 0.7 * (before[1] - before[0]))
        self.near(page.x(time), x, 0.01)
        self.browser.wheel(x, y, 240)
        self.near(page.view()[1] - page.view()[0], before[1] - before[0], 1)

    def test_drag_moves_and_double_click_resets(self):
        page = self.open("4x8", "#from=0.005&to=0.010")
        self.assertEqual(page.view(), [5e6, 10e6])
        width, y = page.value("page.panels[0].lanesWidth"), page.row("gather")
        self.browser.drag(700, y, 600, y)
        self.near(page.view()[0], 5e6 + 100 / width * 5e6, 10)
        self.browser.click(700, y, count=2)
        self.assertEqual(page.view(), [0, page.value("page.span")])

    def test_shift_drag_and_strip_choose_a_stretch(self):
        page = self.open("4x8")
        y = page.row("gather")
        wanted = [page.value(f"page.panels[0].timeAt(page.view, {x})") for x in (500, 800)]
        self.browser.drag(500, y, 800, y, modifiers=SHIFT)
        for now, then in zip(page.view(), wanted):
            self.near(now, then, 1)
        box = page.value("(({top, height}) => top + height / 2)(document.querySelector('.overview').getBoundingClientRect())")
        self.browser.drag(1000, box, 1200, box)  # outside of the window that is shown now
        for now, x in zip(page.view(), (1000, 1200)):
            self.near(now, page.value(f"page.overview.timeAt({x})"), 1)

    def test_keys_and_buttons(self):
        page = self.open("4x8")
        span = page.value("page.span")
        self.browser.key("w")
        zoomed = page.view()
        self.assertLess(zoomed[1] - zoomed[0], 0.8 * span)
        self.browser.key("d")
        self.assertGreater(page.view()[0], zoomed[0])
        self.browser.key("0")
        self.assertEqual(page.view(), [0, span])
        page.value("document.getElementById('in').click()")
        self.assertLess(page.view()[1] - page.view()[0], span)
        page.value("document.getElementById('fit').click()")
        self.assertEqual(page.view(), [0, span])
        for _ in range(80):
            page.value("page.zoom(0.5)")
        self.near(page.view()[1] - page.view()[0], 20, 1e-3)  # and no further
        self.browser.key("m")
        self.assertEqual(page.value("page.panels[0].layout.groups[0].rows.filter(r => r.kind === 'memory').length"), 0)

    # Pointing

    def point(self, page, lane, index, rank=0, panel=0):
        start, end, micro_batch = page.event(lane, index, rank, panel)
        self.browser.hover(page.x((start + end) / 2, panel), page.row(lane, rank, panel))
        return end - start, micro_batch

    def test_tooltip_tells_everything_of_a_node(self):
        page = self.open("4x8")
        self.assertTrue(page.value("document.getElementById('tip').hidden"))
        length, micro_batch = self.point(page, "compute", 200, rank=2)
        text = page.text("#tip")
        label = page.value("""(t => page.models[0].labels[t.events.label[200]])(
            page.models[0].ranks[2].tracks.find(t => t.lane === 'compute'))""")
        for part in (label["short"], f"micro-batch {micro_batch}", label["layer"], "rank 2", f"{length / 1e3:.0f} µs",
                     "FLOPs", "reads", f"@{micro_batch}", "parameters", label["parameters"][0]):
            self.assertIn(part, text)
        self.browser.hover(700, 20)
        self.assertTrue(page.value("document.getElementById('tip').hidden"))

    def test_tooltip_of_a_transfer_tells_what_hides_it(self):
        page = self.open("4x8")
        index = page.value("""(t => { for (let i = 20; ; ++i) if (page.models[0].hiding(t, i).length) return i; })(
            page.models[0].ranks[0].tracks.find(t => t.lane === 'exchange'))""")
        self.point(page, "exchange", index)
        self.assertRegex(page.text("#tip"), r"hidden\s+100 %\s+behind \w+")
        self.assertIn("sent", page.text("#tip"))

    def test_memory_and_ribbon_can_be_pointed_at(self):
        page = self.open("4x8")
        self.browser.hover(700, page.row("memory"))
        self.assertRegex(page.text("#tip"), r"in use\s+\d+ MiB")
        self.browser.hover(700, page.row("ribbon") - 4)
        self.assertRegex(page.text("#tip"), r"forward\s+micro-batch \d")

    def test_click_pins_and_highlights_the_micro_batch(self):
        page = self.open("4x8")
        _, micro_batch = self.point(page, "compute", 100)
        start, end, _ = page.event("compute", 100)
        self.browser.click(page.x((start + end) / 2), page.row("compute"))
        self.assertEqual(page.value("page.panels[0].highlight.microBatch"), micro_batch)
        self.assertIn(f"micro-batch {micro_batch}", page.text("#drawer"))
        self.browser.value("[...document.querySelectorAll('#drawer button')].find(b => b.innerText === 'unit').click()")
        self.assertTrue(page.value("""(l => page.panels[0].highlight.labels.every((on, i) =>
            Boolean(on) === (page.models[0].labels[i].unit === l.unit)))(
            page.models[0].labels[page.pinned.track.events.label[page.pinned.index]])"""))
        before = page.value("page.pinned.index")
        self.browser.key("]")
        self.assertEqual(page.value("page.pinned.index"), before + 1)
        self.browser.key("f")
        self.assertLess(page.view()[1] - page.view()[0], 20 * (end - start))
        self.browser.key("Escape")
        self.assertTrue(page.value("document.getElementById('drawer').hidden && page.panels[0].highlight === null"))

    def test_search_highlights_and_finds(self):
        page = self.open("4x8")
        self.browser.key("/")
        self.browser.type("main.1E.exp")
        self.assertEqual(page.value("page.panels[0].highlight.labels.filter(Boolean).length"), 3)  # F, B, W
        self.browser.key("Enter")
        self.assertIn("experts", page.text("#drawer"))
        self.assertIn("main.1E", page.text("#drawer"))

    # Ranks

    def test_rank_names_expand_and_compact(self):
        page = self.open("4x8")
        rows = lambda: page.value("page.panels[0].layout.groups.map(g => g.rows.length)")  # noqa: E731
        before = rows()
        self.browser.click(40, page.row("compute", rank=1))
        self.assertEqual(rows(), [before[0], 2, before[2], before[3]])
        self.browser.key("e")
        self.assertEqual(rows(), [2, 2, 2, 2])

    def test_plan_beside_actual(self):
        page = self.open("4x8-both")
        self.assertEqual(page.value("page.panels.length"), 2)
        self.assertEqual([page.text(f".panel:nth-child({i}) strong") for i in (1, 2)], ["Plan", "Actual"])
        spans = page.value("page.models.map(m => m.span)")
        self.assertGreater(spans[1], 1.05 * spans[0])
        # One zoom for both: a moment is at the same place.
        self.browser.wheel(600, page.row("compute", panel=1), -300)
        self.near(page.x(5e6, 0), page.x(5e6, 1), 0.01)
        page.value("page.fit()")
        self.point(page, "compute", 50, panel=1)
        self.assertRegex(page.text("#tip"), r"plan\s+\d+(\.\d)? µs\s+\(here [+−]")
        start, end, micro_batch = page.event("compute", 50, panel=1)
        self.browser.click(page.x((start + end) / 2, 1), page.row("compute", panel=1))
        self.assertEqual(page.value("page.panels[0].twin.track.events.microBatch[page.panels[0].twin.index]"), micro_batch)
        self.assertIsNone(page.value("page.panels[1].twin"))
        self.browser.key("Escape")
        page.value("document.getElementById('same').click()")
        self.browser.settle()
        self.near(page.x(spans[0], 0), page.x(spans[1], 1), 0.01)
        self.assertIn("drawn 1.", page.text(".head"))
        page.value("page.toggleSummary()")
        self.assertRegex(page.text("#tables"), r"experts\s+forward\s+compute\s+96")

    def test_lengths_that_are_far_apart_are_aligned(self):
        page = self.open("4x8-slow")
        spans = page.value("page.models.map(m => m.span)")
        self.assertGreater(spans[1], 1.5 * spans[0])
        self.near(page.x(spans[0], 0), page.x(spans[1], 1), 0.01)
        self.assertIn(f"drawn {spans[1] / spans[0]:.1f} times as long", page.text(".head"))
        self.point(page, "compute", 50, panel=0)
        self.assertRegex(page.text("#tip"), r"actual\s+\d+(\.\d+)? .s\s+\(here −")
        page.value("document.getElementById('same').click()")
        self.browser.settle()
        self.near(page.x(5e6, 0), page.x(5e6, 1), 0.01)
        self.assertNotIn("drawn", page.text(".head"))

    # Bad names, nothing at all, very much

    def test_names_cannot_break_out(self):
        page = self.open("hostile")
        self.assertEqual(self.browser.value("document.title"), "</title><script>document.title = 'broken'</script>")
        self.point(page, "compute", 0)
        self.assertIn("</script>", page.text("#tip"))
        self.assertIn("<img src=x", page.text("#tip"))

    def test_an_empty_timeline_says_so(self):
        page = self.open("empty")
        self.assertIn("no events", page.text("#panels"))
        self.browser.key("w")

    def test_64_ranks_and_64_micro_batches(self):
        page = self.open("64x64")
        events, height, room = page.value("[page.models[0].events, page.panels[0].layout.height, page.panels[0].height]")
        self.assertGreater(events, 1_000_000)
        self.assertLess(height, room)  # all ranks on one screen
        self.browser.wheel(300, 300, -240)
        self.browser.click(40, 300)
        open_rank = page.value("[...page.expanded][0]")
        self.point(page, "compute", 3000, rank=open_rank)
        self.assertEqual(page.value("page.frames > 2"), True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    SAMPLE = sys.argv.pop(1)
    if not find_chromium():
        print("skipped: there is no chromium on this machine (Debian: apt-get install chromium)")
        sys.exit(77)
    unittest.main()
