"""Campaigns: what is done is left alone, what fails is recorded and tried again, what is stopped goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ipll
from ipll.benchmark.run import run_config
from ipll.paper.campaigns import campaign, claims
from ipll.paper.campaigns.plan import Plan
from ipll.paper.campaigns.state import State
from ipll.paper.campaigns.worker import Job, Outcome, work
from ipll.paper.catalogue import find_bench

Command = Callable[..., list[str]]
PGDR = "digits/pgdr/stream.tasks=2,train.batch_size=32,train.epochs=2,train.steps_per_epoch=2"

FRAGILE = """
import os, signal
from pathlib import Path
from ipll.component import FAMILIES
from ipll.families.update.sgd import Sgd

@FAMILIES["update"].register("fragile")
class Fragile(Sgd):
    def build(self, ctx):
        super().build(ctx)
        {body}
"""


MISHAPS = """
        marker = Path(__file__).with_name("died")
        if ctx.seed == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if ctx.seed == 1:
            raise RuntimeError("no luck\\n with seed 1")
"""


def folders(out: Path) -> list[Path]:
    """Those of the cells that were begun."""
    return sorted(path.parent for path in out.rglob("claims"))


def attempts(folder: Path) -> int:
    """How often a cell was run, by its log."""
    return (folder / "worker.log").read_text().count(", process ")


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None, limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def holders(out: Path) -> list[int]:
    """-> the processes at work on cells."""
    held = [claims.newest(folder) for folder in folders(out)]
    return [claim.record["pid"] for claim in held if claim and claim.record and not claim.over]


def gone(pid: int) -> bool:
    return claims._started(pid) is None


# From nothing to the table, and again


def test_a_table_from_nothing_and_again(main: Any, command: Command, tmp_path: Path, stamps: Any, outcome: Any) -> None:
    out, words = tmp_path / "out", command("prior", "--seeds", 1, "--jobs", 1)
    status, text, _ = main(*words, "--dry-run")
    assert status == 0
    assert "prior: 2 cells: 0 done, 0 failed, 0 stopped, 2 open" in text
    assert "no estimate of the time" in text
    assert not out.exists()

    status, text, err = main(*words)
    assert status == 0, err
    assert "prior: 2 cells, 0 done, 2 to run, 1 at a time" in err
    assert "[2/2] digits pgdr" in err
    assert "pico+icarl" in text
    assert sorted(path.relative_to(out).parts[1] for path in folders(out)) == ["pgdr", "pico+icarl"]
    alone = ipll.run("digits", "pgdr", out=tmp_path / "alone", **_tiny(words))
    assert outcome(out / PGDR / "seed0") == outcome(tmp_path / "alone")
    assert (
        alone.average_incremental_accuracy
        == json.loads((out / PGDR / "seed0/result.json").read_text())["average_incremental_accuracy"]
    )

    before = stamps(out)
    started = time.monotonic()
    status, again, err = main(*words)
    assert (status, again) == (0, text)
    assert "to run" not in err
    assert stamps(out) == before
    assert time.monotonic() - started < 2  # no process was started

    text = main(*words, "--dry-run").out
    assert "2 done, 0 failed, 0 stopped, 0 open" in text
    text = main(*command("prior", "--seeds", "0,5", "--dry-run", train__epochs=4)).out
    assert "estimated time, one at a time:" in text
    assert "4 from finished runs of their method" in text
    text = main(*command("tab3", "--seeds", 1, "--only", "pgdr/mp", "--only", "pgdr", "--dry-run")).out
    assert "tab3: 4 cells: 1 done" in text  # of another table: the same run
    assert "2 roughly, from other methods" in text
    text = main(*command("tab3", "--seeds", 1, "--only", "pgdr/mp", "--only", "10-blurry", "--dry-run")).out
    assert "tab3: 1 cells: 0 done" in text  # of that method, and of that setting


def _tiny(words: list[str]) -> dict[str, Any]:
    pairs = [word.split("=") for word in words if "=" in word]
    return {key: int(value) for key, value in pairs}


# Failures


def test_a_failure_and_a_crash_cost_only_their_cells(
    main: Any, command: Command, tmp_path: Path, stamps: Any, forget: Callable[[], None]
) -> None:
    """A process dies of the first seed, once; the second seed fails until the plugin is mended."""
    plugin, out = tmp_path / "fragile.py", tmp_path / "out"
    plugin.write_text(FRAGILE.format(body=MISHAPS.strip()))
    words = command("prior", "--only", "pgdr", "--seeds", 3, "--jobs", 1, "--plugin", plugin, update__kind="fragile")
    status, text, err = main(*words)
    assert status == 1
    failed = next(folder for folder in folders(out) if folder.name == "seed1")
    assert "[3/3]" in err  # the others went on
    assert f"seed 1: RuntimeError: no luck with seed 1 (see {failed}/error.json)" in err
    record = json.loads((failed / "error.json").read_text())
    assert record["message"] == "RuntimeError: no luck with seed 1"
    assert "fragile.py" in record["traceback"]
    assert record["host"]
    assert record["time"]
    assert "no luck" in (failed / "worker.log").read_text()
    assert "n = 2" in text
    assert [attempts(folder) for folder in folders(out)] == [2, 1, 1]

    done = stamps(out)
    assert len({file.parent for file in done if file.name == "result.json"}) == 2
    plugin.write_text(FRAGILE.format(body="return"))  # mended
    forget()
    dry = main(*words, "--dry-run").out
    assert "1 failed" in dry
    assert "RuntimeError: no luck with seed 1" in dry
    status, text, err = main(*words)
    assert status == 0, err
    assert "1 to run" in err
    assert "n = 3" in text
    assert not (failed / "error.json").exists()
    assert {file: stamps(out)[file] for file in done} == done


class Dying:
    """An executor whose processes die, all or those of some seeds."""

    slots = 2

    def __init__(self, *seeds: int) -> None:
        self.seeds, self.jobs, self.submitted = seeds, list[Job](), list[int]()

    def free(self) -> bool:
        return len(self.jobs) < self.slots

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        self.submitted.append(job.cell.seed)

    def finished(self, timeout: float) -> list[tuple[Job, Outcome]]:
        if not self.jobs:
            return []
        job = self.jobs.pop(0)
        return [(job, Outcome("died", "killed by SIGSEGV") if job.cell.seed in self.seeds else work(job))]

    def stop(self) -> None: ...
    def close(self) -> None: ...


def test_a_cell_whose_process_keeps_dying_is_given_up(
    main: Any, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Dying(1)
    monkeypatch.setattr(campaign.Options, "start", lambda *_: executor)
    words = command("prior", "--only", "pgdr", "--seeds", 3)
    status, _, err = main(*words)
    assert status == 1
    assert sorted(executor.submitted) == [0, 1, 1, 1, 2]
    assert "seed 1: given up after 3 attempts: killed by SIGSEGV (see " in err
    failed = tmp_path / "out" / PGDR / "seed1"
    assert "given up after 3" in json.loads((failed / "error.json").read_text())["message"]
    executor.seeds = ()
    assert main(*words).status == 0
    assert executor.submitted[5:] == [1]


def test_settings_that_the_data_refuse(tmp_path: Path, tiny: dict[str, Any]) -> None:
    bench = find_bench("prior").on("digits").with_settings(tiny | {"memory.size": 5}).only(["pgdr"])
    (cell,) = bench.cells((0,))
    outcome = work(Job(cell, tmp_path, "cpu"))
    assert outcome.kind == "failed"
    assert "memory.size is 5, but digits has 10 classes" in outcome.message
    assert json.loads((tmp_path / "error.json").read_text())["message"] == outcome.message


def test_a_damaged_result_is_set_aside(
    main: Any, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command("prior", "--only", "pgdr", "--seeds", 3, "--jobs", 1)
    folder = tmp_path / "out" / PGDR
    damaged = {"seed0": b'{"average_incremental_accuracy": 7', "seed1": b"\xff\xfe\x00", "seed2": b"[]"}
    for seed, content in damaged.items():
        (folder / seed).mkdir(parents=True)
        (folder / seed / "result.json").write_bytes(content)
    (folder / "seed0" / "result.json.corrupt-1").write_text("an older one")
    status, text, err = main(*words, "--dry-run")
    assert status == 0
    assert f"{folder / 'seed0' / 'result.json'}: damaged: it is cut short or damaged" in err
    assert f"{folder / 'seed1' / 'result.json'}: damaged: it is not text" in err
    aside = "It is set aside as result.json.corrupt-N, and the cell is run again."
    assert f"{folder / 'seed2' / 'result.json'}: damaged: it is not a table of fields. {aside}" in err
    assert "overwrite" not in err
    assert "3 open" in text
    assert (folder / "seed2" / "result.json").read_bytes() == b"[]"  # --dry-run changes nothing
    monkeypatch.setattr(campaign.Options, "start", lambda *_: Dying())
    status, text, err = main(*words)
    assert status == 0, err
    assert f"{folder / 'seed0' / 'result.json'}: damaged" in err
    assert (folder / "seed0" / "result.json.corrupt-2").read_bytes() == damaged["seed0"]
    assert (folder / "seed1" / "result.json.corrupt-1").read_bytes() == damaged["seed1"]
    assert "n = 3" in text


# Stopped, killed, and two at once


@pytest.fixture
def long(command: Command) -> list[str]:
    """A cell of a few seconds, with checkpoints several times a second."""
    return command("prior", "--only", "pgdr", "--seeds", 1, train__epochs=40, train__checkpoint_seconds=0.3)


def test_asked_to_stop(launch: Any, main: Any, long: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = launch(*long)
    wait_for(lambda: list(out.rglob("checkpoint/*.json")), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Stopped: 0 of 1 cells are done, 1 keep a checkpoint. Go on with: ipll bench prior" in err
    assert not holders(out)
    assert "1 stopped, 0 open" in main(*long, "--dry-run").out


@pytest.mark.slow
def test_the_command_alone_is_killed(launch: Any, long: list[str], tmp_path: Path) -> None:
    """Its worker keeps a checkpoint and ends, rather than go on with no one to tell."""
    out = tmp_path / "out"
    process = launch(*long)
    wait_for(lambda: list(out.rglob("checkpoint/*.json")), process)
    (worker,) = holders(out)
    process.kill()
    process.communicate()
    wait_for(lambda: gone(worker), limit=20)
    assert not list(out.rglob("result.json"))


def kill_and_restart(
    words: list[str], out: Path, tmp_path: Path, moments: list[float], stamps: Any
) -> dict[Path, tuple[int, int]]:
    """Kills the command and all its workers at these moments after the first claim, then lets it end."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    finished: dict[Path, tuple[int, int]] = {}
    for moment in [*moments, None]:
        with subprocess.Popen(
            [sys.executable, "-m", "ipll", *words], env=environment, cwd=tmp_path, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            if moment is None:
                _, err = process.communicate(timeout=200)
                assert process.returncode == 0, err
            else:
                wait_for(lambda: holders(out) or process.poll() is not None)
                if process.returncode is None:
                    time.sleep(moment)
                    os.killpg(process.pid, signal.SIGKILL)
                _, err = process.communicate()
                assert process.returncode in (-signal.SIGKILL, 0), err  # 0: all was done before
        now = stamps(out)
        assert {file: now[file] for file in finished} == finished
        finished = {file: now[file] for file in now if "claims" not in file.parts}
    return finished


def check_against_whole_runs(plan: Plan, outcome: Any, whole: Path) -> None:
    """However often they were killed, the cells end in the numbers of runs that never were."""
    for number, track in enumerate(plan.tracks):
        assert track.status.state is State.DONE
        run_config(track.config, out=whole / str(number), device="cpu")
        assert outcome(track.folder) == outcome(whole / str(number))
        assert "Traceback" not in (track.folder / "worker.log").read_text()


OFTEN = {"train.epochs": 8, "train.checkpoint_seconds": 0.2}


@pytest.mark.slow
def test_killed_with_its_worker(
    command: Command, tmp_path: Path, stamps: Any, outcome: Any, tiny: dict[str, Any]
) -> None:
    words = command("prior", "--seeds", 1, "--jobs", 1, **{key.replace(".", "__"): v for key, v in OFTEN.items()})
    kill_and_restart(words, tmp_path / "out", tmp_path, [random.uniform(0.3, 2.5)], stamps)
    plan = Plan.make(find_bench("prior").on("digits").with_settings(tiny | OFTEN), (0,), tmp_path / "out")
    check_against_whole_runs(plan, outcome, tmp_path / "whole")


@pytest.mark.slow
def test_killed_again_and_again(
    command: Command, tmp_path: Path, stamps: Any, outcome: Any, tiny: dict[str, Any]
) -> None:
    words = command("tab3", "--seeds", 1, "--jobs", 2, **{key.replace(".", "__"): v for key, v in OFTEN.items()})
    kill_and_restart(words, tmp_path / "out", tmp_path, [random.uniform(0, 2.5) for _ in range(6)], stamps)
    plan = Plan.make(find_bench("tab3").on("digits").with_settings(tiny | OFTEN), (0,), tmp_path / "out")
    assert len(plan.tracks) == 12
    check_against_whole_runs(plan, outcome, tmp_path / "whole")


@pytest.mark.slow
def test_two_commands_share_the_work(launch: Any, command: Command, tmp_path: Path) -> None:
    words = command("tab3", "--only", "10-blurry", "--seeds", 1, "--jobs", 1, train__epochs=4)
    processes = [launch(*words) for _ in range(2)]
    tables = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], tables
    assert tables[0][0] == tables[1][0]
    begun = folders(tmp_path / "out")
    assert len(begun) == 6
    assert [attempts(folder) for folder in begun] == [1] * 6
    workers = {json.loads(min(folder.glob("claims/*.json")).read_text())["pid"] for folder in begun}
    assert len(workers) == 2
