"""A real Ray cluster on this machine: cells as Ray tasks, a worker killed in mid-run, and what is said without one."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipll.benchmark.run import run_config
from ipll.paper.campaigns import claims, ray_executor
from ipll.paper.campaigns.plan import Plan
from ipll.paper.campaigns.state import State
from ipll.paper.catalogue import find_bench

Command = Callable[..., list[str]]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: ipll[cluster]")

CLUSTER = """
import ray, sys
context = ray.init(
    "local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False,
    _node_ip_address="127.0.0.1",
)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


def _secured(patch: pytest.MonkeyPatch) -> dict[str, str]:
    """-> this process's environment, to which a new token was added."""
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """-> the address of a cluster of two CPUs, which ends with the process that started it, and takes orders only
    from processes that know this test's token."""
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_secured(patch),
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        lines = iter(process.stdout.readline, "")
        yield next(line.strip() for line in lines if ":" in line)
        process.stdin.close()
        process.wait(60)


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@needs_ray
@pytest.mark.slow
def test_a_worker_is_killed_in_mid_run(
    cluster: str, launch: Any, command: Command, tmp_path: Path, tiny: dict[str, Any], outcome: Any
) -> None:
    settings = tiny | {"train.epochs": 20, "train.checkpoint_seconds": 0.2}
    plan = Plan.make(find_bench("prior").on("digits").with_settings(settings), (0, 1), tmp_path / "out")
    options = {key.replace(".", "__"): value for key, value in settings.items()}
    process = launch(*command("prior", "--seeds", 2, "--executor", "ray", "--address", cluster, **options))

    def at_work() -> list[Path]:
        return [track.folder for track in plan.tracks if list(track.folder.glob("checkpoint/*.json"))]

    wait_for(at_work, process)
    victim = at_work()[0]
    held = claims.newest(victim)
    assert held
    assert not held.over, "it has ended already: make it longer"
    os.kill(held.record["pid"], signal.SIGKILL)
    text, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "[4/4]" in err
    assert "n = 2" in text
    tries = {track.folder: (track.folder / "worker.log").read_text().count(", process ") for track in plan.tracks}
    assert tries == {track.folder: 1 + (track.folder == victim) for track in plan.tracks}
    first, second = (json.loads(file.read_text()) for file in sorted((victim / "claims").iterdir()))
    assert (first["released"], second["released"]) == (False, True)
    for number, track in enumerate(Plan.make(plan.bench, plan.seeds, plan.out).tracks):
        assert track.status.state is State.DONE
        run_config(track.config, out=tmp_path / "whole" / str(number), device="cpu")
        assert outcome(track.folder) == outcome(tmp_path / "whole" / str(number))


@needs_ray
@pytest.mark.slow
def test_stopped_and_a_failure(cluster: str, launch: Any, main: Any, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ray = ("--executor", "ray", "--address", cluster)
    process = launch(*command("prior", "--only", "pgdr", "--seeds", 3, *ray, train__epochs=400))
    wait_for(lambda: len(list(out.rglob("metrics.jsonl"))) == 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "Stopped: 0 of 3 cells are done, 2 keep a checkpoint. Go on with: ipll bench" in err
    process = launch(*command("prior", "--only", "pgdr", "--seeds", 1, *ray, memory__size=5))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "memory.size is 5, but digits has 10 classes" in err


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "--address 127.0.0.1:9: no Ray cluster answers there (Connection refused)."),
        ("ray://127.0.0.1:9", "--address ray://127.0.0.1:9: no Ray cluster answers there"),
        ("no.such.host.invalid:1", "no Ray cluster answers there"),
        ("host:port", "--address takes HOST:PORT, ray://HOST:PORT or auto, got 'host:port'."),
    ],
)
def test_an_address_without_a_cluster(main: Any, command: Command, address: str, message: str) -> None:
    status, _, err = main(*command("prior", "--executor", "ray", "--address", address))
    assert status == 2
    assert message in err


def test_ray_is_not_installed(main: Any, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    status, _, err = main(*command("prior", "--executor", "ray"))
    assert status == 2
    assert "--executor ray: Ray is not installed here. pip install 'ipll[cluster]'" in err


class FakeRay:
    """Keeps what it was asked for. No cluster runs on its machine."""

    def __init__(self, running: bool) -> None:
        self.running, self.calls = running, list[tuple[Any, ...]]()

    def init(self, address: str, **options: Any) -> None:
        self.calls.append((address, options.get("_node_ip_address"), os.environ.get(ray_executor.CLUSTERS)))
        assert options["include_dashboard"] is False
        if address == "auto" and not self.running:
            raise ConnectionError("no cluster here")


AUTO, OWN = ("auto", None, None), ("local", "127.0.0.1", "0")


@pytest.mark.parametrize(
    ("address", "running", "calls"),
    [
        (None, False, [AUTO, OWN]),
        (None, True, [AUTO]),
        ("local", True, [OWN]),
        ("10.0.0.1:6379", False, [("10.0.0.1:6379", None, None)]),
        ("ray://10.0.0.1:10001", False, [("ray://10.0.0.1:10001", None, None)]),
    ],
)
def test_only_our_own_cluster_is_bound_to_this_machine(address: str | None, running: bool, calls: list[Any]) -> None:
    fake = FakeRay(running)
    ray_executor._connect(fake, address)
    assert fake.calls == calls
    assert ray_executor.CLUSTERS not in os.environ


LISTENING = """
import ipll.paper.campaigns.ray_executor as executor, os
cluster = executor.RayCluster(None, "cpu", "local")
import psutil
own = psutil.Process()
for process in [own, *own.children(recursive=True)]:
    for connection in process.net_connections("inet"):
        if connection.status == "LISTEN":
            print("listens on", connection.laddr.ip, process.name())
cluster.close()
"""


@needs_ray
@pytest.mark.slow
def test_a_cluster_of_our_own_listens_to_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], env=_secured(monkeypatch), capture_output=True, text=True, timeout=120
    )
    places = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("listens on")]
    assert len(places) >= 3, done.stderr
    assert all(place.removeprefix("::ffff:") in ("127.0.0.1", "::1") for place in places), done.stdout
