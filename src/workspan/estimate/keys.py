"""Which step is meant: (module, qualified name, step name), the same for the same source wherever it runs.

A key holds text only. The module of a script is ``__main__:`` with the script's name and a short hash of its path, so
that two scripts share nothing and no path is stored.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import os
import sys
import threading
import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, FrameType

__all__ = ["Key", "Place", "as_key", "checked_name", "claim", "key_of_frame", "module_name", "writable"]

LONGEST_NAME = 200

STEPS = "__workspan_steps__"
"""Attribute of a timed function: the keys of its steps, the outermost last."""


class Key(NamedTuple):
    """Names of a step; equal to the plain tuple of its parts."""

    module: str | None
    qualname: str | None
    step_name: str | None = None

    def __str__(self) -> str:
        return self.full_name

    @property
    def full_name(self) -> str:
        """All parts that there are, joined by dots."""
        return ".".join(part for part in self if part is not None)

    @property
    def root_label(self) -> str:
        """Name of the step in messages: last part of the qualified name, then the step's own."""
        if self.qualname is None:
            return self.step_name or self.module or ""
        last = self.qualname.rpartition(".")[2]
        return last if self.step_name is None else f"{last}: {self.step_name}"

    @property
    def substep_label(self) -> str:
        """Name of the step below another one: its own, or the last part of the qualified name."""
        return self.step_name or self.root_label


class Place(NamedTuple):
    """Where in the source a step is declared."""

    file: str
    line: int
    what: str = ""
    """What else tells two declarations apart: the method of a class."""

    def __str__(self) -> str:
        text = f"{PurePath(self.file).name}:{self.line}"
        return f"{text} ({self.what})" if self.what else text


def checked_name(name: Any, where: str) -> str | None:
    """Return the name of a step, or ``None`` for none.

    Raises
    ------
    UsageError
        It is not text, empty, longer than 200 characters, or has control characters or halves of surrogate pairs.
    """
    if name is None:
        return None
    if type(name) is str and 0 < len(name) <= LONGEST_NAME and name.isprintable():
        return name
    if not isinstance(name, str):
        raise UsageError(f"{where}: the step name is {name!r}, but a step is named by text")
    if not name or len(name) > LONGEST_NAME or any(_is_bad(ord(sign)) for sign in name):
        raise UsageError(
            f"{where}: the step name {name[:60]!r} must have 1 to {LONGEST_NAME} characters and no control characters"
        )
    return str.__str__(name)


def _is_bad(sign: int) -> bool:
    """Whether a character steers a terminal, or cannot be written into a file."""
    return sign < 32 or 127 <= sign < 160 or 0xD800 <= sign < 0xE000


