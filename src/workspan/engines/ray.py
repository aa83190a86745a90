"""The engine that runs blocks on a Ray cluster.

Each of our workers is one *actor* of Ray that lives as long as the worker does, and owns one worker process beside
Ray's own (`host.py`). Why so, and not otherwise:

- An actor holds its CPU, GPUs and custom resources for as long as it lives, so Ray places our workers as everybody's
  work and grows an autoscaling cluster for those that wait; one that joins late gets those.
- ``max_restarts=0`` and ``max_task_retries=0``: Ray repeats nothing. What is run again is decided by our scheduler
  alone, so that an attempt is counted once. For the same reason blocks are no tasks of Ray.
- User code runs in a process of its own and not in the actor's: it can be killed at its deadline without waiting for
  Ray to start an interpreter, and it is measured by the same code as everywhere. The price: block functions are not in
  a process that is connected to Ray, so they can call nothing of Ray's.

Messages are calls of the actor's two methods: ``tell`` carries commands and returns nothing, ``reports`` waits in the
actor until there is something to report. One call of it is always under way to each actor, and its answer wakes the
driver in the thread that Ray receives it in. So neither an idle driver nor an idle actor spends time, as they would
with ``ray.wait`` and a timeout, and while a block runs the next one is at its worker already. When an actor is gone,
whatever it died of, the call fails and says why. Nothing of ours listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workspan.engines.cluster import KILL_SECONDS, START_SECONDS, ClusterEngine
from workspan.errors import EngineError

if TYPE_CHECKING:
    from workspan.engines.base import Job
    from workspan.engines.cluster import Inbox, Link
    from workspan.engines.ray_session import Session

__all__ = ["Ray"]


class Ray(ClusterEngine):
    """Runs blocks on a Ray cluster.

    Parameters
    ----------
    address
        Where the cluster is: ``"host:6379"`` or ``"auto"`` from a machine of the cluster, ``"ray://host:10001"`` from
        any other one (Ray Client). Default: the Ray that this program is connected to already, which is left as it is;
        or that of the environment variable ``RAY_ADDRESS``; or one on this machine for the time of the run, with a CPU
        for each worker of the run.
    runtime_env
        Ray's runtime environment of the workers, such as ``{"pip": ["workspan"]}``.
    kill_seconds
        Time from SIGTERM to SIGKILL for a worker that is killed.
    start_seconds
        Time that a worker process has to start once it has a place, the imports of the user's function included.

    Notes
    -----
    Each worker takes one CPU of Ray. The ``requires`` of a task may say otherwise: ``"CPU"``, ``"GPU"`` and
    ``"memory"`` (bytes) are Ray's own, any other name is a custom resource that a machine was started with
    (``ray start --resources='{"scanner": 2}'``). Ray sets ``CUDA_VISIBLE_DEVICES`` and ``OMP_NUM_THREADS`` of workers
    by what they hold.
    """

    name = "ray"
    title = "Ray"
    place_words = "machines"

    def __init__(
        self,
        address: str | None = None,
        *,
        runtime_env: dict[str, Any] | None = None,
        kill_seconds: float = KILL_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        super().__init__(kill_seconds=kill_seconds, start_seconds=start_seconds)
        if address == "" or not isinstance(address, str | None):
            raise EngineError(f"Ray({address!r:.100}): pass the address of a cluster as text, or nothing")
        self._where = address
        self._runtime_env = runtime_env
        self._session: Session | None = None

    def _connect(self, job: Job, inbox: Inbox) -> Link:
        try:
            import ray  # noqa: F401  # whether it is there
        except ImportError as error:
            raise EngineError(f"engine 'ray' needs 'ray' ({error}): pip install 'workspan[ray]'") from error
        from workspan.engines.ray_link import HEAD_SECONDS, RayLink
        from workspan.engines.ray_session import Session

        session = self._session = Session(self._where, *_most_required(job), self._given_up)
        return RayLink(
            session.where,
            session.head,
            inbox,
            runtime_env=self._runtime_env,
            patience=0.0 if session.is_local else HEAD_SECONDS,
        )

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(is_lost=self._fatal is not None)


def _most_required(job: Job) -> tuple[int, dict[str, int]]:
    """Return CPUs and resources with which all workers of any one task of *job* find a place."""
    from workspan.engines.ray_link import actor_options

    cpus, most = 1, dict[str, int]()
    for task in job.tasks:
        options = actor_options(task.requires)
        cpus = max(cpus, options["num_cpus"] * task.max_workers)
        for name, amount in options.get("resources", {}).items():
            most[name] = max(most.get(name, 0), amount * task.max_workers)
    return cpus, most
