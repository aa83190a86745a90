"""What ``workspan doctor`` looks at, and what it says of it. Nothing is assumed: each thing is asked or tried out."""

from __future__ import annotations

import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.errors import ConfigurationError, WorkspanError
from workspan.views.format import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CHECKS", "Check"]

LEAST_FREE_BYTES = 1 << 30
_HIDDEN = "Linux shows it in /proc; some containers hide that"


class Check(NamedTuple):
    """One finding."""

    name: str
    state: str
    """``"yes"``; ``"no"``: not there, and Workspan does without; ``"broken"``: what cannot be done without."""
    told: str
    """What was found, and what it means."""
    remedy: str
    """What to do about it; "": nothing."""
    facts: dict[str, Any]
    """Figures and names, for JSON."""
    group: str = ""


# -- time --------------------------------------------------------------------------------------------------------------


def _timers(path: Path | None) -> Iterator[Check]:
    from workspan.measure import abilities

    found, costs = abilities.clocks(), abilities.costs()
    native = found.native_sections and found.native_timer
    remedy = "unset WORKSPAN_PURE_PYTHON" if found.forced_pure else "install it again where there is a C compiler"
    timer_facts: dict[str, Any] = {"native_sections": found.native_sections, "native_timer": found.native_timer}
    timer_facts["section_seconds"] = costs.section_seconds
    cost = f"an empty section costs {1e9 * costs.section_seconds:,.0f} ns"
    yield Check(
        "native timer",
        "yes" if native else "no",
        f"compiled; {cost}" if native else f"pure Python, so that timing costs several times as much; {cost}",
        "" if native else remedy,
        timer_facts,
    )
    reading = f"{found.reading_ns:,.0f} ns a reading from Python"
    facts: dict[str, Any] = {
        "clock": found.clock,
        "tsc_is_invariant": found.tsc_is_invariant,
        "kernel_clock": found.kernel_clock,
    }
    facts |= {"reading_ns": found.reading_ns, "resolution_ns": found.resolution_ns}
    if found.clock == "tsc":
        yield Check("clock", "yes", f"counter of the processor (TSC, invariant), {reading}", "", facts)
        return
    if not found.native_timer:
        why, remedy = "only the native timer reads the counter of the processor", ""
    elif not found.tsc_is_invariant:
        why, remedy = "this processor has no counter that runs at one speed (invariant TSC)", ""
    else:
        why = f"the kernel keeps time by {found.kernel_clock or 'a clock that it does not name'}, not by the TSC"
        remedy = "if the machine allows it, boot with clocksource=tsc"
    yield Check("clock", "no", f"monotonic clock of the system, {reading}, as {why}", remedy, facts)


# -- blocks ------------------------------------------------------------------------------------------------------------


def _counters(path: Path | None) -> Iterator[Check]:
    from workspan.measure import abilities

    found, costs = abilities.counters(), abilities.costs()
    cost = f"measuring a block costs {duration(costs.profile_seconds)}"
    if found.resets_mark:
        way = "cheaply, by ru_maxrss" if found.usage_follows_mark else "by VmHWM, as ru_maxrss does not follow it here"
        told, remedy = f"of every block by itself: the kernel's mark can be reset, and is read {way}; {cost}", ""
    else:
        told = f"only the highest of a worker's life (ru_maxrss): its mark cannot be reset; {cost}"
        remedy = f"{_HIDDEN}, or the kernel was built without CONFIG_PROC_PAGE_MONITOR"
    facts: dict[str, Any] = {"resets_mark": found.resets_mark, "usage_follows_mark": found.usage_follows_mark}
    facts |= {"profile_seconds": costs.profile_seconds}
    yield Check("peak memory", "yes" if found.resets_mark else "no", told, remedy, facts)
    told = "system calls of a block are counted (/proc/self/io)" if found.has_io else "not counted: I/O stays empty"
    yield Check("bytes read, written", "yes" if found.has_io else "no", told, "" if found.has_io else _HIDDEN, {})
    told = "user and system time of all threads" if found.has_cpu else "not known here: CPU stays empty"
    yield Check("CPU time", "yes" if found.has_cpu else "no", told, "", {})


