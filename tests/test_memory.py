"""Memory arithmetic against published sizes, counted properties, and the bytes of the real cache."""

import json
from itertools import pairwise

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY, windows

from kvcourse import memory
from kvcourse.attention.config_reader import config_dict
from kvcourse.attention.known_models import KNOWN
from kvcourse.cache import KVCache
from kvcourse.codecs.formats import FORMATS
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.hf_config import RUNNABLE
from kvcourse.plan import Plan

CONTEXTS = (4_096, 32_768, 131_072, 524_288, 1_048_576)

# Model: bf16 bytes a token in all layers, the same beyond windows, and the cache at each of CONTEXTS.
PUBLISHED = {
    "gpt2": (36864, 36864, 150994944, 1207959552, 4831838208, 19327352832, 38654705664),
    "smollm2-135m": (23040, 23040, 94371840, 754974720, 3019898880, 12079595520, 24159191040),
    "smollm2-360m": (40960, 40960, 167772160, 1342177280, 5368709120, 21474836480, 42949672960),
    "falcon-7b": (8192, 8192, 33554432, 268435456, 1073741824, 4294967296, 8589934592),
    "falcon-40b": (122880, 122880, 503316480, 4026531840, 16106127360, 64424509440, 128849018880),
    "llama-2-7b": (524288, 524288, 2147483648, 17179869184, 68719476736, 274877906944, 549755813888),
    "llama-2-70b": (327680, 327680, 1342177280, 10737418240, 42949672960, 171798691840, 343597383680),
    "llama-3-8b": (131072, 131072, 536870912, 4294967296, 17179869184, 68719476736, 137438953472),
    "llama-3.1-8b": (131072, 131072, 536870912, 4294967296, 17179869184, 68719476736, 137438953472),
    "llama-3.1-405b": (516096, 516096, 2113929216, 16911433728, 67645734912, 270582939648, 541165879296),
    "llama-3.2-3b": (114688, 114688, 469762048, 3758096384, 15032385536, 60129542144, 120259084288),
    "llama-4-scout": (196608, 49152, 805306368, 2818572288, 7650410496, 26977763328, 52747567104),
    "qwen2.5-0.5b": (12288, 12288, 50331648, 402653184, 1610612736, 6442450944, 12884901888),
    "qwen2.5-72b": (327680, 327680, 1342177280, 10737418240, 42949672960, 171798691840, 343597383680),
    "qwen3-0.6b": (114688, 114688, 469762048, 3758096384, 15032385536, 60129542144, 120259084288),
    "qwen3-32b": (262144, 262144, 1073741824, 8589934592, 34359738368, 137438953472, 274877906944),
    "mistral-7b-v0.1": (131072, 0, 536870912, 536870912, 536870912, 536870912, 536870912),
    "mistral-7b-v0.3": (131072, 131072, 536870912, 4294967296, 17179869184, 68719476736, 137438953472),
    "gemma-2-27b": (376832, 188416, 1543503872, 6945767424, 25467813888, 99555999744, 198340247552),
    "gemma-3-4b": (139264, 20480, 205520896, 792723456, 2805989376, 10859053056, 21596471296),
    "gemma-3-12b": (393216, 65536, 603979776, 2483027968, 8925478912, 34695282688, 69055021056),
    "gpt-oss-120b": (73728, 36864, 155713536, 1212678144, 4836556800, 19332071424, 38659424256),
    "deepseek-v2": (69120, 69120, 283115520, 2264924160, 9059696640, 36238786560, 72477573120),
    "deepseek-v2-lite": (31104, 31104, 127401984, 1019215872, 4076863488, 16307453952, 32614907904),
    "deepseek-v3": (70272, 70272, 287834112, 2302672896, 9210691584, 36842766336, 73685532672),
    "deepseek-v3.2": (85888, 85888, 351797248, 2814377984, 11257511936, 45030047744, 90060095488),
    "glm-5": (109824, 109824, 449839104, 3598712832, 14394851328, 57579405312, 115158810624),
}
V4_PRO = (48332800, 330694656, 1298792448, 5171183616, 10334371840)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(name):
    per_token, beyond, *at = PUBLISHED[name]
    assert memory.bytes_per_token(name) == per_token
    assert memory.bytes_per_token_beyond_windows(name) == beyond
    assert [memory.bytes_at(name, context) for context in CONTEXTS] == at


