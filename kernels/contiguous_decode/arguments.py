"""What the operation accepts, checked before any kernel runs."""

from ..backends import require_tensors
from ..paging import check_integers, check_options


def check_arguments(q, k, v, lengths, starts, scale):
    """Errors: ValueError, saying what to do, unless the arguments of `contiguous_decode` fit together."""
    require_tensors(q=q, k=k, v=v, lengths=lengths, **({} if starts is None else {"starts": starts}))
    if q.dim() != 3 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(
            f"q, k, v have {q.dim()}, {k.dim()}, {v.dim()} dimensions: pass q as (batch, num_heads, head_dim) "
            "and k, v as (batch, num_kv_heads, capacity, head_dim)"
        )
    batch, num_heads, head_dim = q.shape
    num_kv_heads, capacity = k.shape[1], k.shape[2]
    if k.shape[0] != batch or v.shape[:3] != k.shape[:3] or k.shape[3] != head_dim:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: pass one batch for all, "
            "one num_kv_heads and capacity for k and v, and one head_dim for q and k"
        )
    if 0 in (head_dim, v.shape[3]):
        raise ValueError(
            f"k is {tuple(k.shape)} and v {tuple(v.shape)}: pass a head_dim and a v_head_dim of at least 1"
        )
    if 0 in (num_heads, num_kv_heads) or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads on {num_kv_heads} kv heads: pass a whole number of query heads per kv head"
        )
    if not q.is_floating_point() or k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(
            f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}: pass one floating type, converting with .to(dtype)"
        )
    if k.device != q.device or v.device != q.device:
        raise ValueError(
            f"q, k, v are on {q.device}, {k.device}, {v.device}: move them to one device with .to(device)"
        )
    check_options(scale, None, None)
    check_integers("lengths", lengths, "(batch,)", batch, q.device)
    if lengths.device.type == "cpu" and batch:
        values = lengths.tolist()
        if min(values) < 0 or max(values) > capacity:
            raise ValueError(
                f"lengths span {min(values)} to {max(values)}: each must be 0 to the capacity, {capacity}"
            )
    if starts is not None:
        check_integers("starts", starts, "(batch,)", batch, q.device)
