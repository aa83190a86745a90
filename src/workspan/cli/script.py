"""Load a user's script and find what can be run in it: for `workspan run` and its like.

The script is loaded as ``__mp_main__``: the name by which Python itself (``multiprocessing``) calls a main program that
is loaded and not run. So what stands under ``if __name__ == "__main__":`` does not run, timings of its steps have the
keys that they have under ``python script.py``, and its functions and classes travel to workers by value, so none
has to import it. It has the place of ``__main__`` among the modules meanwhile, as with ``python script.py``.
"""

from __future__ import annotations

import importlib.machinery
import linecache
import re
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.cli import exits
from workspan.errors import ConfigurationError, WorkspanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from workspan.run.task import Task

__all__ = ["Target", "call", "find", "loaded", "split"]

MODULE = "__mp_main__"

_MAKES = re.compile(r"\b(Task|Pipeline|DatasetRun|RunReport)\b")
"""In the annotation of what a function returns: it can be run."""

_MOST_LISTED = 10


class Target(NamedTuple):
    """What was asked for on the command line: ``script.py`` or ``script.py:name``."""

    path: Path
    name: str | None


class Found(NamedTuple):
    """Something in a script that can be run."""

    name: str
    value: Any
    """A task, a pipeline, a list of tasks, or a function that returns such or runs it."""


# -- the file --------------------------------------------------------------------------------------------------------


def split(text: str) -> Target:
    """Take ``script.py:name`` apart.

    Raises
    ------
    ConfigurationError
        There is no such file.
    """
    path, name = Path(text), None
    if ":" in text and not path.exists():
        head, _, name = text.rpartition(":")
        path = Path(head)
        if not name:
            raise ConfigurationError(f"{text!r} names nothing after the colon: use script.py:task, or script.py alone")
    if path.is_dir():
        raise ConfigurationError(f"{str(path)!r} is a folder: name a Python script in it")
    if not path.exists():
        raise ConfigurationError(f"there is no file {str(path)!r}{_similar_file(path)}")
    return Target(path, name)


def _similar_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder {str(folder)!r} either"
    names = [entry.name for entry in sorted(folder.iterdir()) if entry.suffix == ".py"]
    close = get_close_matches(path.name, names, 1) or get_close_matches(f"{path.name}.py", names, 1, 0.8)
    return f"; did you mean {str(folder / close[0])!r}?" if close else ""


@contextmanager
def loaded(path: Path, arguments: Sequence[str], *, has_run: Callable[[], bool]) -> Iterator[ModuleType]:
    """Execute the script *path*, and leave it in place of the main program for the ``with`` block.

    Parameters
    ----------
    path
        The script. Its folder comes first in the import path, as with ``python script.py``; if that is a package,
        relative imports work too.
    arguments
        Its ``sys.argv``, without its name.
    has_run
        Whether blocks were run meanwhile.

    Raises
    ------
    ConfigurationError
        It cannot be read, is no Python, or raised an exception; the text names the line.
    """
    import cloudpickle

    code = _compiled(path)
    file = str(path.absolute())
    module = ModuleType(MODULE)
    module.__file__ = file
    module.__loader__ = importlib.machinery.SourceFileLoader(MODULE, file)
    module.__package__, entries = _package_of(path.absolute())
    vars(module)["__builtins__"] = __builtins__
    kept = {name: sys.modules.get(name) for name in ("__main__", MODULE)}
    before = sys.argv[:], sys.path[:]
    sys.modules["__main__"] = sys.modules[MODULE] = module
    sys.argv[:] = [str(path), *arguments]
    sys.path[:0] = entries
    cloudpickle.register_pickle_by_value(module)  # with its classes: no worker could import them
    try:
        try:
            exec(code, vars(module))
        except Exception as error:
            raise _told(error, path, has_run=has_run()) from error
        yield module
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        sys.argv[:], sys.path[:] = before
        for name, old in kept.items():
            if old is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = old


