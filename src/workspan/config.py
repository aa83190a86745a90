"""Settings of this process: defaults <- ``workspan.toml`` or ``pyproject.toml`` <- ``WORKSPAN_*`` <- ``configure()``.

Files are looked for in the working directory when a setting is first needed; importing the package reads nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from workspan.errors import ConfigurationError

__all__ = ["configure", "get", "reset"]

DEFAULTS: dict[str, Any] = {
    "tracking_basedir": None,
    "log_basedir": "./workspan_logs",
    "log_mode": "file",
}
"""Every setting with its default.

``tracking_basedir``: folder below which tasks keep their tracking stores, or ``None`` for no tracking by default.
``log_basedir``: folder of the workers' logs, or ``None`` for none. ``log_mode``: ``"file"``, ``"console"`` or
``"both"``.
"""

_PATHS = ("tracking_basedir", "log_basedir")
_LOG_MODES = ("file", "console", "both")
_values: dict[str, Any] | None = None


def configure(**settings: Any) -> None:
    """Set settings of this process.

    Parameters
    ----------
    **settings
        Any of :data:`DEFAULTS`, by name.

    Raises
    ------
    ConfigurationError
        A name or a value is not known; nothing is changed then.
    """
    checked = {name: _checked(name, value, "configure()") for name, value in settings.items()}
    _loaded().update(checked)


def get(name: str) -> Any:
    """Return the value of setting *name*; paths are ``pathlib.Path`` or ``None``."""
    return _loaded()[name]


def reset() -> None:
    """Forget everything that was configured; files and environment are read again when next needed."""
    global _values
    _values = None


def _loaded() -> dict[str, Any]:
    global _values
    if _values is None:
        values = dict(DEFAULTS)
        values["log_basedir"] = Path(values["log_basedir"])
        values.update(_from_file())
        for name in DEFAULTS:
            text = os.environ.get(f"WORKSPAN_{name.upper()}")
            if text is not None:
                values[name] = _checked(name, text or None, f"WORKSPAN_{name.upper()}")
        _values = values
    return _values


def _from_file() -> dict[str, Any]:
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
            return {name: _checked(name, value, str(file)) for name, value in table.items()}
    return {}


def _checked(name: str, value: Any, where: str) -> Any:
    if name not in DEFAULTS:
        raise ConfigurationError(f"{where}: {name!r} is not a setting; known are {', '.join(sorted(DEFAULTS))}")
    if name in _PATHS:
        if value is not None and not isinstance(value, (str, os.PathLike)):
            raise ConfigurationError(f"{where}: {name}={value!r} is not a path")
        return None if value is None else Path(value)
    if value not in _LOG_MODES:
        raise ConfigurationError(f"{where}: {name}={value!r} is not known: use one of {', '.join(_LOG_MODES)}")
    return value
