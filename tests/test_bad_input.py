"""Bad input: one short message that says what to do, exit status 2, no traceback, nothing written."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipll
from ipll.config import resolve
from ipll.data.sources.cifar100 import Cifar100
from ipll.driver import enough_memory
from ipll.engine.device import use_bf16
from ipll.errors import ConfigError, RunError

Refused = Callable[..., str]

pytestmark = pytest.mark.usefixtures("elsewhere")


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
            [
                "unknown preset 'zzz'",
                "cifar100-h, cub200, cub200-frozen, cub200-tuned, digits, tiny-imagenet, tiny-imagenet-fast",
            ],
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
        ("auxiliary.kinds=['consistency', 'consistency']", ["auxiliary.kinds", "'consistency' twice"]),
        ("auxiliary.kinds=consistency", ["auxiliary.kinds", "list", "'consistency'"]),
        ("train=5", ["'train'", "section", "use train.NAME="]),
        ("classifier=linear", ["'classifier'", "section", "use classifier.kind=linear"]),
        ("classifier=5", ["use classifier.kind=NAME"]),
        ("auxiliary=consistency", ["'auxiliary'", "use auxiliary.kinds=['consistency']"]),
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
        (b"[stream]\nq = '3'\n", "stream.q takes a value of type float"),
        (b"[trian]\nepochs = 3\n", "Did you mean 'train'?"),
        (b"[stream]\nq = 2\n", "stream.q must be in [0, 1)"),
        (b"[model]\nweights = 'nowhere.pt'\n", "nowhere.pt"),
        (b"train = 3\n", "'train' is a "),
        (b"prototypes = 3\n", "'prototypes' is a section"),
        (b"classifier = 'linear'\n", "use classifier.kind=linear"),
    ],
)
@pytest.mark.parametrize("command", ["run", "stream"])
def test_broken_config_file(refused: Refused, tmp_path: Path, command: str, content: bytes, says: str) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    message = refused(command, "digits", "--config", "mine.toml", "--set", "train.lr=0.5")
    assert says in message
    assert message.startswith("ipll: mine.toml: ")


def test_a_config_file_is_not_blamed_for_what_others_set(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[train]\nepochs = 3\n")
    for setting in ("train.epochz=3", "train.epochs=many", "separation.kind=none"):
        assert "mine.toml" not in refused("run", "digits", "--config", "mine.toml", "--set", setting)


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


@pytest.mark.parametrize("asked", [lambda: torch.empty(2**55), lambda: np.empty(2**55), lambda: bytearray(2**55)])
def test_running_out_of_a_computers_memory_says_what_helps(asked: Callable[[], object]) -> None:
    said = r"the computer's memory ran out, batches are of 128\. .*train\.batch_size=64"
    with pytest.raises(RunError, match=rf"{said}\), fewer samples"), enough_memory(resolve("digits")):
        asked()
    large = resolve("digits", overrides={"augment.test_size": 3000})
    with pytest.raises(RunError, match=rf"{said}\), smaller images at test .*test_size=3000"), enough_memory(large):
        asked()


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="a bug"), enough_memory(resolve("digits")):
        raise RuntimeError("a bug")