def call(function: Callable[[], Any], path: Path, *, has_run: Callable[[], bool]) -> Any:
    """Return what a function of the script *path* returns.

    Raises
    ------
    ConfigurationError
        It raised an exception, or needs arguments.
    """
    import inspect

    name = function.__name__
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"{path}: function {name!r} cannot be called without arguments ({error}): give its parameters defaults, or "
            "read sys.argv, which has what follows -- on the command line"
        ) from None
    except ValueError:  # nobody knows its signature
        pass
    try:
        return function()
    except Exception as error:
        raise _told(error, path, has_run=has_run()) from error


def _compiled(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    try:
        return compile(source, str(path.absolute()), "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = (error.text or "").strip()
        line = "" if error.lineno is None else f", line {error.lineno}"
        raise ConfigurationError(
            f"{path}{line}: {type(error).__name__}: {error.msg}{f': {shown[:80]!r}' if shown else ''}"
        ) from error
    except ValueError as error:  # a null character
        raise ConfigurationError(f"{str(path)!r} is no Python script: {error}") from error


def _package_of(path: Path) -> tuple[str, list[str]]:
    """Return the package that a script belongs to ("": none), and what must come first in the import path."""
    folder, names = path.parent, []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier() and folder != folder.parent:
        names.append(folder.name)
        folder = folder.parent
    entries = [str(path.parent), *([str(folder)] if names else [])]
    return ".".join(reversed(names)), entries


def _told(error: Exception, path: Path, *, has_run: bool) -> Exception:
    """Return *error* of the script as one that tells its line; one that a run ended with stays as it is."""
    if isinstance(error, WorkspanError) and exits.code_of(error) != exits.REFUSED:
        return error
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path.absolute()):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f"{path}, line {line}" if line is not None else str(path)
    text = str(error) if isinstance(error, WorkspanError) else f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, ImportError) and "no known parent package" in text:
        module = re.search(r"from\s+\.(\w+)", linecache.getline(str(path.absolute()), line or 0))
        name = module[1] if module else "neighbour"
        text += f"; write 'import {name}' (its folder is in the import path), or put an __init__.py beside the script"
    kind = WorkspanError if has_run else ConfigurationError
    return kind(f"{where}: {text}")


# -- what is in it ---------------------------------------------------------------------------------------------------


def find(module: ModuleType, target: Target) -> Found:
    """Return what *target* names in its script, or the only thing there that can be run.

    Of tasks and pipelines that contain one another the largest counts. A name is that of a variable or function, or
    else the id of a task.

    Raises
    ------
    ConfigurationError
        There is none, there are several, or the name is not there.
    """
    objects = _objects(module)
    if target.name is not None:
        return _named(module, target, objects)
    largest = _largest(objects)
    if not largest:
        largest = [Found(f.__name__, f) for f in _functions(module) if _MAKES.search(_annotation(f))]
    if len(largest) == 1:
        return largest[0]
    if largest:
        names = ", ".join(found.name for found in largest[:_MOST_LISTED])
        more = f" and {len(largest) - _MOST_LISTED} more" if len(largest) > _MOST_LISTED else ""
        raise ConfigurationError(
            f"{target.path} has {len(largest)} things that can be run ({names}{more}): name one, for example "
            f"{target.path}:{largest[0].name}"
        )
    raise ConfigurationError(f"{target.path} has no Task, Pipeline or list of tasks{_hint(module, target)}")


def _hint(module: ModuleType, target: Target) -> str:
    from workspan.dataset.dataset import Dataset

    datasets = [name for name, value in vars(module).items() if isinstance(value, Dataset)]
    functions = [function.__name__ for function in _functions(module)]
    if functions:
        listed = ", ".join(functions[:_MOST_LISTED])
        does = "writes a dataset" if datasets else "makes one"
        return f"; if a function {does} ({listed}), name it: {target.path}:{functions[0]}"
    if datasets:
        return (
            f", and of the dataset {datasets[0]!r} nothing is written: make a function that returns "
            f"{datasets[0]}.write_parquet(...), and name it: {target.path}:function"
        )
    return ": assign one to a name at the top level of the script, or make a function that returns one"


