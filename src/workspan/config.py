"""Settings of this process: defaults <- ``workspan.toml`` or ``pyproject.toml`` <- ``WORKSPAN_*`` <- ``configure()``.

A setting that belongs to a group has a dot in its name: ``timing.enabled`` is ``enabled`` in the TOML table
``[timing]`` (``[tool.workspan.timing]`` in ``pyproject.toml``), ``WORKSPAN_TIMING_ENABLED`` in the environment and
``configure(timing={"enabled": False})`` or ``configure(**{"timing.enabled": False})`` in Python.

Files are looked for in the working directory when a setting is first needed; importing the package reads nothing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from workspan.errors import ConfigurationError

__all__ = ["DEFAULTS", "configure", "generation", "get", "reset", "sources"]

Check = Callable[[Any], Any]


class Setting(NamedTuple):
    """One setting: its default, and what turns a given value into the one that is kept."""

    default: Any
    check: Check
    """Returns the value to keep; ``ValueError`` with what would be right otherwise."""


def _path(value: Any) -> Path | None:
    if value is None or value == "":
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("is not a path")
    return Path(value)


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return words[value.strip().lower()]
    except (AttributeError, KeyError):
        raise ValueError("is neither true nor false") from None


def _whole(least: int, most: float = math.inf) -> Check:
    wanted = f"is not a whole number from {least}" + (f" to {most}" if most < math.inf else "")

    def check(value: Any) -> int:
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                raise ValueError(wanted) from None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(wanted)
        return value

    return check


def _number(least: float, most: float = math.inf, *, above: bool = False, below: bool = False) -> Check:
    wanted = f"is not a number {'above' if above else 'from'} {least:g}"
    if most < math.inf:
        wanted += f" and below {most:g}" if below else f" to {most:g}"

    def check(value: Any) -> float:
        try:
            if isinstance(value, bool):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(wanted) from None
        is_at_end = (above and number == least) or (below and number == most)
        if not math.isfinite(number) or not least <= number <= most or is_at_end:
            raise ValueError(wanted)
        return number

    return check


def _one_of(*allowed: str) -> Check:
    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"is not known: use one of {', '.join(allowed)}")
        return str(value)

    return check


def _optional(inner: Check) -> Check:
    def check(value: Any) -> Any:
        return None if value is None or value in ("", "none", "auto") else inner(value)

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    names = [name for name in value if isinstance(name, str)] if isinstance(value, Iterable) else []
    if not isinstance(value, Iterable) or len(names) != len(list(value)):
        raise ValueError("is not a list of names (in the environment: separated by commas)")
    return tuple(names)


def _handlers(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise ValueError("is not a table of handlers by name")
    known = {"level": "INFO", "format": "%(asctime)s %(message)s", "datefmt": "%Y-%m-%d %H:%M:%S", "loggers": ()}
    handlers: dict[str, dict[str, Any]] = {}
    for name, options in value.items():
        if not re.fullmatch(r"[A-Za-z0-9._-]+", str(name)):
            raise ValueError(f"has the name {name!r}: use letters, digits, '.', '_' and '-'")
        if not isinstance(options, Mapping) or options.keys() - known:
            raise ValueError(f"gives {name!r} what is no table of {', '.join(known)}")
        made = {**known, **options}
        made["loggers"] = _names(made["loggers"])
        if isinstance(made["level"], bool) or not isinstance(made["level"], (str, int)):
            raise ValueError(f"gives {name!r} a level that is neither a name nor a number")
        if not all(isinstance(made[text], str) for text in ("format", "datefmt")):
            raise ValueError(f"gives {name!r} a format that is no text")
        handlers[str(name)] = made
    return handlers


_SETTINGS: dict[str, Setting] = {
    "tracking_basedir": Setting(None, _path),
    "log_basedir": Setting("./workspan_logs", _path),
    "log_mode": Setting("file", _one_of("file", "console", "both")),
    "run.engine": Setting(None, _optional(_text)),
    "run.workers": Setting(None, _optional(_whole(1))),
    "user_data_home": Setting(None, _path),
    "timing.enabled": Setting(True, _switch),
    "timing.directory": Setting(None, _path),
    "timing.persistent_data": Setting(True, _switch),
    "timing.max_files": Setting(5, _whole(1)),
    "timing.max_measurements": Setting(50, _whole(1)),
    "timing.max_steps": Setting(500, _whole(1)),
    "timing.max_file_bytes": Setting(8 * 2**20, _whole(1024)),
    "timing.save_interval": Setting(30.0, _number(0)),
    "timing.spline_order": Setting(3, _whole(0, 5)),
    "timing.update_threshold": Setting(0.2, _number(0)),
    "timing.update_minimum_count": Setting(3, _whole(1)),
    "timing.update_floor": Setting(0.001, _number(0)),
    "timing.monotone": Setting(None, _optional(_switch)),
    "timing.interval": Setting(0.9, _number(0, 1, above=True, below=True)),
    "timing.default_seconds": Setting(3.0, _number(0, above=True)),
    "timing.default_size": Setting(1e9, _number(0, above=True)),
    "timing.on_n_ref_change": Setting("quarantine", _one_of("quarantine", "keep", "discard")),
    "timing.recursive": Setting("outermost", _one_of("outermost", "all")),
    "timing.overlapping": Setting("use", _one_of("use", "ignore")),
    "timing.software_version": Setting(None, _optional(_text)),
    "timing.strict": Setting(False, _switch),
    "logging.roots": Setting((), _names),
    "logging.level": Setting(20, _whole(0, 100)),
    "logging.interval": Setting(10.0, _number(0)),
    "logging.indent": Setting("  ", _text),
    "live.enabled": Setting(True, _switch),
    "live.directory": Setting(None, _path),
    "live.handlers": Setting({}, _handlers),
}

DEFAULTS: dict[str, Any] = {name: setting.default for name, setting in _SETTINGS.items()}
"""Every setting with its default.

