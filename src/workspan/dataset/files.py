"""Which files paths, folders, patterns and URLs stand for."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from workspan.errors import ConfigurationError, DataError, MissingExtraError, UsageTypeError

__all__ = ["Found", "find_files", "is_local", "is_visible", "resolve"]


class Found(Struct, frozen=True):
    """A file."""

    label: str
    """What to call it in messages."""
    path: str
    """In its file system."""
    size_bytes: int | None
    modified_ns: int | None
    filesystem: Any
    """``None``: the local one."""
    keys: tuple[tuple[str, int | str | None], ...] = ()
    """Columns and values that the names of its folders tell: ``year=2026/month=5`` for example."""


def find_files(paths: Any, suffixes: tuple[str, ...], filesystem: Any, name: str) -> list[Found]:
    """Return the files, sorted by path within each entry.

    A folder stands for all files in it, at any depth, but for those whose name (or folder) begins with ``.`` or ``_``.

    Raises
    ------
    DataError
        Nothing is there.
    """
    import pyarrow.fs as fs

    if isinstance(paths, bytes) or not (isinstance(paths, (str, os.PathLike)) or hasattr(paths, "__iter__")):
        raise UsageTypeError(f"{name}({paths!r}): a {type(paths).__name__} is no path")
    entries = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not entries:
        raise ConfigurationError(f"{name}([]): there is no path; pass a file, a folder, a pattern or a list of them")
    found: list[Found] = []
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike)):
            raise UsageTypeError(f"{name}({entry!r}): a {type(entry).__name__} is no path")
        text = os.fspath(entry)
        if not text:
            raise ConfigurationError(f"{name}(''): that is no path")
        system, path = (filesystem, text) if filesystem is not None else resolve(text)
        info, base = system.get_file_info(path), path
        if info.type == fs.FileType.NotFound and any(sign in path for sign in "*?["):
            base, matches = _glob(system, path, name)
        elif info.type == fs.FileType.NotFound:
            raise DataError(f"{name}: {text!r} is not there: pass a file, a folder or a pattern")
        else:
            matches = _within(system, path, suffixes) if info.type == fs.FileType.Directory else [info]
        if not matches:
            told = " or ".join(suffixes)
            raise DataError(f"{name}: {text!r} has no files in it (looked for {told}): check the path")
        local = isinstance(system, fs.LocalFileSystem)
        for info in sorted(matches, key=lambda info: info.path):
            label = text if len(matches) == 1 and info.path == path else info.path
            keys = _keys(info.path[len(base) :])
            found.append(Found(label, info.path, info.size, info.mtime_ns, None if local else system, keys))
    return _typed(found)


def _keys(below: str) -> tuple[tuple[str, str | None], ...]:
    """Return what the names of folders tell.

    Examples
    --------
    >>> _keys("/year=2026/city=New%20York/a.csv"), _keys("/a=1.csv")
    ((('year', '2026'), ('city', 'New York')), ())
    """
    parts = [part.partition("=") for part in below.strip("/").split("/")[:-1]]
    pairs = [(name, unquote(value)) for name, sign, value in parts if name and sign]
    return tuple((name, None if value == _NO_VALUE else value) for name, value in pairs)


_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def _typed(found: list[Found]) -> list[Found]:
    """Return the files with numbers in place of texts, for the keys of which all values are whole numbers."""
    texts: dict[str, set[str]] = {}
    for file in found:
        for name, value in file.keys:
            texts.setdefault(name, set()).update(() if value is None else (str(value),))
    whole = {name for name, values in texts.items() if values and all(map(_NUMBER.fullmatch, values))}
    return [
        replace(file, keys=tuple((n, int(v) if n in whole and v is not None else v) for n, v in file.keys))
        if file.keys
        else file
        for file in found
    ]


_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})")
"""A number that stays the same text: the ``007`` of a name is none."""


def resolve(text: str) -> tuple[Any, str]:
    """Return the file system and the path in it; a URL of any scheme that pyarrow or fsspec knows.

    Raises
    ------
    MissingExtraError
        It is a URL that pyarrow does not know, and fsspec is not installed.
    ConfigurationError
        Neither knows it.
    """
    import pyarrow.fs as fs

    if "://" not in text:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))
    try:
        system, path = fs.FileSystem.from_uri(text)
        return system, path
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        try:
            import fsspec
        except ImportError:
            scheme = text.partition("://")[0]
            raise MissingExtraError(
                f"{text!r}: pyarrow has no file system for {scheme}://, and fsspec, which may have one, is not "
                "installed: pip install fsspec"
            ) from None
        try:
            other, path = fsspec.core.url_to_fs(text)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"{text!r}: fsspec has no file system for it: {error}") from error
        return fs.PyFileSystem(fs.FSSpecHandler(other)), path


def is_local(system: Any) -> bool:
    """Whether a file system is that of this machine."""
    import pyarrow.fs as fs

    return isinstance(system, fs.LocalFileSystem)


def is_visible(name: str) -> bool:
    """Whether neither a file nor a folder on the way to it is hidden: the names of those begin with ``.`` or ``_``."""
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def _visible(path: str, base: str) -> bool:
    return is_visible(path[len(base) :].strip("/"))


def _within(system: Any, path: str, suffixes: tuple[str, ...]) -> list[Any]:
    import pyarrow.fs as fs

    infos = system.get_file_info(fs.FileSelector(path, recursive=True))
    files = [info for info in infos if info.type == fs.FileType.File and _visible(info.path, path)]
    fitting = [info for info in files if info.path.endswith(suffixes)]
    return fitting or files


def _glob(system: Any, pattern: str, name: str) -> tuple[str, list[Any]]:
    """Return the folder in which a pattern begins, and the files that fit it."""
    import pyarrow.fs as fs

    fixed = pattern[: min(pattern.index(sign) for sign in "*?[" if sign in pattern)].rpartition("/")[0] or "/"
    if system.get_file_info(fixed).type != fs.FileType.Directory:
        return fixed, []
    try:
        rule = re.compile(_pattern(pattern))
    except re.error as error:
        raise ConfigurationError(f"{name}: {pattern!r} is no pattern: {error}") from None
    deep = "**" in pattern or "/" in pattern[len(fixed) :].strip("/")
    infos = system.get_file_info(fs.FileSelector(fixed, recursive=deep))
    files = [info for info in infos if info.type == fs.FileType.File and rule.fullmatch(info.path)]
    asked = not _visible(pattern, fixed)  # the pattern itself names what is hidden
    return fixed, [info for info in files if asked or _visible(info.path, fixed)]


def _pattern(pattern: str) -> str:
    r"""Turn a pattern of paths into a regular expression; only ``**`` goes over ``/``.

    Examples
    --------
    >>> _pattern("a/*.csv"), _pattern("a/**/b?.csv"), _pattern("a/[!x]**")
    ('a/[^/]*\\.csv', 'a/(?:.*/)?b[^/]\\.csv', 'a/[^/x].*')
    """
    out = ""
    at = 0
    while at < len(pattern):
        end = pattern.find("]", at + 2 + pattern.startswith("[!", at)) if pattern[at] == "[" else -1
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif pattern[at] == "?":
            out, at = out + "[^/]", at + 1
        elif end >= 0:
            signs = pattern[at + 1 : end].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            out, at = out + (f"[^/{signs[1:]}]" if signs.startswith("!") else f"[{signs}]"), end + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    return out
