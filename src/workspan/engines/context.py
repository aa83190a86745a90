"""What a worker that is not started by this machine's engine must be told to find its run."""

from __future__ import annotations

import os
import re
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from pathlib import Path
from typing import Self

from workspan import config
from workspan.errors import ConfigurationError

__all__ = ["Context"]

VARIABLES = ("WORKSPAN_CONTEXT", "DAISY_CONTEXT")
"""Environment variables that hold a context; the first one that is set counts."""

_CODES = {"%": "%25", ":": "%3A", "=": "%3D"}
_CHARACTERS = {code: character for character, code in _CODES.items()}


class Context:
    """Names and values, all text, in the order in which they were given.

    The names that a run gives are ``hostname``, ``port``, ``task_id``, ``worker_id``, ``resource_tracking`` (``"1"`` or
    ``"0"``), ``logdir``, ``run_id`` and ``secret_file``. The secret itself is never part of a context: it is in a file
    that only its owner can read.

    Parameters
    ----------
    **kwargs
        Names and values; values are turned into text. ``logdir`` is added unless given: the folder of this process's
        worker logs, or nothing.

    Examples
    --------
    >>> Context(task_id="a:b", logdir="").to_env()
    'task_id=a%3Ab:logdir='
    """

    ENV_VARIABLE = "DAISY_CONTEXT"
    """daisy's name of the variable; ``WORKSPAN_CONTEXT`` comes first when both are set."""

    def __init__(self, **kwargs: object) -> None:
        self._values = {name: str(value) for name, value in kwargs.items()}
        if "logdir" not in self._values:
            self._values["logdir"] = str(config.get("log_basedir") or "")

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __setitem__(self, name: str, value: object) -> None:
        self._values[str(name)] = str(value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Context) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"Context({self.to_env()!r})"

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of *name*, or *default*."""
        return self._values.get(name, default)

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._values.keys()

    def values(self) -> ValuesView[str]:
        """Return the values."""
        return self._values.values()

    def items(self) -> ItemsView[str, str]:
        """Return pairs of name and value."""
        return self._values.items()

    def copy(self) -> Context:
        """Return a context of its own with the same values."""
        out = Context(logdir="")
        out._values = dict(self._values)
        return out

    def to_env(self) -> str:
        """Return the text for the environment: ``name=value`` pairs with ``:`` between them."""
        return ":".join(f"{_encode(name)}={_encode(value)}" for name, value in self._values.items())

    @classmethod
    def from_env(cls) -> Self:
        """Read the context of this process's environment.

        Raises
        ------
        KeyError
            No variable is set.
        ValueError
            The text is not a context.
        """
        for name in VARIABLES:
            if name in os.environ:
                return cls.from_env_string(os.environ[name])
        raise KeyError(VARIABLES[0])

    @classmethod
    def from_env_string(cls, text: str) -> Self:
        """Read what :meth:`to_env` wrote.

        Raises
        ------
        ValueError
            A pair has no ``=``.
        """
        out = cls(logdir="")
        out._values = {}
        for pair in text.split(":") if text else ():
            name, equals, value = pair.partition("=")
            if not equals:
                raise ConfigurationError(f"{pair!r} in the context {text!r} is no name=value pair")
            out._values[_decode(name)] = _decode(value)
        return out

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read the context file of a run.

        Raises
        ------
        ConfigurationError
            It cannot be read, or is not a context.
        """
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"the context file {os.fspath(path)!r} cannot be read ({reason}): it exists only while its run goes on"
            ) from None
        return cls.from_env_string(text)


def _encode(text: str) -> str:
    return "".join(_CODES.get(character, character) for character in text)


def _decode(text: str) -> str:
    return re.sub("%(?:25|3A|3D)", lambda match: _CHARACTERS[match[0]], text)