Runs
    ``tracking_basedir``: folder below which tasks keep their tracking stores, or ``None`` for no tracking by default.
    ``log_basedir``: folder of the workers' logs, or ``None`` for none. ``log_mode``: ``"file"``, ``"console"`` or
    ``"both"``.
``workspan run``
    ``run.engine``, ``run.workers``: what it uses where no argument says otherwise; ``None``: as the script says.
Where timings are kept
    ``user_data_home``: ``None`` is the platform's user data folder and ``workspan``. ``timing.directory``: ``None`` is
    ``workflows_data/timing`` below it. ``timing.persistent_data``: false reads but never writes.
    ``timing.max_files``, ``timing.max_measurements`` of a step and variant, ``timing.max_steps``,
    ``timing.max_file_bytes``: limits, the oldest go first. ``timing.save_interval``: seconds after which new
    measurements, which are on disk at once, are also merged into the JSON file.
What is recorded
    ``timing.enabled``: false makes every step inert. ``timing.recursive``: record the ``"outermost"`` of nested
    activations of one step, or ``"all"``. ``timing.on_n_ref_change``: ``"quarantine"``, ``"keep"`` or ``"discard"``
    measurements whose N_ref was another function. ``timing.overlapping``: ``"ignore"`` keeps those that ran beside
    another of the same step out of the fit. ``timing.software_version``: noted with every measurement.
    ``timing.strict``: faults of N_ref, files and handlers are raised, for tests.
Estimates
    ``timing.update_minimum_count``, ``timing.update_threshold`` (relative), ``timing.update_floor`` (seconds): when an
    estimate that was wrong is made anew. ``timing.spline_order``: highest degree, 0 to 5. ``timing.monotone``:
    ``None`` prefers curves that rise, true enforces it, false does not care. ``timing.interval``: level of the range.
    ``timing.default_seconds`` at ``timing.default_size``: the estimate without any measurement.
Logging of steps
    ``logging.roots``: classes, functions or patterns whose steps are logged. ``logging.level``: of their records.
    ``logging.interval``: seconds between two records of the remaining time, 0 for none. ``logging.indent``: of a step
    inside another.
Watching from other terminals
    ``live.enabled``: false keeps this program to itself. ``live.directory``: the one folder for the socket, ``None`` is
    the user's runtime folder or one in the temp folder. ``live.handlers``: log handlers for viewers by name, each with
    ``level``, ``format``, ``datefmt`` and ``loggers``, the names of the loggers that it is attached to.