def test_published_hybrids():
    assert tuple(memory.bytes_at("deepseek-v4-pro", context) for context in CONTEXTS) == V4_PRO
    assert memory.bytes_at("deepseek-v4-pro", 2**20) / 2**30 == pytest.approx(
        9.62, abs=0.005
    )  # vLLM's figure
    assert memory.bytes_at("deepseek-v4-flash", 2**20) / 2**30 == pytest.approx(6.72, abs=0.005)
    assert memory.bytes_at("gemma-3-27b", 10_000) == 81_920 * 10_000 + 52 * 8_192 * 1_024
    state = 18 * (
        16 * 128 * 128 * 4 + 3 * 128 * 16 * 3 * 2
    )  # fp32 matrices; three columns of q, k and v in bf16
    assert memory.bytes_per_token("qwen3.5-0.8b") == 12_288
    assert memory.bytes_at("qwen3.5-0.8b", 1_000) == 12_288 * 1_000 + state


# Parameters of the published checkpoints.
PARAMETERS = {
    "smollm2-135m": 134_515_008, "smollm2-360m": 361_821_120, "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-3b": 3_212_749_824, "qwen2.5-0.5b": 494_032_768, "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-32b": 32_762_123_264, "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_published_models(name):
    assert memory.parameter_count(name) == PARAMETERS[name]


@pytest.mark.parametrize("model_type", RUNNABLE)
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_equal_those_of_a_transformers_model(model_type, tied):
    fields = {
        "model_type": model_type, "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "head_dim": 10,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied,
    }  # fmt: skip
    if model_type in ("llama", "qwen3", "deepseek_v2", "deepseek_v3"):
        fields["attention_bias"] = True
    if model_type in ("llama", "deepseek_v2"):
        fields["mlp_bias"] = True
    if model_type.startswith("deepseek"):
        fields |= {
            "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 9, "qk_nope_head_dim": 7,
            "qk_rope_head_dim": 6, "v_head_dim": 5, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 11, "n_group": 2, "topk_group": 1, "n_shared_experts": 2,
            "first_k_dense_replace": 1,
        }  # fmt: skip
    config = hf.AutoConfig.for_model(**fields)
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(config)
    assert memory.parameter_count(config) == memory.parameter_count(fields) == model.num_parameters()


def test_row_4_a_llama_of_width_8192():
    base = config_dict("llama-3-70b")
    assert memory.parameter_count(base | {"num_hidden_layers": 32}) == 29_482_295_296
    assert memory.parameter_count(base | {"num_hidden_layers": 80}) == 70_553_706_496


def grouped(layers=2, heads=4, kv_heads=2, head_dim=6, window=None, slides=None):
    slides = slides if slides is not None else [window is not None] * layers
    return ModelConfig(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_layers=layers, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=head_dim, sliding_window=window,
        layer_types=tuple("sliding_attention" if s else "full_attention" for s in slides),
    )  # fmt: skip


@MANY
@given(layers=st.integers(1, 50), heads=st.integers(1, 80), context=st.integers(1, 10_000))
def test_mqa_saves_the_number_of_heads_whatever_the_layers(layers, heads, context):
    many, one = (grouped(layers, heads, kv) for kv in (heads, 1))
    assert memory.bytes_at(many, context) == heads * memory.bytes_at(one, context)


@MANY
@given(
    name=st.sampled_from(sorted(KNOWN)),
    codec=st.sampled_from(sorted(FORMATS)),
    context=st.integers(0, 200_000),
    more=st.integers(1, 5_000),
    batch=st.integers(2, 64),
)
def test_bytes_grow_with_context_and_add_up_over_a_batch(name, codec, context, more, batch):
    here, later = (memory.bytes_at(name, n, codec=codec) for n in (context, context + more))
    if FORMATS[codec].metadata_bytes == 0:
        assert here <= later
    else:  # an open token in full precision may become smaller when its group closes
        assert here <= memory.bytes_at(name, context + more, codec="auto")
    assert memory.bytes_at(name, context, batch, codec=codec) == batch * here
    assert memory.bytes_at(name, 0, codec=codec) == 0


@MANY
@given(window=st.integers(1, 50), past=st.integers(0, 500), step=st.integers(1, 100))
def test_windows_stop_growing(window, past, step):
    config = grouped(window=window)
    full = memory.bytes_at(config, window)
    assert memory.bytes_at(config, window + past) == full
    assert memory.bytes_per_token_beyond_windows(config) == 0
    if window > 1:
        assert memory.bytes_at(config, window - 1) < full
    mixed = grouped(window=window, slides=[True, False])
    growth = memory.bytes_at(mixed, window + past + step) - memory.bytes_at(mixed, window + past)
    assert (
        growth
        == step * memory.bytes_per_token_beyond_windows(mixed)
        == step * memory.bytes_per_token(mixed) // 2
    )


@MANY
@given(name=st.sampled_from(sorted(KNOWN)), context=st.integers(1, 128))
def test_before_any_window_is_full_bytes_per_token_is_the_slope(name, context):
    """All known windows are 128 or more. DeepSeek-V4 adds compressed entries in steps of 4 and 128 tokens."""
    ideal = context * memory.bytes_per_token(name)
    fixed = memory.bytes_at(name, 1) - memory.bytes_per_token(name)
    if "v4" in name:
        assert 0 <= ideal - memory.bytes_at(name, context) <= 128 * 61 * 160 * 2
    else:
        assert memory.bytes_at(name, context) == ideal + fixed


@pytest.mark.parametrize(
    ("dtype", "size"), [("fp64", 8), ("fp32", 4), ("bf16", 2), (torch.float16, 2), (torch.float32, 4)]
)
def test_dtypes(dtype, size):
    config = grouped()
    assert memory.bytes_per_token(config, dtype=dtype) == 2 * 2 * 2 * 6 * size
    assert memory.bytes_at(config, 10, dtype=dtype) == 10 * 48 * size
    assert memory.bytes_at(config, 10, dtype=dtype, codec="fp16") == 10 * 48 * 2
    assert memory.bytes_at(config, 10, plan=Plan(codec="fp16", capacity=10), dtype=dtype) == 10 * 48 * 2


def test_codecs_pay_for_their_metadata():
    for codec, bits in (("int8", 8.25), ("int4", 5), ("int4-g64", 4.5), ("int2", 3)):
        assert memory.bytes_per_token("llama-3-8b", codec=codec) == 131_072 * bits / 16
    open_tail = memory.bytes_at("llama-3-8b", 128, codec="int2")
    assert open_tail == memory.bytes_at("llama-3-8b", 128)  # the residual of KIVI is in full precision
    fp32_tail = memory.bytes_at("llama-3-8b", 128, dtype="fp32", codec="int2")
    assert fp32_tail == 2 * open_tail
    # 576 values of MLA: one row for the latent, one for the rotary key, a scale each
    assert memory.bytes_per_token("deepseek-v3", codec="int8") == 61 * (512 + 4 + 64 + 4)


@MANY
@given(context=st.integers(0, 400), block_size=st.integers(1, 64), window=windows(60))
def test_paged_storage_rounds_up_to_blocks(context, block_size, window):
    config = grouped(window=window)
    paged = memory.bytes_at(config, context, 3, plan=Plan(storage="paged", block_size=block_size))
    # A block stays while the next query sees one of its tokens, or would after a crop by a block.
    oldest = 0 if window is None else max(0, context - window + 1 - block_size)
    blocks = sum(first + block_size > oldest for first in range(0, context, block_size))
    assert paged == 3 * blocks * block_size * memory.bytes_per_token(config)


DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@MANY
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    codec=st.sampled_from(["auto", "fp32", "bf16"]),
    window=windows(9),
    slides=st.lists(st.booleans(), min_size=1, max_size=3),
    block_size=st.integers(1, 9),
    batch=st.integers(1, 3),
    steps=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 3)]),
    head_dim=st.sampled_from([2, 6, 10]),
)
def test_the_real_cache_has_exactly_these_bytes(
    dtype, codec, window, slides, block_size, batch, steps, heads, head_dim
):
    config = grouped(len(slides), *heads, head_dim, window, slides if window is not None else None)
    plan = Plan(codec=codec, block_size=block_size)
    cache = KVCache(config, plan, batch_size=batch)
    assert cache.nbytes == memory.bytes_at(config, 0, batch, plan, dtype) == 0
    for tokens in steps:
        for layer in range(len(slides)):
            q, k, v = (
                torch.ones(batch, n, tokens, head_dim, dtype=DTYPES[dtype]) for n in (*heads, heads[1])
            )
            cache.attend(layer, q, k, v)
        assert cache.nbytes == memory.bytes_at(config, cache.seen[0], batch, plan, dtype)
        assert cache.nbytes >= memory.bytes_at(config, cache.seen[0], batch, dtype=dtype, codec=codec)


