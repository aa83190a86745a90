"""``workspan completion``: what makes a shell complete its commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workspan.cli import exits
from workspan.cli.terminal import say
from workspan.errors import ConfigurationError, WorkspanError

if TYPE_CHECKING:
    from cyclopts import App

__all__ = ["SHELLS", "run"]

Shell = Literal["bash", "zsh", "fish"]

SHELLS: tuple[Shell, ...] = ("bash", "zsh", "fish")


def run(app: App, shell: Shell | None, *, install: bool) -> int:
    """Print the script of *shell*, or write it where the shell finds it.

    Raises
    ------
    ConfigurationError
        The shell cannot be told, or this version of cyclopts makes no such scripts.
    """
    if shell is None:
        name = Path(os.environ.get("SHELL", "")).name
        known: dict[str, Shell] = {each: each for each in SHELLS}
        if name not in known:
            told = f"SHELL={name!r} is not known" if name else "SHELL is not set"
            raise ConfigurationError(f"{told}: name a shell, for example workspan completion bash")
        shell = known[name]
    maker: Any = app
    if not hasattr(maker, "generate_completion"):
        raise ConfigurationError("the installed cyclopts makes no completion: pip install --upgrade cyclopts")
    if not install:
        say(maker.generate_completion(shell=shell).rstrip("\n"))
        return exits.DONE
    try:
        path = maker.install_completion(shell=shell)
    except OSError as error:
        raise WorkspanError(f"the completion of {shell} cannot be written: {error}") from error
    say(f"{shell} completes workspan from the next shell on: {path}")
    return exits.DONE
