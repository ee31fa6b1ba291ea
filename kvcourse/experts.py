"""Mixture-of-experts feed-forward, as DeepSeek-V2 and DeepSeek-V3 have it.

Nothing here touches the KV cache: tokens are sent to experts one by one, whatever came before them. Module names are
those of Hugging Face checkpoints, which store every expert by itself.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvcourse.config import ExpertsConfig, ModelConfig
from kvcourse.feed_forward import SwiGLU

__all__ = ["ExpertsConfig", "MixtureOfExperts", "Router"]


class Router(nn.Module):
    """Which experts a token goes to, and with which weights; in at least float32 inside.

    "softmax": DeepSeek-V2 (arXiv 2405.04434, §2.2), with or without a limit on groups ("device-limited routing").
    "sigmoid": DeepSeek-V3 (arXiv 2412.19437, §2.1.2): a bias, which balances the load, is added for the choice alone.
    """

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.n_routed_experts, hidden_size))
        if (
            config.scoring_func == "sigmoid"
        ):  # not a parameter: training moves it by a rule, not by a gradient
            self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (tokens, hidden). Returns weights and indices of the experts, (tokens, num_experts_per_tok) each."""
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        logits = linear(x.to(wide), self.weight.to(wide))  # (N, experts)
        if self.config.scoring_func == "softmax":
            scores = choice = logits.softmax(-1)
        else:
            scores = logits.sigmoid()
            choice = scores + self.e_score_correction_bias.to(wide)
        chosen = self._inside_best_groups(choice).topk(self.config.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(-1, chosen)  # (N, num_experts_per_tok)
        if self.config.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # 1e-20: all scores may round to 0
        return weights * self.config.routed_scaling_factor, chosen

    def _inside_best_groups(self, choice: Tensor) -> Tensor:
        """`choice` (tokens, experts), −∞ outside of each token's topk_group best groups."""
        if self.config.topk_group == self.config.n_group:
            return choice
        groups = choice.unflatten(-1, (self.config.n_group, -1))  # (N, groups, experts of a group)
        counted = 1 if self.config.scoring_func == "softmax" else 2
        ranks = groups.topk(counted, dim=-1).values.sum(-1)  # (N, groups)
        best = ranks.topk(self.config.topk_group, dim=-1).indices
        allowed = torch.zeros_like(ranks, dtype=torch.bool).scatter(-1, best, True)
        return groups.masked_fill(~allowed[..., None], float("-inf")).flatten(-2)


class MixtureOfExperts(nn.Module):
    """Σ weight · expert(x) over a token's experts, plus the shared experts, which every token passes."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, hidden = config.experts, config.hidden_size
        width = experts.moe_intermediate_size
        self.gate = Router(hidden, experts)
        self.experts = nn.ModuleList(SwiGLU(hidden, width) for _ in range(experts.n_routed_experts))
        self.shared_experts = None
        if experts.n_shared_experts:
            self.shared_experts = SwiGLU(hidden, experts.n_shared_experts * width, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, tokens, hidden). Returns the same shape."""
        flat = x.flatten(0, -2)  # (N, hidden)
        weights, chosen = self.gate(flat)
        out = torch.zeros_like(flat) if self.shared_experts is None else self.shared_experts(flat)
        for number in chosen.unique().tolist():
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            share = self.experts[number](flat[rows]) * weights[rows, slots, None]
            out = out.index_add(0, rows, share.to(out.dtype))
        return out.view_as(x)
