"""Polynomials that stand for functions in kernels, highest power first, with errors below float32 rounding.

Each is a least-squares fit at Chebyshev nodes, which is close to the smallest largest error.
"""

import numpy as np

NODES = 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)  # in (-0.5, 0.5)


def _fit(x, values, degree):
    return [float(np.float32(coefficient)) for coefficient in np.polyfit(x, values, degree)]


EXP2 = _fit(NODES, 2.0**NODES, 6)  # 2**x on [-0.5, 0.5]

TANH_EDGE = 0.625
_ROOTS = TANH_EDGE * np.sqrt(0.5 + NODES)
# (tanh(x) / x - 1) / x**2 as a polynomial in x**2, for |x| below the edge; above it, 1 - 2 / (e**2x + 1) is as good.
TANH = _fit(_ROOTS**2, (np.tanh(_ROOTS) / _ROOTS - 1) / _ROOTS**2, 4)
