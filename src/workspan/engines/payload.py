"""What a worker process is born with: everything of the driver that its user code may see, and the user's function.

The payload goes through the pipe that is the worker's standard input. It is the only place where code travels, and
this is the only module of the engines that pickles; nothing that comes over a socket gets here.

Functions of importable modules travel by reference, all others (of ``__main__``, of a notebook, of a module that was
loaded from a path that is not importable) by value.
"""

from __future__ import annotations

import io
import marshal
import os
import sys
from collections import ChainMap
from dataclasses import astuple
from types import CodeType
from typing import TYPE_CHECKING, Any

from workspan.engines._start import HEAD_BYTES
from workspan.engines.failure import TracebackStyle, style_in_use, use_style
from workspan.errors import EngineError
from workspan.grid.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from workspan.engines.base import WorkerTask

_LAYOUT_FIELDS = (
    "total_begin",
    "total_shape",
    "read_begin",
    "read_shape",
    "write_begin",
    "write_shape",
    "fit",
    "read_write_conflict",
)
_MOST_LOGGERS = 1000

# -- in the driver ---------------------------------------------------------------------------------------------------


def driver_settings() -> dict[str, Any]:
    """Return what a worker takes over from this process: import path, folder, arguments, logging, style of failures."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = None  # it was removed; so the workers have none to go to either
    return {
        "sys_path": import_path(),
        "cwd": cwd,
        "argv": list(sys.argv),
        "logging": _logging_settings(),
        "traceback_style": astuple(style_in_use()),
        "driver_pid": os.getpid(),
    }


def import_path() -> list[str]:
    """Return the import path of this process, for another one."""
    return [entry for entry in sys.path if type(entry) is str]


def task_settings(task: WorkerTask) -> dict[str, Any]:
    """Return what every worker of *task* is told, besides the function."""
    return {
        "task_id": task.task_id,
        "kind": task.kind,
        "takes_context": task.takes_context,
        "layout": plain_layout(task.layout),
        "resource_tracking": task.resource_tracking,
    }


def pack_function(task_id: str, function: Callable[..., Any]) -> bytes:
    """Serialise *function*.

    Raises
    ------
    EngineError
        It cannot be serialised; the text names it and the remedies.
    """
    import cloudpickle

    modules = [module for module in _home_modules(function) if not _importable(module)]
    modules = [module for module in modules if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return _dumps(function)
    except Exception as error:
        raise EngineError(
            f"function {function_name(function)!r} of task {task_id!r} cannot be sent to a worker process: "
            f"{type(error).__name__}: {error}. Define it at module level, create locks, open files and connections "
            "inside it instead of outside, or run with engine='serial'"
        ) from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _dumps(function: Callable[..., Any]) -> bytes:
    """Pickle as ``cloudpickle.dumps`` does, but keep the names of source files.

    Its newer versions leave them out, and then no traceback of a worker shows a line of the user's code.
    """
    import cloudpickle

    table = cloudpickle.Pickler.dispatch_table

    def reduce_code(code: CodeType) -> tuple[Any, ...]:
        kind, entries = table[CodeType](code)
        return kind, tuple(code.co_filename if _is_left_out(entry) else entry for entry in entries)

    pickler = type("_Pickler", (cloudpickle.Pickler,), {"dispatch_table": ChainMap({CodeType: reduce_code}, table)})
    file = io.BytesIO()
    pickler(file).dump(function)
    return file.getvalue()


def _is_left_out(entry: object) -> bool:
    return isinstance(entry, str) and entry == "<dynamic-code>"


def function_name(function: Any) -> str:
    """Return the name of a function (or of what is wrapped in a partial) for people."""
    while not hasattr(function, "__qualname__") and hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def pack(settings: dict[str, Any], function: bytes) -> list[memoryview]:
    """Return the buffers to write to a worker's standard input, in order."""
    head = marshal.dumps(settings)
    sizes = len(head).to_bytes(HEAD_BYTES, "big") + len(function).to_bytes(HEAD_BYTES, "big")
    return [memoryview(sizes + head), memoryview(function)] if function else [memoryview(sizes + head)]