def _gpu(path: Path | None) -> Iterator[Check]:
    from workspan.measure import abilities

    found = abilities.gpu()
    facts: dict[str, Any] = {
        "device_file": found.has_device_file,
        "library": found.has_library,
        "devices": list(found.names),
    }
    if not found.has_device_file:
        told, remedy = "no NVIDIA device that this process could use: GPU figures of blocks stay empty", ""
    elif not found.has_library:
        told, remedy = "a device, but not pynvml: GPU figures stay empty", "pip install 'workspan[gpu]'"
    elif found.error:
        told, remedy = f"NVML refuses: {found.error}", "see whether nvidia-smi works here"
    elif not found.names:
        told, remedy = "the driver lists no device", ""
    else:
        yield Check("GPU", "yes", f"{', '.join(found.names)}: use and memory are sampled", "", facts)
        return
    yield Check("GPU", "no", told, remedy, facts)


# -- this machine ------------------------------------------------------------------------------------------------------


def _processors(path: Path | None) -> Iterator[Check]:
    from workspan.measure import abilities

    found = abilities.processors()
    facts: dict[str, Any] = {"present": found.present, "allowed": found.allowed, "limit": found.limit}
    if found.usable >= found.present:
        yield Check("processors", "yes", f"{found.present}, all of them for this process", "", facts)
        return
    why = "its affinity" if found.limit is None or found.limit >= found.allowed else "its control group"
    best = max(1, int(found.usable))
    told = f"{found.usable:g} of {found.present}: {why} allows no more, and more workers than that wait for each other"
    yield Check("processors", "no", told, f"use at most --workers {best}, or raise the limit", facts)


def _memory(path: Path | None) -> Iterator[Check]:
    import psutil

    from workspan.engines.memory import MemoryWatch

    memory, limit = psutil.virtual_memory(), MemoryWatch().limit_bytes
    facts: dict[str, Any] = {"total_bytes": memory.total, "available_bytes": memory.available, "limit_bytes": limit}
    told = f"{size(memory.available)} available of {size(memory.total)}"
    if limit is None or limit >= memory.total:
        yield Check("memory", "yes", f"{told}, no limit of a control group", "", facts)
    else:
        told += f", and {size(limit)} is the limit of the control group, above which workers are killed"
        yield Check("memory", "no", told, "use smaller blocks or fewer workers, or raise the limit", facts)


def _workers(path: Path | None) -> Iterator[Check]:
    """Run a block in a worker process, and take the time of its start from the report."""
    import workspan as ws
    from workspan import config

    block = ws.Roi((0,), (1,))
    task = ws.Task("doctor", block, block, block, nothing, tracking_path=False, max_worker_restarts=0, max_retries=0)
    before = {name: config.get(name) for name in ("log_mode", "timing.persistent_data")}
    # Nothing of this run is left: no folder of logs, and nothing that a forecast could learn from.
    config.configure(**{"log_mode": "console", "timing.persistent_data": False})
    error = "the block was not done"
    try:
        report = ws.run_blockwise(
            task, progress=False, summary=False, block_tracking=False, engine="processes", return_report=True
        )
    except (WorkspanError, OSError) as raised:
        report, error = None, " ".join(str(raised).split())
    finally:
        config.configure(**before)
    if not report:
        remedy = "engine='serial' runs blocks in the calling process meanwhile"
        yield Check("worker processes", "broken", f"none can do anything: {error}", remedy, {})
        return
    startup = report["doctor"].workers.startup
    seconds = startup.mean if startup is not None and startup.n else None
    told = "fresh interpreters, never forks of the program"
    told += f"; one has just done a block, {duration(seconds)} after its start" if seconds is not None else ""
    yield Check("worker processes", "yes", told, "", {"startup_seconds": seconds})


