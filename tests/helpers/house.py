"""Rules of the architecture, read from the source text alone: `tests/test_house.py` applies them.

Every checker takes the path of a module inside the package (``engines/wire.py``) and its text, and yields one line for
each offence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

#: A room imports from rooms before it only.
ROOMS = (
    "measure",
    "live",
    "steps",
    "estimate",
    "grid",
    "schedule",
    "store",
    "report",
    "views",
    "engines",
    "run",
    "arrays",
    "dataset",
    "compat",
    "cli",
)
#: Plain modules beside the rooms, open to all of them.
SHARED = ("errors", "arguments", "config")
LONGEST_FILE = 500
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:home|root|Users|work|opt|mnt)/[\w.]+")


@dataclass(frozen=True)
class Import:
    """One imported module of this package, by its name inside it (``grid.layout``; "" is the package itself)."""

    line: int
    module: str
    typing_only: bool


def imports(path: str, text: str) -> list[Import]:
    """List what a module imports from the package, at any depth, relative imports and lazy ones included."""
    found: list[Import] = []
    package = ["workspan", *path.removesuffix(".py").removesuffix("/__init__").split("/")]
    if not path.endswith("__init__.py"):
        package = package[:-1]

    def note(node: ast.AST, name: str, typing_only: bool) -> None:
        if name == "workspan" or name.startswith("workspan."):
            found.append(Import(node.lineno, name.removeprefix("workspan").lstrip("."), typing_only))

    def visit(node: ast.AST, typing_only: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                visit(child, True)
            for child in node.orelse:
                visit(child, typing_only)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                note(node, alias.name, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join(base + (node.module.split(".") if node.module else []))
            for alias in node.names:
                # `from workspan.grid import layout` imports a module, `... import Layout` a name: same room.
                note(node, f"{module}.{alias.name}" if alias.name != "*" else module, typing_only)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            note(node, str(getattr(node.args[0], "value", "")), typing_only)
        for child in ast.iter_child_nodes(node):
            visit(child, typing_only)

    visit(ast.parse(text), False)
    return found


def wrong_imports(path: str, text: str) -> Iterator[str]:
    """Find imports that point down the house."""
    room = path.split("/")[0].removesuffix(".py")
    if room in ("__init__", "__main__"):  # the public face and the door
        return
    for found in imports(path, text):
        target = found.module.split(".")[0]
        if room == "measure" and found.typing_only:  # a block that it measures, say
            continue
        if target in SHARED:
            allowed = room != "errors"
        elif room in SHARED:
            allowed = False
        elif target in ROOMS:
            allowed = ROOMS.index(target) <= ROOMS.index(room)
        else:  # the public face, which loads everything
            allowed = room in ("compat", "cli")
        if not allowed:
            yield f"{path}:{found.line}: {room} must not import {target or 'workspan'}"


def too_long(path: str, text: str) -> Iterator[str]:
    """Find files that want to be a folder."""
    lines = text.count("\n")
    if lines > LONGEST_FILE:
        yield f"{path}: {lines} lines, more than {LONGEST_FILE}"


def unpickling(path: str, text: str) -> Iterator[str]:
    """Find unpickling in modules that read from sockets: what arrives there is never trusted (R45)."""
    tree = ast.parse(text)
    modules: dict[str, str] = {}  # local name -> module
    names: dict[str, str] = {}  # local name -> module.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    reads_sockets = path == "engines/wire.py" or {"socket", "socketserver"} & {*modules.values()}
    if not reads_sockets and not any(name.startswith("socket.") for name in names.values()):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{modules.get(node.value.id)}.{node.attr}"
        elif isinstance(node, ast.Name):
            name = names.get(node.id, "")
        else:
            continue
        if re.fullmatch(r"(pickle|cloudpickle|marshal|dill)\.(loads?|Unpickler)", name):
            yield f"{path}:{node.lineno}: {name} in a module that reads sockets"


def machine_paths(path: str, text: str) -> Iterator[str]:
    """Find paths that exist on somebody's machine only."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := MACHINE_PATH.search(line):
            yield f"{path}:{number}: {match.group()}"


def undocumented_tests(path: str, text: str) -> Iterator[str]:
    """Find tests that do not say in one sentence what they show."""
    for node in ast.walk(ast.parse(text)):
        is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if is_test and not ast.get_docstring(node):
            yield f"{path}:{node.lineno}: {node.name} has no docstring"