def plain_layout(layout: Layout) -> dict[str, Any]:
    """Return *layout* as builtin values: integers of other libraries would be imported by the worker."""
    plain: dict[str, Any] = {}
    for name in _LAYOUT_FIELDS:
        value = getattr(layout, name)
        plain[name] = tuple(int(entry) for entry in value) if isinstance(value, tuple) else value
    return plain


def _logging_settings() -> dict[str, Any] | None:
    """Return levels and format of the root logger; ``None`` if the program has not touched logging."""
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    root = logging.getLogger()
    levels = {
        name: logger.level
        for name, logger in list(root.manager.loggerDict.items())
        if getattr(logger, "level", logging.NOTSET) != logging.NOTSET
    }
    if not root.handlers and root.level == logging.WARNING and not levels:
        return None
    formats = [(h.formatter._fmt, h.formatter.datefmt) for h in root.handlers if type(h.formatter) is logging.Formatter]
    format, datefmt = formats[0] if formats else (None, None)
    return {
        "level": root.level,
        "handlers": bool(root.handlers),
        "format": format if isinstance(format, str) else None,
        "datefmt": datefmt if isinstance(datefmt, str) else None,
        "levels": dict(list(levels.items())[:_MOST_LOGGERS]),
    }


def _home_modules(function: Any) -> list[ModuleType]:
    """Return the modules that define *function*, or what it wraps, or the class it is an instance or method of."""
    names = set()
    while function is not None:
        names.add(getattr(function, "__module__", None))
        names.add(getattr(type(function), "__module__", None))
        owner = getattr(function, "__self__", None)
        if owner is not None:
            names.add(getattr(owner if isinstance(owner, type) else type(owner), "__module__", None))
        function = getattr(function, "func", None)
    modules = [sys.modules.get(name) for name in sorted(name for name in names if name and name != "__main__")]
    return [module for module in modules if module is not None and sys.modules.get(module.__name__) is module]


def _importable(module: ModuleType) -> bool:
    """Whether a fresh interpreter with the same path would find this very file under the module's name."""
    file = getattr(module, "__file__", None)
    if file is None:
        # Built in, frozen or a namespace package; or made by hand, and then it has no spec either.
        return getattr(module, "__spec__", None) is not None
    path = None
    found = None
    parts = module.__name__.split(".")
    for end in range(1, len(parts) + 1):
        found = _find(".".join(parts[:end]), path)
        if found is None:
            return False
        path = found.submodule_search_locations
    origin = found.origin if found is not None else None
    return origin is not None and os.path.realpath(origin) == os.path.realpath(file)


def _find(name: str, path: Any) -> Any:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, path) if find is not None else None
        except Exception:  # a finder of somebody else
            spec = None
        if spec is not None:
            return spec
    return None


# -- in the worker ---------------------------------------------------------------------------------------------------


def load_function(packed: bytes) -> Callable[..., Any]:
    """Return the function that :func:`pack_function` packed. Runs the user's imports, and raises what they raise."""
    import pickle

    function: Callable[..., Any] = pickle.loads(packed)
    return function


def load_layout(plain: dict[str, Any]) -> Layout:
    """Return the layout that :func:`task_settings` took apart."""
    return Layout(**plain)


def restore_logging(settings: dict[str, Any] | None) -> None:
    """Log to the error stream at the driver's levels and in its format, if the driver logs at all."""
    if settings is None:
        return
    import logging

    if settings["handlers"]:
        logging.basicConfig(level=settings["level"], format=settings["format"], datefmt=settings["datefmt"])
    else:
        logging.getLogger().setLevel(settings["level"])
    for name, level in settings["levels"].items():
        logging.getLogger(name).setLevel(level)


def restore_traceback_style(settings: tuple[str, bool, int, int]) -> None:
    """Tell failures in the driver's style."""
    use_style(TracebackStyle(*settings))