def _named(module: ModuleType, target: Target, objects: list[Found]) -> Found:
    name, names = str(target.name), vars(module)
    if is_runnable(names.get(name)):
        return Found(name, names[name])
    by_id = {task.task_id: task for found in objects for task in tasks_of(found.value)}
    if name in by_id:  # before a function of that name, which often is that of its blocks
        return Found(name, by_id[name])
    if callable(names.get(name)) and not isinstance(names[name], type):
        return Found(name, names[name])
    if name in names:
        raise ConfigurationError(f"{target.path}: {name!r} {what_instead(names[name], name)}")
    known = [*(found.name for found in objects), *by_id, *(function.__name__ for function in _functions(module))]
    known = list(dict.fromkeys(known))
    close = get_close_matches(name, known, 1)
    there = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
    told = f"; did you mean {close[0]!r}?" if close else f": there is {there}" if known else ""
    raise ConfigurationError(f"{target.path} has no {name!r}{told}")


def what_instead(value: Any, name: str) -> str:
    """Say what *value*, which cannot be run, is, and what to do."""
    from workspan.dataset.dataset import Dataset

    if isinstance(value, Dataset):
        return (
            "is a dataset, of which nothing is written: make a function that returns "
            f"{name if name.isidentifier() else 'dataset'}.write_parquet(...), and name it"
        )
    if isinstance(value, ModuleType):
        return f"is the module {value.__name__!r}, which cannot be run"
    return f"is of type {type(value).__name__}, which cannot be run: a Task, a Pipeline or a list of tasks can"


def is_runnable(value: Any) -> bool:
    """Whether *value* is a task, a pipeline, or a list of tasks that is not empty."""
    from workspan.run.pipeline import Pipeline
    from workspan.run.task import Task

    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(task, Task) for task in value)
    return isinstance(value, (Task, Pipeline))


def tasks_of(value: Any) -> list[Task]:
    """Return all tasks that run with *value*."""
    from workspan.run.pipeline import Pipeline

    return Pipeline.of(value).tasks if is_runnable(value) else []


def _objects(module: ModuleType) -> list[Found]:
    """Return what can be run, under its first name; names with an underscore are the script's own affair."""
    seen: set[int] = set()
    found = []
    for name, value in list(vars(module).items()):
        if not name.startswith("_") and is_runnable(value) and id(value) not in seen:
            seen.add(id(value))
            found.append(Found(name, value))
    return found


def _largest(objects: list[Found]) -> list[Found]:
    from workspan.run.task import Task

    members = [{id(task) for task in tasks_of(found.value)} for found in objects]

    def is_within(one: int, other: int) -> bool:
        same = members[one] == members[other]
        is_part = isinstance(objects[one].value, Task) and not isinstance(objects[other].value, Task)
        return members[one] < members[other] or (same and is_part)

    numbers = range(len(objects))
    return [objects[n] for n in numbers if not any(is_within(n, other) for other in numbers if other != n)]


def _functions(module: ModuleType) -> list[FunctionType]:
    """Functions that the script itself defines and that can be called without arguments."""
    found = []
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == MODULE and not name.startswith("_"):
            code = value.__code__
            has_defaults = len(value.__defaults__ or ()) >= code.co_argcount
            if has_defaults and len(value.__kwdefaults__ or ()) >= code.co_kwonlyargcount:
                found.append(value)
    return found


def _annotation(function: FunctionType) -> str:
    made = getattr(function, "__annotations__", {}).get("return", "")
    return made if isinstance(made, str) else getattr(made, "__name__", "") + repr(made)
