"""Configs of multi-head latent attention: what they say, what they are read from, and what is refused."""

import dataclasses
import json
import math

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY

import kvcourse as kv
from kvcourse.attention.families import layout_of
from kvcourse.config import ExpertsConfig, ModelConfig
from kvcourse.errors import InputError
from kvcourse.memory import bytes_per_token, parameter_count

MLA = {"kv_lora_rank": 22, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 7}
SHAPE = {
    "vocab_size": 50, "hidden_size": 42, "intermediate_size": 40, "num_layers": 2, "num_heads": 3, "num_kv_heads": 3,
    "head_dim": 14,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}

# The fields of the published config.json files that say something about the shape.
_DIMS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_SCALED = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
}
V2 = _DIMS | {
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 5120, "intermediate_size": 12288,
    "num_hidden_layers": 60, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 8, "topk_group": 3, "norm_topk_prob": False,
    "topk_method": "group_limited_greedy", "scoring_func": "softmax", "routed_scaling_factor": 16.0,
    "max_position_embeddings": 163840, "rope_theta": 10000, "attention_bias": False, "eos_token_id": 100001,
    "rope_scaling": _SCALED | {"mscale": 0.707, "mscale_all_dim": 0.707},
}  # fmt: skip
V2_LITE = V2 | {
    "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "q_lora_rank": None, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_group": 1, "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0,
}  # fmt: skip
V3 = _DIMS | {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "routed_scaling_factor": 2.5,
    "max_position_embeddings": 163840, "rope_theta": 10000, "attention_bias": False, "eos_token_id": 1,
    "num_nextn_predict_layers": 1, "rope_scaling": _SCALED | {"mscale": 1.0, "mscale_all_dim": 1.0},
}  # fmt: skip


def latent(**fields):
    return ModelConfig(**SHAPE | MLA | fields)


class TestDimensions:
    def test_of_latent_attention(self):
        config = latent(q_lora_rank=9)
        assert config.is_latent
        assert (config.qk_head_dim, config.rope_dim, config.value_dim) == (16, 6, 7)
        assert config.head_dim == 16  # whatever was given: 14 is hidden_size / num_heads
        assert config.group_size == 1

    def test_of_heads(self):
        config = ModelConfig(**SHAPE)
        assert not config.is_latent
        assert (config.qk_head_dim, config.rope_dim, config.value_dim, config.head_dim) == (14,) * 4
        assert config.attention_scale == 14**-0.5

    def test_an_odd_part_without_rotation_is_fine(self):
        assert latent(qk_nope_head_dim=9).qk_head_dim == 15

    @pytest.mark.parametrize("hidden", [42, 5120, 7168, 3])
    def test_the_width_of_a_key_does_not_follow_from_the_width_of_the_model(self, hidden):
        """Case M4: 5120 / 128 heads is 40, and a DeepSeek-V2 key is 128 + 64 wide."""
        assert latent(hidden_size=hidden).qk_head_dim == 16
        config = ModelConfig.from_hf(V2 | {"hidden_size": hidden})
        assert (config.qk_head_dim, config.rope_dim, config.value_dim) == (192, 64, 128)

    def test_one_down_projection_holds_the_latent_and_the_rotary_key(self):
        attention = kv.Decoder(latent()).layers[0].self_attn
        assert attention.kv_a_proj_with_mqa.weight.shape == (22 + 6, 42)
        assert attention.kv_b_proj.weight.shape == (3 * (10 + 7), 22)
        assert attention.kv_a_layernorm.weight.shape == (22,)

    def test_numpy_sizes_become_plain_ones(self):
        config = latent(kv_lora_rank=torch.tensor(8), q_lora_rank=torch.tensor(4))
        assert (type(config.kv_lora_rank), type(config.q_lora_rank), config.q_lora_rank) == (int, int, 4)


