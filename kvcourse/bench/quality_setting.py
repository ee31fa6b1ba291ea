"""What `bench.attention_quality` trains: sizes, budget, and one config for each kind of attention."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvcourse.attention.families import layout_of
from kvcourse.config import ModelConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.parameters import parameter_count
from kvcourse.training import Recipe

MHA, GQA, MQA, MLA_GQA, MLA_MQA = "MHA", "GQA", "MQA", "MLA, as GQA", "MLA, as MQA"
ARMS = (MHA, GQA, MQA, MLA_GQA, MLA_MQA)
SIZES = ("layers", "heads", "head_dim", "groups", "feed_forward")  # of a setting, the part that is the model
VOCABULARY = 256  # a token is a byte


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sizes of the models and of the budget.

    groups: kv heads of the GQA arm. feed_forward: width of the MHA arm's feed-forward layers in multiples of
    heads · head_dim. held_out: bytes to measure on, None for all. points: how many a curve has.
    """

    layers: int
    heads: int
    head_dim: int
    groups: int
    feed_forward: int
    recipe: Recipe
    seeds: int
    held_out: int | None = None
    points: int = 4

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return self.heads * self.head_dim

    @property
    def moments(self) -> tuple[int, ...]:
        """The steps after which the curves are measured, the last one among them."""
        steps = self.recipe.steps
        return tuple(sorted({max(1, steps * point // self.points) for point in range(1, self.points + 1)}))


FULL = Setting(
    layers=4, heads=8, head_dim=16, groups=2, feed_forward=3, seeds=3, held_out=24_576,
    recipe=Recipe(steps=400, batch=4, context=256, learning_rate=3e-3, warmup=40),
)  # fmt: skip
QUICK = Setting(
    layers=2, heads=8, head_dim=8, groups=2, feed_forward=2, seeds=1, held_out=4096, points=1,
    recipe=Recipe(steps=30, batch=4, context=64, learning_rate=1e-2, warmup=10),
)  # fmt: skip
SETTINGS = {"full": FULL, "quick": QUICK}


def read_setting(setting: str | Setting, steps: int | None, seeds: int | None) -> Setting:
    """A setting by name, with other numbers of steps and seeds where given. Errors: InputError."""
    if isinstance(setting, str):
        if setting not in SETTINGS:
            raise InputError(f"setting {setting!r}: expected one of {', '.join(SETTINGS)}")
        setting = SETTINGS[setting]
    if steps is not None:
        steps = read_count("steps", steps)
        recipe = replace(setting.recipe, steps=steps, warmup=min(setting.recipe.warmup, steps // 4))
        setting = replace(setting, recipe=recipe)
    return setting if seeds is None else replace(setting, seeds=read_count("seeds", seeds))


def configs_of(setting: Setting) -> Mapping[str, ModelConfig]:
    """The config of each arm. Feed-forward layers are as wide as it takes to have the MHA arm's parameters.

    The rotary key of the latent arms is as wide as a head, so that they have as many rotary pairs as the others. With
    half of that, which is DeepSeek's proportion, MLA as MQA ended 0.04 nats per byte higher (mean of three seeds).
    """
    heads, head_dim = setting.heads, setting.head_dim

    def config(intermediate_size: int, kv_heads: int = heads, values: int = 0, rope: int = 0) -> ModelConfig:
        latent = (
            {
                "kv_lora_rank": values - rope, "qk_nope_head_dim": head_dim, "qk_rope_head_dim": rope,
                "v_head_dim": head_dim,
            }
            if values
            else {}
        )  # fmt: skip
        return ModelConfig(
            vocab_size=VOCABULARY, hidden_size=setting.width, intermediate_size=intermediate_size,
            num_layers=setting.layers, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
            max_position_embeddings=setting.recipe.context, tie_word_embeddings=True, **latent,
        )  # fmt: skip

    kinds: dict[str, dict[str, int]] = {
        MHA: {},
        GQA: {"kv_heads": setting.groups},
        MQA: {"kv_heads": 1},
        MLA_GQA: {"values": 2 * setting.groups * head_dim, "rope": head_dim},
        MLA_MQA: {"values": 2 * head_dim, "rope": head_dim},
    }
    target = parameter_count(config(setting.feed_forward * setting.width))
    unit = parameter_count(config(2)) - parameter_count(config(1))  # parameters that one more column costs
    return {
        name: config(1 + round((target - parameter_count(config(1, **kind))) / unit), **kind)
        for name, kind in kinds.items()
    }


def values_per_token(config: ModelConfig) -> int:
    """Numbers that one token leaves in the cache, all layers."""
    return sum(part.values for layer in layout_of(config) for part in layer.fields)
