"""The page about a run, and the small pieces for notebooks: the panel's figures, and nothing that can act."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import MappingProxyType

import numpy as np
import pytest

from workspan.measure.stats import Stat
from workspan.report.page import Extra, build_page
from workspan.report.parts import StepSummary
from workspan.store.reader import BlockTable
from workspan.views.html.drawings import history, speedup, worker_counts
from workspan.views.html.fragment import report_fragment, share_bar, table_fragment
from workspan.views.html.page import render_page
from workspan.views.panel import render_panel

HOSTILE = "</script><script>alert(1)</script><img src=//evil.example/x onerror=alert(1)>\x1b[2J\u202e"
TAGS = {"script", "style", "meta", "svg", "img", "iframe", "object", "embed", "link", "base", "form", "a"}


class Reader(HTMLParser):
    """Elements with their attributes, text outside of script and style, and the content of these."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self._open = ""
        self.feed(text)
        self.text = re.sub(r"\s+", " ", "".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = tag if tag in self.inside else ""
        if self._open:
            self.inside[tag].append("")
        self.words.append(" ")

    def handle_endtag(self, tag):
        self._open = ""
        self.words.append(" ")

    def handle_data(self, data):
        if self._open:
            self.inside[self._open][-1] += data
        else:
            self.words.append(data)


def source(**values):
    """Two blocks on a line."""

    class Source:
        cell_counts, attributes = (2,), MappingProxyType({})

        def tables(self):
            two = np.ones(2, bool)
            columns = {name: np.array(column) for name, column in values.items()}
            stamps = {"worker_id": np.array([0, 1], np.uint32), "sent_at": np.array([1000.0, 1000.0])}
            columns |= stamps | {"returned_at": np.array([1000.1, 1000.2])}
            yield BlockTable(np.array([[0], [1]]), two, np.zeros(2, np.uint32), two, columns, {}, frozenset())

    return Source()


@pytest.fixture
def tracked(make):
    """The task of the golden panels, with steps and a failed block."""
    task = make.task_report("seg")
    steps = {
        "read": StepSummary(Stat(12, 0.01, 0.001, 0.009, 0.011, 0.12), 12, 0.2),
        "filter": StepSummary(Stat(12, 0.03, 0.002, 0.028, 0.032, 0.36), 12, 0.6),
    }
    return replace(task, steps=steps, work_seconds=0.6, work_basis="wall", span_seconds=0.1)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


class TestPage:
    def test_the_figures_are_the_panel_s(self, tracked, make):
        """Every figure of the panel stands on the page in the same words (B160, B161)."""
        run = make.run_report(tracked)
        shown = Reader(render_page(build_page(run))).text
        lines = [squeezed(line).strip() for line in render_panel(run).splitlines()[3:]]
        told = [line.removesuffix(" (more workers can help)") for line in lines if any(map(str.isdigit, line))]
        assert len(told) > 15
        assert [line for line in told if line not in shown] == []
        assert "parallelism 6.0" in shown

    def test_not_measured_is_a_dash(self, make):
        """Without resource tracking the page shows no zeros for what nobody measured (D22, B162)."""
        run = make.run_report(make.task_report("seg", blocks=make.UNTRACKED))
        page = Reader(render_page(build_page(run))).text
        assert "cpu" not in page
        assert "0.0 B" not in page
        assert "0.0 µs" not in page.replace("± 0.0 µs", "")

    def test_a_failure_is_headed_by_what_was_raised(self, tracked, make):
        """The line that names the exception stands at the head, not the last line of its text (issue 10)."""
        error = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: one\nand two'
        run = make.run_report(replace(tracked, failed_blocks=(make.failure(error=error),)))
        shown = squeezed(Reader(render_page(build_page(run))).text)
        assert "raised an error: ValueError: one" in shown
        assert "raised an error: and two" not in shown

    def test_a_run_that_was_killed(self, tracked, make):
        """What nobody recorded is not made up: how workers ended, failed attempts, when the run ended (R25)."""
        workers = replace(tracked.workers, exits={})
        blocks = replace(tracked.blocks, failures=0, failed=0)
        task = replace(tracked, run_id="unrecorded", outcome="interrupted", workers=workers, blocks=blocks)
        shown = squeezed(Reader(render_page(build_page(replace(make.run_report(task), run_id="unrecorded")))).text)
        assert "This run left no report" in shown
        assert "how they ended is not known" in shown
        assert "all ended cleanly" not in shown
        assert "from its first block to its last" in shown

    def test_no_blocks(self, tracked, make):
        """A task without blocks is not told to track its resources (issue 10)."""
        blocks = replace(tracked.blocks, count=0, total=0)
        page = build_page(make.run_report(replace(tracked, blocks=blocks)), extras={tracked.task_id: Extra(source())})
        assert page.tasks[0].absent == "The task has no blocks."

    def test_the_page_s_policy_lets_only_its_own_code_run(self, tracked, make):
        """Nothing may be loaded or sent; script and style are allowed by their hashes alone (R50)."""
        page = Reader(render_page(build_page(make.run_report(tracked))))
        (policy,) = [a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a]
        rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert set(rules) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
        (style,) = page.inside["style"]
        _, script = page.inside["script"]
        for kind, text in (("style-src", style), ("script-src", script)):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert rules[kind] == f"'sha256-{digest}'"

    def test_the_page_names_nothing_outside(self, tracked, make):
        """There is no address, no handler and no style in an attribute on the page, and no link but within it."""
        page = Reader(render_page(build_page(make.run_report(tracked))))
        for tag, attributes in page.elements:
            assert tag not in TAGS - {"script", "style", "meta", "svg", "a"}
            assert not {name for name in attributes if name.startswith("on") or name in ("src", "style", "srcset")}
            assert attributes.get("href", "#").startswith("#")
        assert not re.search(r"https?://", page.inside["script"][1] + page.inside["style"][0])

    def test_hostile_text_stays_text(self, tracked, make):
        """Markup and control codes in ids, steps, errors and ends of workers are shown and do nothing (R50)."""
        record = replace(make.worker(0), exit="error", text=HOSTILE)
        failure = make.failure(error=HOSTILE, log=HOSTILE)
        steps = {HOSTILE: tracked.steps["read"]}
        bad = replace(tracked, task_id=HOSTILE, run_id=HOSTILE, outcome=HOSTILE, steps=steps, failed_blocks=(failure,))
        bad = replace(bad, workers=make.workers([record]))
        extra = Extra(source=source(wall_seconds=[0.1, 0.2]))
        text = render_page(build_page(make.run_report(bad), extras={HOSTILE: extra}))
        page = Reader(text)
        assert [tag for tag, _ in page.elements].count("script") == 2
        assert not [tag for tag, _ in page.elements if tag == "img"]
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert page.text.count("<script>alert(1)</script>") >= 5
        assert json.loads(page.inside["script"][0])["tasks"][0]["id"].startswith("</script>")

    def test_every_part_has_a_name(self, tracked, make):
        """Sections, tables that scroll, pictures and tabs have a name that can be read out, and ids are unique."""
        extras = {task: Extra(source=source(wall_seconds=[0.1, 0.2])) for task in ("a", "b")}
        run = make.run_report(replace(tracked, task_id="a"), replace(tracked, task_id="b"))
        page = Reader(render_page(build_page(run, extras=extras)))
        ids = [a["id"] for _, a in page.elements if "id" in a]
        assert len(ids) == len(set(ids))
        for tag, attributes in page.elements:
            if tag in ("section", "article") or attributes.get("role") in ("region", "img", "tablist", "tabpanel"):
                assert attributes.get("aria-label") or attributes["aria-labelledby"] in ids
            if "aria-controls" in attributes:
                assert attributes["aria-controls"] in ids
            if tag == "th":
                assert attributes["scope"] in ("row", "col", "rowgroup")
        assert ("html", {"lang": "en"}) in page.elements

    def test_rows_of_a_dataset_are_shown(self, tracked, make):
        """An operator's rows and bytes are on the page, and its blocks are called what they are (M70)."""
        from workspan.report.page import Stage

        stages = (Stage("Read", 2, 1234, 2048, 0, 0), Stage("Filter(<b>)", 2, 77, 1024, 5, 3))
        extra = Extra(
            source=source(wall_seconds=[0.1, 0.2], rows=[40.0, 37.0]),
            stages=stages,
            block_noun="task",
            worker_noun="process",
        )
        page = Reader(render_page(build_page(make.run_report(tracked), extras={"seg": extra}))).text
        assert "Read 2 1,234 2.0 KB 0 0" in page
        assert "Filter(<b>) 2 77 1.0 KB 5 3" in page
        assert "Map of the tasks" in page
        assert "rows out 2 37 " in page

    def test_a_slow_block_leads_to_its_worker_s_log(self, tracked, make, tmp_path):
        """The worker of a slow block is a link to the end of its log, where there is one."""
        (tmp_path / "seg").mkdir()
        (tmp_path / "seg" / "worker_1.err").write_text(f"last words {HOSTILE}\n")
        extra = Extra(source=source(wall_seconds=[0.1, 0.2]))
        page = Reader(render_page(build_page(make.run_report(tracked), extras={"seg": extra}, log_folders=(tmp_path,))))
        links = [a["href"] for tag, a in page.elements if tag == "a"]
        assert links == ["#main", "#log-0-1"]
        assert "log-0-1" in [a.get("id") for tag, a in page.elements if tag == "pre"]
        assert "last words </script>" in page.text

    def test_peaks_are_not_added_up(self, tracked, make):
        """The table of figures has no total of memory, which nobody ever used (KF-36)."""
        extra = Extra(source=source(wall_seconds=[0.1, 0.3], peak_rss_bytes=[2048.0, 4096.0]))
        page = Reader(render_page(build_page(make.run_report(tracked), extras={"seg": extra}))).text
        assert "wall time 2 100.0 ms 200.0 ms 280.0 ms 298.0 ms 300.0 ms 200.0 ms 400.0 ms" in page
        assert "peak RSS 2 2.0 KB 3.0 KB 3.8 KB 4.0 KB 4.0 KB 3.0 KB - " in page


class TestDrawings:
    def test_the_curve_says_its_figures(self):
        """The band between the bounds is drawn with the run in it, and tells its figures in words."""
        drawn = Reader(speedup(100.0, 10.0, wall=50.0, workers=4))
        (svg,) = [a for tag, a in drawn.elements if tag == "svg"]
        assert "work 1 min 40 s, span 10.0 s, so never more than 10.0 times" in svg["aria-label"]
        assert "this run: 2.0× with 4 workers" in drawn.text
        (dot,) = [a for tag, a in drawn.elements if tag == "circle"]
        (upper, lower) = [a["points"].split() for tag, a in drawn.elements if tag == "polyline"]
        assert upper[0] == lower[0]
        heights = [float(point.split(",")[1]) for point in upper]
        assert heights == sorted(heights, reverse=True)
        assert float(dot["cy"]) > min(heights)

    def test_the_numbers_of_workers_reach_as_far_as_they_help(self):
        """Numbers are doubled until more workers cannot help, and those of the run are among them."""
        assert worker_counts(100.0, 10.0, 3) == [1, 2, 3, 4, 8, 16, 32]
        assert worker_counts(100.0, 0.0, 0)[0] == 1

    def test_a_bar_is_as_high_as_its_run_was_long(self):
        """The longer of two runs has the higher bar, the run on the page is marked, and one run alone needs no bar."""
        bars = [a for tag, a in Reader(history([("a", 2.0, False), ("b", 4.0, True)])).elements if tag == "rect"]
        assert float(bars[1]["height"]) == pytest.approx(2 * float(bars[0]["height"]), rel=0.01)
        assert [bar["class"] for bar in bars] == ["bar", "bar here"]
        assert history([("a", 2.0, True)]) == ""


class TestFragments:
    def test_a_report_says_what_the_panel_says(self, tracked, make):
        """The piece has the figures of the panel's blocks and steps, in the same words."""
        page = Reader(report_fragment(tracked))
        for row in ("12 of 12 blocks", "round trip 50.5 ms ± 0.1 ms", "read 20 % 10.0 ms ± 1.0 ms"):
            assert row in page.text
        assert report_fragment(make.run_report(tracked)).count("<table>") == 2

    def test_text_from_outside_is_escaped(self, tracked):
        """Whatever stands in a table or a report, the piece holds no element and no control code of it (R50)."""
        bad = replace(tracked, task_id=HOSTILE, steps={HOSTILE: tracked.steps["read"]})
        for text in (report_fragment(bad), table_fragment([HOSTILE], [[HOSTILE, HOSTILE]], caption=HOSTILE)):
            page = Reader(text)
            assert not {tag for tag, _ in page.elements} & {"script", "img"}
            assert "\x1b" not in text
            assert "<script>alert(1)</script>" in page.text

    def test_a_bar_without_parts_is_nothing(self):
        """No picture is drawn of nothing; parts that are too many are drawn as one, and all are named."""
        assert share_bar({}, label="x") == ""
        drawn = share_bar({f"step{n}": 0.05 for n in range(12)}, label="x")
        assert drawn.count("<rect") == 1 + 6 + 1
        assert "6 more" in drawn
        assert all(f"step{n} 5 %" in drawn for n in range(12))