def nothing(block: Any) -> None:
    """Do nothing with a block."""


def _open_files(path: Path | None) -> Iterator[Check]:
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit

    from workspan.engines.descriptors import SPARE
    from workspan.engines.processes import DESCRIPTORS_A_WORKER

    _, hard = getrlimit(RLIMIT_NOFILE)
    if hard == RLIM_INFINITY:
        yield Check("open files", "yes", "no limit", "", {"limit": None})
        return
    most = max(0, hard - SPARE) // DESCRIPTORS_A_WORKER
    told = f"{hard:,}, enough for {most:,} workers"
    enough = most >= (os.cpu_count() or 1)
    remedy = "" if enough else "raise the limit (ulimit -Hn)"
    yield Check("open files", "yes" if enough else "no", told, remedy, {"limit": hard, "most_workers": most})


# -- folders -----------------------------------------------------------------------------------------------------------


def _disk(path: Path | None) -> Iterator[Check]:
    from workspan.store.abilities import look_at_disk
    from workspan.store.lock import LEASE_SECONDS

    asked = Path.cwd() if path is None else path
    disk = look_at_disk(asked)
    facts: dict[str, Any] = {
        "folder": disk.folder,
        "kind": disk.kind,
        "free_bytes": disk.free_bytes,
        "free_files": disk.free_files,
    }
    where = f"{disk.folder} ({disk.kind or 'a file system that the system does not name'})"
    if path is not None and not path.exists():
        where = f"{path} does not exist yet; {where}"
    if path is not None and path.exists() and not path.is_dir():
        yield Check("folder", "broken", f"{path} is a file, not a folder", "name a folder", facts)
        return
    if disk.error:
        state = "no" if path is None else "broken"
        yield Check("folder", state, f"{where}: nothing can be written there: {disk.error}", "use another one", facts)
        return
    is_tight = disk.free_bytes < LEAST_FREE_BYTES or (disk.free_files is not None and disk.free_files < 10_000)
    free = f"{size(disk.free_bytes)} free" + (f", {disk.free_files:,} files" if disk.free_files is not None else "")
    remedy = "make some room: a run stops when there is none" if is_tight else ""
    yield Check("folder", "no" if is_tight else "yes", f"{where}, {free}", remedy, facts)
    if disk.has_locks:
        yield Check("file locks", "yes", "two runs cannot write to one tracking store", "", {})
    elif disk.lock_error:
        yield Check("file locks", "broken", disk.lock_error, "keep tracking stores on another file system", {})
    else:
        told = f"none here: a store is held by a lease, which a run that was killed keeps for {LEASE_SECONDS:g} s"
        yield Check("file locks", "no", told, "keep tracking stores on a local disk", {})
    facts = {
        "maps": disk.maps,
        "allocates": disk.allocates,
        "uses_map": disk.uses_map,
        "is_sparse": disk.is_sparse,
    }
    if disk.uses_map and disk.maps and disk.allocates:
        told, remedy = "stores are written through a memory map, in room that was allocated before", ""
    else:
        lacks = [text for has, text in ((disk.maps, "maps"), (disk.allocates, "allocation")) if not has]
        why = f"no {' or '.join(lacks)} here" if lacks else "a full disk could end the process otherwise"
        told = f"stores are written by system calls, which costs some 20 µs a block, as there is {why}"
        told = told if lacks else f"stores are written by system calls, which costs some 20 µs a block: {why}"
        remedy = "for millions of short blocks keep tracking stores on ext4, xfs or tmpfs"
    yield Check("memory maps", "no" if remedy else "yes", told, remedy, facts)
    if not disk.is_sparse:
        told = "takes room for what nobody has written: a store has its full size from the beginning"
        yield Check("sparse files", "no", told, "", {})
    else:
        yield Check("sparse files", "yes", "a store takes only the room of blocks that were done", "", {})


