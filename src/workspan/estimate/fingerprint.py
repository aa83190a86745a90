"""Has N_ref changed? A fingerprint of what a function computes, not of how it is written down.

It is taken from the syntax tree of the source, walked by ourselves because the built-in dumps differ between Python
versions, with the values of simple constants that the function uses and with the helpers of the same package that it
calls. Without source it is a hash of the compiled code, which is comparable within one Python version only.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any

from workspan.errors import UsageError

__all__ = ["comparable", "fingerprint"]

_SOURCE = "src1"
_CODE = f"code{sys.version_info[0]}.{sys.version_info[1]}"
_DEEPEST = 5
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(...))
_LEFT_OUT = {"annotation", "returns", "type_comment", "kind", "type_params", "simple", "ctx"}


class _NoSourceError(Exception):
    """The source of a function is not there, or does not fit its code."""


def fingerprint(
    function: Any, *, version: str | None = None, owner: type | None = None, closure_values: bool = True
) -> str:
    """Return the fingerprint of a callable: scheme, colon, 16 hexadecimal digits.

    Parameters
    ----------
    function
        Function, method, partial or other callable; ``__wrapped__`` chains are followed.
    version
        Mixed in: for what the function depends on and nobody can see.
    owner
        Class whose methods the function calls through its first argument, if known.
    closure_values
        Whether values of closure variables count, or only their types: the variables around a ``with`` block are the
        data of the moment.

    Raises
    ------
    UsageError
        It is not callable.
    """
    if not callable(function):
        raise UsageError(f"{function!r} has no fingerprint: it is not callable")
    for scheme, by_source in ((_SOURCE, True), (_CODE, False)):
        writer = _Writer(by_source, owner, closure_values)
        try:
            writer.callable(function, 0)
        except (_NoSourceError, RecursionError):
            if by_source:
                continue
            writer.put("too deep")
        writer.put(f"version={version}")
        return f"{scheme}:{writer.digest()}"
    raise AssertionError("the second scheme needs no source")


def comparable(one: str | None, other: str | None) -> bool:
    """Whether two fingerprints can tell a change: both known and of one scheme."""
    return one is not None and other is not None and one.partition(":")[0] == other.partition(":")[0]


class _Writer:
    def __init__(self, by_source: bool, owner: type | None, closure_values: bool) -> None:
        self._hash = hashlib.sha256()
        self._by_source = by_source
        self._owner = owner
        self._closure_values = closure_values
        self._seen: set[int] = set()
        self._package: str | None = None

    def put(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._hash.update(b"%d:" % len(data) + data)

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    # -- callables --

    def callable(self, function: Any, depth: int) -> None:
        """Write any callable, and below it what it stands for."""
        if isinstance(function, functools.partial):
            self.put("partial")
            self.callable(function.func, depth + 1)
            self.value(function.args, depth + 1)
            self.value(tuple(sorted(function.keywords.items())), depth + 1)
        elif isinstance(function, (staticmethod, classmethod)):
            self.callable(function.__func__, depth)
        elif isinstance(function, types.MethodType):
            owner, self._owner = (
                self._owner,
                function.__self__ if inspect.isclass(function.__self__) else type(function.__self__),
            )
            self.callable(function.__func__, depth)
            self._owner = owner
        elif isinstance(function, types.FunctionType):
            self.function(function, depth)
        elif inspect.isclass(function) or not hasattr(type(function), "__call__"):  # noqa: B004  # as a name only
            self.put(f"name {_qualified(function)}")
        elif isinstance(call := inspect.getattr_static(type(function), "__call__", None), types.FunctionType):
            owner, self._owner = self._owner, type(function)
            self.put("object")
            self.value(tuple(sorted(getattr(function, "__dict__", {}).items())), depth + 1)
            self.function(call, depth)
            self._owner = owner
            if (inner := getattr(function, "__wrapped__", None)) is not None:
                self.callable(inner, depth + 1)
        else:
            self.put(f"built-in {_qualified(function)}")

    def function(self, function: types.FunctionType, depth: int) -> None:
        """Write a function: body, defaults, closure, and the globals that it names."""
        if id(function) in self._seen or depth > _DEEPEST:
            self.put("again")
            return
        self._seen.add(id(function))
        package = str(function.__module__).partition(".")[0]
        if self._package is None:
            self._package = package
        code = function.__code__
        through_self: set[str] = set()
        if self._by_source:
            node = _find(code, function.__globals__)
            self.node_of_function(node)
            through_self = set(_called_through_first(node))
        else:
            self.code(code)
            through_self = set(code.co_names)
        self.value(function.__defaults__ or (), depth + 1)
        self.value(tuple(sorted((function.__kwdefaults__ or {}).items())), depth + 1)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not yet bound
                continue
            self.put(name)
            if self._closure_values or callable(value):
                self.value(value, depth + 1)
            else:
                self.put("variable")
        for name in sorted(_names(code)):
            if name in function.__globals__:
                self.put(name)
                self.value(function.__globals__[name], depth + 1)
        if self._owner is not None:
            for name in sorted(through_self):
                helper = inspect.getattr_static(self._owner, name, None)
                if isinstance(helper, (types.FunctionType, staticmethod, classmethod)):
                    self.put(f"self.{name}")
                    self.callable(helper, depth + 1)
        if (inner := getattr(function, "__wrapped__", None)) is not None:
            self.callable(inner, depth + 1)

    def value(self, value: Any, depth: int) -> None:
        """Write a constant by value, a helper of the same package by what it does, anything else by its type."""
        if isinstance(value, enum.Enum):
            self.put(f"{_qualified(type(value))}.{value.name}")
        elif isinstance(value, _SIMPLE):
            self.put(f"{type(value).__name__} {value!r}")
        elif isinstance(value, (tuple, list)):
            self.put(f"{type(value).__name__} {len(value)}")
            for item in value:
                self.value(item, depth + 1)
        elif isinstance(value, (frozenset, set)) and all(isinstance(item, _SIMPLE) for item in value):
            self.put(f"set {sorted(map(repr, value))}")
        elif isinstance(value, types.ModuleType):
            self.put(f"module {value.__name__}")
        elif inspect.isroutine(value) or isinstance(value, functools.partial):
            inner = inspect.unwrap(value) if not isinstance(value, functools.partial) else value.func
            if str(getattr(inner, "__module__", None)).partition(".")[0] == self._package and depth <= _DEEPEST:
                self.callable(value, depth)
            else:
                self.put(f"name {_qualified(value)}")
        else:
            self.put(f"a {_qualified(value if inspect.isclass(value) else type(value))}")

    # -- source --

    def node_of_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Write the outermost function without its name, docstring, annotations, decorators and defaults."""
        if isinstance(node, ast.Lambda):
            body: list[Any] = [ast.Return(node.body)]  # a lambda is a function that returns
        else:
            body = _without_docstring(node.body)
        args = node.args
        self.put("async" if isinstance(node, ast.AsyncFunctionDef) else "function")
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(args, kind)
            names = [arg.arg for arg in (found if isinstance(found, list) else [found] if found else [])]
            if names:
                self.put(f"{kind} {names}")
        for statement in body:
            self.node(statement)

    def node(self, node: Any) -> None:
        """Write a syntax tree; empty fields and those that do nothing are left out."""
        if isinstance(node, list):
            self.put(f"[{len(node)}")
            for item in node:
                self.node(item)
        elif isinstance(node, ast.Constant):
            self.constant(node.value)
        elif isinstance(node, ast.JoinedStr):
            self.put("JoinedStr")
            for part in _joined(node.values):
                self.node(part)
        elif isinstance(node, ast.AST):
            self.put(f"({type(node).__name__}")
            for name, value in ast.iter_fields(node):
                if name in _LEFT_OUT or value is None or value == []:
                    continue
                if name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    value = _without_docstring(value)
                self.put(name)
                self.node(value)
            self.put(")")
        else:
            self.put(repr(node))

    def constant(self, value: Any) -> None:
        if isinstance(value, (tuple, frozenset)):
            self.value(value, 0)
        else:
            self.put(f"{type(value).__name__} {value!r}")

    # -- compiled code --

    def code(self, code: types.CodeType) -> None:
        """Write compiled code without names, places and docstring."""
        constants = code.co_consts
        self.put(code.co_code.hex())
        for value in constants:
            if isinstance(value, types.CodeType):
                self.code(value)
            else:
                self.constant(value)
        self.put(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount)))


