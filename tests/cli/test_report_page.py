"""The page about a run in a browser: a click and a key lead to the block's own figures, and nothing leaves the page."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest
from funlib.geometry import Roi

import workspan
from helpers.chromium import ABSENT, chromium, find_chromium
from workspan.config import configure, reset
from workspan.views import format

BROWSER = find_chromium()
pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(BROWSER is None, reason=ABSENT),
    pytest.mark.leaks("processes", "files", "descriptors", reason="one browser serves all tests of this module"),
]

HOSTILE = "</script><script>document.title='taken'</script><img src=http://127.0.0.1:9/x>"


def smooth(block):
    """Take longer on the right; fail on one block."""
    import time

    import workspan as ws

    with ws.section("</script>read"):
        time.sleep(0.0005 * (1 + block.write_roi.begin[2] // 10))
    if tuple(block.write_roi.begin) == (10, 20, 30):
        raise ValueError("</script><script>document.title='taken'</script><img src=http://127.0.0.1:9/x>")


def tidy(block):
    """Do nothing."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of two tasks, of which one has a failed block, and the page about it."""
    folder = tmp_path_factory.mktemp("page")
    configure(log_basedir=folder / "logs")
    try:
        step = Roi((0, 0, 0), (10, 10, 10))
        tasks = [
            workspan.Task(
                name,
                Roi((0, 0, 0), (20, 40, 50)),
                step,
                step,
                function,
                read_write_conflict=False,
                max_retries=0,
                tracking_path=folder / "runs" / name,
                resource_tracking=True,
                max_workers=1,
            )
            for name, function in (("smooth", smooth), ("tidy", tidy))
        ]
        quiet = {"progress": False, "summary": False, "return_report": True}
        report = workspan.run_blockwise(tasks[0] | tasks[1], engine="serial", **quiet)
        workspan.write_html(report, folder / "report.html")
    finally:
        reset()
    return folder / "report.html"


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory):
    """One browser with one tab for all tests."""
    with chromium(str(BROWSER), tmp_path_factory.mktemp("profile")) as found:
        yield found.tab()


@pytest.fixture
def tab(blank, page):
    """The page, as anew; the test must end without an error of its script or a request that leaves it."""
    tab = blank
    tab.open(page)
    tab.errors.clear()
    tab.requests.clear()
    yield tab
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith("file:")] == []


def record(page: Path, task: str, cell: tuple[int, ...]):
    """What the store knows of a block."""
    from workspan.store.reader import StoreReader

    return StoreReader(page.parent / "runs" / task).block(cell)


def inspected(tab) -> dict[str, str]:
    """The rows beside the map that is shown."""
    rows = tab.js(
        "[...document.querySelectorAll('article:not([hidden]) .inspect tr')]"
        ".map(row => [...row.children].map(cell => cell.innerText))"
    )
    return {"title": tab.text("article:not([hidden]) .inspect h4"), **{name: value for name, value in rows}}


def centre(tab, row: int, column: int) -> tuple[float, float]:
    size = float(tab.js("document.querySelector('[data-part=map-stage]').dataset.cell"))
    return 2 + (column + 0.5) * size, 2 + (row + 0.5) * size


