"""Absorbed latent attention (MLA) of one new token per row over a paged latent cache (the decode step)."""

from ..backends import attention_of, fastest
from .arguments import check_arguments
from .gathered import attend_gathered
from .reference import attend_reference

__all__ = ["attend_reference", "choose_backend", "mla_decode"]

IN_TORCH = {"reference": attend_reference, "torch": attend_gathered}


def mla_decode(
    q_latent, q_rope, latent_pages, rope_pages, block_table, seq_lens, scale, backend=None, return_lse=False
):
    """Multi-head latent attention of one new query per row, in its absorbed form, over a paged latent cache.

    With the key up-projection W_uk absorbed into the query (q_latent = q_nope W_uk, per head), every head scores the
    latents themselves: score = scale · (q_latent · latent + q_rope · rope key). The values are the latents too, so a
    token costs one read of kv_lora_rank + qk_rope_head_dim numbers for all heads, and the result still has to go
    through the value up-projection W_uv. Source: "DeepSeek-V2" (arXiv 2405.04434), sections 2.1.2 and 2.1.3.

    q_latent: (batch, num_heads, kv_lora_rank), absorbed queries.
    q_rope: (batch, num_heads, qk_rope_head_dim), rotated queries.
    latent_pages: (num_blocks, block_size, kv_lora_rank), normed latents.
    rope_pages: (num_blocks, block_size, qk_rope_head_dim), rotated keys that the heads share. Both pages may be
        views of one fused array. All four have one floating type and device; strides are free.
    block_table: (batch, max_blocks) int32 or int64 on the CPU or the device of q_latent. Token i of row b lies in
        slot `i % block_size` of block `block_table[b, i // block_size]`. Entries past a row's tokens are never
        followed and slots past them never read, whatever they hold. A contiguous cache is one block a row.
    seq_lens: (batch,) int32 or int64 like block_table: tokens of each row, 0 to max_blocks * block_size.
    scale: factor of the scores, with no default: it is (qk_nope_head_dim + qk_rope_head_dim) ** -0.5, times YaRN's
        mscale ** 2 where a model has one, and cannot be read off the widths that arrive here.
    backend: "reference", "torch", "cpu" (numba) or "triton"; None chooses, see `choose_backend`.
    return_lse: also return the natural logarithm of the summed exponentials, which `merge_states` takes.

    Returns out (batch, num_heads, kv_lora_rank) in the type of q_latent, zeros for a row of length 0; with return_lse
    also lse (batch, num_heads), float32 (float64 for float64), -inf for a row of length 0.

    Errors: ValueError when shapes, types or devices do not fit, scale is no finite number, a length or a block that
    a length needs is out of range (on a GPU they are not read back to be checked), or the backend is unknown or
    not usable here.
    """
    arguments = (q_latent, q_rope, latent_pages, rope_pages, block_table, seq_lens, scale)
    check_arguments(*arguments)
    name = choose_backend(*arguments[:4]) if backend is None else backend
    out, lse = attention_of(__package__, name, arguments[:4], IN_TORCH)(*arguments)
    out = out.to(q_latent.dtype)
    return (out, lse) if return_lse else out


def choose_backend(q_latent, q_rope, latent_pages, rope_pages):
    """The name of the fastest backend for these arguments of `mla_decode`: see `backends.fastest`."""
    # On the CPU numba was never slower than torch's products on gathered pages: little faster for a few heads and
    # tokens, 2 to 5 times as fast with 16 or 128 heads (measured with AVX-512). Most of that is the gathering: on one
    # contiguous array of rows of equal length the two are about equal, since 128 heads keep both at the core's limit.
    return fastest((q_latent, q_rope), (latent_pages, rope_pages))
