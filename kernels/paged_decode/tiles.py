"""The loops of the CPU kernel that touch keys and values: tokens whose addresses stand in a list.

So a tile may span blocks, and how many tokens a block holds changes neither the loops nor the result.
"""

from numba import types
from numba.extending import intrinsic

from ..tiles import add_tokens, score_tokens
from ..vectors import INT64, pointer_at, prefetch, splat, tanh


@intrinsic(prefer_literal=True)
def score_tile(typingctx, tokens, later, count, q, cap, out, out_stride, heads, head_dim, later_dim, capped):
    """Scores of one tile of tokens for `heads` query heads, -inf from the token `count` on.

    Addresses tokens (LANES int64, where the keys lie; all may be read), later (LANES int64, where `later_dim` floats
    lie that are needed soon), q and out as in `score_tokens`.
    With `capped`, a score s becomes cap · tanh(s / cap); scores and cap are in base 2.
    """
    sizes = [size.literal_value for size in (out_stride, heads, head_dim)]

    def generate(context, builder, signature, args):
        tokens, later, count, q, limit, out = args[:6]

        def address_of(token):
            return builder.load(pointer_at(builder, tokens, 2 * token, INT64))

        def cap_scores(scores):
            most = splat(builder, limit)
            return builder.fmul(most, tanh(builder, builder.fdiv(scores, most)))

        def ahead(token):
            prefetch(
                builder, builder.load(pointer_at(builder, later, 2 * token, INT64)), later_dim.literal_value
            )

        applied = cap_scores if capped.literal_value else None
        score_tokens(builder, address_of, count, q, out, *sizes, applied, ahead)
        return context.get_dummy_value()

    return types.void(
        tokens, later, count, q, cap, out, out_stride, heads, head_dim, later_dim, capped
    ), generate


@intrinsic(prefer_literal=True)
def add_values(typingctx, tokens, later, count, p, p_stride, out, out_stride, heads, v_head_dim, later_dim):
    """out += p @ values over `count` tokens.

    Addresses tokens (int64 each, where the values lie), later (as in score_tile), p and out as in `add_tokens`.
    """
    p_gap, *sizes = (size.literal_value for size in (p_stride, out_stride, heads, v_head_dim))

    def generate(context, builder, signature, args):
        tokens, later, count, p, _, out = args[:6]

        def number(list_at, token):
            at = builder.add(list_at, builder.mul(token, INT64(8)))
            return builder.load(builder.inttoptr(at, INT64.as_pointer()))

        def address_of(token):
            return number(tokens, token)

        def ahead(token):
            prefetch(builder, number(later, token), later_dim.literal_value)

        add_tokens(builder, address_of, count, p, p_gap, out, *sizes, ahead)
        return context.get_dummy_value()

    return types.void(
        tokens, later, count, p, p_stride, out, out_stride, heads, v_head_dim, later_dim
    ), generate
