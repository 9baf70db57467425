"""Bad input: one short message that says what to do, exit status 2, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipll
from ipll.benchmark.run import enough_memory
from ipll.config import resolve
from ipll.data.sources.cifar100 import Cifar100
from ipll.engine.device import use_bf16
from ipll.errors import ConfigError, RunError
from ipll.results.folder import RunFolder

Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths and data end up where the tests look for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPLL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()


@pytest.fixture
def refused(main: Any, snapshot: Any, tmp_path: Path, quick_options: list[str]) -> Refused:
    """Runs a command that must be refused, and checks all that is the same for every refusal. -> the message.

    A run is given settings for a quick one first, so that a test that fails does not take long.
    """

    def call(*arguments: object) -> str:
        before = snapshot(tmp_path)
        if arguments[0] == "run":
            arguments = (*arguments[:2], *quick_options, *arguments[2:])
        status, out, err = main(*arguments)
        message = err.strip()
        assert "Traceback" not in out + err
        assert status == 2, (status, out, err)
        assert out == ""
        assert len(message.splitlines()) == 1, message
        assert message.startswith("ipll: ")
        assert len(message) < 400 + 3 * len(str(tmp_path)), message
        assert snapshot(tmp_path) == before
        return message

    return call


@pytest.fixture
def tiny_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in CIFAR-100's official layout with two training samples of each class, under the data root."""
    sizes = {"train": 200, "test": 100}
    monkeypatch.setattr(Cifar100, "sizes", sizes)
    folder = tmp_path / "data" / "cifar-100-python"
    folder.mkdir()
    for name, size in sizes.items():
        fine = np.arange(size) % 100
        images = np.random.default_rng(size).integers(0, 256, (size, 3072), dtype=np.uint8)
        content = {"data": images, "fine_labels": fine.tolist(), "coarse_labels": (fine % 20).tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {c}" for c in range(100)]}))
    return folder


# Names and values


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "digit"], ["unknown preset 'digit'", "Did you mean 'digits'?"]),
        (["stream", "cifar"], ["unknown preset 'cifar'", "Did you mean 'cifar100'?"]),
        (["run", "folder"], ["'folder' is a data set", "such as cub200", "--set data.source=folder"]),
        (["run", "digits", "--set", "data.per_class=-1"], ["data.per_class", "not be negative"]),
        (
            ["run", "zzz"],
            ["unknown preset 'zzz'", "cifar100, cifar100-fast, cifar100-h, cub200, digits, tiny-imagenet"],
        ),
        (["run", "digits", "--method", "pgrd"], ["unknown method 'pgrd'", "Did you mean 'pgdr'?"]),
        (["run", "digits", "--method", "pgdr/no-memmory"], ["Did you mean 'pgdr/no-memory'?"]),
        (["methods", "prodn"], ["unknown method 'prodn'", "Did you mean 'proden'?"]),
        (["run", "digits", "--device", "gpu"], ["device", "auto, cpu, cuda", "'gpu'"]),
        (["run", "digits", "--seed", "-1"], ["seed", "-1"]),
    ],
)
def test_unknown_names(refused: Refused, arguments: list[str], says: list[str]) -> None:
    message = refused(*arguments)
    for part in says:
        assert part in message


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("train.epoch", "train.epochs"),
        ("train.batchsize", "train.batch_size"),
        ("stream.task", "stream.tasks"),
        ("stream.blury", "stream.blurry"),
        ("memory.sise", "memory.size"),
        ("disambiguation.beta_strat", "disambiguation.beta_start"),
        ("auxiliary.consistency.wieght", "auxiliary.consistency.weight"),
        ("trian.epochs", "train"),
        ("memroy.size", "memory"),
        ("epochs", "train.epochs"),
        ("tasks", "stream.tasks"),
        ("lr", "train.lr"),
    ],
)
@pytest.mark.parametrize("command", ["run", "stream"])
def test_unknown_keys_suggest_the_nearest(refused: Refused, command: str, key: str, suggestion: str) -> None:
    message = refused(command, "digits", "--set", f"{key}=3")
    assert f"'{key}'" in message or f"'{key.partition('.')[0]}'" in message
    assert f"Did you mean '{suggestion}" in message


