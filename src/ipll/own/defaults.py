"""Settings chosen from the data, so that nothing need be tuned. What a user sets is never touched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ipll.config import OWN, Config, resolve
from ipll.errors import ConfigError
from ipll.own.reading.samples import Samples

SMALL = 16  # pixels: up to here 'small-cnn'
KEEP = {False: 48, True: 96}  # pixels: up to here images keep their size, on a CPU, on a GPU
LARGEST = {False: 48, True: 128, "weights": 224}  # larger images become this: on a CPU, on a GPU, with trained weights
DIGITS = 32  # grey images up to here are taken for digits, letters and the like
MANY = 5_000  # samples from which a full ResNet-18 pays on a GPU
KEPT = (1_000, 20)  # images of a memory: so many, or so many of each class
BUDGET = 64 * 2**20  # bytes of a memory of features: rows are small, and what is kept is not forgotten
PICTURE = 48  # pixels: of photos that are learnt as features, so small a picture is kept for the audit
PICTURE_BYTES = 3 * PICTURE**2
REPLAYED = 20_000  # rows kept that each epoch of an update goes through, or as many as are new
METHODS = {"images": "pgdr/images", "features": "pgdr/tables"}  # where none is named
AUTO = "auto"
# Members, their folds and their hidden units, up to so many rows: what more of them gain shrinks with the rows, and
# what they cost grows; from MANY_CLASSES on with the classes, too. Twenty members and ten folds gain a point on tables
# of 400 rows (results/own/members.json), but where sets name classes that are yet to come, or with votes, they lose: on
# Lost twelve, on LabelMe two.
MEMBERS = ((20_000, (10, 5, 128)), (100_000, (4, 4, 128)), (math.inf, (2, 2, 64)))
MANY_CLASSES = 200
# Features for each sample from which labels are settled by networks that did not learn it: from 4.3 on that was better
# wherever it was tried, at 2.9 and below worse on some photos.
BY_HEART = 4
# Steps of training in one update, where epochs are within their bounds; of images on a CPU; of features.
STEPS, STEPS_SLOW, STEPS_FEATURES = 1_200, 500, 1_600
EPOCHS = (10, 100)
# Learning rate for each sample of a batch, and the highest. The thin ResNet that learnt 600 small photographs of 5
# classes in batches of 32 got 79 % of others right at 0.03 and 62 % at 0.1 (results/own/photographs.json).
# An MLP, which models of tables had at first and updates of these go on with, diverges sooner than a wide-deep network.
RATES = {"images": (0.001, 0.1), "features": (0.0008, 0.1), "mlp": (0.0003, 0.05)}
WIDE = 100  # features from which the rate falls, by their root: each of them moves a wide-deep network's linear path
TOO_SMALL = "layers this small gain nothing from more threads, and lose much where others use the cores"
LONG = {"train.compile": 5_000, "train.graphs": 500}  # steps from which they pay on a GPU


class Facts(NamedTuple):
    """What choices are made from."""

    kind: str  # 'images' or 'features'
    samples: int  # that an epoch goes through, the memory's among them
    classes: int  # of all by now
    side: int  # of the images, as they come
    channels: int  # of the images; or how many features
    gpu: bool
    beside: int = 0  # bytes that are kept beside the features of a sample: its small picture
    left: int = 0  # samples of the memory that an epoch does not go through

    @classmethod
    def of(cls, samples: Samples, classes: int, device: torch.device, kept: int = 0, dim: int = 0) -> Facts:
        """`dim`: photos are seen through a network that gives so many values of each."""
        images, new, gpu = samples.images, len(samples), device.type == "cuda"
        if images is not None and not dim:
            return cls("images", new + kept, classes, images.side, images.channels, gpu)
        replayed, beside = min(kept, max(REPLAYED, new)), PICTURE_BYTES if dim else 0
        channels = dim or len(samples.feature_names)
        return cls("features", new + replayed, classes, 0, channels, gpu, beside, left=kept - replayed)


class Choice(NamedTuple):
    setting: str
    value: Any
    why: str


def choose(facts: Facts, given: Mapping[str, Any]) -> tuple[Choice, ...]:
    """-> all choices for a new model, but for what is `given`, by dotted keys."""
    for key in given:
        if key in ("data.source", "data.through", "data.validation") or key.startswith("stream."):
            raise ConfigError(f"unknown setting '{key}' for a model of your own data: it is for benchmarks. Remove it.")
    chosen = _features(facts, given) if facts.kind == "features" else _images(facts, given)
    each = _each_update(facts, given, _given_number(given, "train.epochs", 0))
    return tuple(choice for choice in (*chosen, *each) if choice.setting not in given)


def choose_again(config: Config, facts: Facts, given: Mapping[str, Any]) -> tuple[Choice, ...]:
    """-> what is chosen anew for an update. A memory never shrinks; `train.later_epochs` is obeyed."""
    kept = config.part("memory").settings.size
    epochs = config.train.later_epochs or _given_number(given, "train.epochs", 0)
    chosen = [*_each_update(facts, {"model.backbone": config.model.backbone} | dict(given), epochs)]
    if facts.kind == "features" and getattr(config.part("disambiguation").settings, "prior", False):
        chosen.append(Choice("disambiguation.prior", 0.0, "sets may name classes that have not arrived yet"))
    if config.model.settle == "held-out" and facts.channels < BY_HEART * facts.samples:
        chosen.append(Choice("model.settle", "all", f"by now {facts.samples:,} samples of {facts.channels:,} features"))
    return tuple(
        choice
        for choice in chosen
        if choice.setting not in given and not (choice.setting == "memory.size" and choice.value < kept)
    )


def configure(method: str, seed: int, choices: tuple[Choice, ...], given: Mapping[str, Any]) -> Config:
    """-> the complete configuration of a new model."""
    base = {"data.source": OWN, "prototypes.fallback": False, "model.deal": "blocks"}
    base |= {c.setting: c.value for c in choices}
    return resolve(OWN, method, seed=seed, overrides=given, base=base)


def in_force(choices: tuple[Choice, ...], config: Config) -> tuple[Choice, ...]:
    """-> the choices without those over which the method has its own word."""
    values = config.to_table()
    return tuple(c for c in choices if values[c.setting.partition(".")[0]].get(c.setting.partition(".")[2]) == c.value)


def reconfigure(config: Config, choices: tuple[Choice, ...]) -> Config:
    """-> the configuration with some settings chosen anew."""
    values = config.to_table()
    for choice in choices:
        section, _, name = choice.setting.partition(".")
        values[section][name] = choice.value
    return Config.from_table(values)


def _features(facts: Facts, given: Mapping[str, Any]) -> Iterator[Choice]:
    why = "features: a linear path beside a hidden layer does not memorise them"
    yield Choice("model.backbone", "wide-deep", why)
    if given.get("model.backbone", "wide-deep") == "wide-deep":  # no other has members
        cost = facts.samples * max(1.0, facts.classes / MANY_CLASSES)
        members, folds, width = next(sizes for most, sizes in MEMBERS if cost <= most)
        yield Choice("model.members", members, f"networks side by side, for {facts.samples:,} samples")
        yield Choice(
            "model.folds",
            folds,
            "each of them leaves out a fold of the samples, on which every statement of certainty rests",
        )
        yield Choice("model.width", width, "hidden units of each")
    yield Choice("augment.weak", "identity", "features are learnt from as they are")
    yield Choice("augment.strong", "noise", "and with noise and drop-out, in units of each feature's spread")
    yield Choice("augment.drop", 0.3, "share of the features dropped from a sample's other view")
    yield Choice("train.threads", 1, TOO_SMALL)


def _images(facts: Facts, given: Mapping[str, Any]) -> Iterator[Choice]:
    weights = bool(given.get("model.weights"))
    side = facts.side
    if weights:
        size = min(side, LARGEST["weights"])
        yield Choice("model.backbone", "resnet18-imagenet", "it has trained weights")
    elif side <= SMALL:
        size = side
        yield Choice("model.backbone", "small-cnn", f"images of {side} pixels are small")
        yield Choice("train.threads", 1, TOO_SMALL)
    else:
        size = side if side <= KEEP[facts.gpu] else LARGEST[facts.gpu]
        if facts.gpu and facts.samples >= MANY:
            yield Choice("model.backbone", "resnet18", f"{facts.samples:,} samples, and a GPU")
        else:
            why = f"{facts.samples:,} samples are few" if facts.gpu else "there is no GPU"
            yield Choice("model.backbone", "resnet18-thin", why)
    why = "the images' own size" if size == side else f"the images have {side}: more would take long here"
    yield Choice("data.size", size, f"{why}, in pixels")
    if facts.channels == 1 and side <= DIGITS and not given.get("augment.flip"):
        why = "small grey images may be digits or letters: not mirrored, moved and turned a little"
        yield from (Choice("augment.weak", "shift", why), Choice("augment.strong", "warp", why))
        yield Choice("augment.flip", False, why)
        yield Choice("augment.min_scale", 0.6, "and not cut by much")
    else:
        yield Choice("augment.weak", "sim", "photographs: cut, mirrored, other colours")
        yield Choice("augment.strong", "mild", "and turned, sheared, other contrast")


def _each_update(facts: Facts, given: Mapping[str, Any], epochs: int) -> Iterator[Choice]:
    """`epochs` are those of the update where they are given; 0: they are chosen."""
    n, features = facts.samples, facts.kind == "features"
    batch = min(max(2 ** round(math.log2(n / 20)), 32), 128)
    if features:
        batch = min(max(2 ** round(math.log2(n / 8)), 32), max(128, min(1024, 2 ** round(math.log2(n / 150)))))
    yield Choice("train.batch_size", batch, f"for {n:,} samples")
    batch = _given_number(given, "train.batch_size", batch)
    if given.get("model.weights"):
        yield Choice("train.lr", 0.01, "trained weights move slowly")
    else:
        each, highest = RATES.get(str(given.get("model.backbone")), RATES[facts.kind])
        rate, why = min(highest, round(each * batch, 4)), f"for batches of {batch}: larger ones bear a higher rate"
        if features and facts.channels > WIDE and given.get("model.backbone", "wide-deep") == "wide-deep":
            rate = round(rate * math.sqrt(WIDE / facts.channels), 4)
            why = (
                f"for batches of {batch} and {facts.channels:,} features: a larger batch bears more, more features less"
            )
        yield Choice("train.lr", rate, why)
    per_epoch = -(-n // batch)
    low, high = EPOCHS
    slow = not features and not facts.gpu and facts.side > SMALL
    if not epochs:
        steps = STEPS_FEATURES if features else STEPS_SLOW if slow else STEPS
        epochs = min(max(round(steps / per_epoch), low), high)
        yield Choice("train.epochs", epochs, f"{per_epoch:,} steps see {n:,} samples once")
    if features and facts.channels >= BY_HEART * facts.samples:
        why = f"{facts.channels:,} features of {n:,} samples: a network memorises what it was told"
        yield Choice("model.settle", "held-out", why)
    if features:
        columns = 2 ** math.ceil(math.log2(max(facts.classes, 8)))
        size = BUDGET // (4 * facts.channels + 5 * columns + 16 + facts.beside)
        yield Choice("memory.size", size, f"rows to keep: as many as {BUDGET // 2**20} MB hold")
        if facts.left:
            why = "of the rows kept, drawn anew for each epoch; if more rows are new, as many as those"
            yield Choice("memory.replayed", REPLAYED, why)
    else:
        fewest, per_class = KEPT
        size = max(fewest, per_class * facts.classes)
        why = f"samples to keep: room for {size // max(facts.classes, 1):,} of each class"
        yield Choice("memory.size", size, why)
    if facts.gpu:
        steps = per_epoch * epochs
        for key, least in LONG.items():
            pays = steps >= least and not (features and key == "train.compile")
            yield Choice(key, "auto" if pays else "off", f"{steps:,} steps {'' if pays else 'would not '}pay for it")


def _given_number(given: Mapping[str, Any], key: str, otherwise: int) -> int:
    """-> a given number where it is one; what else is given is refused when the configuration is made."""
    value = given.get(key)
    return value if isinstance(value, int) and value >= 1 else otherwise
