"""Compiles the Triton kernels of prefill and store for GPUs that need not be here and prints what they use, as JSON.

Run as a program, without TRITON_INTERPRET: an interpreted kernel cannot be compiled.
"""

import json
import sys

from triton_resources import TARGETS, compile_kernel, measure

from kvcourse.kernels.paged_prefill.triton import attend_tile, choose_blocks
from kvcourse.kernels.store_kv.triton import store_token

SHAPES = [  # group, head_dim, v_head_dim, type, multiples of 16 in addresses and strides, and a soft cap
    (3, 64, 64, "bf16", True, False),
    (4, 128, 128, "bf16", True, False),
    (1, 128, 128, "fp16", True, True),
    (71, 80, 80, "bf16", True, False),
    (7, 80, 80, "bf16", False, True),
    (2, 256, 256, "bf16", True, False),
    (3, 64, 64, "fp32", True, False),
    (4, 128, 128, "fp32", True, True),
]


def compile_attend(target, group, head_dim, v_head_dim, dtype, aligned, capped):
    blocks, options = choose_blocks(head_dim, v_head_dim, 4 if dtype == "fp32" else 2, aligned)
    constants = {"GROUP": group, "HEAD_DIM": head_dim, "V_HEAD_DIM": v_head_dim, **blocks}
    constants |= {"CAPPED": capped, "PRECISION": "ieee"}
    # What the just-in-time compiler makes of a contiguous last dimension.
    constants |= dict.fromkeys(("q_dim", "k_dim", "v_dim", "table_column"), 1)
    signature = {f"{name}_ptr": f"*{dtype}" for name in ("q", "k", "v", "out")}
    signature |= {"table_ptr": "*i32", "lengths_ptr": "*i64", "starts_ptr": "*i32", "lse_ptr": "*fp32"}
    signature |= {"scale": "fp32", "soft_cap": "fp32"}
    names = [*(name for name in signature if name.endswith("_ptr")), "chunk", "q_token", "q_head"]
    names += [f"{tensor}_{axis}" for tensor in "kv" for axis in ("block", "head", "slot")]
    return compile_kernel(attend_tile, signature, constants, target, options, names if aligned else ())


def compile_store(target):
    constants = {"DIM": 128, "BLOCK_D": 128, "x_dim": 1, "pages_dim": 1}
    signature = {"x_ptr": "*bf16", "pages_ptr": "*bf16", "slots_ptr": "*i64"}
    return compile_kernel(store_token, signature, constants, target, {"num_warps": 1})


def main():
    found = []
    for target in TARGETS:
        shapes = SHAPES if target != "gfx942" else SHAPES[:3]
        for shape in (*shapes, "store"):
            compiled = compile_store(target) if shape == "store" else compile_attend(target, *shape)
            threads = 32 * compiled.metadata.num_warps
            found.append({"shape": shape, "target": target, "threads": threads, **measure(compiled)})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