def writable(text: str) -> str:
    r"""Return a text with what no file can hold, as the name of a script may have it, in escape sequences.

    Examples
    --------
    >>> writable("a" + chr(0xDCFF))
    'a\\udcff'
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_key(key: Any) -> Key:
    """Return *key* as a :class:`Key`; a timed function stands for its own.

    Raises
    ------
    UsageError
        It is neither a timed function nor a tuple or list of two or three texts or ``None``.
    """
    if isinstance(key, Key):
        return key
    if steps := getattr(key, STEPS, None):
        last: Key = steps[-1]
        return last
    if isinstance(key, (tuple, list)) and len(key) in (2, 3) and all(p is None or isinstance(p, str) for p in key):
        return Key(*(None if part is None else writable(part) for part in key))
    raise UsageError(
        f"{key!r} is no key of a step: pass the timed function itself, or (module, qualified name, step name), each "
        "text or None"
    )


def module_name(names: Mapping[str, Any]) -> str | None:
    """Return the name of the module whose global names these are.

    For the module that is run: its name with ``-m``, the script's name and a hash of its path otherwise, and plain
    ``__main__`` in an interactive session.
    """
    name = names.get("__name__")
    if name not in ("__main__", "__mp_main__"):
        return name if isinstance(name, str) else None
    spec = names.get("__spec__")
    if spec is not None and isinstance(getattr(spec, "name", None), str) and spec.name != "__mp_main__":
        return str(spec.name)
    file = names.get("__file__")
    if not isinstance(file, str):
        return "__main__"
    found = _scripts.get(file)
    if found is None:
        digest = hashlib.sha256(os.path.realpath(file).encode("utf-8", "surrogateescape")).hexdigest()
        found = _scripts[file] = f"__main__:{writable(PurePath(file).stem)}-{digest[:6]}"
    return found


_scripts: dict[str, str] = {}


def declared_module(target: Any) -> str | None:
    """Return the module name of a function or class, by its own ``__module__``."""
    name = getattr(target, "__module__", None)
    if name not in ("__main__", "__mp_main__"):
        return name if isinstance(name, str) else None
    # A wrapper bears the names of what it wraps, and the globals of the module that made it.
    names = getattr(inspect.unwrap(target), "__globals__", {})
    if names.get("__name__") != name:
        module = sys.modules.get(name)
        names = {} if module is None else vars(module)
    return module_name({**names, "__name__": name})


def key_of_frame(frame: FrameType, step_name: str | None) -> Key:
    """Return the key of a section in the code that *frame* runs: the class that defines a method, not the object's."""
    code, names = frame.f_code, frame.f_globals
    known = _keys.get((id(code), id(names), step_name))
    if known is not None and known[0] is code and known[1] is names.get("__name__"):
        return known[2]
    qualname = code.co_qualname
    key = Key(module_name(names), None if qualname == "<module>" else qualname, step_name)
    if len(_keys) >= _MOST_KEYS:
        _keys.clear()
    _keys[id(code), id(names), step_name] = code, names.get("__name__"), key
    return key


# Of frames seen before, because every pass through a ``with`` block asks. The code is kept alive, so that its id stays
# its own; global names are not, but others in their place are told apart by the name of the module.
_keys: dict[tuple[int, int, str | None], tuple[CodeType, Any, Key]] = {}
_MOST_KEYS = 4096


# -- who declares what ------------------------------------------------------------------------------------------------

_claims: dict[Key, tuple[Place, float]] = {}
_sections: dict[Key, tuple[str, int]] = {}
_warned: set[Key] = set()
_lock = threading.Lock()


def claim(key: Key, place: Place) -> None:
    """Note that a decorator at *place* declares the step *key*.

    Raises
    ------
    UsageError
        Other code declares it too. The same code may do so again: reloaded, edited and reloaded, in a notebook cell
        that is run again, or in every closure of one factory.
    """
    with _lock:
        earlier = _claims.get(key)
        _claims[key] = (place, time.time())
        if earlier is None or earlier[0] == place or _is_gone(*earlier):
            return
        _claims[key] = earlier
    raise UsageError(
        f"step {key} is declared twice, at {earlier[0]} and at {place}; their times would be mixed: give one of them "
        "another step name"
    )


def note_section(key: Key, place: tuple[str, int]) -> None:
    """Note that a ``with`` block in a file and line is the step *key*; warn once if there is another of that name."""
    earlier = _sections.get(key)
    if earlier == place:
        return
    with _lock:
        _sections[key] = place
        claimed = _claims.get(key)
        other = claimed[0] if claimed is not None else None
        if earlier is not None and not _is_gone(Place(*earlier)):
            other = Place(*earlier)
        if other is None or key in _warned:
            return
        _warned.add(key)
    logging.getLogger("workspan.estimate").warning(
        "step %s is at %s and at %s: their times are mixed; give one of them another name", key, other, Place(*place)
    )


def _is_gone(place: Place, claimed_at: float = math.inf) -> bool:
    """Whether a declaration was replaced since: its file was edited, or it never was in a file."""
    if place.file.startswith("<"):
        return True
    try:
        return os.stat(place.file).st_mtime > claimed_at
    except OSError:
        return True
