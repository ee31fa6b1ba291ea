"""The shape of a decoder."""

import math
from dataclasses import dataclass
from typing import Any

from kvcourse.counts import MOST, check_positive, is_number, one_line, read_count
from kvcourse.errors import InputError
from kvcourse.rope_scaling import check_rope_scaling

FULL, SLIDING = "full_attention", "sliding_attention"

MOST_LAYERS = 100_000  # far above any model: a wrong number should not fill the memory
LATENT_NORM_EPS = 1e-6  # DeepSeek's code has it fixed, whatever rms_norm_eps says
_LATENT_DIMS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Hyperparameters of a mixture-of-experts feed-forward (`experts.py`), named as DeepSeek's configs name them.

    n_routed_experts: experts that tokens are sent to; each token goes to num_experts_per_tok of them.
    moe_intermediate_size: width inside one expert. n_shared_experts: experts that every token passes, run as one of
    n_shared_experts · moe_intermediate_size. first_k_dense_replace: layers before this one are dense.
    n_group, topk_group: experts lie in n_group equal groups, and a token chooses inside its topk_group best.
    scoring_func: "softmax" (DeepSeek-V2; a group counts as its best expert) or "sigmoid" (DeepSeek-V3; as the sum
    of its best two, with a bias that steers the choice and not the weights).
    norm_topk_prob: the weights of the chosen experts are divided by their sum. routed_scaling_factor: times this.
    """

    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0
    n_group: int = 1
    topk_group: int = 1
    scoring_func: str = "softmax"
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (
            ("n_routed_experts", 1), ("num_experts_per_tok", 1), ("moe_intermediate_size", 1),
            ("n_shared_experts", 0), ("first_k_dense_replace", 0), ("n_group", 1), ("topk_group", 1),
        ):  # fmt: skip
            count = read_count(name, getattr(self, name), least=least, most=MOST_LAYERS)
            object.__setattr__(self, name, count)
        if self.n_routed_experts % self.n_group:
            raise InputError(
                f"n_routed_experts={self.n_routed_experts} is not a multiple of n_group={self.n_group}: "
                "groups of experts have equal sizes"
            )
        if self.topk_group > self.n_group:
            raise InputError(f"topk_group={self.topk_group}: there are only n_group={self.n_group} groups")
        reachable = self.topk_group * self.group_size
        if self.num_experts_per_tok > reachable:
            raise InputError(
                f"num_experts_per_tok={self.num_experts_per_tok}: a token can choose among {reachable} experts "
                f"(topk_group={self.topk_group} groups of {self.group_size})"
            )
        if self.scoring_func not in ("softmax", "sigmoid"):
            raise InputError(f"scoring_func={self.scoring_func!r}: expected 'softmax' or 'sigmoid'")
        if self.scoring_func == "sigmoid" and self.group_size < 2:
            raise InputError(
                "a group of one expert: with scoring_func 'sigmoid' a group counts as its best two experts; "
                "take fewer groups (n_group)"
            )
        check_positive("routed_scaling_factor", self.routed_scaling_factor)

    @property
    def group_size(self) -> int:
        """Experts in one group."""
        return self.n_routed_experts // self.n_group


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Hyperparameters of a Llama-family or DeepSeek decoder, named as in Hugging Face configs where they are there.

    rope_scaling: None, or a dict with "rope_type" (linear, dynamic, llama3, yarn, longrope) and its parameters.
    attention_bias: bias on the q, k and v projections (MLA: on q_a_proj and kv_a_proj_with_mqa);
    attention_out_bias: on the output projection.
    qk_norm: RMSNorm over head_dim on queries and keys before RoPE (Qwen3).
    sliding_window: tokens that a sliding layer sees, the newest included.
    layer_types: per layer "full_attention" or "sliding_attention".
    experts: mixture-of-experts layers; None for dense ones.

    Multi-head latent attention (DeepSeek-V2, §2.1), all of it only with kv_lora_rank:
    kv_lora_rank: width of the latent that a token stores; None for keys and values per head.
    q_lora_rank: width of the query's latent; None for one plain q_proj.
    qk_nope_head_dim, qk_rope_head_dim: parts of a head's query and key without and with rotation. head_dim is their
    sum, whatever was given.
    v_head_dim: width of a head's value.
    rope_interleave: rotary pairs (x0, x1), (x2, x3), … instead of (x0, x[D/2]), (x1, x[D/2 + 1]), …
    latent_norm: RMSNorm on the latents; False only for models converted from heads.
    rope_frequencies: per layer the qk_rope_head_dim / 2 angles in radians per token, for converted models whose
    pairs do not follow rope_theta; excludes rope_scaling.

    Errors: InputError for sizes that do not fit together.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    model_type: str = "llama"
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    rope_interleave: bool = False
    latent_norm: bool = True
    rope_frequencies: tuple[tuple[float, ...], ...] | None = None
    experts: ExpertsConfig | None = None

    def __post_init__(self) -> None:
        self._check_latent_dims()
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
            "head_dim", "max_position_embeddings",
        ):  # fmt: skip
            most = MOST_LAYERS if name == "num_layers" else MOST
            object.__setattr__(self, name, read_count(name, getattr(self, name), most=most))
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "every kv head must serve the same number of query heads"
            )
        if self.head_dim % 2 and not self.is_latent:
            raise InputError(f"head_dim={self.head_dim} is odd: rotary embeddings turn pairs of numbers")
        for name in ("rms_norm_eps", "rope_theta"):
            check_positive(name, getattr(self, name))
        if self.sliding_window is not None:
            window = read_count("sliding_window (None for no window)", self.sliding_window)
            object.__setattr__(self, "sliding_window", window)
        self._check_ids()
        types = self.layer_types
        if types is None:
            types = (FULL if self.sliding_window is None else SLIDING,) * self.num_layers
        types = tuple(types) if isinstance(types, (list, tuple)) else (types,)
        if len(types) != self.num_layers or any(kind not in (FULL, SLIDING) for kind in types):
            raise InputError(
                f"layer_types={types}: expected {self.num_layers} entries, each {FULL!r} or {SLIDING!r}"
            )
        if SLIDING in types and self.sliding_window is None:
            raise InputError("layer_types names sliding layers, but sliding_window is None: give the window")
        object.__setattr__(self, "layer_types", types)
        check_rope_scaling(
            self.rope_scaling, self.rope_dim, "qk_rope_head_dim" if self.is_latent else "head_dim"
        )
        self._check_latent()
        if self.experts is not None and not isinstance(self.experts, ExpertsConfig):
            raise InputError(f"experts={self.experts!r}: expected an ExpertsConfig, or None for dense layers")

    @property
    def group_size(self) -> int:
        """Query heads that share one kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def is_latent(self) -> bool:
        """Whether a token stores one latent for all heads (MLA), instead of keys and values per head."""
        return self.kv_lora_rank is not None

    @property
    def qk_head_dim(self) -> int:
        """Numbers in one head's query and key."""
        return self.head_dim

    @property
    def rope_dim(self) -> int:
        """Numbers of a query or key that are rotated: all of a head's, in MLA qk_rope_head_dim."""
        return self.qk_rope_head_dim if self.is_latent else self.head_dim

    @property
    def value_dim(self) -> int:
        """Numbers in one head's value."""
        return self.v_head_dim if self.is_latent else self.head_dim

    @property
    def attention_scale(self) -> float:
        """Factor on q · k: qk_head_dim^-0.5, never from the width of the latent.

        DeepSeek's YaRN multiplies it by mscale², mscale = 0.1 · mscale_all_dim · ln(factor) + 1. (The factor on cos
        and sin, mscale / mscale_all_dim alike, is another one: `attention.rope.frequencies`.)
        """
        scale, scaling = self.qk_head_dim**-0.5, self.rope_scaling or {}
        all_dim = scaling.get("mscale_all_dim")
        if not self.is_latent or not all_dim or scaling["rope_type"] != "yarn":
            return scale
        trained = scaling["original_max_position_embeddings"]
        factor = scaling.get("factor") or self.max_position_embeddings / trained
        mscale = 1.0 if factor <= 1 else 0.1 * all_dim * math.log(factor) + 1.0
        return scale * mscale * mscale

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward of `layer` is a mixture of experts."""
        return self.experts is not None and layer >= self.experts.first_k_dense_replace

    def window(self, layer: int) -> int | None:
        """Tokens that `layer` sees, or None when it sees all of them."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def _check_latent_dims(self) -> None:
        """Refuse dimensions that are missing or out of place, and set head_dim, before anything is computed."""
        if not self.is_latent:
            plain = {"rope_interleave": False, "latent_norm": True}
            names = ("q_lora_rank", *_LATENT_DIMS, "rope_frequencies", *plain)
            given = [name for name in names if getattr(self, name) is not plain.get(name)]
            if given:
                raise InputError(
                    f"{given[0]}={one_line(getattr(self, given[0]))} without kv_lora_rank: it belongs to MLA; give "
                    "the rank, or leave it out"
                )
            return
        missing = [name for name in _LATENT_DIMS if getattr(self, name) is None]
        if missing:
            raise InputError(f"kv_lora_rank={self.kv_lora_rank!r} (MLA) needs {', '.join(missing)}")
        ranks = ("kv_lora_rank", *["q_lora_rank"] * (self.q_lora_rank is not None))
        for name in (*ranks, *_LATENT_DIMS):
            object.__setattr__(self, name, read_count(name, getattr(self, name)))
        if self.qk_rope_head_dim % 2:
            raise InputError(
                f"qk_rope_head_dim={self.qk_rope_head_dim} is odd: rotary embeddings turn pairs of numbers"
            )
        object.__setattr__(self, "head_dim", self.qk_nope_head_dim + self.qk_rope_head_dim)

    def _check_latent(self) -> None:
        if not self.is_latent:
            return
        if self.num_kv_heads != self.num_heads:
            raise InputError(
                f"num_kv_heads={self.num_kv_heads}: in MLA every head has its own key and value, made from the "
                f"latent; give num_heads={self.num_heads}"
            )
        if SLIDING in self.layer_types or self.sliding_window is not None:
            raise InputError("kv_lora_rank with a sliding window: MLA layers see all tokens; give no window")
        if self.qk_norm:
            raise InputError("kv_lora_rank with qk_norm: MLA normalises the latents instead (latent_norm)")
        if self.rope_frequencies is not None:
            self._check_rope_frequencies()

    def _check_rope_frequencies(self) -> None:
        if self.rope_scaling:
            raise InputError("rope_frequencies with rope_scaling: the angles are given already; drop one")
        half, rows = self.qk_rope_head_dim // 2, self.rope_frequencies
        if not isinstance(rows, (list, tuple)) or len(rows) != self.num_layers:
            raise InputError(f"rope_frequencies: expected {self.num_layers} tuples, one a layer")
        if any(not isinstance(row, (list, tuple)) or len(row) != half for row in rows):
            raise InputError(
                f"rope_frequencies: expected qk_rope_head_dim / 2 = {half} numbers for each layer"
            )
        for value in (value for row in rows for value in row):
            if not is_number(value):
                raise InputError(
                    f"rope_frequencies holds {value!r}: expected finite numbers, radians per token"
                )
        object.__setattr__(self, "rope_frequencies", tuple(tuple(map(float, row)) for row in rows))

    def _check_ids(self) -> None:
        if not isinstance(self.eos_token_ids, (list, tuple)):
            raise InputError(f"eos_token_ids={self.eos_token_ids!r}: expected a tuple of token ids")
        ids = tuple(read_count("eos_token_ids: id", token, least=0) for token in self.eos_token_ids)
        object.__setattr__(self, "eos_token_ids", ids)
        if self.bos_token_id is not None:
            read_count("bos_token_id", self.bos_token_id, least=0)

    @classmethod
    def from_hf(cls, config: Any) -> "ModelConfig":
        """Read a transformers config, a dict, or a path to config.json (or its folder).

        Errors: InputError for a model type that the decoder does not run, or when a needed field is missing.
        """
        from kvcourse.hf_config import read_model_config

        return read_model_config(config)
