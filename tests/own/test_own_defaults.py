"""Settings chosen from the data: sensible, explained, and never over what a user sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ipll.errors import ConfigError
from ipll.method import method_table
from ipll.own import Model, from_arrays
from ipll.own.defaults import BUDGET, Choice, Facts, choose, choose_again, configure, reconfigure
from ipll.own.inputs import statistics

CPU = torch.device("cpu")


def chosen(given: dict[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    plain = {"kind": "images", "samples": 1000, "classes": 10, "side": 32, "channels": 3, "gpu": False}
    return {choice.setting: choice.value for choice in choose(Facts(**(plain | facts)), given or {})}


def test_features_get_members_side_by_side_and_noise() -> None:
    found = chosen(kind="features", side=0, channels=0)
    assert (found["model.backbone"], found["augment.weak"], found["augment.strong"]) == (
        "wide-deep",
        "identity",
        "noise",
    )
    assert "data.size" not in found
    small, large = (chosen(kind="features", samples=n)["train.lr"] for n in (100, 100_000))
    assert 0 < small < large <= 0.1  # small batches diverge at a rate that large ones bear


def test_many_classes_are_learnt_by_fewer_networks() -> None:
    members = {k: chosen(kind="features", samples=8_000, classes=k)["model.members"] for k in (100, 200, 2_000, 5_000)}
    assert members == {100: 10, 200: 10, 2_000: 4, 5_000: 2}


def test_labels_are_settled_by_those_who_cannot_know_them_by_heart() -> None:
    assert chosen(kind="features", samples=300, channels=1200)["model.settle"] == "held-out"
    assert "model.settle" not in chosen(kind="features", samples=301, channels=1200)
    few = Facts("features", 50, 3, 0, 240, gpu=False)
    config = configure("pgdr/tables", 0, choose(few, {}), {})
    assert config.model.settle == "held-out"
    for samples, settle in ((60, "held-out"), (61, "all")):
        later = {c.setting: c.value for c in choose_again(config, few._replace(samples=samples), {})}
        assert later["model.settle"] == settle
    assert "model.settle" not in {c.setting for c in choose_again(config, few, {"model.settle": "all"})}


def test_many_features_are_learnt_at_a_lower_rate() -> None:
    rates = {n: chosen(kind="features", channels=n)["train.lr"] for n in (10, 100, 400, 1600)}
    assert rates[10] == rates[100]
    assert (rates[400], rates[1600]) == (pytest.approx(rates[100] / 2), pytest.approx(rates[100] / 4))
    mlp = {"model.backbone": "mlp"}  # it has no linear path
    assert chosen(mlp, kind="features", channels=400)["train.lr"] == chosen(mlp, kind="features")["train.lr"]


@pytest.mark.parametrize(
    ("facts", "backbone", "size"),
    [
        ({"side": 8}, "small-cnn", 8),
        ({"side": 32}, "resnet18-thin", 32),
        ({"side": 32, "gpu": True, "samples": 300}, "resnet18-thin", 32),
        ({"side": 32, "gpu": True, "samples": 50_000}, "resnet18", 32),
        ({"side": 48}, "resnet18-thin", 48),
        ({"side": 640}, "resnet18-thin", 48),
        ({"side": 96, "gpu": True, "samples": 300}, "resnet18-thin", 96),
        ({"side": 640, "gpu": True, "samples": 50_000}, "resnet18", 128),
    ],
)
def test_the_network_goes_by_the_images_size(facts: dict[str, Any], backbone: str, size: int) -> None:
    found = chosen(**facts)
    assert (found["model.backbone"], found["data.size"]) == (backbone, size)


def test_trained_weights_bring_their_network() -> None:
    found = chosen({"model.weights": "torchvision:resnet18"}, side=500)
    assert (found["model.backbone"], found["data.size"], found["train.lr"]) == ("resnet18-imagenet", 224, 0.01)


def test_digits_are_not_mirrored_unless_told() -> None:
    digits = {"channels": 1, "side": 28}
    assert chosen(**digits)["augment.flip"] is False
    assert chosen(**digits)["augment.weak"] == "shift"
    told = chosen({"augment.flip": True}, **digits)  # 'shift' never mirrors
    assert told["augment.weak"] == "sim"
    assert "augment.flip" not in told
    assert chosen(channels=3, side=28)["augment.weak"] == "sim"
    assert chosen(channels=1, side=64)["augment.weak"] == "sim"


@pytest.mark.parametrize("kind", ["images", "features"])
def test_few_samples_are_seen_more_often_in_smaller_batches(kind: str) -> None:
    found = [chosen(kind=kind, samples=n) for n in (1, 50, 1_000, 10_000, 200_000)]
    epochs, batches = ([one[key] for one in found] for key in ("train.epochs", "train.batch_size"))
    assert epochs == sorted(epochs, reverse=True)
    assert batches == sorted(batches)
    assert (epochs[0], epochs[-1]) == (100, 10)
    assert chosen({"train.batch_size": 8}, samples=1_000)["train.epochs"] < chosen(samples=1_000)["train.epochs"]


def test_images_on_a_cpu_are_seen_less_often() -> None:
    assert chosen(samples=600)["train.epochs"] < chosen(samples=600, gpu=True)["train.epochs"]


def test_a_memory_has_room_for_every_class() -> None:
    assert chosen(classes=10)["memory.size"] == 1000
    assert chosen(classes=500)["memory.size"] == 10_000


def test_compilation_must_pay() -> None:
    short, long = (chosen(gpu=True, samples=n) for n in (200, 200_000))
    assert (short["train.compile"], long["train.compile"]) == ("off", "auto")
    assert chosen(gpu=True, kind="features", samples=200_000)["train.compile"] == "off"
    assert "train.compile" not in chosen(samples=200_000)  # a CPU never compiles


def test_what_a_user_sets_is_never_touched() -> None:
    given = {
        "train.epochs": 7,
        "model.backbone": "small-cnn",
        "memory.size": 30,
        "data.size": 48,
        "augment.weak": "sim",
    }
    facts = Facts("images", 900, 10, 200, 1, False)
    choices = choose(facts, given)
    assert not {choice.setting for choice in choices} & given.keys()
    config = configure("pgdr", 3, choices, given)
    assert (config.train.epochs, config.model.backbone, config.data.size) == (7, "small-cnn", 48)
    assert (config.preset, config.data.source, config.seed) == ("own", "own", 3)
    assert config.prototypes.fallback is False
    again = choose_again(config, facts._replace(samples=50_000, classes=90), given)
    assert {choice.setting for choice in again} == {"train.batch_size", "train.lr"}
    assert reconfigure(config, again).train.epochs == 7


def test_an_update_chooses_for_its_own_size_but_never_a_smaller_memory() -> None:
    facts = Facts("features", 300, 200, 0, 0, False)
    config = configure("pgdr", 0, choose(facts, {}), {})
    assert config.parts[4].settings.size == BUDGET // (5 * 256 + 16)  # candidates and targets of 200 classes
    later = reconfigure(config, choose_again(config, facts._replace(samples=40_000, classes=10), {}))
    assert later.train.epochs < config.train.epochs
    assert later.parts[4].settings.size == BUDGET // (5 * 16 + 16)
    assert later.model == config.model
    grown = reconfigure(config, choose_again(config, facts._replace(classes=300), {}))
    assert grown.parts[4].settings.size == config.parts[4].settings.size
    few = Facts("images", 300, 200, 8, 1, False)
    small = configure("pgdr", 0, choose(few, {}), {})
    more = reconfigure(small, choose_again(small, few._replace(classes=300), {}))
    assert (small.parts[4].settings.size, more.parts[4].settings.size) == (4000, 6000)


def test_epochs_of_later_updates_that_are_set_are_not_chosen_again() -> None:
    """What pays on a GPU is judged by them: 8 steps an epoch, 100 epochs in the first fit and 2 in an update."""
    facts, given = Facts("features", 1000, 4, 0, 0, True), {"train.later_epochs": 2}
    first = choose(facts, given)
    config = configure("pgdr", 0, first, given)
    assert (config.train.epochs, config.train.epochs_of(1)) == (100, 2)
    assert Choice("train.graphs", "auto", "800 steps pay for it") in first
    again = choose_again(config, facts, given)
    assert "train.epochs" not in {choice.setting for choice in again}
    assert Choice("train.graphs", "off", "16 steps would not pay for it") in again


@pytest.mark.parametrize("method", sorted(method_table()))
def test_every_method_can_be_configured(method: str) -> None:
    for kind in ("images", "features"):
        assert configure(method, 0, choose(Facts(kind, 300, 4, 32, 3, False), {}), {}).method == method


def test_settings_of_benchmarks_and_misspelt_ones_are_refused() -> None:
    for key in ("stream.tasks", "data.source", "data.validation"):
        with pytest.raises(ConfigError, match=f"'{key}' for a model of your own data"):
            chosen({key: 3})
    with pytest.raises(ConfigError, match=r"Did you mean 'train\.epochs'"):
        Model.fit(from_arrays(np.eye(4), list("abab")), device="cpu", settings={"train.epoch": 3})


def test_a_model_says_what_was_chosen_and_why() -> None:
    samples = from_arrays(np.random.default_rng(0).normal(size=(40, 3)), ["x", "y"] * 20)
    model = Model.fit(samples, device="cpu", settings={"train.epochs": 1})
    found = {setting: (value, why) for setting, value, why in model.choices()}
    assert found["model.backbone"][0] == "wide-deep"
    assert "train.epochs" not in found
    assert all(why for _, why in found.values())
    more = from_arrays(np.random.default_rng(1).normal(size=(4000, 3)), ["x", "y"] * 2000)
    later = {setting: value for setting, value, _ in model.update(more, device="cpu").choices()}
    assert later["train.batch_size"] > found["train.batch_size"][0]
    assert later.keys() == found.keys()


def test_statistics_of_features_and_images() -> None:
    features = np.array([[1, 5, 1e8], [3, 5, 1e8]], np.float32)
    assert statistics(features) == ((2, 5, 1e8), (1, 1, 1))
    images = np.random.default_rng(0).integers(0, 256, (5000, 3, 4, 4), np.uint8)
    images[:, 2] = 7
    mean, std = statistics(images)
    assert mean == pytest.approx((images / 255).mean((0, 2, 3)))
    assert std[:2] == pytest.approx((images / 255).std((0, 2, 3))[:2])
    assert std[2] == 1


def test_facts_of_samples() -> None:
    facts = Facts.of(from_arrays(np.zeros((6, 9, 12), np.uint8), list("abcabc")), 3, CPU, kept=4)
    assert facts == Facts("images", 10, 3, 9, 1, False)


def test_an_mlp_keeps_its_rate_in_fits_and_updates() -> None:
    """It diverges at a rate that the network for tables bears."""
    facts, mlp = Facts("features", 50_000, 10, 1, 20, False), {"model.backbone": "mlp"}
    rate = {choice.setting: choice.value for choice in choose(facts, mlp)}["train.lr"]
    assert rate <= 0.05 < {choice.setting: choice.value for choice in choose(facts, {})}["train.lr"]
    config = configure("pgdr", 0, choose(facts, mlp), mlp)
    assert {choice.setting: choice.value for choice in choose_again(config, facts, {})}["train.lr"] == rate