def _logs(path: Path | None) -> Iterator[Check]:
    from workspan import config
    from workspan.store.abilities import why_not_writable

    folder, mode = config.get("log_basedir"), config.get("log_mode")
    if folder is None or mode == "console":
        yield Check("logs of workers", "yes", "on the streams of the program, by the settings", "", {"folder": None})
        return
    error, facts = why_not_writable(folder), {"folder": folder}
    if error:
        remedy = "set log_basedir to another folder (WORKSPAN_LOG_BASEDIR), or log_mode to console"
        yield Check("logs of workers", "broken", f"{folder}: {error}, so no run can start", remedy, facts)
    else:
        yield Check("logs of workers", "yes", f"{folder}", "", facts)


def _timings(path: Path | None) -> Iterator[Check]:
    from workspan import config
    from workspan.estimate.files import timing_directory
    from workspan.store.abilities import why_not_writable

    folder = timing_directory()
    facts: dict[str, Any] = {"folder": folder}
    if not config.get("timing.enabled") or not config.get("timing.persistent_data"):
        name = "timing.enabled" if not config.get("timing.enabled") else "timing.persistent_data"
        yield Check("timings of steps", "no", f"not kept, as {name} is false", f"set {name} to true", facts)
    elif folder is None:
        remedy = "set timing.directory (WORKSPAN_TIMING_DIRECTORY)"
        yield Check(
            "timings of steps", "no", "there is no home folder, so estimates do not outlive a program", remedy, facts
        )
    elif error := why_not_writable(folder):
        remedy = "set timing.directory (WORKSPAN_TIMING_DIRECTORY) to another folder"
        yield Check("timings of steps", "no", f"{folder}: {error}: estimates do not outlive a program", remedy, facts)
    else:
        yield Check("timings of steps", "yes", f"{folder}", "", facts)


def _sockets(path: Path | None) -> Iterator[Check]:
    from workspan import config
    from workspan.live import folder as live

    name = "workspan watch"
    if not config.get("live.enabled"):
        told = "cannot see programs, as live.enabled is false"
        yield Check(name, "no", told, "set live.enabled to true", {"folder": None})
        return
    reasons = []
    for place in live.places():
        missing = [folder for folder in (place, *place.parents) if not folder.exists()]
        try:
            live.prepare(place)
            listener, file = live.bind(place, "doctor", os.getpid())
            listener.close()
            file.unlink(missing_ok=True)
        except (OSError, ConfigurationError) as error:
            reasons.append(str(error))
            continue
        finally:
            with suppress(OSError):
                for folder in missing:
                    folder.rmdir()
        length = len(os.fsencode(file))
        told = f"socket in {place}, {length} bytes of {live.MAX_PATH_BYTES} for its path"
        facts: dict[str, Any] = {"folder": place, "path_bytes": length, "most_bytes": live.MAX_PATH_BYTES}
        yield Check(name, "yes", told, "", facts)
        return
    told = f"cannot see programs, as no folder can be used for sockets: {'; '.join(reasons)}"
    remedy = "set live.directory to a short path that only you can enter"
    yield Check(name, "no", told, remedy, {"folder": None})


# -- software ----------------------------------------------------------------------------------------------------------


def _python(path: Path | None) -> Iterator[Check]:
    import workspan as ws

    version = platform.python_version()
    told = f"Workspan {ws.__version__} on {platform.python_implementation()} {version}, "
    told += f"{platform.system()} {platform.machine()}"
    facts: dict[str, Any] = {
        "workspan": ws.__version__,
        "python": version,
        "system": platform.system(),
        "machine": platform.machine(),
    }
    if sys.platform not in ("linux", "darwin"):
        yield Check("Python", "broken", told, "Workspan runs on Linux and macOS", facts)
    else:
        yield Check("Python", "yes", told, "", facts)


_REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[[\w,.-]+\])?\s*(?:(>=|==)\s*([\w.]+))?[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?"
)


