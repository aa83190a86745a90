"""Files by which workers on other machines find a run: its secret, its contexts, and functions.

They are in a fresh folder that only its owner can enter, and go with the run. A function file carries a MAC under the
run's secret, and nothing of it is loaded before that was checked.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from hmac import compare_digest
from hmac import digest as hmac_digest
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec

from workspan.engines.wire import SECRET_BYTES
from workspan.errors import ConfigurationError, EngineError

_MAC_BYTES = 32
_PREFIX = ".workspan-run"


class Vault:
    """The files of one run.

    Parameters
    ----------
    parent
        Folder to make the run's folder in, on a file system that the workers see too; ``None``: the temporary folder.
    secret
        The run's secret.

    Raises
    ------
    EngineError
        The folder or the file of the secret cannot be made.
    """

    def __init__(self, parent: Path | None, secret: bytes) -> None:
        self._secret = secret
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            _sweep(Path(tempfile.gettempdir()) if parent is None else parent)
            prefix = f"{_PREFIX}-{gethostname()}-{os.getpid()}-"
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute()
            try:
                self.secret_file = self.write("secret", secret)
            except OSError:
                self.close()
                raise
        except OSError as error:
            raise EngineError(
                f"the folder for the run's secret cannot be made in {str(parent or tempfile.gettempdir())!r} "
                f"({error.strerror or error}): set another log folder"
            ) from error

    def write(self, name: str, data: bytes) -> Path:
        """Write a file that only its owner can read, and return its path."""
        path = self.folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
        return path

    def write_function(self, number: int, settings: dict[str, Any], function: bytes) -> Path:
        """Write what a guest needs to run the blocks of task *number*, unless it is there, and return its path."""
        path = self.folder / f"function-{number}"
        if path.exists():
            return path
        head = msgspec.json.encode(settings)
        data = len(head).to_bytes(8, "big") + head + function
        return self.write(path.name, hmac_digest(self._secret, data, "sha256") + data)

    def close(self) -> None:
        """Remove the folder."""
        with suppress(OSError):
            shutil.rmtree(self.folder)


def _sweep(parent: Path) -> None:
    """Remove what runs of this machine left in *parent* when they were killed."""
    prefix = f"{_PREFIX}-{gethostname()}-"
    for folder in parent.glob(f"{_PREFIX}-*"):
        if not folder.name.startswith(prefix):
            continue
        pid, _, rest = folder.name.removeprefix(prefix).partition("-")
        with suppress(OSError):
            # A machine whose name begins with this one's name has more dashes in what is left.
            if pid.isdigit() and "-" not in rest and folder.lstat().st_uid == os.geteuid() and not folder.is_symlink():
                try:
                    os.kill(int(pid), 0)
                except ProcessLookupError:
                    shutil.rmtree(folder)


def read_secret(path: str) -> bytes:
    """Return the secret of a run.

    Raises
    ------
    FileNotFoundError
        The run is over.
    ConfigurationError
        The file is not this user's alone, cannot be read, or is no secret.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ConfigurationError(
                    f"the secret in {path!r} can be read by others than you: it was not made by a run, or was copied; "
                    "use the context of the run itself"
                )
            secret = file.read(SECRET_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(
            f"the run's secret in {path!r} cannot be read ({error.strerror or error}): only the user who started the "
            "run can join it"
        ) from None
    if len(secret) != SECRET_BYTES:
        raise ConfigurationError(f"{path!r} holds {len(secret)} bytes, which is no secret of a run")
    return secret


def read_function(path: str, secret: bytes) -> tuple[dict[str, Any], bytes]:
    """Return settings and packed function that :meth:`Vault.write_function` wrote.

    Raises
    ------
    ConfigurationError
        The file is not there, or was not written by the run that has this secret.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"the task's function in {path!r} cannot be read ({error.strerror or error}): it exists only while the run "
            "goes on"
        ) from None
    mac, data = data[:_MAC_BYTES], data[_MAC_BYTES:]
    if not compare_digest(mac, hmac_digest(secret, data, "sha256")):
        raise ConfigurationError(f"{path!r} was not written by this run: nothing of it was loaded")
    size = int.from_bytes(data[:8], "big")
    settings: dict[str, Any] = msgspec.json.decode(data[8 : 8 + size])
    return settings, data[8 + size :]
