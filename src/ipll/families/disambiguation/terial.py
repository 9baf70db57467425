"""TERIAL-style disambiguation: PRODEN's rule helped by a disentangled graph of instances and labels.

TERIAL is "Disentangled Partial Label Learning" (Bao, Rui, Zhang, AAAI 2024). Its formulas, hyper-parameters and code
are not public. This is a reconstruction, not the authors' method:

- from the abstract: instances and labels are nodes of a bipartite graph, an instance linked to its candidates only;
  neighbourhood routing infers which latent factor explains an edge; the labelling confidences weigh the edges;
  predictions come from disentangled instances and label embeddings. A summary adds that distance correlation keeps
  the factors independent.
- from DisenGCN (Ma et al., ICML 2019), which such a routing builds on: projections to factors on the unit sphere, and
  the two alternating steps of the routing.
- ours: everything else, and every number. The graph is that of a mini-batch. The linear head stays the classifier,
  since retention methods distil, align and correct its logits; the graph is an extra term and a second opinion on p.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipll.component import FAMILIES, Batch, Context, soft_cross_entropy
from ipll.families.disambiguation import Disambiguation
from ipll.networks.network import MASKED, Output
from ipll.rng import torch_generator
from ipll.settings import Section, setting

TINY = 1e-6  # squared lengths below this count as zero: float32 cannot tell them apart, and a root has no slope there


@dataclass(frozen=True)
class TerialSettings(Section, name="disambiguation"):
    factors: int = setting(4, "K, latent factors, each a K-th of the features' width", "DisenGCN, number ours", least=1)
    steps: int = setting(3, "T, steps of neighbourhood routing", "DisenGCN, number ours", least=1)
    temperature: float = setting(1.0, "tau of the softmax over factors in routing", "DisenGCN, number ours", above=0)
    score_temperature: float = setting(0.25, "tau' of the softmax over classes of the routed scores", above=0)
    weight: float = setting(0.5, "weight of the cross-entropy of the routed scores", least=0)
    independence: float = setting(0.1, "weight of the distance correlation of factors", "TERIAL, number ours", least=0)


@FAMILIES["disambiguation"].register("terial")
class Terial(Disambiguation):
    """Learns from the stored targets, by head and by graph; then replaces them with what both predict within S_i.

    The new p is proportional to sqrt(f_j r_j) on S_i, f the softmax of the linear head and r that of the routed scores.
    It is the p that minimises KL(p || f) + KL(p || r), and a candidate that either rules out is out. TERIAL's own
    predictions come from its graph alone; here the head is what is tested, so it has a say. From f alone, p would be
    PRODEN's, and the graph would only shape the features. Masks of a retention on the logits (ER-ACE) do not hold for
    the routed scores: they decide nothing at test time.
    """

    Settings = TerialSettings
    projections: nn.Parameter  # [factors * width, dim], W_k
    labels: nn.Parameter  # [capacity, factors, width], the embeddings of labels

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        factors, dim = self.settings.factors, ctx.network.dim
        width, bound = max(1, dim // factors), dim**-0.5
        generator = torch_generator(ctx.seed, "terial")
        weights = torch.empty(factors * width, dim).uniform_(-bound, bound, generator=generator)
        self.projections = nn.Parameter(weights.to(ctx.device))
        self.labels = nn.Parameter(torch.zeros(ctx.capacity, factors, width, device=ctx.device))

    def begin_task(self) -> None:
        """Gives classes that are born their embedding. Before, it is zero: weight decay has nothing to eat."""
        super().begin_task()
        ctx, shape = self.ctx, self.labels.shape[1:]
        with torch.no_grad():
            for c in ctx.arriving:
                self.labels[c] = torch.randn(shape, generator=torch_generator(ctx.seed, "terial", c)) * shape[1] ** -0.5

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        routed = self._scores(self._factors(out), p)
        both = (out["weak"].logits.float() + routed) / 2  # the softmaxes' denominators cancel
        return p, both.masked_fill(~batch.candidates, -torch.inf).softmax(dim=1)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        z = self._factors(out)
        decided = targets if batch.targets is None else batch.targets  # masks are for the classifier's loss only
        routed = soft_cross_entropy(self._scores(z, batch.p), decided)
        correlations = distance_correlations(z).triu(diagonal=1).sum()
        return super().losses(out, targets, batch) | {"routed": routed, "independence": correlations}

    def weights(self) -> dict[str, float]:
        return {"routed": self.settings.weight, "independence": self.settings.independence}

    def _factors(self, out: Mapping[str, Output]) -> Tensor:
        """z_ik = ReLU(W_k phi_i) on the unit sphere -> [factors, n, width]."""
        projected = F.linear(out["weak"].features.float(), self.projections)
        z = F.normalize(projected.view(len(projected), *self.labels.shape[1:]).relu(), dim=2, eps=TINY)
        return z.transpose(0, 1)

    def _scores(self, z: Tensor, p: Tensor) -> Tensor:
        """-> routed scores [n, capacity], as logits; those of classes not born are masked."""
        # No ReLU here: embeddings are free, and their negative coordinates would never move.
        labels = F.normalize(self.labels, dim=2, eps=TINY).transpose(0, 1)
        edges = route(z, labels, p, self.settings.steps, self.settings.temperature)
        scores = routed_scores(z, labels, edges) / self.settings.score_temperature
        return torch.where(self.ctx.network.head.born, scores, MASKED)


def route(instances: Tensor, labels: Tensor, confidence: Tensor, steps: int, temperature: float) -> Tensor:
    """Which factor explains each edge: P_ij p_ijk -> [factors, n, classes], after so many steps of routing.

    p_ijk = softmax_k(<c_ik, c_jk> / tau), one latent factor for both ends of an edge; then each node gathers what its
    edges bring it, c_ik = norm(z_ik + sum_j P_ij p_ijk z_jk) and c_jk = norm(z_jk + sum_i P_ij p_ijk z_ik). Nodes are
    [factors, n or classes, width]; the confidence [n, classes] is zero where there is no edge.
    """

    def explain(c_i: Tensor, c_j: Tensor) -> Tensor:
        return confidence * (c_i @ c_j.mT / temperature).softmax(dim=0)

    edges = explain(instances, labels)
    for _ in range(steps - 1):
        c_i = F.normalize(torch.baddbmm(instances, edges, labels), dim=2, eps=TINY)
        c_j = F.normalize(torch.baddbmm(labels, edges.mT, instances), dim=2, eps=TINY)
        edges = explain(c_i, c_j)
    return edges


def routed_scores(instances: Tensor, labels: Tensor, edges: Tensor) -> Tensor:
    """sum_k <z_ik, c_jk> -> [n, classes], c_j the label's node as routed, without what instance i itself brought to it.

    The instance's side is z_i, not c_i, which has gathered its candidates' labels and would score them high whatever
    it looks like. So would a label's node that has gathered z_i: a class has a few instances in a batch, and p would
    confirm itself. Leaving i out is exact and needs no further product: with w = P_ij p_ijk and s_jk the node before it
    is normalised, <z_ik, s_jk - w z_ik> / |s_jk - w z_ik|.
    """
    nodes = torch.baddbmm(labels, edges.mT, instances)
    own = edges * instances.square().sum(dim=2, keepdim=True)
    along = instances @ nodes.mT
    squared = nodes.square().sum(dim=2)[:, None, :] + edges * (own - 2 * along)
    return ((along - own) * squared.clamp_min(TINY).rsqrt()).sum(dim=0)


def distance_correlations(samples: Tensor) -> Tensor:
    """The distance correlation (Szekely et al., 2007) of all pairs of variables [variables, n, width] -> square matrix.

    dCor^2 = dCov^2 / sqrt(dVar_a^2 dVar_b^2) is the cosine between their double-centred distance matrices. It is 0 for
    a variable that does not vary.
    """
    squared = samples.square().sum(dim=2)
    distance = root(squared[:, :, None] + squared[:, None, :] - 2 * samples @ samples.transpose(1, 2))
    across, down, mean = (distance.mean(dim=axes, keepdim=True) for axes in (2, 1, (1, 2)))
    centred = F.normalize((distance - across - down + mean).flatten(start_dim=1), dim=1, eps=TINY)
    return root(centred @ centred.T)


def root(x: Tensor) -> Tensor:
    """The square root; 0 with a gradient of 0 where x is as good as zero, and not infinite or NaN."""
    positive = x > TINY
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)