class TestBlocks:
    def test_a_click_on_a_block_shows_its_row(self, tab, page):
        """What is clicked on the map is told with the figures of the block's record, in the panel's words (B152)."""
        tab.js("document.querySelector('#slice-0-0').focus()")
        tab.press("ArrowRight")
        tab.click("[data-part=map-stage]", *centre(tab, 3, 4))
        found, known = inspected(tab), record(page, "smooth", (1, 3, 4))
        assert found["title"] == "block (1, 3, 4)"
        assert found["writes"] == "10 to 20, 30 to 40, 40 to 50"
        assert found["wall time"] == format.duration(known.stats.wall_seconds)
        assert found["CPU time"] == format.duration(known.stats.cpu_seconds)
        assert found["peak RSS"] == format.size(known.stats.peak_rss_bytes)
        assert found["step </script>read"] == format.duration(known.steps["</script>read"])
        assert found["failed attempts"] == "0"

    def test_keys_move_over_the_map_and_are_told(self, tab):
        """Arrows go from block to block, page keys from slice to slice, and each is read out."""
        tab.click("[data-part=map-stage]", *centre(tab, 1, 1))
        begin = inspected(tab)["title"]
        tab.press("ArrowRight", "ArrowDown")
        moved = inspected(tab)["title"]
        assert (begin[-5:], moved[-5:]) == ("1, 1)", "2, 2)")
        slice_ = int(moved[7])
        tab.press("PageUp" if slice_ else "PageDown")
        assert inspected(tab)["title"] == f"block ({1 - slice_}, 2, 2)"
        assert f"({1 - slice_}, 2, 2) of smooth" in tab.js("document.querySelector('#live').textContent")

    def test_a_block_that_failed_is_told_as_such(self, tab):
        """A failed block says that it is not done, and has dashes and no zeros for what was not measured (D22)."""
        tab.click("button.cell[data-task='0']")
        found = inspected(tab)
        assert found["title"] == "block (1, 2, 3)"
        assert "Not done." in tab.text("article:not([hidden]) .inspect")
        assert (found["wall time"], found["peak RSS"], found["sent"], found["failed attempts"]) == ("-", "-", "-", "1")

    @pytest.mark.parametrize(("number", "name"), [(0, "smooth"), (1, "tidy")])
    def test_an_address_leads_to_a_block(self, tab, page, number, name):
        """The address that a selection leaves opens the page at that block, in its task."""
        tab.open(Path("/dev/null"))
        tab.open(page, f"#{number}:0,1,2")
        assert inspected(tab)["title"] == "block (0, 1, 2)"
        assert tab.js("document.querySelector('[role=tab][aria-selected=true]').innerText") == name
        assert tab.js("[...document.querySelectorAll('article')].map(a => a.hidden)") == [number != 0, number != 1]
        tab.js("document.querySelector('article:not([hidden]) [data-part=map-stage]').focus()")
        tab.press("ArrowLeft")
        assert tab.js("location.hash") == f"#{number}:0,1,1"

    def test_the_timeline_and_the_map_are_one(self, tab):
        """The end key on the timeline selects the last block of the last lane's task, on the map too."""
        tab.js("document.querySelector('[data-part=gantt-stage]').focus()")
        tab.press("End", "ArrowDown", "End")
        assert tab.js("document.querySelector('[role=tab][aria-selected=true]').innerText") == "tidy"
        assert inspected(tab)["title"] == "block (1, 3, 4)"
        assert tab.js("document.querySelectorAll('tr.picked').length") in (0, 1)

    def test_a_click_on_the_timeline_shows_the_block(self, tab, page):
        """The bar under the mouse is the block that is told: its stamps lie around the time that was clicked."""
        box = "document.querySelector('[data-part=gantt-stage]').clientWidth"
        tab.click("[data-part=gantt-stage]", 0.5 * float(tab.js(box)), 12)
        found = inspected(tab)
        cell = tuple(int(n) for n in found["title"].removeprefix("block (").rstrip(")").split(", "))
        known = record(page, tab.js("document.querySelector('[role=tab][aria-selected=true]').innerText"), cell)
        assert found["round trip"] == format.duration(known.returned_at - known.sent_at)

    def test_another_figure_recolours_the_map_and_the_table_of_the_slice(self, tab, page):
        """The figure that is chosen is that of the slice's table, cell by cell."""
        tab.js(
            "{const pick = document.querySelector('#metric-0'); pick.value = 'peak_rss_bytes';"
            "pick.dispatchEvent(new Event('change')); document.querySelector('.map details summary').click()}"
        )
        tab.js("new Promise(done => setTimeout(done, 0))")  # the event of the details comes after its click
        cells = tab.js(
            "[...document.querySelectorAll('.map details tbody tr')].map(r => [...r.children].map(c => c.innerText))"
        )
        at = int(tab.js("document.querySelector('#slice-0-0').value"))
        assert len(cells) == 4
        for row, cells_ in enumerate(cells):
            for column, text in enumerate(cells_[1:]):
                if (at, row, column) != (1, 2, 3):
                    assert text == format.size(record(page, "smooth", (at, row, column)).stats.peak_rss_bytes)