@pytest.mark.parametrize(
    ("setting", "suggestion"),
    [
        ("data.source=digts", "digits"),
        ("model.backbone=small_cnn", "small-cnn"),
        ("memory.kind=randm", "random"),
        ("stream.candidates=unifrom", "uniform"),
        ("train.schedule=cosin", "cosine"),
        ("auxiliary.kinds=['consistencey']", "consistency"),
    ],
)
def test_unknown_choices_suggest_the_nearest(refused: Refused, setting: str, suggestion: str) -> None:
    assert f"Did you mean '{suggestion}'?" in refused("run", "digits", "--set", setting)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train.epochs=many", ["train.epochs", "int", "'many'"]),
        ("train.epochs=2.5", ["train.epochs", "int", "2.5"]),
        ("train.epochs=true", ["train.epochs", "int", "True"]),
        ("train.lr=fast", ["train.lr", "float", "'fast'"]),
        ("train.joint_views=1", ["train.joint_views", "bool", "1"]),
        ("stream.q='0.2'", ["stream.q", "float", "'0.2'"]),
        ("stream.tasks=5.0", ["stream.tasks", "int", "5.0"]),
        ("memory.size=[200]", ["memory.size", "int", "[200]"]),
        ("data.source=3", ["data.source", "str", "3"]),
        ("auxiliary.kinds=consistency", ["auxiliary.kinds", "list", "'consistency'"]),
        ("train=5", ["'train'", "section"]),
        ("train.epochs.most=5", ["'train.epochs'"]),
        ("prototypes=5", ["'prototypes'", "section"]),  # no packaged layer has a section of this name
        ("auxiliary.consistency=5", ["'auxiliary.consistency'", "section"]),
    ],
)
def test_values_of_the_wrong_type(refused: Refused, setting: str, says: list[str]) -> None:
    message = refused("run", "digits", "--set", setting)
    for part in says:
        assert part in message


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("stream.q=1", "stream.q"),
        ("stream.q=1.5", "stream.q"),
        ("stream.q=-0.1", "stream.q"),
        ("stream.q=nan", "stream.q"),
        ("stream.blurry=100", "stream.blurry"),
        ("stream.blurry=-1", "stream.blurry"),
        ("stream.blurry=nan", "stream.blurry"),
        ("stream.tasks=0", "stream.tasks"),
        ("stream.tasks=-3", "stream.tasks"),
        ("stream.tasks=11", "stream.tasks"),
        ("stream.min_candidates=3", "stream.min_candidates"),
        ("train.epochs=0", "train.epochs"),
        ("train.epochs=-1", "train.epochs"),
        ("train.lr=0", "train.lr"),
        ("train.lr=nan", "train.lr"),
        ("train.batch_size=0", "train.batch_size"),
        ("train.momentum=1", "train.momentum"),
        ("train.steps_per_epoch=-1", "train.steps_per_epoch"),
        ("prototypes.gamma=1", "prototypes.gamma"),
        ("separation.alpha=1.1", "separation.alpha"),
        ("disambiguation.beta_end=-0.1", "disambiguation.beta_end"),
        ("memory.neighbours=0", "memory.neighbours"),
        ("augment.min_scale=0", "augment.min_scale"),
    ],
)
def test_values_out_of_range(refused: Refused, setting: str, key: str) -> None:
    message = refused("run", "digits", "--set", setting)
    assert key in message
    assert setting.partition("=")[2] in message


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("key", ["train.lr", "train.weight_decay", "train.checkpoint_seconds", "retention.temperature"])
def test_numbers_that_no_file_could_hold(refused: Refused, key: str, value: str) -> None:
    assert key in refused("run", "digits", "--set", f"{key}={value}")