@pytest.mark.parametrize("capacity", [40, 64])
def test_a_preallocated_cache_too(capacity):
    config, plan = grouped(window=5, slides=[False, True]), Plan(capacity=capacity)
    cache = KVCache(config, plan, batch_size=2)
    for layer in range(2):
        q, k, v = (torch.ones(2, heads, 3, 6) for heads in (4, 2, 2))
        cache.attend(layer, q, k, v)
    assert (
        cache.nbytes == memory.bytes_at(config, 3, 2, plan, "fp32") == 2 * 2 * 2 * 6 * 4 * (capacity + 5 + 16)
    )


@MANY
@given(
    name=st.sampled_from(["llama-3-8b", "gemma-3-27b", "deepseek-v4-pro", "qwen3.5-0.8b", "gpt-oss-120b"]),
    gpu=st.integers(10**10, 10**12),
    context=st.integers(1, 300_000),
    codec=st.sampled_from(["auto", "int8", "int4"]),
)
def test_what_fits_fits_and_one_more_does_not(name, gpu, context, codec):
    fit = memory.fits(name, gpu, context, codec=codec, weight_bytes=5 * 10**9)
    assert fit.room_bytes == gpu - fit.weight_bytes - fit.reserved_bytes
    assert fit.request_bytes == memory.bytes_at(name, context, codec=codec)
    assert (
        memory.bytes_at(name, context, max(fit.requests, 1), codec=codec) <= fit.room_bytes
        or fit.requests == 0
    )
    assert memory.bytes_at(name, context, fit.requests + 1, codec=codec) > fit.room_bytes
    assert memory.bytes_at(name, fit.longest, codec=codec) <= fit.room_bytes
    assert memory.bytes_at(name, fit.longest + 1, codec=codec) > fit.room_bytes
    assert fit.requests * context <= fit.tokens < (fit.requests + 1) * context
    assert (fit.requests == 0) == (fit.longest < context)


