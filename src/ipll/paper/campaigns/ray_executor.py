"""Cells on a Ray cluster: each a Ray task with its share of a GPU. Ray starts it again elsewhere when its process or
its machine dies, and there it goes on from its last checkpoint. `--out` must be a folder that all machines share.

A cluster that we start ourselves listens to this machine alone: who reaches its ports can run code in it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ipll.errors import ConfigError
from ipll.paper.campaigns.executor import ATTEMPTS
from ipll.paper.campaigns.worker import Job, Outcome, work
from ipll.settings import check_choice

GIVE_UP = 5.0  # seconds, for an address that does not answer
HEAD = 6379  # Ray's usual port
LOOPBACK = "127.0.0.1"
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # of Ray: whether other machines may join; on Linux they may


class RayCluster:
    """`jobs` cells share one GPU; without GPUs, each takes one CPU."""

    def __init__(self, jobs: int | None, device: str, address: str | None) -> None:
        check_choice("device", device, ("auto", "cpu", "cuda"))
        self._ray: Any = _import()
        if address and address not in ("auto", "local"):
            _knock(address)
        try:
            _connect(self._ray, address or os.environ.get("RAY_ADDRESS"))
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"--address {address or 'local'}: Ray cannot use it: {' '.join(str(error).split())}. Where the cluster "
                "asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH."
            ) from None
        resources = self._ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if device != "cpu" else 0
        if device == "cuda" and not gpus:
            self._ray.shutdown()
            raise ConfigError("--device cuda: the Ray cluster has no GPU. Use --device cpu, or add a node with one.")
        share = {"num_cpus": 1, "num_gpus": 1 / (jobs or 1)} if gpus else {"num_cpus": 1}
        self.slots = gpus * (jobs or 1) or int(resources.get("CPU", 1))
        # One process a cell: a GPU's memory and what was compiled go with it, and a crash takes no other cell along.
        self._task = self._ray.remote(max_retries=ATTEMPTS - 1, max_calls=1 if gpus else 0, **share)(work)
        self._running: dict[Any, Job] = {}

    def free(self) -> bool:
        return True  # Ray has a queue of its own

    def submit(self, job: Job) -> None:
        self._running[self._task.remote(job)] = job

    def finished(self, timeout: float) -> list[tuple[Job, Outcome]]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout) if self._running else ([], [])
        return [(self._running.pop(task), self._outcome(task)) for task in ready]

    def _outcome(self, task: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(task)
            return outcome
        except errors.TaskCancelledError:
            return Outcome("stopped")
        except errors.RayTaskError as error:
            return Outcome("failed", " ".join(str(error.cause).split()))
        except errors.RayError as error:  # Ray has tried often enough
            return Outcome("failed", f"Ray gave it up: {' '.join(str(error).split())[:300]}")

    def stop(self) -> None:
        """Ray sends SIGINT to a task that runs, which keeps a checkpoint, and drops one that waits."""
        for task in self._running:
            self._ray.cancel(task)

    def close(self) -> None:
        self._ray.shutdown()


def _import() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError("--executor ray: Ray is not installed here. pip install 'ipll[cluster]'") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """Joins the cluster at an address, as it is given; without one that of this machine, or else a new one."""
    options = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
    if address is None:
        try:
            ray.init("auto", **options)
            return
        except ConnectionError:
            address = "local"
    if address == "local":
        with _loopback(ray):
            ray.init("local", _node_ip_address=LOOPBACK, **options)
    else:
        ray.init(address, **options)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """While a cluster is started, this machine's own address is the loopback address, to which its servers then bind.

    Ray takes '127.0.0.1' for the address that other machines know, except where it has been told that there are none.
    That it reads when it is imported, and in each process that it starts. Who has set it keeps it.
    """
    constants = getattr(getattr(ray, "_private", None), "ray_constants", None)
    if CLUSTERS in os.environ:
        yield
        return
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    os.environ[CLUSTERS] = "0"
    if before is not None:
        constants.ENABLE_RAY_CLUSTER = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        del os.environ[CLUSTERS]
        if before is not None:
            constants.ENABLE_RAY_CLUSTER = before  # type: ignore[union-attr]


def _knock(address: str) -> None:
    """Raises unless someone listens there: Ray itself would try for a long time."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port or (10001 if parts.scheme == "ray" else HEAD)
    except ValueError:
        host, port = None, 0
    if not host:
        raise ConfigError(f"--address takes HOST:PORT, ray://HOST:PORT or auto, got '{address}'.")
    try:
        socket.create_connection((host, port), GIVE_UP).close()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"--address {address}: no Ray cluster answers there ({reason}). Start one: ray start --head"
        ) from None