"""

generation = 0
"""Changes whenever a setting may have changed: who keeps values compares it."""

_values: dict[str, Any] | None = None
_sources: dict[str, str] = {}


def configure(**settings: Any) -> None:
    """Set settings of this process.

    Parameters
    ----------
    **settings
        Any of :data:`DEFAULTS`, by name; those of a group also as a mapping named like the group.

    Raises
    ------
    ConfigurationError
        A name or a value is not known; nothing is changed then.

    Examples
    --------
    >>> configure(timing={"enabled": False})
    >>> get("timing.enabled")
    False
    >>> reset()
    """
    global generation
    checked = _checked_all(settings, "configure()")
    values = {**_loaded(), **checked}
    _agree(values, "configure()")
    _loaded().update(checked)
    _sources.update(dict.fromkeys(checked, "configure()"))
    generation += 1


def get(name: str) -> Any:
    """Return the value of setting *name*; paths are ``pathlib.Path`` or ``None``."""
    return _loaded()[name]


def sources() -> dict[str, tuple[Any, str]]:
    """Return every setting with its value and where that came from.

    That is ``"default"``, the name of a file or of an environment variable, or ``"configure()"``.

    Examples
    --------
    >>> configure(log_mode="console")
    >>> sources()["log_mode"]
    ('console', 'configure()')
    >>> reset()
    """
    return {name: (value, _sources.get(name, "default")) for name, value in _loaded().items()}


def reset() -> None:
    """Forget everything that was configured; files and environment are read again when next needed."""
    global _values, generation
    _values = None
    generation += 1


def variable(name: str) -> str:
    """Return the name of the environment variable of a setting.

    Examples
    --------
    >>> variable("timing.enabled")
    'WORKSPAN_TIMING_ENABLED'
    """
    return f"WORKSPAN_{name.upper().replace('.', '_')}"


def _loaded() -> dict[str, Any]:
    global _values
    if _values is None:
        values = {name: setting.check(setting.default) for name, setting in _SETTINGS.items()}
        from_file, file = _from_file()
        values.update(from_file)
        found = dict.fromkeys(from_file, file)
        for name in _SETTINGS:
            text = os.environ.get(variable(name))
            if text is not None:
                values[name] = _checked(name, text or None, variable(name))
                found[name] = variable(name)
        _agree(values, "the settings")
        _values = values
        _sources.clear()
        _sources.update(found)
    return _values


def _from_file() -> tuple[dict[str, Any], str]:
    """Return the settings of the file that has some, and its name."""
    for file, path in ((Path("workspan.toml"), ()), (Path("pyproject.toml"), ("tool", "workspan"))):
        if not file.is_file():
            continue
        import tomllib

        try:
            table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file} cannot be read as TOML: {error}; mend or remove it") from error
        for key in path:
            table = table.get(key, {})
        if table:
            return _checked_all(table, str(file)), str(file)
    return {}, ""


def _checked_all(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    groups = {name.partition(".")[0] for name in _SETTINGS if "." in name}
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name in groups and name not in _SETTINGS:
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{where}: {name}={value!r} is a group of settings: give a mapping of them")
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flat[name] = value
    return {name: _checked(name, value, where) for name, value in flat.items()}


def _checked(name: str, value: Any, where: str) -> Any:
    setting = _SETTINGS.get(name)
    if setting is None:
        raise ConfigurationError(f"{where}: {name!r} is not a setting; {_meant(name)}")
    try:
        return setting.check(value)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {name}={value!r} {error}") from None


def _meant(name: str) -> str:
    """Return which setting was probably meant, or the names of all."""
    from difflib import get_close_matches

    ends = [known for known in _SETTINGS if known.rpartition(".")[2] == name.rpartition(".")[2]]
    close = ends or get_close_matches(name, _SETTINGS, n=3)
    if close:
        return f"did you mean {' or '.join(close)}? 'workspan config' lists all"
    return f"known are {', '.join(sorted(_SETTINGS))}"


def _agree(values: Mapping[str, Any], where: str) -> None:
    """Refuse settings that contradict each other."""
    least, most = values["timing.update_minimum_count"], values["timing.max_measurements"]
    if least > most:
        raise ConfigurationError(
            f"{where}: timing.update_minimum_count={least} is more than timing.max_measurements={most}, so no estimate "
            "could ever be made; raise the second or lower the first"
        )