def test_the_longest_request_when_sizes_fall_as_a_group_closes():
    """KIVI's open group is larger than the closed one, so a longer request may fit where a shorter one does not."""
    config = grouped(layers=1, kv_heads=1, head_dim=16)
    sizes = [memory.bytes_at(config, n, codec="int2") for n in range(1_000)]
    assert any(later < sooner for sooner, later in pairwise(sizes))
    for room in range(0, 15_000, 150):
        fit = memory.fits(config, room + 1, 1, codec="int2", weight_bytes=0, reserve=0)
        assert fit.longest == max(n for n, size in enumerate(sizes) if size <= room + 1)


def test_a_fixed_capacity_is_a_limit_too():
    config, plan = grouped(), Plan(capacity=40)
    assert memory.fits(config, 10**9, 8, plan, weight_bytes=0).longest == 40
    assert memory.fits(config, 10**9, 8, plan, weight_bytes=0).request_bytes == 40 * 96
    assert memory.crossover_tokens(config, plan, weight_bytes=10**9) is None
    assert memory.crossover_tokens(config, plan, weight_bytes=40 * 96) == 1
    with pytest.raises(InputError, match=r"41 tokens do not fit.*capacity=40"):
        memory.bytes_at(config, 41, plan=plan)
    assert memory.bytes_at(grouped(window=4), 100, plan=plan) == (4 + 16) * 96  # a ring needs no more
    with pytest.raises(InputError, match="6 tokens do not fit"):
        memory.bytes_at(grouped(window=4), 6, plan=Plan(capacity=5))  # as KVCache: no room for a ring