def test_more_tasks_than_classes(refused: Refused) -> None:
    for command in ("run", "stream"):
        message = refused(command, "digits", "--set", "stream.tasks=11")
        assert "11" in message
        assert "at most 10" in message


def test_more_tasks_than_superclasses(refused: Refused, tiny_cifar: Path) -> None:
    message = refused("run", "cifar100-h", "--set", "stream.tasks=21")
    assert "20 superclasses" in message
    assert "at most 20" in message


def test_superclasses_of_data_that_have_none(refused: Refused) -> None:
    assert "no superclasses" in refused("stream", "digits", "--set", "stream.order=superclass")


@pytest.mark.parametrize("size", [0, 9])
@pytest.mark.parametrize("method", ["pgdr", "pgdr/random-memory"])
def test_a_memory_smaller_than_the_classes(refused: Refused, method: str, size: int) -> None:
    message = refused("run", "digits", "--method", method, "--set", f"memory.size={size}")
    assert f"memory.size is {size}" in message
    assert "10 classes" in message
    assert "memory.size=10" in message


@pytest.mark.parametrize("item", ["train.epochs", "=5", "train.=5", ".epochs=5", "train..epochs=5", "", " =3"])
def test_malformed_set(refused: Refused, item: str) -> None:
    message = refused("run", "digits", "--set", item)
    assert "KEY=VALUE" in message
    assert f"'{item}'" in message


@pytest.mark.parametrize("setting", ["seed=abc", "seed=5", "method=proden", "preset=cifar100", "method=nonsense"])
@pytest.mark.parametrize("command", ["run", "stream"])
def test_what_has_an_option_of_its_own_is_no_setting(refused: Refused, command: str, setting: str) -> None:
    """Half of the run would follow --set and the other half the option."""
    key = setting.partition("=")[0]
    assert key in refused(command, "digits", "--set", setting)


@pytest.mark.parametrize("name", ["out", "device", "data_root", "config", "overwrite", "reporter"])
def test_names_from_the_python_side_are_no_settings(refused: Refused, name: str) -> None:
    assert f"unknown setting '{name}'" in refused("run", "digits", "--set", f"{name}=x")


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--nonsense"], ["--set"]])
def test_misuse_of_options(main: Any, snapshot: Any, tmp_path: Path, arguments: list[str]) -> None:
    before = snapshot(tmp_path)
    status, _, err = main("run", "digits", *arguments)
    assert status == 2
    assert arguments[0] in err
    assert "Traceback" not in err
    assert snapshot(tmp_path) == before


def test_impossible_combination(refused: Refused) -> None:
    message = refused("run", "digits", "--set", "separation.kind=none")
    assert "disambiguation 'pgdr'" in message
    assert "separation" in message
    assert "'none'" in message


def test_no_cuda(refused: Refused, monkeypatch: pytest.MonkeyPatch, stopped: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments in (["run", "digits"], ["resume", stopped]):
        message = refused(*arguments, "--device", "cuda")
        assert "CUDA" in message
        assert "--device cpu" in message


# Files


def test_missing_config_file(refused: Refused) -> None:
    assert "nowhere.toml" in refused("run", "digits", "--config", "nowhere.toml")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"train.epochs = = 3", "cannot be read as TOML"),
        (b"\xff\xfe\x00", "cannot be read as TOML"),
        (b"[train]\nepoch = 3\n", "Did you mean 'train.epochs'?"),
        (b"[train]\nlr = '3'\n", "train.lr takes a value of type float"),
        (b"[trian]\nepochs = 3\n", "Did you mean 'train'?"),
        (b"train = 3\n", "'train' is a "),
        (b"prototypes = 3\n", "'prototypes' is a section"),
    ],
)
@pytest.mark.parametrize("command", ["run", "stream"])
def test_broken_config_file(refused: Refused, tmp_path: Path, command: str, content: bytes, says: str) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    assert says in refused(command, "digits", "--config", "mine.toml")


