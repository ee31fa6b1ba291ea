"""The truth that every backend is tested against: one token after the other."""


def store_reference(x, pages, slots):
    """Writes one field of new tokens into its pages, in place.

    x: (num_tokens, num_kv_heads, dim). pages: (num_blocks, num_kv_heads, block_size, dim). slots: (num_tokens,)
    integers, block * block_size + offset, or −1 for a token that is not written.
    """
    block_size = pages.shape[2]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            pages[slot // block_size, :, slot % block_size] = x[token].to(pages.dtype)
