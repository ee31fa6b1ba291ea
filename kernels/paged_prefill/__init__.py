"""Causal attention of the new tokens of several rows over paged keys and values: prefill, whole or in chunks."""

from ..backends import attention_of, fastest
from .arguments import check_arguments
from .gathered import attend_gathered
from .reference import attend_reference

__all__ = ["attend_reference", "choose_backend", "paged_prefill"]

IN_TORCH = {"reference": attend_reference, "torch": attend_gathered}
SMALL = 1 << 13  # key floats below which a few tenths of a millisecond are not worth the seconds of compiling


def paged_prefill(
    q, k_pages, v_pages, block_table, seq_lens, query_starts, scale=None, window=None, soft_cap=None, backend=None,
    return_lse=False,
):  # fmt: skip
    """Attention of the new tokens of several rows over the pages that hold their keys and values.

    The new tokens of a row are its last ones, and their keys and values are in the pages already (`store_kv` first).
    Each sees the tokens of its row up to itself (causal, aligned at the bottom right). A prompt may come whole, in
    chunks or after a stored prefix; a row with one new token is a decode step; a row may have no new token. All
    these mix freely in one call. Sources: "PagedAttention" (arXiv 2309.06180), section 4; "Sarathi" (arXiv
    2308.16369) for chunks; "FlashAttention-2" (arXiv 2307.08691) for the tiles of the kernels.

    q: (num_tokens, num_heads, head_dim), the new tokens of all rows, packed. Query head h reads kv head
        `h // (num_heads // num_kv_heads)`.
    k_pages: (num_blocks, num_kv_heads, block_size, head_dim), of q's dtype and device. Strides are free.
    v_pages: (num_blocks, num_kv_heads, block_size, v_head_dim), of q's dtype and device.
    block_table: (batch, max_blocks) int32 or int64 on the CPU or q's device. The token at position p of row b lies
        in slot `p % block_size` of block `block_table[b, p // block_size]`. Entries past a row's tokens, or wholly
        before its window, are never followed, and slots past its tokens never read, whatever they hold.
    seq_lens: (batch,) integers like block_table: the tokens of each row, its new ones included.
    query_starts: (batch + 1,) integers like block_table, from 0 to num_tokens: the new tokens of row b are
        `q[query_starts[b] : query_starts[b + 1]]`.
    scale: factor of the scores; None is `head_dim ** -0.5`.
    window: how many tokens a query sees at most, itself included; None is all.
    soft_cap: scores s become `soft_cap * tanh(s / soft_cap)` after scaling and before masking; None leaves them.
    backend: "reference", "torch", "cpu" (numba) or "triton"; None chooses, see `choose_backend`.
    return_lse: also return the natural logarithm of the summed exponentials, which `merge_states` takes.

    Returns out (num_tokens, num_heads, v_head_dim) in q.dtype; with return_lse also lse (num_tokens, num_heads),
    float32 (float64 for float64).

    Errors: ValueError when shapes, types or devices do not fit, an option is no number that attention can use, a
    length, a start or a block that is needed is out of range (on a GPU they are not read back to be checked), or the
    backend is unknown or not usable here.
    """
    check_arguments(q, k_pages, v_pages, block_table, seq_lens, query_starts, scale, window, soft_cap)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    soft_cap = None if soft_cap is None else float(soft_cap)
    if window is not None and window >= block_table.shape[1] * k_pages.shape[2]:
        window = None  # no row fills it
    name = choose_backend(q, k_pages, v_pages, seq_lens) if backend is None else backend
    arguments = (q, k_pages, v_pages, block_table, seq_lens, query_starts, scale, window, soft_cap)
    out, lse = attention_of(__package__, name, (q, k_pages, v_pages), IN_TORCH)(*arguments)
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out


def choose_backend(q, k_pages, v_pages, seq_lens):
    """The name of the fastest backend for these arguments of `paged_prefill`.

    As `backends.fastest` says, for pages of any stride, but "torch" for few tokens on the CPU.
    """
    # Numba took 0.2 to 0.6 times as long as torch in every case measured (AVX-512; 1 to 2,048 new tokens on 64 to
    # 4,096, decode rows and mixed batches, too). Of other strides torch makes a copy, numba does not.
    name = fastest((q,), (k_pages, v_pages), any_stride=True)
    few = name == "cpu" and int(seq_lens.sum()) * k_pages.shape[1] * k_pages.shape[3] < SMALL
    return "torch" if few else name