def _qualified(thing: Any) -> str:
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__name__
    return f"{module}.{name}"


def _names(code: types.CodeType) -> set[str]:
    """Global and attribute names in code and all code inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def _joined(values: list[ast.expr]) -> list[Any]:
    """Join pieces of literal text, which Python versions cut differently, and drop those that 3.12 makes of nothing."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, ast.Constant) and value.value == "":
            continue
        if isinstance(value, ast.Constant) and parts and isinstance(parts[-1], ast.Constant):
            parts[-1] = ast.Constant(str(parts[-1].value) + str(value.value))
        else:
            parts.append(value)
    return parts


def _called_through_first(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    """Yield the names that a function takes from its first parameter."""
    parameters = [*node.args.posonlyargs, *node.args.args]
    if not parameters:
        return
    for inner in ast.walk(node):
        value = inner.value if isinstance(inner, ast.Attribute) else None
        if isinstance(value, ast.Name) and value.id == parameters[0].arg:
            yield inner.attr  # type: ignore[attr-defined]


# -- finding the source of a function ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _functions(text: str) -> dict[int, list[Any]]:
    """Return the functions of a source text by the line at which their code begins."""
    found: dict[int, list[Any]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault(first, []).append(node)
        elif isinstance(node, ast.Lambda):
            found.setdefault(node.lineno, []).append(node)
    return found


def _find(code: types.CodeType, names: dict[str, Any]) -> Any:
    lines = linecache.getlines(code.co_filename, names)
    if not lines:
        raise _NoSourceError
    try:
        at_line = _functions("".join(lines)).get(code.co_firstlineno, [])
    except (SyntaxError, ValueError) as error:
        raise _NoSourceError from error
    wanted: Any = ast.Lambda if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    fitting = [
        node
        for node in at_line
        if isinstance(node, wanted)
        and getattr(node, "name", "<lambda>") == code.co_name
        and _parameters(node) == list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    ]
    if len(fitting) > 1:
        fitting = [node for node in fitting if _is_at(node, code)]
    if len(fitting) != 1:
        raise _NoSourceError
    return fitting[0]


def _parameters(node: Any) -> list[str]:
    return [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _is_at(node: Any, code: types.CodeType) -> bool:
    """Whether the last expression of the code is the body of this lambda."""
    if not isinstance(node, ast.Lambda):
        return False
    body = node.body
    here = (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset)
    return here in set(code.co_positions())
