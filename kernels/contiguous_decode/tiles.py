"""The loops of the CPU kernel that touch keys and values: tokens that lie `stride` bytes apart."""

from numba import types
from numba.extending import intrinsic

from ..tiles import add_tokens, score_tokens
from ..vectors import INT64


@intrinsic(prefer_literal=True)
def score_tile(typingctx, k, stride, count, q, out, out_stride, heads, head_dim):
    """Scores of one tile of tokens for `heads` query heads, -inf from the token `count` on (which is not read).

    Addresses k (LANES tokens, `stride` bytes apart), q and out as in `score_tokens`.
    """
    sizes = [size.literal_value for size in (out_stride, heads, head_dim)]

    def generate(context, builder, signature, args):
        k, stride, count, q, out = args[:5]

        def address_of(token):
            inside = builder.icmp_signed("<", INT64(token), count)
            return builder.add(k, builder.select(inside, builder.mul(stride, INT64(token)), INT64(0)))

        score_tokens(builder, address_of, count, q, out, *sizes)
        return context.get_dummy_value()

    return types.void(k, stride, count, q, out, out_stride, heads, head_dim), generate


@intrinsic(prefer_literal=True)
def add_values(typingctx, v, stride, count, p, p_stride, out, out_stride, heads, v_head_dim):
    """out += p @ v over `count` tokens: addresses v (tokens `stride` bytes apart), p and out as in `add_tokens`."""
    p_gap, *sizes = (size.literal_value for size in (p_stride, out_stride, heads, v_head_dim))

    def generate(context, builder, signature, args):
        v, stride, count, p, _, out = args[:6]

        def address_of(token):
            return builder.add(v, builder.mul(token, stride))

        add_tokens(builder, address_of, count, p, p_gap, out, *sizes)
        return context.get_dummy_value()

    return types.void(v, stride, count, p, p_stride, out, out_stride, heads, v_head_dim), generate
