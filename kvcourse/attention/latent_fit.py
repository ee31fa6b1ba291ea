"""One layer of grouped-query attention as multi-head latent attention, fitted without training.

Two steps, both for given second moments of what the layer reads (kvcourse/attention/calibration.py):

1. Which pairs of numbers stay rotary. RoPE turns the pair (f, f + D/2) of every kv head by the same angle. Taken as a
   complex number per head, the pairs of one frequency may be mixed across heads by any matrix before they are turned
   instead of after. TransMLA (Meng et al. 2025, arXiv 2502.07864, "RoRoPE") mixes with the rotation that PCA of the
   keys gives. Ours is a complex PCA in which a head's keys count as much as the queries that read them. Of the mixed
   pairs, the shared rotary key keeps those that would be missed most: by their share of the scores times 1 − |c|,
   where c is the mean of exp(i · frequency · distance) over the distances that heads look across, since a slow pair
   hardly needs its rotation. (MHA2MLA, Ji et al. 2025, arXiv 2502.14837, ranks pairs by the norms of queries and keys
   alone.) All other pairs stay in the scores, turned by one angle, that of c, which goes into the query weights;
   that, too, is ours.
2. Keys without rotation and values are linear in what the layer reads. Together they get the best approximation of
   the given rank, as in TransMLA. "Best" is by the error that it leaves in the layer's output, on text with the
   given moments: an error of a key counts by the queries that meet it and by the size of the values that the score
   decides between, an error of a value by the output projection. That puts both on one scale, where TransMLA makes
   their norms equal.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcourse.attention.calibration import LayerMoments

RIDGE = 1e-6  # of the mean: directions without any energy stay invertible, so that full rank is exact


@dataclass(frozen=True)
class GroupedHeads:
    """Projections of a layer with kv heads, float64.

    w_q: (num_heads, D, hidden). w_k, w_v: (num_kv_heads, D, hidden). w_o: (num_heads, hidden, D).
    """

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor

    @property
    def group_size(self) -> int:
        """Query heads that share one kv head."""
        return len(self.w_q) // len(self.w_k)

    def per_kv_head(self, of_heads: Tensor) -> Tensor:
        """The sum over the query heads of each kv head. of_heads: (num_heads, …). Returns (num_kv_heads, …)."""
        return of_heads.unflatten(0, (-1, self.group_size)).sum(1)

    def per_head(self, of_kv_heads: Tensor) -> Tensor:
        """Each query head's copy. of_kv_heads: (num_kv_heads, …). Returns (num_heads, …)."""
        return of_kv_heads.repeat_interleave(self.group_size, 0)


@dataclass(frozen=True)
class LatentHeads:
    """Projections of an MLA layer with the same output projection, float64; D_n and D_v are the old head_dim D.

    w_nope: (num_heads, D, hidden) and w_rope: (num_heads, D_r, hidden), of the queries; scores are their products
    times D ** -0.5. w_down: (R, hidden). w_key: (D_r, hidden), the shared rotary key. w_uk, w_uv: (num_heads, D, R).
    frequencies: (D_r / 2,) of the rotary pairs, which are half-split.
    """

    w_nope: Tensor
    w_rope: Tensor
    w_down: Tensor
    w_key: Tensor
    w_uk: Tensor
    w_uv: Tensor
    frequencies: Tensor


