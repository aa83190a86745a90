"""`workspan doctor`: what is found out is what is so, and nothing it looks at can hold it up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from workspan import config
from workspan.cli import doctor, doctor_checks, main
from workspan.cli.doctor_checks import CHECKS, Check
from workspan.errors import ConfigurationError
from workspan.measure import abilities, ticks, timers
from workspan.store import abilities as disks

Look = Callable[[Path | None], Iterator[Check]]


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read the settings of an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKSPAN_LIVE_ENABLED", raising=False)  # of the tests themselves
    config.reset()
    yield
    config.reset()


def states(look: Look, path: Path | None = None) -> dict[str, str]:
    """State of each finding, by its name."""
    return {check.name: check.state for check in look(path)}


def one(look: Look, path: Path | None = None) -> Check:
    """The only finding, or the first."""
    return next(iter(look(path)))


def test_for_real(tmp_path: Path) -> None:
    """From a shell: exit code 0, facts that are so, a worker that really started, and nothing is left (R64, D27)."""
    command = [sys.executable, "-m", "workspan", "doctor", "--json", "--limit", "50"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found["ok"] is True
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["native timer"]["native_timer"] is timers.NATIVE
    assert checks["clock"]["clock"] == timers.default_clock()
    assert 0 < checks["clock"]["reading_ns"] < 1e6
    assert 0 < checks["worker processes"]["startup_seconds"] < 50
    assert checks["folder"]["folder"] == str(tmp_path)
    assert checks["processors"]["present"] == os.cpu_count()
    assert checks["progress"]["state"] == "no"
    assert list(tmp_path.iterdir()) == []


class TestExamining:
    """Looking at one thing after another."""

    def test_what_hangs_is_left_behind(self) -> None:
        """A look that does not come back costs the time that there is, and no finding after it is invented."""
        gate = threading.Event()
        seen = []

        def hangs(path: Path | None) -> Iterator[Check]:
            gate.wait(50)
            yield Check("a", "yes", "told", "", {})

        def never(path: Path | None) -> Iterator[Check]:
            seen.append(path)
            yield Check("b", "yes", "told", "", {})

        try:
            found = list(doctor.examine([("G", "a", hangs), ("G", "b", never)], None, limit=0.05))
        finally:
            gate.set()
        assert [(c.name, c.state, c.told) for c in found] == [
            ("a", "no", "not known: no answer within 0.05 s"),
            ("b", "no", "not known: no answer within 0.05 s"),
        ]
        assert seen == []

    def test_what_fails_is_told(self) -> None:
        """An exception while looking is a finding; one of the settings is not told as a fault of this thing."""

        def fails(path: Path | None) -> Iterator[Check]:
            raise OSError("no\nidea")

        def unset(path: Path | None) -> Iterator[Check]:
            raise ConfigurationError("bad setting")

        found = list(doctor.examine([("G", "a", fails), ("G", "b", unset)], None, limit=50))
        assert [(c.state, c.told) for c in found] == [
            ("broken", "looking at it failed: OSError: no\\nidea"),
            ("no", "not known: bad setting"),
        ]

    @pytest.mark.parametrize(("state", "code"), [("yes", 0), ("no", 0), ("broken", 1)])
    def test_exit_code(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, code: int
    ) -> None:
        """Only what is broken makes the command fail (D39)."""
        checks = (("G", "a", lambda path: iter([Check("a", state, "told", "do that", {"x": 1})])),)
        monkeypatch.setattr(doctor, "CHECKS", checks)
        assert main(["doctor"]) == code
        assert "told; do that" in capsys.readouterr().out
        assert main(["doctor", "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert (found["ok"], found["checks"][0]["x"]) == (code == 0, 1)

    @pytest.mark.parametrize("limit", ["0", "-1", "nan"])
    def test_no_time(self, capsys: pytest.CaptureFixture[str], limit: str) -> None:
        """A limit that leaves no time is refused (R72)."""
        assert main(["doctor", "--limit", limit]) == 2
        assert "is too small: use seconds above 0" in capsys.readouterr().err


FOUND = [
    Check("one", "yes", "is ± there", "", {}, "First"),
    Check("longer", "no", "is \x1b[2J not", "get it somewhere or other", {}, "First"),
    Check("two", "broken", "is gone", "", {}, "Second"),
]


def test_rendering() -> None:
    """A line each under its group, with a sign; control characters of what was found stay outside (R63)."""
    assert doctor.render(FOUND, encoding="utf-8", width=None).splitlines() == [
        "First",
        "  ✔ one     is ± there",
        "  – longer  is \\x1b[2J not; get it somewhere or other",
        "",
        "Second",
        "  ✗ two     is gone",
        "",
        "1 thing not there (–); 1 thing broken (✗)",
    ]


def test_rendering_for_poor_terminals() -> None:
    """ASCII and narrow terminals get all of it, and long lines go on below their text (R63)."""
    plain = doctor.render(FOUND, encoding="ascii", width=None)
    assert plain.isascii()
    assert "  ok     one     is +- there" in plain
    narrow = doctor.render(FOUND, encoding="utf-8", width=52).splitlines()
    assert narrow[2:4] == ["  – longer  is \\x1b[2J not; get it somewhere or", "            other"]
    assert doctor.render(FOUND, encoding="utf-8", width=20) == doctor.render(FOUND, encoding="utf-8", width=None)


class TestMeasuring:
    """What `measure` can do here."""

    def test_clocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The clock is the one that windows use; without it the finding says why (M94)."""
        found = abilities.clocks()
        assert (found.native_sections, found.native_timer) == (ticks.NATIVE, timers.NATIVE)
        assert found.clock == timers.default_clock()
        base = found._replace(clock="monotonic", native_timer=True, tsc_is_invariant=False)
        for changed, told in [
            (base, "no counter that runs at one speed"),
            (base._replace(native_timer=False), "only the native timer"),
            (base._replace(tsc_is_invariant=True, kernel_clock="hpet"), "keeps time by hpet"),
        ]:
            monkeypatch.setattr(abilities, "clocks", lambda changed=changed: changed)
            by_name = {check.name: check for check in doctor_checks._timers(None)}
            assert by_name["clock"].state == "no"
            assert told in by_name["clock"].told
            assert by_name["native timer"].state == ("yes" if changed.native_timer and ticks.NATIVE else "no")

    def test_counters_that_are_hidden(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without /proc the peak is a worker's, and I/O is not counted: said so, never 0 (D22, D27)."""
        found = abilities.counters(tmp_path)
        assert found == abilities.Counters(True, False, False, False)
        monkeypatch.setattr(abilities, "counters", lambda: found)
        assert states(doctor_checks._counters) == {"peak memory": "no", "bytes read, written": "no", "CPU time": "yes"}

    @pytest.mark.skipif(sys.platform != "linux", reason="the counters are in /proc")
    def test_counters_that_are_there(self) -> None:
        """Where /proc is whole, all of them are there (D27)."""
        found = abilities.counters()
        assert (found.has_cpu, found.has_io, found.resets_mark) == (True, True, True)

    @pytest.mark.parametrize(
        ("files", "limit"),
        [
            ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
            (
                {
                    "proc/self/cgroup": "0::/a/b\n",
                    "cgroup/a/cpu.max": "50000 100000",
                    "cgroup/a/b/cpu.max": "max 100000",
                },
                0.5,
            ),
            ({"proc/self/cgroup": "0::/gone\n", "cgroup/cpu.max": "200000 100000"}, 2.0),
            ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "max 100000"}, None),
            (
                {
                    "proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/a\n",
                    "cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "300000",
                    "cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
                },
                3.0,
            ),
            (
                {
                    "proc/self/cgroup": "4:cpu:/\n",
                    "cgroup/cpu/cpu.cfs_quota_us": "-1",
                    "cgroup/cpu/cpu.cfs_period_us": "100000",
                },
                None,
            ),
            ({}, None),
        ],
    )
    def test_limit_of_processors(self, tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
        """The least quota of a group and those above it counts, in both versions of control groups."""
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        assert abilities.processors(tmp_path / "proc", tmp_path / "cgroup").limit == limit

    def test_fewer_processors_than_there_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A container that may use 1.5 of 8 is told to use one worker."""
        monkeypatch.setattr(abilities, "processors", lambda: abilities.Processors(8, 8, 1.5))
        found = one(doctor_checks._processors)
        assert (found.state, found.told[:10], found.remedy[:24]) == ("no", "1.5 of 8: ", "use at most --workers 1,")
        assert "its control group" in found.told

    def test_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Device, library and driver are asked for one after the other, and each "no" is another one (D12)."""
        device = tmp_path / "nvidiactl"
        device.touch()
        nvml = SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: 2,
            nvmlDeviceGetHandleByIndex=lambda n: n,
            nvmlDeviceGetName=[b"A", "B"].__getitem__,
        )

        def refuse() -> None:
            raise RuntimeError("Driver Not Loaded")

        dead = SimpleNamespace(nvmlInit=refuse)
        found = [
            abilities.gpu((str(device),), load=lambda: nvml),
            abilities.gpu((str(device),), load=lambda: dead),
            abilities.gpu((str(tmp_path / "none"),), load=lambda: nvml),
            abilities.Gpu(True, False, (), ""),
        ]
        assert [f.names for f in found] == [("A", "B"), (), (), ()]
        told = []
        for each in found:
            monkeypatch.setattr(abilities, "gpu", lambda each=each: each)
            check = one(doctor_checks._gpu)
            told.append((check.state, check.told[:22], check.remedy))
        assert told == [
            ("yes", "A, B: use and memory a", ""),
            ("no", "NVML refuses: Driver N", "see whether nvidia-smi works here"),
            ("no", "no NVIDIA device that ", ""),
            ("no", "a device, but not pynv", "pip install 'workspan[gpu]'"),
        ]