class TestScale:
    def test_it_follows_from_the_width_of_a_key(self):
        assert latent().attention_scale == 16**-0.5
        assert latent(kv_lora_rank=500).attention_scale == 16**-0.5

    @pytest.mark.parametrize(
        ("published", "expected"),
        [
            # 192^-0.5 · (0.1 · mscale_all_dim · ln 40 + 1)², worked out by hand.
            (V2, 0.0721687836 * 1.2608038**2),
            (V3, 0.0721687836 * 1.3688879**2),
        ],
    )
    def test_of_published_models(self, published, expected):
        assert ModelConfig.from_hf(published).attention_scale == pytest.approx(expected, rel=1e-6)

    def test_yarn_without_mscale_all_dim_leaves_it(self):
        assert latent(rope_scaling=YARN | {"mscale": 1.0}).attention_scale == 16**-0.5
        assert latent(rope_scaling=YARN | {"mscale_all_dim": 0}).attention_scale == 16**-0.5

    def test_heads_never_scale_by_mscale(self):
        config = ModelConfig(**SHAPE, rope_scaling=YARN | {"mscale_all_dim": 1.0})
        assert config.attention_scale == 14**-0.5

    def test_the_factor_is_the_ratio_of_lengths_where_it_is_left_out(self):
        scaling = {name: value for name, value in YARN.items() if name != "factor"} | {"mscale_all_dim": 0.5}
        config = latent(rope_scaling=scaling, max_position_embeddings=8192)
        assert config.attention_scale == pytest.approx(16**-0.5 * (0.05 * math.log(2) + 1) ** 2)