def test_fits_counts_the_weights_itself_where_it_can():
    fit = memory.fits("llama-3-8b", "80GB", 131_072)
    assert (fit.gpu_bytes, fit.weight_bytes, fit.reserved_bytes) == (80 * 10**9, 16_060_522_496, 8 * 10**9)
    assert (fit.requests, fit.longest) == (3, 55_939_477_504 // 131_072)
    assert memory.fits("llama-3-8b", "80GB", 4_096, parameters=10**9, reserve=0).room_bytes == 78 * 10**9
    assert memory.fits("mistral-7b-v0.1", "24GiB", 4_096).longest is None
    with pytest.raises(AttributeError):
        fit.requests = 4


def test_row_1_crossover():
    assert memory.crossover_tokens("llama-3-70b") == 430_626
    assert memory.crossover_tokens("llama-3-70b", codec="int8") > 430_626 * 1.9
    assert memory.crossover_tokens("mistral-7b-v0.1") is None
    for weight_bytes in (1, 1_000_000, 23_040 * 7, 23_040 * 7 + 1):
        tokens = memory.crossover_tokens("smollm2-135m", weight_bytes=weight_bytes)
        assert (tokens - 1) * 23_040 < weight_bytes <= tokens * 23_040


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: memory.bytes_at("llama-3-8b", -1), "context=-1"),
        (lambda: memory.bytes_at("llama-3-8b", 1.5), "context=1.5"),
        (lambda: memory.bytes_at("llama-3-8b", 1, 0), "batch=0"),
        (lambda: memory.bytes_at("llama-3-8b", 1, dtype="int8"), "dtype 'int8'"),
        (lambda: memory.bytes_at("llama-3-8b", 1, codec="int3"), "codec 'int3' is not known"),
        (lambda: memory.bytes_at("llama-3-8b", 1, plan=Plan(eviction="h2o")), "eviction='h2o'.*traffic"),
        (
            lambda: memory.bytes_at("llama-3-8b", 1, plan=Plan(storage="paged", sharing="radix")),
            "sharing='radix'",
        ),
        (lambda: memory.fits("llama-3-8b", "80GB", 0), "context=0"),
        (lambda: memory.fits("llama-3-8b", "80 bananas", 1), "'80 bananas' is not a size"),
        (lambda: memory.fits("llama-3-8b", "12GB", 1), "weights .* fill"),
        (lambda: memory.fits("llama-3-8b", "80GB", 1, reserve=1), "reserve=1"),
        (lambda: memory.fits("gemma-3-4b", "80GB", 1), "gemma3_text.*weight_bytes or parameters"),
        (lambda: memory.crossover_tokens("llama-3-8b", weight_bytes=-1), "weight_bytes=-1"),
        (lambda: memory.parameter_count({"model_type": "llama"}), "lacks"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_file_works_everywhere(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_dict("llama-3-8b")), "utf-8")
    assert memory.bytes_per_token(file) == memory.bytes_per_token(str(tmp_path)) == 131_072
    assert memory.parameter_count(file) == PARAMETERS["llama-3-8b"]