def test_a_folder_as_config_file(refused: Refused) -> None:
    assert "data" in refused("run", "digits", "--config", "data")


@pytest.mark.parametrize("preset", ["cifar100", "cifar100-h"])
def test_missing_data_without_a_network(refused: Refused, monkeypatch: pytest.MonkeyPatch, preset: str) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/cifar-100-python.tar.gz"
    monkeypatch.setattr(Cifar100, "url", url)
    for command in ("run", "stream"):
        message = refused(command, preset)
        assert f"cannot reach {url}" in message
        assert "--data-root" in message


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_truncated_data_file(refused: Refused, tiny_cifar: Path, name: str) -> None:
    file = tiny_cifar / name
    file.write_bytes(file.read_bytes()[:-100])
    message = refused("run", "cifar100", "--set", "model.backbone=small-cnn")
    assert str(file) in message
    assert "damaged" in message


# The folder of a run


def test_out_holds_a_finished_run(refused: Refused, finished: Path) -> None:
    message = refused("run", "digits", "--out", finished)
    assert str(finished) in message
    assert "finished run" in message
    assert "--overwrite" in message


def test_out_holds_an_unfinished_run(refused: Refused, stopped: Path) -> None:
    message = refused("run", "digits", "--out", stopped)
    assert f"ipll resume {stopped}" in message
    assert "--overwrite" in message


@pytest.mark.parametrize("out", ["taken", "taken/below"])
@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_out_is_a_file(refused: Refused, tmp_path: Path, out: str, overwrite: list[str]) -> None:
    (tmp_path / "taken").write_text("mine")
    message = refused("run", "digits", "--out", out, *overwrite)
    assert "taken" in message
    assert "--out" in message


@pytest.mark.parametrize(
    "mistake",
    [
        ["--set", "separation.kind=none"],
        ["--set", "memory.size=3"],
        ["--set", "stream.tasks=11"],
        ["--set", "train.epochs=0"],
        ["--method", "pgrd"],
    ],
)
def test_a_mistake_with_overwrite_costs_nothing(refused: Refused, finished: Path, mistake: list[str]) -> None:
    refused("run", "digits", "--out", finished, "--overwrite", *mistake)
    assert ipll.Result.load(finished)["method"] == "pgdr"


def test_the_demo_does_not_replace_an_earlier_one(refused: Refused, tmp_path: Path, finished: Path) -> None:
    shutil.copytree(finished, tmp_path / "demo" / "pgdr")
    assert "--overwrite" in refused("demo", "--out", "demo")


@pytest.mark.parametrize("how", ["resume", "run"])
def test_a_second_process_on_a_run(refused: Refused, stopped: Path, how: str) -> None:
    first = RunFolder(stopped)
    try:
        arguments = ["resume", stopped] if how == "resume" else ["run", "digits", "--overwrite", "--out", stopped]
        message = refused(*arguments)
    finally:
        first.close()
    assert str(stopped) in message
    assert f"process {os.getpid()} is working on this run" in message


def test_a_second_process_on_a_run_that_has_just_begun(refused: Refused, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "new")
    try:
        assert "is working on this run" in refused("run", "digits", "--out", "new")
    finally:
        folder.close()


# Resumption and reports


@pytest.mark.parametrize("folder", ["nowhere", "data", "file"])
def test_resume_without_a_run(refused: Refused, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("mine")
    message = refused("resume", folder)
    assert folder in message
    assert "no run" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[train]", "[train"),
        ("[train]", "[trian]"),
        ("epochs = 2", "epochs = 'two'"),
        ("epochs = 2", "epochs = 0"),
        ('preset = "digits"\n', ""),
        ("seed = 0\n", ""),
        ("seed = 0\n", "seed = 'x'\n"),
        ('kind = "pgdr"', 'kind = "nonsense"'),
    ],
)
def test_resume_with_a_damaged_configuration(refused: Refused, stopped: Path, old: str, new: str) -> None:
    (stopped / "manifest.json").unlink()  # as of an older version: else the change itself is refused
    file = stopped / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    refused("resume", stopped)