class TestRefused:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"kv_lora_rank": 0}, "kv_lora_rank=0"),
            ({"kv_lora_rank": True}, "kv_lora_rank=True"),
            ({"q_lora_rank": 0}, "q_lora_rank=0"),
            ({"qk_nope_head_dim": 0}, "qk_nope_head_dim=0"),
            ({"qk_rope_head_dim": 0}, "qk_rope_head_dim=0"),
            ({"v_head_dim": -1}, "v_head_dim=-1"),
            ({"qk_rope_head_dim": 7}, "qk_rope_head_dim=7 is odd"),
            ({"qk_nope_head_dim": None}, "needs qk_nope_head_dim$"),
            ({"qk_rope_head_dim": None, "v_head_dim": None}, "needs qk_rope_head_dim, v_head_dim$"),
            ({"num_kv_heads": 1}, "num_kv_heads=1: .*num_heads=3"),
            ({"num_kv_heads": 2}, "not a multiple"),
            ({"sliding_window": 4}, "sliding window"),
            ({"sliding_window": 4, "layer_types": ("full_attention",) * 2}, "sliding window"),
            ({"qk_norm": True}, "qk_norm.*latent_norm"),
            ({"rope_scaling": {"rope_type": "yarn"}}, "yarn.*original_max_position_embeddings"),
            ({"rope_scaling": YARN | {"mscale_all_dim": -1}}, "mscale_all_dim=-1"),
            ({"rope_scaling": YARN | {"mscale": "1"}}, "mscale='1'"),
            (
                {
                    "rope_scaling": {
                        "rope_type": "longrope", "original_max_position_embeddings": 8, "short_factor": [1.0] * 7,
                        "long_factor": [1.0] * 7,
                    }
                },
                "qk_rope_head_dim / 2 = 3",
            ),
            ({"rope_frequencies": ((1.0, 0.5, 0.1),) * 2, "rope_scaling": YARN}, "rope_scaling.*drop one"),
            ({"rope_frequencies": ((1.0, 0.5, 0.1),)}, "expected 2 tuples"),
            ({"rope_frequencies": 3}, "expected 2 tuples"),
            ({"rope_frequencies": ((1.0, 0.5),) * 2}, "qk_rope_head_dim / 2 = 3"),
            ({"rope_frequencies": ((1.0, 0.5, math.inf),) * 2}, "inf.*finite"),
            ({"rope_frequencies": ((1.0, 0.5, "0.1"),) * 2}, "'0.1'.*finite"),
        ],
    )  # fmt: skip
    def test_sizes_that_do_not_fit(self, fields, message):
        with pytest.raises(InputError, match=message) as caught:
            latent(**fields)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("q_lora_rank", 4),
            ("qk_nope_head_dim", 4),
            ("qk_rope_head_dim", 4),
            ("v_head_dim", 4),
            ("rope_interleave", True),
            ("latent_norm", False),
            ("rope_frequencies", ((1.0,) * 7,) * 2),
        ],
    )
    def test_fields_of_latent_attention_without_a_rank(self, name, value):
        with pytest.raises(InputError, match=f"{name}=.* without kv_lora_rank"):
            ModelConfig(**SHAPE, **{name: value})

    @pytest.mark.parametrize(
        ("base", "fields", "message"),
        [
            (V3, {"kv_lora_rank": None}, "kv_lora_rank null"),
            (V3, {"qk_nope_head_dim": None}, "needs qk_nope_head_dim"),
            (V3, {"num_key_value_heads": 8}, "num_kv_heads=8"),
            (V3, {"qk_rope_head_dim": 63}, "odd"),
            (V3, {"hidden_act": "gelu"}, "gelu"),
            (V3, {"scoring_func": "softmax"}, "scoring_func='softmax' in a deepseek_v3.*'sigmoid'"),
            (V3, {"topk_method": "greedy"}, "topk_method='greedy'.*'noaux_tc'"),
            (V3, {"moe_layer_freq": 2}, "moe_layer_freq=2"),
            (V3, {"n_group": 7}, "n_group=7"),
            (V3, {"num_hidden_layers": "many"}, "whole numbers"),
            (V2, {"scoring_func": "sigmoid"}, "scoring_func='sigmoid'.*'softmax'"),
            (V2, {"topk_method": "noaux_tc"}, "'greedy' or 'group_limited_greedy'"),
            (V2, {"norm_topk_prob": True}, "norm_topk_prob=True"),
        ],
    )
    def test_files_of_other_models(self, base, fields, message):
        with pytest.raises(InputError, match=message):
            ModelConfig.from_hf(base | fields)

    @pytest.mark.parametrize(
        "name",
        ["kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "num_experts_per_tok", "n_group"],
    )
    def test_files_that_lack_a_field(self, name):
        with pytest.raises(InputError, match=f"lacks '{name}'"):
            ModelConfig.from_hf({key: value for key, value in V3.items() if key != name})

    @pytest.mark.parametrize("base", [V2, V3])
    @pytest.mark.parametrize("name", sorted(V3))
    def test_nonsense_in_any_field(self, base, name):
        """Refused in one line, or read: nothing else comes out of a broken file."""
        messages = []
        for value in (None, 0, -1, 1.5, "x", True, [], {}, [1], {"a": 1}, math.nan, 10**30, ""):
            try:
                ModelConfig.from_hf(base | {name: value})
            except InputError as error:
                messages.append(str(error))
        assert "\n" not in "".join(messages)


class TestFromHuggingFace:
    def test_deepseek_v2(self):
        config = ModelConfig.from_hf(V2)
        assert (config.kv_lora_rank, config.q_lora_rank, config.num_kv_heads) == (512, 1536, 128)
        assert config.rope_interleave
        assert config.rope_scaling["rope_type"] == "yarn"
        assert config.experts == ExpertsConfig(
            n_routed_experts=160, num_experts_per_tok=6, moe_intermediate_size=1536, n_shared_experts=2,
            first_k_dense_replace=1, n_group=8, topk_group=3, routed_scaling_factor=16.0,
        )  # fmt: skip

    def test_deepseek_v2_lite_chooses_among_all_experts(self):
        config = ModelConfig.from_hf(V2_LITE | {"n_group": None, "topk_group": None})
        assert config.q_lora_rank is None
        assert (config.experts.n_group, config.experts.topk_group) == (1, 1)

    def test_deepseek_v3(self):
        config = ModelConfig.from_hf(V3)
        assert config.rope_interleave  # its file does not say so
        assert config.experts == ExpertsConfig(
            n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, n_shared_experts=1,
            first_k_dense_replace=3, n_group=8, topk_group=4, scoring_func="sigmoid", norm_topk_prob=True,
            routed_scaling_factor=2.5,
        )  # fmt: skip
        assert not ModelConfig.from_hf(V3 | {"rope_interleave": False}).rope_interleave

    @pytest.mark.parametrize("dense", [{"n_routed_experts": None}, {"first_k_dense_replace": 61}])
    def test_without_experts(self, dense):
        assert ModelConfig.from_hf(V3 | dense).experts is None

    def test_no_shared_experts(self):
        assert ModelConfig.from_hf(V3 | {"n_shared_experts": None}).experts.n_shared_experts == 0

    @pytest.mark.parametrize(("base", "of_class"), [(V2, hf.DeepseekV2Config), (V3, hf.DeepseekV3Config)])
    def test_a_dict_a_file_and_the_class_of_transformers_agree(self, base, of_class, tmp_path):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(base), "utf-8")
        expected = ModelConfig.from_hf(base)
        assert ModelConfig.from_hf(file) == expected
        theirs = ModelConfig.from_hf(of_class(**base))
        # transformers fills in the tokens that mark the ends of a text, and the factor on cos and sin.
        scaling = {name: theirs.rope_scaling[name] for name in expected.rope_scaling}
        assert scaling == expected.rope_scaling
        assert dataclasses.replace(
            theirs, rope_scaling=expected.rope_scaling, bos_token_id=None
        ) == dataclasses.replace(expected, bos_token_id=None)


