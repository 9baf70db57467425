"""A campaign against the folders that ipll writes and the files that it reads: kills, mutants, links, full disks.

    python benchmarks/reliability.py --kills 500 --mutants 10000 --others 500 --out reliability.json  # an hour or so
    python benchmarks/reliability.py --kills 6 --mutants 120  # a minute or two

Every trial starts from a copy of a small prepared folder (a run that was stopped, one that is finished, a model, a
campaign, a data set to prepare) or a user's file, does harm to it by a seeded draw, and calls a command. A command is a
child process that is forked from this one, so that thousands of them take minutes. Each ends as one of

    same       it did its work, and the result is the one that an unharmed folder gives
    refused    status 2 and a message (or 130 and 143 where it was asked to stop)
    wrong      status 0 and another result, without a word
    traceback  an exception that no user should see
    hang       nothing for a minute
    outside    a file outside the folder was touched

The last four fail the campaign.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from harm import BAD, TINY, Ended, Folders, call, labels_of, mutate, result_of

from ipll.engine.device import describe

# Trials: each gives the name of what it did and how it ended


class Trial(NamedTuple):
    kind: str
    what: str
    outcome: str
    note: str = ""


def judged(ended: Ended, right: Callable[[], bool]) -> tuple[str, str]:
    kind = ended.kind()
    if kind == "done":
        kind = "same" if right() else "wrong"
    return kind, ended.text[-1500:] if kind in BAD else ""


def mutant_of_a_run(folders: Folders, where: Path, rng: random.Random) -> Trial:
    """A stopped run with a damaged file, resumed; or a finished one, reported."""
    if rng.random() < 0.75:
        shutil.copytree(folders.home / "stopped", where / "run", symlinks=True)
        path = _pick(where / "run", rng)
        how = mutate(path, rng)
        ended = call(["resume", "run", "--device", "cpu"], where)
        outcome, note = judged(ended, lambda: result_of(where / "run") == folders.resumed)
        return Trial("run, then resume", f"{how} {_name(path)}", outcome, note)
    shutil.copytree(folders.home / "finished", where / "run", symlinks=True)
    path = where / "run" / rng.choice(["result.json", "result.json", "gallery.npz", "config.toml"])
    how = mutate(path, rng)
    ended = call(["report", "run", "--out", "page.html"], where)
    outcome, note = judged(ended, lambda: path.name != "result.json" or result_of(where / "run") == folders.result)
    return Trial("run, then report", f"{how} {_name(path)}", outcome, note)


def mutant_of_a_model(folders: Folders, where: Path, rng: random.Random) -> Trial:
    shutil.copytree(folders.home / "model", where / "model", symlinks=True)
    path = _pick(where / "model", rng)
    how = mutate(path, rng)
    shutil.copy(folders.tables[1], where)
    command = rng.choice(["info", "predict", "audit", "update"])
    words = {
        "info": ["info", "model"],
        "predict": ["predict", "model", "part1.csv", "--out", "predictions.csv"],
        "audit": ["audit", "model", "--out", "audit.html"],
        "update": ["update", "model", "part1.csv", "--device", "cpu"],
    }[command]
    ended = call(words, where)

    def right() -> bool:
        if command == "update":
            return labels_of(where / "model") == folders.updated
        return labels_of(where / "model") == labels_of(folders.home / "model")

    outcome, note = judged(ended, right)
    return Trial(f"model, then {command}", f"{how} {_name(path)}", outcome, note)


def mutant_of_a_users_file(folders: Folders, where: Path, rng: random.Random) -> Trial:
    """Any outcome but a traceback or a hang will do: a table with another number in it is a table."""
    name, words = rng.choice(
        [
            ("part0.csv", ["fit", "part0.csv", "--set", "train.epochs=1", "--out", "model", "--device", "cpu"]),
            ("votes.csv", ["fit", "samples.csv", "--votes", "votes.csv", "--set", "train.epochs=1", "--out", "model"]),
            ("config.toml", ["run", "digits", "--config", "config.toml", "--out", "run", "--device", "cpu"]),
            (
                "photos",
                ["stream", "cub200", "--set", "data.source=folder", "--set", "stream.tasks=2", "--data-root", "photos"],
            ),
        ]
    )
    shutil.copy(folders.tables[0], where)
    shutil.copy(folders.home / "samples.csv", where)
    if name == "config.toml":
        shutil.copy(folders.home / "finished" / "config.toml", where)
    elif name == "photos":
        shutil.copytree(folders.home / "photos", where / "photos")
    elif name != "part0.csv":
        shutil.copy(folders.home / name, where)
    path = rng.choice(sorted((where / "photos").rglob("*.png"))) if name == "photos" else where / name
    how = mutate(path, rng)
    ended = call(words, where)
    outcome, note = judged(ended, lambda: True)
    return Trial("user's file", f"{how} {name}", outcome, note)


def hostile(folders: Folders, where: Path, rng: random.Random) -> Trial:
    """A file of a folder is a link to a file or folder outside, a FIFO or a directory."""
    source, command = rng.choice(
        [
            ("stopped", "resume"),
            ("finished", "report"),
            ("finished", "overwrite"),
            ("model", "update"),
            ("model", "info"),
        ]
    )
    shutil.copytree(folders.home / source, where / source, symlinks=True)
    shutil.copy(folders.tables[1], where)
    outside = where / "outside"
    (outside / "deep").mkdir(parents=True)
    for name in ("victim", "deep/000001.json", "deep/other"):
        (outside / name).write_text(name)
    victims = _digest(outside)
    places = [path for path in sorted((where / source).rglob("*")) if "tensorboard" not in path.parts]
    extra = [
        where / source / name for name in (".lock", ".pending", "checkpoint", "manifest.json", ".model.json.1.tmp")
    ]
    path = rng.choice([*places, *extra])
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    how = rng.choice(["link", "link to a folder", "fifo", "folder", "dangling link"])
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        target = {"link": "victim", "link to a folder": "deep", "dangling link": "absent"}[how]
        path.symlink_to(outside / target)
    words = {
        "resume": ["resume", source, "--device", "cpu"],
        "report": ["report", source, "--out", "page.html"],
        "overwrite": [*folders.run, "--out", source, "--overwrite"],
        "update": ["update", source, "part1.csv", "--device", "cpu"],
        "info": ["info", source],
    }[command]
    ended = call(words, where)
    outcome, note = judged(ended, lambda: True)
    if _digest(outside) != victims:
        outcome, note = "outside", ended.text[-500:]
    return Trial(f"hostile {source}, then {command}", f"{how} at {_name(path)}", outcome, note)


def killed(folders: Folders, where: Path, rng: random.Random) -> Trial:
    """SIGKILL at random moments, again and again, until the command is done; then the same bits as without."""
    kind = rng.choice(["run", "fit", "update", "prepare", "bench"])
    first, again, right = _work(kind, folders, where)
    for attempt in range(8):
        words = again if attempt and again and (where / "run" / "config.toml").exists() else first
        ended = call(words, where, kill_after=rng.uniform(0.02, 6.0 if kind == "bench" else 0.7))
        if ended.status >= 0:
            break
    else:
        words = again if again and (where / "run" / "config.toml").exists() else first
        ended = call(words, where)
    outcome, note = judged(ended, right)
    if outcome == "refused":  # there was nothing to refuse, unless it was killed after its work was done
        outcome, note = ("same", "") if right() else ("wrong", ended.text[-800:])
    left = [path.name for path in where.rglob("*.tmp")]
    return Trial(f"kill {kind}", f"{attempt + 1} times", outcome, note or " ".join(left))


def _work(kind: str, folders: Folders, where: Path) -> tuple[list[str], list[str] | None, Callable[[], bool]]:
    """-> the command, the one that goes on where it differs, and whether what it left is right."""
    for table in folders.tables:
        shutil.copy(table, where)
    if kind == "run":
        words = [*folders.run, "--set", "train.checkpoint_seconds=0", "--out", "run"]
        return words, ["resume", "run", "--device", "cpu"], lambda: result_of(where / "run") == folders.resumed
    if kind == "fit":
        right = lambda: labels_of(where / "model") == labels_of(folders.home / "model")  # noqa: E731
        return [*folders.fit, "--out", "model", "--overwrite"], None, right
    if kind == "update":
        shutil.copytree(folders.home / "model", where / "model")
        done = lambda: labels_of(where / "model") in (folders.updated, labels_of(folders.home / "model"))  # noqa: E731
        return ["update", "model", "part1.csv", "--device", "cpu"], None, done
    if kind == "prepare":
        shutil.copytree(folders.home / "photos", where / "photos")
        return ["prepare", "folder", "--data-root", "photos"], None, lambda: True
    settings = [word for text in TINY for word in ("--set", text)]
    words = ["bench", "prior", "--preset", "digits", "--only", "pgdr", "--seeds", "1", "--jobs", "1", "--out", "out"]
    return [*words, "--device", "cpu", *settings], None, lambda: len(list((where / "out").rglob("result.json"))) == 1


def full_disk(folders: Folders, where: Path, rng: random.Random) -> Trial:
    """A tmpfs of a random small size, on which a run, a fit or an update does not fit."""
    disk = where / "disk"
    disk.mkdir()
    size = rng.randrange(40, 3000)
    with mounted(disk, size) as there:
        if not there:
            return Trial("full disk", "cannot mount here", "refused")
        kind = rng.choice(["run", "fit", "update"])
        shutil.copy(folders.tables[0], where)
        shutil.copy(folders.tables[1], where)
        words = {"run": [*folders.run, "--out", "disk/run"], "fit": [*folders.fit, "--out", "disk/model"]}.get(kind)
        if words is None:
            try:
                shutil.copytree(folders.home / "model", disk / "model")
            except OSError:
                return Trial("full disk", "no room for the model itself", "refused")
            words = ["update", "disk/model", "part1.csv", "--device", "cpu"]
        ended = call(words, where)
        outcome, note = judged(ended, lambda: True)
        if kind == "update" and outcome == "refused" and labels_of(disk / "model") != labels_of(folders.home / "model"):
            outcome, note = "wrong", ended.text[-800:]
    return Trial(f"full disk, {kind}", f"{size} KiB", outcome, note)


@contextmanager
def mounted(disk: Path, kibibytes: int) -> Iterator[bool]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(disk)]
    there = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield there
    finally:
        if there:
            subprocess.run(["umount", "-l", str(disk)], check=False)


def _pick(folder: Path, rng: random.Random) -> Path:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (".lock", "report.html")]
    text = [path for path in files if path.suffix in (".json", ".toml", ".jsonl")]
    return rng.choice(text if text and rng.random() < 0.6 else files)


def _name(path: Path) -> str:
    return path.name if not path.stem.isdigit() else f"checkpoint{path.suffix}"


def _digest(folder: Path) -> dict[str, str]:
    """-> every file below a folder, with its content."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text(errors="replace") for path in files}


