"""What a folder of weights can look like: ours loads what transformers loads, or refuses it."""

import json

import pytest
import torch
import transformers
from hf_models import CLASSES, ROPES, difference, hf_model, tokens
from oracles import in_float64
from safetensors.torch import load_file, save_file

import kvcourse as kv
from kvcourse.errors import InputError


class TestFolders:
    """What a folder of weights can look like."""

    def check(self, folder):
        reference = in_float64(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
        ours, ids = kv.load_model(folder, dtype=torch.float64)[0], tokens(2, 23)
        with torch.no_grad():
            assert difference(ours(ids), reference(ids).logits) <= 1e-10

    def edit(self, folder, change):
        path = folder / "config.json"
        config = json.loads(path.read_text("utf-8"))
        change(config)
        path.write_text(json.dumps(config), "utf-8")

    def test_sharded_weights(self, tmp_path):
        hf_model("llama").save_pretrained(tmp_path, max_shard_size="20KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
        self.check(tmp_path)

    def test_bfloat16_weights(self, tmp_path):
        hf_model("llama").bfloat16().save_pretrained(tmp_path)
        self.check(tmp_path)

    def test_path_as_text(self, tmp_path):
        hf_model("llama").save_pretrained(tmp_path)
        assert kv.load_model(str(tmp_path))[0].config.num_layers == 3

    @pytest.mark.parametrize("rope", ["linear", "llama3", "yarn"])
    def test_rope_scaling_as_written_before_transformers_5(self, rope, tmp_path):
        hf_model("llama").save_pretrained(tmp_path)

        def old(config):
            config.pop("rope_parameters", None)
            config["rope_theta"] = 777.0
            config["rope_scaling"] = dict(ROPES[rope])

        self.edit(tmp_path, old)
        self.check(tmp_path)

    def test_rope_scaling_with_the_oldest_key(self, tmp_path):
        hf_model("llama").save_pretrained(tmp_path)

        def oldest(config):
            config.pop("rope_parameters", None)
            config["rope_scaling"] = {"type": "linear", "factor": 3.0}

        self.edit(tmp_path, oldest)
        self.check(tmp_path)

    def test_trained_length_beside_the_rope_scaling(self, tmp_path):
        hf_model("llama").save_pretrained(tmp_path)

        def beside(config):
            config.pop("rope_parameters", None)
            config["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0}
            config["original_max_position_embeddings"] = 32

        self.edit(tmp_path, beside)
        self.check(tmp_path)

    def test_a_bias_that_the_family_does_not_have(self, tmp_path):
        """Qwen2 always has biases on q, k and v and never on the output, whatever the config says."""
        hf_model("qwen2").save_pretrained(tmp_path)
        self.edit(tmp_path, lambda config: config.update(attention_bias=True))
        self.check(tmp_path)

    @pytest.mark.parametrize("family", CLASSES)
    def test_no_epsilon_in_the_config(self, family, tmp_path):
        hf_model(family).save_pretrained(tmp_path)
        self.edit(tmp_path, lambda config: config.pop("rms_norm_eps"))
        self.check(tmp_path)

    @pytest.mark.parametrize(("eos", "ids"), [(None, ()), (5, (5,)), (0, (0,)), ([7, 5], (7, 5))])
    def test_end_of_sequence_ids(self, eos, ids, tmp_path):
        hf_model("llama").save_pretrained(tmp_path)
        self.edit(tmp_path, lambda config: config.update(eos_token_id=eos))
        assert kv.load_model(tmp_path)[0].config.eos_token_ids == ids

    @pytest.mark.parametrize("factors", ["short_factor", "long_factor"])
    @pytest.mark.parametrize("count", [5, 7])
    def test_as_many_longrope_factors_as_pairs(self, factors, count):
        scaling = ROPES["longrope"] | {factors: [1.0] * count}
        with pytest.raises(InputError, match=f"{factors} has {count} entries.*= 6"):
            kv.tiny_model(head_dim=12, rope_scaling=scaling)

    def test_no_head_dim_in_the_config(self, tmp_path):
        hf_model("llama", head_dim=7 * 2, hidden_size=84).save_pretrained(tmp_path)
        self.edit(tmp_path, lambda config: config.pop("head_dim"))
        self.check(tmp_path)

    def test_no_num_key_value_heads_in_the_config(self, tmp_path):
        hf_model("llama", num_key_value_heads=6).save_pretrained(tmp_path)
        self.edit(tmp_path, lambda config: config.pop("num_key_value_heads"))
        self.check(tmp_path)

    def test_qwen2_with_a_window_that_is_switched_off(self, tmp_path):
        hf_model("qwen2").save_pretrained(tmp_path)

        def original(config):
            config.pop("layer_types", None)
            config.update(sliding_window=3, use_sliding_window=False, max_window_layers=0)

        self.edit(tmp_path, original)
        self.check(tmp_path)

    def test_qwen2_with_a_window_on_the_upper_layers(self, tmp_path):
        hf_model("qwen2").save_pretrained(tmp_path)

        def original(config):
            config.pop("layer_types", None)
            config.update(sliding_window=3, use_sliding_window=True, max_window_layers=1)

        self.edit(tmp_path, original)
        self.check(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            {"model_type": "gpt2"},
            {"hidden_act": "gelu"},
            {"rope_parameters": {"rope_type": "spiral", "rope_theta": 10_000.0}},
            {"num_hidden_layers": 4},
            {"hidden_size": 48},
            {"vocab_size": 98},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_model_that_we_would_run_wrongly_is_refused(self, change, tmp_path):
        hf_model("llama").save_pretrained(tmp_path)
        self.edit(tmp_path, lambda config: config.update(change))
        with pytest.raises(InputError) as error:
            kv.load_model(tmp_path)
        assert "\n" not in str(error.value)

    def test_a_missing_tensor_is_refused(self, tmp_path):
        hf_model("llama").save_pretrained(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, tmp_path / "model.safetensors")
        with pytest.raises(InputError, match="up_proj"):
            kv.load_model(tmp_path)

    def test_a_folder_without_a_model_is_refused(self, tmp_path):
        with pytest.raises(InputError):
            kv.load_model(tmp_path)
