"""TERIAL-style disambiguation: routing and distance correlation against naive loops, masks, gradients, and learning."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import ipll
from ipll.component import Batch, Context
from ipll.config import resolve
from ipll.errors import ConfigError
from ipll.families.disambiguation.terial import Terial, TerialSettings, distance_correlations, route, routed_scores
from ipll.learner import Learner
from ipll.networks.network import MASKED, Network, Output
from live import random_sets

N, CLASSES, SEEN, OLD, DIM, FACTORS = 24, 7, 5, 3, 12, 3
WIDTH = DIM // FACTORS


def component(seed: int = 0, **settings: Any) -> Terial:
    """-> one whose first five classes of seven are born, two of them in the current task."""
    ctx = Context(seed, CLASSES, torch.device("cpu"))
    born = torch.arange(CLASSES) < SEEN
    ctx.network = cast(Network, SimpleNamespace(dim=DIM, head=SimpleNamespace(born=born)))
    terial = Terial(TerialSettings(**{"factors": FACTORS, **settings}))
    terial.build(ctx)
    sets = random_sets(np.random.default_rng(seed), N, CLASSES) & born
    sets[:, 0] |= ~sets.any(dim=1)
    ctx.pool = cast(Any, SimpleNamespace(candidates=sets, p=torch.zeros(N, CLASSES), incoming=N, votes=None))
    for ctx.old, ctx.seen in ((0, OLD), (OLD, SEEN)):
        ctx.arriving = list(range(ctx.old, ctx.seen))
        terial.begin_task()
    return terial


def problem(terial: Terial, seed: int = 0) -> tuple[Batch, dict[str, Output]]:
    """-> a batch whose targets lie anywhere in S_i, and outputs with a gradient to the features."""
    generator = torch.Generator().manual_seed(seed)
    sets = terial.ctx.pool.candidates
    p = torch.rand(N, CLASSES, generator=generator) * sets
    features = torch.rand(N, DIM, generator=generator).requires_grad_()
    logits = 3 * torch.randn(N, CLASSES, generator=generator)
    logits = torch.where(terial.ctx.network.head.born, logits, MASKED).requires_grad_()
    batch = Batch(torch.arange(N), sets, p / p.sum(dim=1, keepdim=True), torch.zeros(N, dtype=torch.bool), {})
    return batch, {"weak": Output(features, logits, logits, features[:, :0])}


def unit(vector: np.ndarray) -> np.ndarray:
    length = math.sqrt(float(vector @ vector))
    return vector / length if length > 0 else vector


def sphere(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


# Distance correlation


def naive_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """The definition, by double loops."""
    n = len(a)

    def centred(x: np.ndarray) -> np.ndarray:
        d = np.array([[math.dist(x[i], x[j]) for j in range(n)] for i in range(n)])
        return np.array([[d[i, j] - d[i].mean() - d[:, j].mean() + d.mean() for j in range(n)] for i in range(n)])

    def covariance(x: np.ndarray, y: np.ndarray) -> float:
        return math.sqrt(max(sum(x[i, j] * y[i, j] for i in range(n) for j in range(n)) / n**2, 0.0))

    x, y = centred(a), centred(b)
    return covariance(x, y) / math.sqrt(covariance(x, x) * covariance(y, y))


def test_distance_correlation_is_that_of_the_definition() -> None:
    x = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1] += x[0]  # so that one pair is related
    found = distance_correlations(x)
    for k in range(3):
        for m in range(3):
            assert found[k, m].item() == pytest.approx(naive_correlation(x[k].numpy(), x[m].numpy()), abs=1e-6)


def test_distance_correlation_tells_dependence_from_independence() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 1500, 1, generator=generator, dtype=torch.float64)
    found = distance_correlations(torch.stack([x, 5 - 3 * x, x.square(), y]))
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-9
    assert found[0, 1].item() == pytest.approx(1)  # linear
    assert found[0, 2] > 0.4  # dependent, though uncorrelated
    assert found[0, 3] < 0.1  # independent


def test_distance_correlation_is_safe_where_samples_coincide_or_do_not_vary() -> None:
    x = torch.rand(3, 10, 4, generator=torch.Generator().manual_seed(2))
    x[:, 1] = x[:, 0]  # two samples at the same place
    x[2] = 0.5  # a variable that does not vary
    x.requires_grad_()
    found = distance_correlations(x)
    found.sum().backward()
    assert found[2].count_nonzero() == 0
    assert found[0, 1] > 0
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad[:2].any()


# Routing


def naive_route(z: np.ndarray, labels: np.ndarray, p: np.ndarray, steps: int, tau: float) -> np.ndarray:
    """-> P_ij p_ijk after so many steps, edge by edge."""
    n, classes, factors = len(z), len(labels), z.shape[1]
    c_i, c_j, edges = z.copy(), labels.copy(), np.zeros((n, classes, factors))
    for _ in range(steps):
        for i in range(n):
            for j in range(classes):
                weights = [math.exp(float(c_i[i, k] @ c_j[j, k]) / tau) for k in range(factors)]
                edges[i, j] = [p[i, j] * w / sum(weights) for w in weights]
        for k in range(factors):
            for i in range(n):
                c_i[i, k] = unit(z[i, k] + sum(edges[i, j, k] * labels[j, k] for j in range(classes)))
            for j in range(classes):
                c_j[j, k] = unit(labels[j, k] + sum(edges[i, j, k] * z[i, k] for i in range(n)))
    return edges


def naive_scores(z: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """-> sum_k <z_ik, c_jk>, each label's node made anew from all other instances."""
    scores = np.zeros(edges.shape[:2])
    for i, j, k in np.ndindex(*edges.shape):
        others = sum(edges[m, j, k] * z[m, k] for m in range(len(z)) if m != i)
        scores[i, j] += z[i, k] @ unit(labels[j, k] + others)
    return scores


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_routing_and_scores_are_those_of_loops_over_edges(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    z, labels = sphere(generator, 9, FACTORS, WIDTH), sphere(generator, CLASSES, FACTORS, WIDTH)
    z[0, 1] = 0  # a factor that the ReLU has switched off
    p = torch.rand(9, CLASSES, generator=generator, dtype=torch.float64)
    p = p * random_sets(np.random.default_rng(steps), 9, CLASSES)
    by_factor = z.transpose(0, 1), labels.transpose(0, 1)
    edges = route(*by_factor, p, steps, 0.5)
    expected = naive_route(z.numpy(), labels.numpy(), p.numpy(), steps, 0.5)
    np.testing.assert_allclose(edges.permute(1, 2, 0).numpy(), expected, atol=1e-10)
    np.testing.assert_allclose(edges.sum(dim=0).numpy(), p.numpy(), atol=1e-12)
    np.testing.assert_allclose(
        routed_scores(*by_factor, edges).numpy(), naive_scores(z.numpy(), labels.numpy(), expected), atol=1e-9
    )


def test_confidence_does_not_confirm_itself() -> None:
    """One instance alone in the graph is scored by the labels' own embeddings, however sure its targets are."""
    generator = torch.Generator().manual_seed(0)
    z, labels = sphere(generator, FACTORS, 1, WIDTH), sphere(generator, FACTORS, CLASSES, WIDTH)
    plain = torch.einsum("kiw,kjw->ij", z, labels)
    for c in range(CLASSES):
        p = torch.eye(CLASSES, dtype=torch.float64)[c : c + 1]
        torch.testing.assert_close(routed_scores(z, labels, route(z, labels, p, 3, 1.0)), plain)


# The component


def test_the_loss_sees_the_stored_targets_and_new_ones_are_both_predictions_within_the_candidates() -> None:
    terial = component()
    batch, out = problem(terial)
    use, store = terial.targets(batch.p, out, batch)
    assert torch.equal(use, batch.p)
    f = out["weak"].logits.softmax(dim=1)
    r = terial._scores(terial._factors(out), batch.p).softmax(dim=1)
    expected = (f * r).sqrt() * batch.candidates
    torch.testing.assert_close(store, expected / expected.sum(dim=1, keepdim=True))
    assert not store[~batch.candidates].any()
    torch.testing.assert_close(store.sum(dim=1), torch.ones(N))
    f_alone = f * batch.candidates
    assert not torch.allclose(store, f_alone / f_alone.sum(dim=1, keepdim=True), atol=1e-2)


def test_terms_of_the_loss() -> None:
    terial = component(weight=0.7, independence=0.3)
    batch, out = problem(terial)
    targets = batch.candidates / batch.candidates.sum(dim=1, keepdim=True)
    terms = terial.losses(out, targets, batch)
    z = terial._factors(out)
    r = terial._scores(z, batch.p).softmax(dim=1)
    assert not r[:, SEEN:].any()
    torch.testing.assert_close(terms["routed"], -torch.xlogy(targets, r).sum(dim=1).mean())
    pairs = [(k, m) for k in range(FACTORS) for m in range(k)]
    expected = sum(naive_correlation(z[k].detach().numpy(), z[m].detach().numpy()) for k, m in pairs)
    assert terms["independence"].item() == pytest.approx(expected, rel=1e-3)
    assert set(terms) == {"ce", "routed", "independence"}
    assert terial.weights() == {"routed": 0.7, "independence": 0.3}


@pytest.mark.parametrize("term", ["routed", "independence"])
def test_terms_reach_the_features_and_the_projections_but_not_the_head(term: str) -> None:
    terial = component()
    batch, out = problem(terial)
    terial.losses(out, batch.p, batch)[term].backward()
    for tensor in (out["weak"].features, terial.projections):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()
    assert out["weak"].logits.grad is None


def test_embeddings_of_unborn_labels_are_zero_and_get_no_gradient() -> None:
    terial = component()
    batch, out = problem(terial)
    terial.losses(out, batch.p, batch)["routed"].backward()
    assert not terial.labels[SEEN:].any()
    assert terial.labels.grad is not None
    assert not terial.labels.grad[SEEN:].any()
    assert terial.labels.grad[:SEEN].flatten(1).any(dim=1).all()


def test_a_factor_that_is_switched_off_does_no_harm() -> None:
    terial = component()
    with torch.no_grad():
        terial.projections[:WIDTH] = -1.0  # features are not negative, so the ReLU leaves nothing
    batch, out = problem(terial)
    terms = terial.losses(out, batch.p, batch)
    torch.stack(list(terms.values())).sum().backward()
    assert out["weak"].features.grad is not None
    for gradient in (out["weak"].features.grad, terial.projections.grad, terial.labels.grad):
        assert gradient is not None
        assert gradient.isfinite().all()


def test_bfloat16_features_are_computed_with_in_float32() -> None:
    terial = component()
    batch, out = problem(terial)
    half = {"weak": out["weak"]._replace(features=out["weak"].features.bfloat16())}
    for name, term in terial.losses(half, batch.p, batch).items():
        assert term.dtype == torch.float32
        assert term.item() == pytest.approx(terial.losses(out, batch.p, batch)[name].item(), rel=0.05)


def test_initialisation_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = component(seed=3)
    torch.manual_seed(2)
    torch.rand(5)
    again, other = component(seed=3), component(seed=4)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert not torch.equal(tensor, other.state_dict()[name])
    assert len(first.labels[:SEEN].flatten(1).unique(dim=0)) == SEEN


def test_a_task_leaves_embeddings_of_older_classes_alone() -> None:
    terial = component()
    with torch.no_grad():
        terial.labels[:OLD] = 7.0
    terial.begin_task()
    assert (terial.labels[:OLD] == 7.0).all()


def test_targets_and_losses_change_nothing() -> None:
    terial = component()
    before = copy.deepcopy(terial.state_dict())
    batch, out = problem(terial)
    p = batch.p.clone()
    first = terial.losses(out, batch.p, batch)
    terial.targets(batch.p, out, batch)
    second = terial.losses(out, batch.p, batch)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(batch.p, p)
    assert all(torch.equal(tensor, before[name]) for name, tensor in terial.state_dict().items())


@pytest.mark.parametrize(
    ("key", "value"),
    [("factors", 0), ("steps", 0), ("temperature", 0.0), ("score_temperature", -1.0), ("independence", -0.1)],
)
def test_impossible_settings_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"disambiguation.{key} must"):
        resolve("digits", "terial", overrides={f"disambiguation.{key}": value})