def test_resume_with_a_configuration_cut_short(refused: Refused, stopped: Path) -> None:
    """What is missing must not be filled with defaults: that would be another run."""
    (stopped / "manifest.json").unlink()
    file = stopped / "config.toml"
    file.write_text(file.read_text().partition("[train]")[0])
    refused("resume", stopped)


def test_resume_with_an_empty_configuration(refused: Refused, stopped: Path) -> None:
    (stopped / "config.toml").write_text("")
    assert "config.toml" in refused("resume", stopped)


@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "garbage", "changed"])
def test_resume_with_a_damaged_stream(refused: Refused, stopped: Path, damage: str) -> None:
    file = stopped / "stream.npz"
    content = file.read_bytes()
    middle = len(content) // 2
    if damage == "gone":
        file.unlink()
    else:
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"cut": content[:middle], "empty": b"", "garbage": b"x" * 99, "changed": changed}[damage])
    assert "stream.npz" in refused("resume", stopped)


@pytest.mark.parametrize("setting", ["stream.q=0.3", "seed=1"])
def test_resume_with_the_stream_of_another_run(refused: Refused, main: Any, stopped: Path, setting: str) -> None:
    """The result would name settings that it was not made with."""
    (stopped / "manifest.json").unlink()
    key, _, value = setting.partition("=")
    options = ["--seed", value] if key == "seed" else ["--set", setting]
    stream = ["stream", "digits", "--set", "stream.tasks=3", *options, "--out", stopped / "stream.npz"]
    assert main(*stream).status == 0
    assert "stream.npz" in refused("resume", stopped)


def test_report_without_a_run(refused: Refused, stopped: Path, finished: Path) -> None:
    assert "nowhere" in refused("report", "nowhere")
    assert f"ipll resume {stopped}" in refused("report", stopped)
    assert f"ipll resume {stopped}" in refused("report", finished, stopped)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"method": "pgdr"})])
def test_report_of_a_damaged_result(refused: Refused, finished: Path, content: str) -> None:
    (finished / "result.json").write_text(content)
    assert "result.json" in refused("report", finished)


@pytest.mark.parametrize("out", ["nowhere/file", "data"])
@pytest.mark.parametrize("command", ["stream", "report"])
def test_files_written_to_impossible_places(main: Any, tmp_path: Path, finished: Path, command: str, out: str) -> None:
    """Either the folder is made and the file is there, or it is refused."""
    status, _, err = main(command, finished if command == "report" else "digits", "--out", out)
    assert "Traceback" not in err
    if out == "data" or not (tmp_path / out).is_file():
        assert status == 2
        assert out in err
        assert len(err.strip().splitlines()) == 1
        assert not list((tmp_path / "data").iterdir())
    else:
        assert status == 0


# Devices


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train.precision": "bf16"}, "bf16 is for GPUs"),
        ({"train.graphs": "on"}, "only a CUDA device has graphs"),
        ({"train.compile": "yes"}, "train.compile"),
    ],
)
def test_what_a_cpu_cannot_do(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    """Refused before anything is written."""
    with pytest.raises(ConfigError, match=said):
        ipll.run("digits", device="cpu", out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_gpu_without_bf16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(ConfigError, match=r"this GPU has no bf16 arithmetic\. Use --precision float32"):
        use_bf16("bf16", torch.device("cuda"))
    assert not use_bf16("auto", torch.device("cuda"))


def test_running_out_of_gpu_memory_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7 * 2**30)
    said = r"7\.0 GiB .* 1\.0 of 8\.0 GiB are free, batches are of 128\. .*train\.batch_size=64"
    with pytest.raises(RunError, match=said), enough_memory(resolve("digits")):
        raise torch.OutOfMemoryError("CUDA out of memory")