def _packages(path: Path | None) -> Iterator[Check]:
    from importlib import metadata

    try:
        texts = metadata.requires("workspan") or []
    except metadata.PackageNotFoundError:
        told = "Workspan is not installed, only imported from a folder: what it needs is not listed"
        yield Check("packages", "no", told, "pip install it, or install it in editable form", {})
        return
    versions: dict[str, str | None] = {}
    missing: dict[str, list[str]] = {}
    for text in texts:
        match = _REQUIREMENT.match(text)
        if match is None:
            continue
        name, _, least, extra = match.groups()
        try:
            version: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        lacks = missing.setdefault(extra or "", [])
        if extra is None:
            versions[name] = version
        if version is None:
            lacks.append(name)
        elif least is not None and _numbers(version) < _numbers(least):
            lacks.append(f"{name} {least} (here is {version})")
    broken = missing.pop("", [])
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version)
    if broken:
        told = f"missing or too old: {', '.join(broken)}"
    remedy = "pip install --upgrade workspan" if broken else ""
    yield Check("packages", "broken" if broken else "yes", told, remedy, {"versions": versions})
    for extra, lacks in sorted(missing.items()):
        if extra in ("dev", "bench"):
            continue
        told = f"without {', '.join(lacks)}" if lacks else "installed"
        remedy = f"pip install 'workspan[{extra}]'" if lacks else ""
        yield Check(f"extra {extra}", "no" if lacks else "yes", told, remedy, {"missing": lacks})


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, up to the first part that is none.

    Examples
    --------
    >>> _numbers("3.10.1rc1")
    (3, 10)
    """
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _settings(path: Path | None) -> Iterator[Check]:
    from workspan import config

    try:
        changed = {name: where for name, (_, where) in config.sources().items() if where != "default"}
    except ConfigurationError as error:
        yield Check("settings", "broken", str(error), "nothing runs before that is mended", {})
        return
    places = ", ".join(dict.fromkeys(changed.values()))
    told = f"{count(len(changed), 'setting')} from {places}" if changed else "defaults, nothing else"
    yield Check("settings", "yes", told, "workspan config lists them" if changed else "", {"changed": changed})


def _terminal(path: Path | None) -> Iterator[Check]:
    from workspan.views.terminal import encoding_of, is_terminal

    term, encoding = os.environ.get("TERM", ""), encoding_of(sys.stderr)
    facts: dict[str, Any] = {"term": term, "encoding": encoding, "no_color": bool(os.environ.get("NO_COLOR"))}
    if is_terminal(sys.stderr):
        colours = "without colours (NO_COLOR)" if facts["no_color"] else "in colours"
        yield Check("progress", "yes", f"bars, {colours} ({term}, {encoding})", "", facts)
        return
    if not (sys.stderr is not None and sys.stderr.isatty()):
        why, remedy = "standard error is no terminal", ""
    elif term.lower() in ("", "dumb", "unknown"):
        why, remedy = f"TERM={term!r} cannot move its cursor", "set TERM, for example to xterm-256color"
    else:
        why, remedy = f"its encoding, {encoding}, has no bars", "set LANG to a UTF-8 locale, or PYTHONIOENCODING=utf-8"
    yield Check("progress", "no", f"a line every few seconds instead of bars, as {why}", remedy, facts)


CHECKS: tuple[tuple[str, str, Callable[[Path | None], Iterator[Check]]], ...] = (
    ("Software", "Python", _python),
    ("Software", "packages", _packages),
    ("Software", "settings", _settings),
    ("Time", "native timer", _timers),
    ("Blocks", "peak memory", _counters),
    ("Blocks", "GPU", _gpu),
    ("Machine", "processors", _processors),
    ("Machine", "memory", _memory),
    ("Machine", "open files", _open_files),
    ("Folders", "folder", _disk),
    ("Folders", "logs of workers", _logs),
    ("Folders", "timings of steps", _timings),
    ("Folders", "workspan watch", _sockets),
    ("Terminal", "progress", _terminal),
    ("Workers", "worker processes", _workers),  # last: it takes longest, and the time is limited
)
"""Group, name and what looks, in the order in which they are shown."""