def fit(
    heads: GroupedHeads, frequencies: Tensor, moments: LayerMoments, rank: int, rope_dim: int
) -> LatentHeads:
    """The MLA layer of the given sizes that stays closest to `heads` on text with these moments.

    frequencies: (D / 2,), radians per token. rank: of keys and values together, at most 2 · num_kv_heads · D −
    rope_dim. rope_dim: even, at most num_kv_heads · D, where every pair keeps its rotation.
    """
    moments = LayerMoments(ridged(moments.queries), ridged(moments.keys), moments.turning)
    stakes = value_energy(heads, moments)  # (H,)
    pairs = principal_pairs(heads, moments, stakes)
    kept = pairs.most_missed(heads, moments, stakes, rope_dim // 2)
    # Scores would be closest with the mean turn c itself; but it makes them smaller, so that attention spreads, and
    # models lose more by that than by the error.
    w_nope = as_real(as_complex(heads.w_q) * moments.turning.sgn()[..., None])  # (H, D, hidden)
    w_k = pairs.keys_without(heads, kept)
    w_down, w_uk, w_uv = factor(heads, w_nope, w_k, moments, stakes, rank)
    return LatentHeads(
        w_nope, pairs.queries(heads, kept), w_down, pairs.keys(heads, kept), w_uk, w_uv,
        frequencies[kept // pairs.per_frequency],
    )  # fmt: skip


# ---- rotary pairs ----------------------------------------------------------------------------------


def as_complex(w: Tensor) -> Tensor:
    """Rotary pairs (i, i + D / 2) as one complex row each. w: (…, D, hidden). Returns (…, D / 2, hidden)."""
    return torch.complex(*w.chunk(2, dim=-2))


def as_real(w: Tensor) -> Tensor:
    """Back to half-split rows. w: (…, pairs, hidden) complex. Returns (…, 2 · pairs, hidden)."""
    return torch.cat((w.real, w.imag), dim=-2)


@dataclass(frozen=True)
class MixedPairs:
    """The keys' pairs of each frequency, mixed across kv heads. As many mixed pairs as there are kv heads.

    to_pairs: (D / 2, pairs, kv heads) complex, from heads to mixed pairs. to_heads: (D / 2, kv heads, pairs), its
    inverse. energy: (D / 2, pairs), mean |mixed pair|². A chosen pair is an index: frequency · kv heads + pair.
    """

    to_pairs: Tensor
    to_heads: Tensor
    energy: Tensor

    @property
    def per_frequency(self) -> int:
        """Mixed pairs of one frequency, as many as kv heads."""
        return self.energy.shape[1]

    def most_missed(self, heads: GroupedHeads, moments: LayerMoments, stakes: Tensor, count: int) -> Tensor:
        """Indices, sorted, of the `count` pairs whose rotation is worth most. Arguments as in `fit`.

        A pair adds exp(i a) times a number to the scores of a query head. With the mean c of exp(i a), the
        constant c / |c| instead of exp(i a) is wrong by 2 − 2 |c| in the mean square.
        """
        left = _query_energy(heads, moments, stakes) * (1 - moments.turning.abs())  # (H, D / 2)
        shares = heads.per_head(self.to_heads.abs().square().transpose(0, 1))  # (H, D / 2, pairs)
        missed = self.energy * torch.einsum("hf,hfm->fm", left, shares)
        return missed.flatten().argsort(descending=True, stable=True)[:count].sort().values

    def keys(self, heads: GroupedHeads, kept: Tensor) -> Tensor:
        """Projection to the kept pairs as one shared key, half-split: (2 · kept, hidden)."""
        mixed = torch.einsum("fmj,jfd->fmd", self.to_pairs, as_complex(heads.w_k))
        return as_real(mixed.flatten(0, 1)[kept])

    def queries(self, heads: GroupedHeads, kept: Tensor) -> Tensor:
        """Projections of every head's query that score the kept pairs as the heads' own ones: (H, 2 · kept, hidden).

        With k = A y, the score Re(conj(q) k) is Re(conj(q conj(A)) y).
        """
        w_q = as_complex(heads.w_q)[:, kept // self.per_frequency]  # (H, kept, hidden)
        shares = heads.per_head(self.to_heads.transpose(0, 1)).flatten(1)[:, kept]  # (H, kept)
        return as_real(w_q * shares.conj()[..., None])

    def keys_without(self, heads: GroupedHeads, kept: Tensor) -> Tensor:
        """Projections to the kv heads' keys less their share of the kept pairs: (H_kv, D, hidden)."""
        is_kept = torch.zeros(self.energy.shape, dtype=torch.bool).flatten()
        is_kept[kept] = True
        away = self.to_heads @ (
            is_kept.view(self.energy.shape)[..., None] * self.to_pairs
        )  # (D / 2, H_kv, H_kv)
        w_k = as_complex(heads.w_k)
        return as_real(w_k - torch.einsum("fij,jfd->ifd", away, w_k))


def principal_pairs(heads: GroupedHeads, moments: LayerMoments, stakes: Tensor) -> MixedPairs:
    """PCA across kv heads at each frequency, each head's keys weighted by the queries that read them."""
    weight = heads.per_kv_head(_query_energy(heads, moments, stakes)).mT.sqrt()  # (D / 2, H_kv)
    weight = weight.clamp(min=1e-6 * float(weight.max()))  # a pair that no query reads must stay invertible
    w_k = as_complex(heads.w_k)
    keys = torch.einsum("ifd,de,jfe->fij", w_k, moments.keys.to(w_k), w_k.conj())  # (D / 2, H_kv, H_kv)
    energy, basis = torch.linalg.eigh(weight[:, :, None] * keys * weight[:, None, :])
    return MixedPairs(basis.mH * weight[:, None, :], basis / weight[:, :, None], energy)


def _query_energy(heads: GroupedHeads, moments: LayerMoments, stakes: Tensor) -> Tensor:
    """Mean |q|² of every pair, times what is at stake in the head: (num_heads, D / 2)."""
    energy = torch.einsum("had,de,hae->ha", heads.w_q, moments.queries, heads.w_q)  # (H, D)
    return stakes[:, None] * energy.unflatten(-1, (2, -1)).sum(1)


# ---- low rank --------------------------------------------------------------------------------------


def value_energy(heads: GroupedHeads, moments: LayerMoments) -> Tensor:
    """Mean |W_o v|² of each query head's values, (num_heads,): what a wrong attention weight moves."""
    values = heads.w_v @ moments.keys @ heads.w_v.mT  # (H_kv, D, D)
    return torch.einsum("hda,hab,hdb->h", heads.w_o, heads.per_head(values), heads.w_o)


def factor(
    heads: GroupedHeads, w_nope: Tensor, w_k: Tensor, moments: LayerMoments, stakes: Tensor, rank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best latent of `rank` numbers for keys without rotation and values together.

    w_nope: (num_heads, D, hidden), the queries that meet these keys. w_k: (num_kv_heads, D, hidden).
    Returns w_down (rank, hidden), w_uk and w_uv (num_heads, D, rank).
    """
    head_dim = w_k.shape[1]
    queries = stakes[:, None, None] * (w_nope @ moments.queries @ w_nope.mT) / head_dim  # (H, D, D)
    outputs = heads.w_o.mT @ heads.w_o  # (H, D, D)
    metric = torch.cat((heads.per_kv_head(queries), heads.per_kv_head(outputs)))  # (2 H_kv, D, D)
    root, inverse = _square_roots(metric)
    rows = (root @ torch.cat((w_k, heads.w_v))).flatten(0, 1)  # (2 H_kv D, hidden)
    spread = rows @ torch.linalg.cholesky(moments.keys)  # its Gram matrix is the moment of the rows
    wide = rank > rows.shape[1]  # only then are vectors without any energy asked for
    basis = torch.linalg.svd(spread, full_matrices=wide).U[:, :rank]  # (2 H_kv D, rank)
    up = inverse @ basis.unflatten(0, (-1, head_dim))  # (2 H_kv, D, rank)
    w_uk, w_uv = up.chunk(2)
    return basis.mT @ rows, heads.per_head(w_uk), heads.per_head(w_uv)


def ridged(matrix: Tensor) -> Tensor:
    """Symmetric matrices with a little added to the diagonal, so that they can be inverted."""
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return matrix + RIDGE * mean.clamp(min=torch.finfo(matrix.dtype).tiny) * torch.eye(matrix.shape[-1]).to(
        matrix
    )


def _square_roots(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric square root of positive semi-definite matrices, and its inverse."""
    values, vectors = torch.linalg.eigh(ridged(matrix))
    values = values.clamp(min=0).sqrt()[..., None, :]
    return vectors * values @ vectors.mT, vectors / values @ vectors.mT