class TestPage:
    def test_hostile_text_stays_text(self, tab):
        """What a block function raised is shown and never run (R50)."""
        assert tab.js("document.title") == "smooth, tidy: Workspan report"
        assert tab.js("document.querySelectorAll('img').length") == 0
        assert HOSTILE in tab.js("document.querySelector('article details[open] pre').textContent")

    def test_no_request_can_leave_the_page(self, tab):
        """The page's policy stops whatever might ask the network, even from its own script's place (R50)."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            where = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            blocked = tab.js(
                """new Promise(async done => {
                  const found = [];
                  document.addEventListener('securitypolicyviolation', e => found.push(e.effectiveDirective));
                  await fetch(WHERE).catch(() => 0);
                  const image = new Image(); image.src = WHERE + 'x.png';
                  const script = document.createElement('script'); script.textContent = 'document.title = "taken"';
                  document.body.append(script);
                  setTimeout(() => done(found), 50);
                })""".replace("WHERE", json.dumps(where))
            )
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):  # nobody has called
                listener.accept()
        assert {"connect-src", "img-src", "script-src-elem"} <= set(blocked)
        assert tab.js("document.title") == "smooth, tidy: Workspan report"
        tab.errors.clear()  # what was blocked is told there,
        tab.requests.clear()  # and here what would have been asked for

    def test_numbers_are_spelled_as_in_the_panel(self, tab):
        """The script's units and rounding are the panel's own (B161)."""
        values = [0.0, 1e-7, 0.00025, 0.99994e-3, 0.99996e-3, 0.0123, 0.25, 0.99995, 1.25, 59.94, 59.96, 381.0, 7384.0]
        values += [x * 10**e for e in range(-6, 5) for x in (1.05, 2.5, 3.35, 9.95, math.pi)]
        sizes = [0, 1, 1023, 1024, 1047, 1536, 2**20 - 1, 2**30, 5 * 2**40, 2**60]
        rows = [("long", value) for value in values] + [("size", value) for value in sizes]
        # The formatters are inside the page's closure: the figures of the table under the charts are made by Python,
        # so what the script prints is compared where both print the same block.
        source = (Path(workspan.__file__).parent / "views" / "html" / "static" / "base.js").read_text()
        begin, end = source.index("function fixed"), source.index("const whole = (number)")
        source = "const MISSING = '-';" + source[begin:end]
        spell = "k === 'size' ? size(v) : longDuration(v)"
        call = f"(() => {{{source} return {json.dumps(rows)}.map(([k, v]) => {spell});}})()"
        python = [format.size(value) if kind == "size" else format.long_duration(value) for kind, value in rows]
        assert tab.js(call) == python

    def test_tabs_work_by_keys(self, tab):
        """One tab is in the order of focus; arrows go to the others and show their panels."""
        tab.js("document.querySelector('[role=tab]').focus()")
        tab.press("ArrowRight")
        assert tab.js("document.activeElement.id") == "tab-1"
        assert tab.js("[...document.querySelectorAll('article')].map(a => a.hidden)") == [True, False]
        assert tab.js("[...document.querySelectorAll('[role=tab]')].map(t => t.tabIndex)") == [-1, 0]

    def test_the_theme_can_be_chosen(self, tab):
        """The button turns the page dark and light again, the map's colours with it."""
        colour = "getComputedStyle(document.body).backgroundColor"
        light = tab.js(colour)
        tab.click("#theme")
        assert tab.js(colour) != light
        assert tab.js("document.querySelector('#theme').getAttribute('aria-pressed')") == "true"
        tab.click("#theme")
        assert tab.js(colour) == light

    def test_paper_has_all_tasks(self, tab):
        """Printing shows every task, with its map, and hides what cannot be used on paper."""
        tab.js("dispatchEvent(new Event('beforeprint'))")
        assert tab.js(
            "[...document.querySelectorAll('article')].every(a => !a.hidden && a.querySelector('canvas').width)"
        )
        tab.js("dispatchEvent(new Event('afterprint'))")
        assert tab.js("[...document.querySelectorAll('article')].map(a => a.hidden)") == [False, True]

    def test_a_narrow_window_needs_no_sideways_scroll(self, tab):
        """At the width of a phone nothing but tables scrolls sideways."""
        long = "1_ReadParquet->MapBatches(" + "features_" * 12 + ")->WriteParquet"
        tab.js(
            "[...document.querySelectorAll('h1, h2, .tabs button, .gantt .key, .steps tbody th, .tasks tbody th')]"
            ".flatMap(e => [...e.childNodes].filter(n => n.nodeType === 3 && n.textContent.trim()))"
            f".forEach(n => n.textContent = '{long}')"
        )
        tab.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
        assert tab.js("document.documentElement.scrollWidth") <= 390
        tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
        wide = (
            "[...document.querySelectorAll('.tasks, .steps')].filter(e => e.scrollWidth > e.parentNode.clientWidth + 1)"
        )
        assert tab.js(f"{wide}.map(e => e.className)") == []
