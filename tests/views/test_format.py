from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspan.measure.stats import Stat
from workspan.views import format as f


class TestDuration:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.0, "0.0 µs"),
            (60.1e-6, "60.1 µs"),
            (999.94e-6, "999.9 µs"),
            (999.96e-6, "1.0 ms"),
            (0.0502, "50.2 ms"),
            (0.99994, "999.9 ms"),
            (0.99996, "1.0 s"),
            (75.04, "75.0 s"),
            (86400.0, "86400.0 s"),
            (None, "-"),
            (math.nan, "-"),
            (math.inf, "-"),
        ],
    )
    def test_unit_and_one_decimal(self, seconds, text):
        """Times are in µs, ms or s with one decimal, never 1000.0 of a unit; what is missing is a dash (B161)."""
        assert f.duration(seconds) == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.2921, "292.1 ms"),
            (59.94, "59.9 s"),
            (59.96, "1 min 0 s"),
            (381.4, "6 min 21 s"),
            (3599.4, "59 min 59 s"),
            (3599.6, "1 h 0 min"),
            (7384.0, "2 h 3 min"),
            (7199.0, "2 h 0 min"),
            (200 * 3600.0, "200 h 0 min"),
            (None, "-"),
        ],
    )
    def test_long_times_in_minutes_and_hours(self, seconds, text):
        """Headings say minutes and hours, and never 60 of either (experience 1)."""
        assert f.long_duration(seconds) == text

    @pytest.mark.parametrize(
        ("seconds", "text"), [(0.0, "0:00"), (59.9, "0:59"), (124.0, "2:04"), (3600.0, "1:00:00"), (90061, "25:01:01")]
    )
    def test_clock(self, seconds, text):
        """Running times are shown as on a clock."""
        assert f.clock(seconds) == text


class TestSize:
    @pytest.mark.parametrize(
        ("number", "text"),
        [
            (0, "0.0 B"),
            (1023, "1023.0 B"),
            (1023.97, "1.0 KB"),
            (1128, "1.1 KB"),
            (25.5 * 2**20, "25.5 MB"),
            (61.2 * 2**30, "61.2 GB"),
            (5 * 2**40, "5.0 TB"),
            (5 * 2**50, "5120.0 TB"),
            (None, "-"),
            (math.nan, "-"),
        ],
    )
    def test_scaled_by_1024(self, number, text):
        """Bytes are scaled by 1024 up to TB, with one decimal (B161)."""
        assert f.size(number) == text


class TestPair:
    def test_times_share_the_unit_of_the_mean(self):
        """Both numbers of a pair of times are in the unit of the mean (B161)."""
        assert f.duration_pair(Stat(3, 0.0505, 60e-6, 0.0, 0.0, 0.0)) == "50.5 ms ± 0.1 ms"
        assert f.duration_pair(Stat(3, 48.5e-6, 0.0012, 0.0, 0.0, 0.0)) == "48.5 µs ± 1200.0 µs"

    def test_bytes_have_a_unit_each(self):
        """Each byte figure is scaled on its own (B161)."""
        assert f.size_pair(Stat(3, 25.5 * 2**20, 2048.0, 0.0, 0.0, 0.0)) == "25.5 MB ± 2.0 KB"

    @pytest.mark.parametrize("pair", [f.duration_pair, f.size_pair])
    def test_no_samples_are_a_dash(self, pair):
        """What was not measured is a dash, not 0 ± 0 (B161, D22)."""
        assert pair(None) == pair(Stat()) == "-"


class TestOthers:
    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.0027, "∠ +0.0027 ms/block"), (-1.5, "∠ -1.5000 ms/block"), (0.0, "∠ +0.0000 ms/block"), (None, "-")],
    )
    def test_slope(self, value, text):
        """A trend is signed and has four decimals (B160)."""
        assert f.slope(value) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.24, "24 %"), (1.0, "100 %"), (0.0, "0 %"), (0.0049, "<1 %"), (0.005, "0 %"), (0.006, "1 %"), (None, "-")],
    )
    def test_share(self, value, text):
        """A share is in whole percent, and a small one is not shown as nothing."""
        assert f.share(value) == text

    @pytest.mark.parametrize(
        ("done", "total", "percent"),
        [(1762, 1766, 99), (1766, 1766, 100), (0, 1766, 0), (1762, 36, 100), (0, 0, 100), (9_999_999, 10_000_000, 99)],
    )
    def test_percent_is_rounded_down(self, done, total, percent):
        """100 % appears only when all is done, and nothing is above it, also if the total shrinks (KF-58)."""
        assert f.percent_done(done, total) == percent

    @given(st.integers(0, 10**12), st.integers(0, 10**12))
    def test_percent_is_always_a_percentage(self, done, total):
        """Between 0 and 100 whatever the counts, and 100 exactly if nothing is left (KF-58)."""
        percent = f.percent_done(done, total)
        assert 0 <= percent <= 100
        assert (percent == 100) == (done >= total)