# Runs


def test_its_parameters_are_trained() -> None:
    source = ipll.load_source("digits")
    config = resolve("digits", "terial", overrides={"stream.tasks": 3, "train.epochs": 1})
    learner = Learner(config, channels=1, classes=10, mean=source.mean, std=source.std)
    terial = next(part for part in learner.parts if isinstance(part, Terial))
    stream = ipll.Stream.build(source, config.stream, config.seed)
    projections = terial.projections.detach().clone()
    for _ in learner.fit(stream.make_task(0, source.train_samples)):
        pass
    seen = learner.ctx.seen
    fresh = Terial(terial.settings)
    fresh.build(learner.ctx)
    fresh.begin_task()
    assert not torch.allclose(terial.projections, projections, atol=1e-3)
    assert not torch.allclose(terial.labels[:seen], fresh.labels[:seen], atol=1e-3)
    assert not terial.labels[seen:].any()


@pytest.mark.parametrize("method", ["terial", "terial+wa"])
def test_learns_digits(method: str) -> None:
    """Above chance by far: after two epochs a task, the classes born in a task are mostly told apart."""
    settings: dict[str, Any] = {"stream.tasks": 3, "train.epochs": 2, "train.batch_size": 32}
    result = ipll.run("digits", method, **settings)
    assert result["accuracy_per_task"][0] > 50  # of four classes
    assert min(result["pseudo_label_accuracy_per_task"]) > 60
    assert result["last_accuracy"] > 20  # of ten classes