class TestSizes:
    @pytest.mark.parametrize(("published", "layers"), [(V2, 60), (V2_LITE, 27), (V3, 61)])
    def test_what_a_token_stores(self, published, layers):
        config = ModelConfig.from_hf(published)
        assert layout_of(config) == layout_of(published)
        fields = [(field.name, field.shape, field.window) for field in layout_of(config)[0].fields]
        assert fields == [("latent", (512,), None), ("rope", (64,), None)]
        assert bytes_per_token(config) == layers * 576 * 2

    @pytest.mark.parametrize(
        ("published", "expected"),
        [
            (V2, 235_741_434_880),
            (V2_LITE, 15_706_484_224),
            # The tensors of its 61 layers hold 671,026,419,200 numbers: here without the routers' biases.
            (V3, 671_026_419_200 - 58 * 256),
        ],
    )
    def test_parameters_of_published_models(self, published, expected):
        assert parameter_count(published) == parameter_count(ModelConfig.from_hf(published)) == expected

    @MANY
    @given(
        heads=st.integers(1, 4),
        ranks=st.tuples(st.integers(1, 9), st.one_of(st.none(), st.integers(1, 9))),
        dims=st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 9)),
        switches=st.tuples(*[st.booleans()] * 5),
        dense=st.integers(0, 4),
        shared=st.integers(0, 2),
    )
    def test_parameters_are_those_of_the_decoder(self, heads, ranks, dims, switches, dense, shared):
        norm, bias, out_bias, mlp_bias, tied = switches
        config = ModelConfig(
            vocab_size=11, hidden_size=8, intermediate_size=10, num_layers=3, num_heads=heads, num_kv_heads=heads,
            head_dim=2, kv_lora_rank=ranks[0], q_lora_rank=ranks[1], qk_nope_head_dim=dims[0],
            qk_rope_head_dim=2 * dims[1], v_head_dim=dims[2], latent_norm=norm, attention_bias=bias,
            attention_out_bias=out_bias, mlp_bias=mlp_bias, tie_word_embeddings=tied,
            experts=ExpertsConfig(
                n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=5, n_shared_experts=shared,
                first_k_dense_replace=dense, scoring_func="sigmoid",
            ),
        )  # fmt: skip
        with torch.device("meta"):
            model = kv.Decoder(config)
        assert parameter_count(config) == sum(parameter.numel() for parameter in model.parameters())