class TestText:
    def test_control_codes_are_shown_escaped(self):
        """ESC, BEL, CR and the like come out as text (KF-72)."""
        assert f.one_line("a\x1b[2Jb\x1b]0;owned\x07") == "a\\x1b[2Jb\\x1b]0;owned\\x07"
        assert f.one_line("x\r\nINFO all done") == "x\\r\\nINFO all done"

    @given(st.text())
    def test_one_line_is_one_line(self, text):
        """Whatever comes in, one printable line comes out that a stream can take (R50)."""
        safe = f.one_line(text)
        assert len(safe.splitlines()) <= 1
        assert not f._CONTROL.search(safe)
        safe.encode("utf-8")

    def test_many_lines_keep_breaks_and_tabs(self):
        """A traceback stays readable, but cannot move the cursor (R50)."""
        assert f.many_lines("a\n\tb\r\n\x1b[1Ac") == "a\n\tb\\r\n\\x1b[1Ac"

    @pytest.mark.parametrize("char", ["\u202e", "\u2066", "\u200f", "\u2028", "\x85", "\x9b", "\ud800", "\ufeff"])
    def test_marks_that_deceive_are_escaped(self, char):
        """Marks that reorder the text, one-byte escape codes and lone surrogates are escaped (R50, R12)."""
        assert f.many_lines(f"a{char}b").isascii()

    def test_ordinary_text_is_left_alone(self):
        """Umlauts, Han and emoji are no control codes."""
        assert f.one_line("glättung 分割 🧠 [red]x[/red]") == "glättung 分割 🧠 [red]x[/red]"

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "no-such-codec"])
    @given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["±∠µ✔✗∅▶…–×"]))
    def test_fit_can_always_be_encoded(self, encoding, text):
        """Text that was fitted to a stream never raises there (R63)."""
        fitted = f.fit(text, encoding)
        fitted.encode("ascii" if encoding == "no-such-codec" else encoding)
        assert f.fit(fitted, encoding) == fitted

    def test_our_signs_become_words(self):
        """In ASCII our own signs are words, not escapes (R63)."""
        assert f.fit("1.0 µs ± 0.1 µs ∠ ✔ ✗ ∅ ▶ …", "ascii") == "1.0 us +- 0.1 us / ok failed orphaned > ..."

    def test_what_the_stream_has_stays(self):
        """A stream that has the signs gets them."""
        assert f.fit("1.0 µs ± 0.1 µs ✔", "utf-8") == "1.0 µs ± 0.1 µs ✔"


class TestSymbol:
    @pytest.mark.parametrize(
        ("counters", "sign"),
        [
            ({"completed": 12}, "✔"),
            ({"completed": 5}, "▶"),
            ({"completed": 11, "failed": 1}, "✗"),
            ({"completed": 5, "failed": 1}, "✗"),
            ({"completed": 10, "orphaned": 2}, "∅"),
            ({"completed": 9, "orphaned": 2, "failed": 1}, "✗"),
            ({"completed": 0, "abandoned": True}, "∅"),
        ],
    )
    def test_sign_of_a_task(self, make, counters, sign):
        """All done, running, failed, orphaned: failed comes first (B167, B170)."""
        assert f.symbol(make.state(total=12, **counters), unfinished="▶") == sign


class TestTable:
    def test_columns_are_aligned(self):
        """Columns are two spaces apart, left- or right-aligned, without blanks at the end of a line."""
        rows = [["task", "blocks", ""], ["a", "1,000", "x"], ["longer", "2", ""]]
        assert f.table(rows, encoding="utf-8", right=[1]) == [
            "task    blocks",
            "a        1,000  x",
            "longer       2",
        ]
