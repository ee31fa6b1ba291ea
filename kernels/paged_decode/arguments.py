"""What the operation accepts, checked before any kernel runs."""

from ..backends import require_tensors
from ..paging import check_blocks, check_integers, check_options, check_pages, check_queries


def check_arguments(q, k_pages, v_pages, block_table, seq_lens, scale, window, soft_cap):
    """Errors: ValueError, saying what to do, unless the arguments of `paged_decode` fit together."""
    require_tensors(q=q, k_pages=k_pages, v_pages=v_pages, block_table=block_table, seq_lens=seq_lens)
    check_pages(k_pages, v_pages)
    check_queries(q, k_pages, v_pages, "batch")
    check_options(scale, window, soft_cap)
    check_integers("block_table", block_table, "(batch, max_blocks)", len(q), q.device)
    check_integers("seq_lens", seq_lens, "(batch,)", len(q), q.device)
    on_cpu = seq_lens.device.type == "cpu"
    firsts = (seq_lens.long() - min(window, 2**62)).clamp(min=0).numpy() if window and on_cpu else 0
    check_blocks(len(k_pages), k_pages.shape[2], block_table, seq_lens, firsts)
