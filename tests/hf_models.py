"""Random models of transformers, as oracles of ours."""

import types
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
import transformers
from oracles import in_float64
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3

import kvcourse as kv

transformers.utils.logging.disable_progress_bar()

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
# Apart from the others: what a token leaves is a latent, and most fields have other names.
LATENT_CLASSES = {
    "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
}
VOCAB = 97

ROPES = {
    "default": {"rope_type": "default"},
    "theta": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 1.3,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
    },
    "yarn_betas": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    # Trained on texts long enough for beta_fast to matter; and a base so small that the slowest pair turns too often.
    "yarn_long": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn_small_base": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 65_536,
    },
    # As many factors as there are pairs in a head of 12.
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8],
        "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
        "original_max_position_embeddings": 64,
        "factor": 2.0,
    },
    "longrope_without_factor": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8],
        "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
        "original_max_position_embeddings": 64,
    },
    "longrope_attention_factor": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8],
        "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
        "original_max_position_embeddings": 64,
        "factor": 2.0,
        "attention_factor": 1.1,
    },
}


def hf_model(family, seed=0, **fields):
    """A random transformers model in which every weight matters: norms and biases are random too."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 42,
        "intermediate_size": 50,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if family == "qwen2":
        settings["hidden_size"] = 72  # its head_dim is always hidden_size / num_heads
    else:
        settings["head_dim"] = 12
    return _random(CLASSES[family], settings | fields, seed)


def hf_latent_model(family, seed=0, **fields):
    """The same of DeepSeek, with sizes that have nothing in common; dense where nothing else is said."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 42,
        "intermediate_size": 50,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "kv_lora_rank": 22,
        "q_lora_rank": None,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 7,
        "first_k_dense_replace": 99,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "moe_intermediate_size": 9,
        "n_group": 4,
        "topk_group": 2,
        "max_position_embeddings": 128,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model = _random(LATENT_CLASSES[family], settings | fields, seed)
    model.set_experts_implementation("eager")  # the others have no float64 and refuse odd sizes
    return model


def _random(classes, settings, seed):
    config_class, model_class = classes
    torch.manual_seed(seed)
    model = model_class(config_class(**settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(std=0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.2)
    return model.eval()


class _Wide:
    """torch, in which float32 is float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextmanager
def latent_in_float64(hf_model):
    """`oracles.in_float64` of a DeepSeek model, for as long as the context is open.

    Its code computes in float32 in more places than the norms: the routers, and in V2 the rotation. There
    "float32" is made to mean float64. The angles, and their cos and sin, stay float32 as everywhere; V2 takes them
    from `torch.polar`, which rounds some of them differently, so they are taken from cos and sin here.
    """

    def angles(self, x, position_ids):
        freqs = position_ids[..., None].float() * self.inv_freq.float()  # (batch, tokens, D_r / 2)
        factor = self.attention_scaling
        return torch.complex(freqs.cos() * factor, freqs.sin() * factor).to(torch.complex128)

    def turn(q, k, freqs):
        pairs = [torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k)]
        return [torch.view_as_real(x * freqs[:, None]).flatten(-2) for x in pairs]

    model = in_float64(hf_model)
    with ExitStack() as stack:
        for module in (modeling_deepseek_v2, modeling_deepseek_v3):
            stack.enter_context(patch.object(module, "torch", _Wide()))
        if isinstance(model, transformers.DeepseekV2ForCausalLM):
            model.model.rotary_emb.forward = types.MethodType(angles, model.model.rotary_emb)
            stack.enter_context(patch.object(modeling_deepseek_v2, "apply_rotary_emb", turn))
        yield model


def tokens(*shape, seed=0):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def difference(ours, theirs, mask=None):
    """Largest absolute difference of two (batch, tokens, vocab) logits where `mask` is 1."""
    assert ours.shape == theirs.shape
    gap = (ours.double() - theirs.double()).abs()
    return (gap if mask is None else gap[mask.bool()]).max().item()


def load(model, folder, dtype, **options):
    model.save_pretrained(folder, **options)
    return kv.load_model(folder, dtype=dtype)[0]