MUTANTS = (mutant_of_a_run, mutant_of_a_run, mutant_of_a_model, mutant_of_a_model, mutant_of_a_users_file)


def campaign(folders: Folders, kills: int, mutants: int, others: int, seed: int) -> Iterator[Trial]:
    plan: list[Callable[[Folders, Path, random.Random], Trial]] = [killed] * kills
    plan += [MUTANTS[k % len(MUTANTS)] for k in range(mutants)]
    plan += [hostile] * others + [full_disk] * (others // 4)
    random.Random(seed).shuffle(plan)
    for number, trial in enumerate(plan):
        rng = random.Random(f"{seed}-{number}")
        with tempfile.TemporaryDirectory(prefix="ipll-trial-") as where:
            yield trial(folders, Path(where), rng)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--mutants", type=int, default=120)
    parser.add_argument("--others", type=int, default=40, help="links, FIFOs and folders in place of files; full disks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write counts and failures here, as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    started, counts, failures = time.monotonic(), Counter[tuple[str, str]](), []
    with tempfile.TemporaryDirectory(prefix="ipll-campaign-") as home:
        folders = Folders(Path(home))
        for trial in campaign(folders, options.kills, options.mutants, options.others, options.seed):
            counts[trial.kind, trial.outcome] += 1
            if trial.outcome in BAD:
                failures.append(trial._asdict())
                print(f"{trial.outcome}: {trial.kind}, {trial.what}\n{trial.note}\n", flush=True)
    outcomes = ("same", "refused", *BAD)
    print("| trial | " + " | ".join(outcomes) + " |\n" + "|---" * (len(outcomes) + 1) + "|")
    for kind in sorted({kind for kind, _ in counts}):
        print(f"| {kind} | " + " | ".join(str(counts[kind, outcome]) for outcome in outcomes) + " |")
    if options.out:
        table = {kind: {o: counts[kind, o] for o in outcomes} for kind in sorted({kind for kind, _ in counts})}
        report = {"counts": table, "failures": failures, "seed": options.seed, "seconds": time.monotonic() - started}
        options.out.write_text(json.dumps(report | {"environment": describe(torch.device("cpu"))}, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
