"""How many samples may be judged old (separation.count=estimated): the estimate, and who is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ipll
import reference
from ipll.errors import ConfigError
from ipll.families.separation import Separation, SeparationSettings, expected_old
from ipll.families.separation.model_output import Confidence, Entropy
from ipll.families.separation.prototype_distance import PrototypeDistance
from live import as_sets, bare_context, random_sets

CLASSES, OLD, SEEN, DIM = 10, 6, 9, 5
MEMBERS = [PrototypeDistance, Confidence, Entropy]


def separation(member: type[Separation], **settings: Any) -> Separation:
    """-> the part, in a task where OLD of SEEN classes are old and have prototypes."""
    ctx = bare_context(classes=CLASSES, dim=DIM, old=OLD, seen=SEEN)
    ctx.prototypes.mu[:OLD] = torch.from_numpy(np.random.default_rng(7).normal(scale=2, size=(OLD, DIM)))
    ctx.prototypes.known[:OLD] = True
    part = member(SeparationSettings(**settings))
    part.build(ctx)
    return part


def samples(seed: int, *, n: int = 400, certain: int = 20, q: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """-> features [n, DIM], logits and sets [n, CLASSES]; the first `certain` have no new candidate, all others do."""
    rng = np.random.default_rng(seed)
    sets = torch.zeros(n, CLASSES, dtype=torch.bool)
    sets[:, :SEEN] = random_sets(rng, n, SEEN, q)
    sets[:certain, OLD:] = False
    sets[:certain, 0] = True
    sets[np.arange(certain, n), rng.integers(OLD, SEEN, size=n - certain)] = True
    features = torch.from_numpy(rng.normal(scale=2, size=(n, DIM))).float()
    return features, torch.from_numpy(rng.normal(scale=2, size=(n, CLASSES))).float(), sets


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("certain", [0, 1, 37])
def test_the_estimate(q: float, certain: int) -> None:
    new = torch.zeros(CLASSES, dtype=torch.bool)
    new[OLD:SEEN] = True
    for seed in range(3):
        _, _, sets = samples(seed, certain=certain, q=q)
        expected = reference.expected_old(as_sets(sets), OLD, SEEN)
        assert float(expected_old(sets, new, SEEN)) == pytest.approx(expected, rel=1e-9)


def test_the_estimate_is_about_the_truth() -> None:
    """On sets as streams have them: every false candidate joins with the same rate."""
    rng = np.random.default_rng(0)
    truth = np.concatenate([rng.integers(OLD, size=600), rng.integers(OLD, SEEN, size=2400)])
    mask = rng.random((3000, SEEN)) < 0.2
    mask[np.arange(3000), truth] = True
    new = torch.arange(SEEN) >= OLD
    assert float(expected_old(torch.from_numpy(mask), new, SEEN)) == pytest.approx(600, rel=0.1)


@pytest.mark.parametrize("member", MEMBERS)
def test_without_a_sample_that_is_certainly_old_none_is_judged_old(member: type[Separation]) -> None:
    given = samples(0, certain=0)
    assert bool(separation(member).judge(*given).old.any())
    assert not bool(separation(member, count="estimated").judge(*given).old.any())


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("certain", [3, 20])
def test_the_smallest_statistics_are_kept_and_no_more_than_the_estimate(member: type[Separation], certain: int) -> None:
    features, logits, sets = samples(1, certain=certain)
    free = separation(member).judge(features, logits, sets)
    part = separation(member, count="estimated")
    judged = part.judge(features, logits, sets)
    room = int(reference.expected_old(as_sets(sets), OLD, SEEN) - certain)
    e = part.statistic(features, logits, sets & part.ctx.old_mask)
    undecided = [i for i in range(certain, len(sets)) if bool(free.old[i])]
    assert 0 < room < len(undecided)  # the mixture alone would judge more of them old
    kept = sorted(undecided, key=lambda i: float(e[i]))[:room]
    assert set(judged.old[certain:].nonzero()[:, 0].add(certain).tolist()) == set(kept)
    assert torch.equal(judged.old[:certain], free.old[:certain])
    assert torch.equal(judged.nearest, free.nearest)
    assert torch.equal(judged.probability, free.probability)


def test_where_the_mixture_judges_fewer_old_it_has_the_last_word() -> None:
    given = samples(2, certain=200, q=0.5)
    free, judged = (separation(PrototypeDistance, count=count).judge(*given).old for count in ("free", "estimated"))
    assert int(free[200:].sum()) < reference.expected_old(as_sets(given[2]), OLD, SEEN) - 200
    assert torch.equal(free, judged)


# Whole runs


def recalls(blurry: int, count: str) -> tuple[list[float | None], list[float]]:
    """-> old and new recall, in percent, in each task after the first."""
    result = ipll.run("digits", separation__count=count, stream__blurry=blurry, train__epochs=3)
    return result["separation_old_recall_per_task"][1:], result["separation_new_recall_per_task"][1:]


def test_in_a_stream_without_old_samples_none_is_judged_old() -> None:
    assert recalls(0, "estimated")[1] == [100.0] * 4


def test_in_a_blurry_stream_old_samples_are_found() -> None:
    old, new = recalls(30, "estimated")
    assert np.mean([recall for recall in old if recall is not None]) >= 85
    assert np.mean(new) >= 95


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"separation\.count.*free, estimated"):
        SeparationSettings(count="exact")
