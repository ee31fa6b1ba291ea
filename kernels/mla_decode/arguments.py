"""What the operation accepts, checked before any kernel runs."""

from ..backends import require_tensors
from ..paging import check_blocks, check_integers, is_finite, shown


def check_arguments(q_latent, q_rope, latent_pages, rope_pages, block_table, seq_lens, scale):
    """Errors: ValueError, saying what to do, unless the arguments of `mla_decode` fit together."""
    tensors = (q_latent, q_rope, latent_pages, rope_pages)
    require_tensors(
        q_latent=q_latent, q_rope=q_rope, latent_pages=latent_pages, rope_pages=rope_pages, block_table=block_table,
        seq_lens=seq_lens,
    )  # fmt: skip
    if any(tensor.dim() != 3 for tensor in tensors):
        raise ValueError(
            f"q_latent, q_rope, latent_pages, rope_pages have {', '.join(str(t.dim()) for t in tensors)} dimensions: "
            "pass queries as (batch, num_heads, dims) and pages as (num_blocks, block_size, dims)"
        )
    if q_latent.shape[:2] != q_rope.shape[:2] or latent_pages.shape[:2] != rope_pages.shape[:2]:
        raise ValueError(
            f"q_latent, q_rope, latent_pages, rope_pages are {_shapes(tensors)}: pass one batch and "
            "num_heads for both queries, one num_blocks and block_size for both pages"
        )
    if q_latent.shape[2] != latent_pages.shape[2] or q_rope.shape[2] != rope_pages.shape[2]:
        raise ValueError(
            f"q_latent, q_rope, latent_pages, rope_pages are {_shapes(tensors)}: pass kv_lora_rank numbers "
            "in q_latent (absorb the key up-projection first) and latent_pages, qk_rope_head_dim in q_rope and "
            "rope_pages"
        )
    if 0 in (q_latent.shape[1], *latent_pages.shape[1:]):
        raise ValueError(
            f"q_latent is {tuple(q_latent.shape)} and latent_pages {tuple(latent_pages.shape)}: pass at least one "
            "head, a block_size and rank of at least 1"
        )
    if not q_latent.is_floating_point() or any(tensor.dtype != q_latent.dtype for tensor in tensors):
        raise ValueError(
            f"q_latent, q_rope, latent_pages, rope_pages are {', '.join(str(t.dtype) for t in tensors)}: "
            "pass one floating type, converting with .to(dtype)"
        )
    if any(tensor.device != q_latent.device for tensor in tensors):
        raise ValueError(
            f"q_latent, q_rope, latent_pages, rope_pages are on {', '.join(str(t.device) for t in tensors)}: "
            "move them to one device with .to(device)"
        )
    batch, device = len(q_latent), q_latent.device
    check_integers("block_table", block_table, "(batch, max_blocks)", batch, device)
    check_integers("seq_lens", seq_lens, "(batch,)", batch, device)
    if not is_finite(scale):
        raise ValueError(
            f"scale is {shown(scale)}: pass the model's own factor, (qk_nope_head_dim + qk_rope_head_dim) ** -0.5 "
            "times YaRN's mscale ** 2 where it has one; the width of the latent does not enter"
        )
    check_blocks(*latent_pages.shape[:2], block_table, seq_lens)


def _shapes(tensors):
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
