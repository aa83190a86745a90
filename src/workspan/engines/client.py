"""The client: how a worker that was started by other means than the engine's own takes blocks from a run."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import structs

from workspan import config
from workspan.engines.block import Outcome, run_block, settle_stats
from workspan.engines.connection import Connection, DriverGoneError
from workspan.engines.context import VARIABLES, Context
from workspan.engines.failure import failure_text
from workspan.engines.login import CLIENT, HELLO_BYTES, PROOF_BYTES, Login
from workspan.engines.tcp import tune
from workspan.engines.vault import read_secret
from workspan.engines.watchdog import Watchdog
from workspan.engines.wire import Ask, Bye, Grant, Join, Leave, Refused, Stop, Welcome, worker_ends
from workspan.errors import ConfigurationError, EngineError, WireError
from workspan.grid.block import Block, BlockStatus
from workspan.grid.layout import Layout
from workspan.measure.notes import take as take_notes
from workspan.measure.profile import Profile
from workspan.measure.sections import Collector

if TYPE_CHECKING:
    from workspan.engines.base import BlockFunction

logger = logging.getLogger(__name__)


class _Leave(BaseException):
    """Ends the wait for a block; raised by a signal handler, so not an ``Exception``."""


CONNECT_SECONDS = 10.0
"""Time for connecting and logging in."""
_CLOSED = (errno.EPIPE, errno.ECONNRESET, errno.EBADF)


class Client:
    """Takes blocks of one task from a run, one after another.

    Parameters
    ----------
    context
        Where the run is; ``None``: what the environment says (``WORKSPAN_CONTEXT`` or ``DAISY_CONTEXT``). Without a
        ``worker_id`` in it, or with a negative one, the client is a guest: it works like any other, and is counted in
        the report as an unmanaged client.

    Attributes
    ----------
    context : Context
    host : str
    port : int
    task_id : str
    worker_id : int | None
        Number of this worker in the run; ``None`` if it has none.
    connected : bool
        False if the run was not there any more: then there are no blocks.

    Raises
    ------
    KeyError
        There is no context in the environment.
    ConfigurationError
        The context lacks something, or the run's secret cannot be read.
    WireError
        Whoever listens at the address is not this run, or has another version of Workspan.
    EngineError
        The run has no such task or worker.

    Notes
    -----
    A block that is not finished within the task's timeout ends this process with exit code 87.

    Examples
    --------
    >>> def work():
    ...     client = Client()
    ...     while True:
    ...         with client.acquire_block() as block:
    ...             if block is None:
    ...                 break
    ...             process(block)
    """

    def __init__(self, context: Context | None = None) -> None:
        self.context = _context_of_environment() if context is None else context
        config.configure(log_basedir=self.context.get("logdir") or None)
        self.host = _needed(self.context, "hostname")
        self.port = _number(self.context, "port")
        self.task_id = _needed(self.context, "task_id")
        worker = _number(self.context, "worker_id") if self.context.get("worker_id") else -1
        self.worker_id = None if worker < 0 else worker
        self._watchdog = Watchdog()
        self._holds = False
        self._is_over = False
        self._leaves = False
        self._waits = False
        self._connection = self._connect()
        welcome = None if self._connection is None else self._join(self._connection)
        self.connected = welcome is not None
        if welcome is not None:
            self.worker_id = welcome.worker
            self._timeout = welcome.timeout
            self._layout = Layout(**structs.asdict(welcome.grid))
            self._profile = Profile() if welcome.resource_tracking else None

    @contextmanager
    def acquire_block(self) -> Iterator[Block | None]:
        """Take the next block, for the length of a ``with`` block.

        It waits until a block is ready. At the end the block is given back: as done, if its status is still
        ``PROCESSING`` or was set to ``SUCCESS``; as failed, if the status is another one or the ``with`` block raises,
        and then the exception goes on.

        Yields
        ------
        Block or None
            ``None``: there is no more work, also because the run has ended.

        Raises
        ------
        EngineError
            The client holds a block already, or the connection broke.
        """
        index = self._ask()
        if index is None:
            yield None
            return
        block = Block.at(self._layout, index, self.task_id, BlockStatus.PROCESSING)
        error: str | None = None
        with Collector() as collector:
            collector.begin()
            try:
                if self._profile is None:
                    yield block
                else:
                    with self._profile:
                        yield block
            except BaseException as problem:
                error = failure_text(problem)
                raise
            finally:
                steps = collector.end()
                if block.status is BlockStatus.PROCESSING and error is None:
                    block.status = BlockStatus.SUCCESS
                elif block.status is not BlockStatus.SUCCESS:
                    error = error or f"the block was given back with status {block.status.name}"
                stats = None
                if self._profile is not None:
                    stats, fault = settle_stats(block, self._profile)
                    error = error or fault
                if error is not None:
                    block.status = BlockStatus.FAILED
                    logger.error("block %s failed\n%s", block.block_id, error)
                self._report(index, Outcome(error is None, error, stats, steps, take_notes()))

    def run(self, function: BlockFunction) -> None:
        """Run *function* on one block after the other until there is no more work; failures do not end this."""
        with Collector() as collector:
            while (index := self._ask()) is not None:
                block = Block.at(self._layout, index, self.task_id, BlockStatus.PROCESSING)
                outcome = run_block(function, block, self._profile, collector)
                if outcome.error is not None:
                    logger.error("block %s failed\n%s", block.block_id, outcome.error)
                self._report(index, outcome)

    def leave(self) -> None:
        """Take no more blocks: finish the one that is held, or stop waiting for one. To be called by signal handlers.

        A block that was on its way is not counted as an attempt.
        """
        self._leaves = True
        if self._waits:
            raise _Leave

    def close(self) -> None:
        """Leave the run."""
        connection, self._connection = self._connection, None
        self._is_over = True
        self._watchdog.close()
        if connection is not None:
            with suppress(DriverGoneError):
                connection.send(Bye())
            connection.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _connect(self) -> Connection | None:
        """Dial the run and prove that this is a worker of it; ``None`` if it is not there any more."""
        secret_file = _needed(self.context, "secret_file")
        try:
            secret = read_secret(secret_file)
        except FileNotFoundError:
            logger.warning("the run of task %r is over: %s is gone", self.task_id, secret_file)
            return None
        login = Login(secret, _needed(self.context, "run_id"), CLIENT)
        try:
            connection = socket.create_connection((self.host, self.port), CONNECT_SECONDS)
        except OSError as error:
            logger.warning(
                "no run listens at %s port %d (%s): either it is over, or this machine cannot reach it",
                self.host,
                self.port,
                error.strerror or error,
            )
            return None
        try:
            connection.sendall(login.hello())
            login.take_hello(_read_exactly(connection, HELLO_BYTES))
            connection.sendall(login.proof())
            login.check_proof(_read_exactly(connection, PROOF_BYTES))
        except OSError as error:
            connection.close()
            if isinstance(error, WireError):
                raise
            raise WireError(f"the run at {self.host} port {self.port} did not answer: {error}") from None
        connection.settimeout(None)
        tune(connection)
        descriptor = connection.detach()
        return Connection(descriptor, descriptor, *worker_ends(login.frame_secret(), is_known=True))

    def _join(self, connection: Connection) -> Welcome | None:
        """Say whom this client works for; ``None`` if the run is ending, or has no more work for it."""
        try:
            connection.send(Join(self.task_id, self.worker_id, socket.gethostname()[:256], os.getpid(), cluster_job()))
            answer = connection.receive()
        except DriverGoneError as gone:
            self._lose(gone)
            return None
        except BaseException:
            connection.close()
            raise
        if isinstance(answer, Welcome):
            return answer
        connection.close()
        self._is_over = True
        if isinstance(answer, Stop):
            logger.warning("the run has no more work for task %r", self.task_id)
            return None
        raise EngineError(f"the run refuses this client: {answer.reason if isinstance(answer, Refused) else answer}")

    def _ask(self) -> int | None:
        """Wait for a block; ``None``: there are no more."""
        if self._holds:
            raise EngineError("this client holds a block: give it back before taking the next one")
        connection = self._connection
        if self._is_over or connection is None:
            return None
        if self._leaves:
            self.close()
            return None
        try:
            self._waits = True
            if not connection.is_readable():  # then the run has said already that it is over
                connection.send(Ask())
            message = connection.receive()
            self._waits = False
        except _Leave:
            self._waits = False
            with suppress(DriverGoneError):
                connection.send(Leave())
            self._connection = None
            connection.close()
            self.close()
            return None
        except DriverGoneError as gone:
            self._waits = False
            self._lose(gone)
            return None
        if isinstance(message, Stop):
            self.close()
            return None
        if not isinstance(message, Grant) or message.index >= self._layout.num_blocks:
            raise WireError(f"the run sent {message!r:.100}, which is no block of task {self.task_id!r}")
        self._holds = True
        self._watchdog.arm(self._timeout, f"block {message.index} of task {self.task_id!r}")
        return message.index

    def _report(self, index: int, outcome: Outcome) -> None:
        self._watchdog.disarm()
        self._holds = False
        connection = self._connection
        if connection is None or not connection.is_own:  # a fork of the worker: the block is not its own
            return
        try:
            connection.report(index, outcome)
        except DriverGoneError as gone:
            self._lose(gone)

    def _lose(self, gone: DriverGoneError) -> None:
        """Deal with the end of the connection: whoever ends it ends the work, unless it was the network.

        Raises
        ------
        EngineError
            The network failed.
        """
        self._is_over = True
        self._watchdog.close()
        if self._connection is not None:
            self._connection.close()
        if gone.cause is None:
            return
        if gone.cause.errno in _CLOSED:
            logger.warning("the run has closed the connection: %s", gone.cause.strerror)
            return
        raise EngineError(
            f"the connection to the run at {self.host} port {self.port} broke: {gone.cause.strerror}"
        ) from gone.cause


def cluster_job() -> str | None:
    """Return the Slurm job that this process runs in, as ``squeue`` names it; ``None`` if it is in none."""
    array, element = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    name = f"{array}_{element}" if array and element else os.environ.get("SLURM_JOB_ID")
    return name[:256] if name else None


def _context_of_environment() -> Context:
    try:
        return Context.from_env()
    except KeyError:
        raise KeyError(
            f"{' and '.join(VARIABLES)} are not set: a client finds its run by one of them, or takes a Context"
        ) from None


def _needed(context: Context, name: str) -> str:
    value = context.get(name)
    if not value:
        raise ConfigurationError(
            f"the context has no {name!r}, so the client cannot find its run: {context.to_env()!r}"
        )
    return value


def _number(context: Context, name: str) -> int:
    text = _needed(context, name)
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} in the context is not a number") from None


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise WireError(
                "the run closed the connection: this worker's secret is not the run's, or the run has too many "
                "connections that have not logged in"
            )
        data += part
    return data
