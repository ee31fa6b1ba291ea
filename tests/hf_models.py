"""Random models of transformers, as oracles of ours."""

import torch
import transformers

import kvcourse as kv

transformers.utils.logging.disable_progress_bar()

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
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
    config_class, model_class = CLASSES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**settings | fields))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(std=0.2)
    return model.eval()


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