class TestFolders:
    """File systems and folders."""

    def test_nothing_is_left(self, tmp_path: Path) -> None:
        """What was tried is removed; a folder that is not there is not made."""
        disk = disks.look_at_disk(tmp_path / "not" / "there")
        assert (disk.folder, disk.error, disk.has_locks, disk.maps) == (tmp_path, "", True, True)
        assert disk.uses_map == disks.can_map(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_no_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file system without locks is told from one whose locks do not work (B117)."""

        def refuse(fd: int, how: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
        assert states(doctor_checks._disk, tmp_path)["file locks"] == "no"
        monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
        assert states(doctor_checks._disk, tmp_path)["file locks"] == "broken"

    def test_no_maps(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where maps or allocation fail, stores are written otherwise, and the finding says what that costs (D5)."""

        def refuse(*args: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(os, "posix_fallocate", refuse)
        found = {check.name: check for check in doctor_checks._disk(tmp_path)}["memory maps"]
        assert (found.state, found.facts["allocates"], found.facts["maps"]) == ("no", False, True)
        assert "20 µs a block, as there is no allocation here" in found.told

    @pytest.mark.skipif(sys.platform != "linux", reason="/proc refuses new files even to root")
    def test_a_folder_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is broken if it was named; the working folder need not be writable, the folder of logs must be."""
        assert states(doctor_checks._disk, Path("/proc")) == {"folder": "broken"}
        monkeypatch.chdir("/proc")
        assert states(doctor_checks._disk) == {"folder": "no"}
        config.configure(log_basedir="/proc/logs", timing={"directory": "/proc/timing"})
        assert states(doctor_checks._logs) == {"logs of workers": "broken"}
        assert states(doctor_checks._timings) == {"timings of steps": "no"}
        config.configure(log_mode="console", timing={"enabled": False})
        assert states(doctor_checks._logs) == {"logs of workers": "yes"}
        assert "timing.enabled is false" in one(doctor_checks._timings).told

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        """A file in place of a folder is told as such."""
        (tmp_path / "file").touch()
        assert one(doctor_checks._disk, tmp_path / "file").told.endswith("file is a file, not a folder")
        config.configure(log_basedir=tmp_path / "file")
        assert "is a file, not a folder" in one(doctor_checks._logs).told

    def test_little_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A disk that is nearly full is told before a run finds out (R25)."""
        real = disks.look_at_disk
        monkeypatch.setattr(disks, "look_at_disk", lambda folder: real(folder)._replace(free_bytes=1 << 20))
        assert one(doctor_checks._disk, tmp_path).remedy.startswith("make some room")

    def test_sockets(self, tmp_path: Path) -> None:
        """A socket is really made, and its folder goes again; one with too long a path is told (D30, D36)."""
        config.configure(live={"directory": tmp_path / "a" / "b"})
        found = one(doctor_checks._sockets)
        assert (found.state, found.facts["folder"]) == ("yes", tmp_path / "a" / "b")
        assert list(tmp_path.iterdir()) == []
        config.configure(live={"directory": tmp_path / ("x" * 110)})
        found = one(doctor_checks._sockets)
        assert found.state == "no"
        assert "a socket may have" in found.told
        assert list(tmp_path.iterdir()) == []
        config.configure(live={"enabled": False})
        assert "live.enabled is false" in one(doctor_checks._sockets).told


class TestSoftware:
    """Packages and settings."""

    @pytest.mark.parametrize(
        ("requires", "states_", "told"),
        [
            (["numpy>=1", 'pytest>=1; extra == "demo"'], {"packages": "yes", "extra demo": "yes"}, "numpy "),
            (["numpy>=99"], {"packages": "broken"}, "missing or too old: numpy 99 (here is "),
            (["no-such>=1"], {"packages": "broken"}, "missing or too old: no-such"),
            (['no-such[x]>=1; extra == "ray"'], {"packages": "yes", "extra ray": "no"}, ""),
            (['no-such; extra == "dev"'], {"packages": "yes"}, ""),
        ],
    )
    def test_packages(
        self, monkeypatch: pytest.MonkeyPatch, requires: list[str], states_: dict[str, str], told: str
    ) -> None:
        """What Workspan needs and what its extras bring is held against what is installed (D15)."""
        monkeypatch.setattr(metadata, "requires", lambda name: requires)
        found = list(doctor_checks._packages(None))
        assert {check.name: check.state for check in found} == states_
        assert told in found[0].told
        for check in found:
            assert (check.state == "yes") == (check.remedy == "")

    def test_settings(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Settings that cannot be used are found before a run finds them, and the rest is still looked at."""
        (tmp_path / "workspan.toml").write_text("log_mode = 'x'\n")
        found = one(doctor_checks._settings)
        assert (found.state, found.told[:27]) == ("broken", "workspan.toml: log_mode='x'")
        names = {name for _, name, look in CHECKS if look is not doctor_checks._workers}
        checks = [entry for entry in CHECKS if entry[2] is not doctor_checks._workers]
        assert names <= {check.name for check in doctor.examine(checks, None, limit=50)}

    def test_workers_that_cannot_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without worker processes nothing runs by default: that is broken (R64)."""
        monkeypatch.setattr(sys, "executable", "")
        found = one(doctor_checks._workers)
        assert found.state == "broken"
        assert "sys.executable is empty" in found.told
