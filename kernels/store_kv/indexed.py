"""Writing new tokens through torch's indexed assignment."""


def store_indexed(x, pages, slots):
    """The operation of `store_reference` (same arguments) for any device and floating type, with gradients."""
    slots = slots.to(x.device)
    written = slots >= 0
    if not written.all():
        x, slots = x[written], slots[written]
    slots = slots.long()
    block_size = pages.shape[2]
    pages.transpose(1, 2)[slots // block_size, slots % block_size] = x.to(pages.dtype)
