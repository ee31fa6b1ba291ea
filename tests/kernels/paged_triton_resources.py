"""Compiles the Triton kernel of decode over pages for GPUs that need not be here and prints what it uses, as JSON.

Run as a program, without TRITON_INTERPRET: an interpreted kernel cannot be compiled.
"""

import json
import sys

from triton_resources import TARGETS, compile_kernel, measure

from kvcourse.kernels.paged_decode.triton import attend_split, choose_blocks

SHAPES = [  # group, head_dim, v_head_dim, type, multiples of 16 in addresses and strides, and a soft cap
    (3, 64, 64, "fp32", True, False),
    (1, 128, 128, "bf16", True, False),
    (28, 128, 128, "fp16", True, False),
    (71, 64, 64, "bf16", True, False),
    (2, 256, 256, "bf16", True, True),
    (32, 128, 128, "fp32", True, True),
    (7, 80, 80, "bf16", False, True),
]


def compile_attend(target, group, head_dim, v_head_dim, dtype, aligned, capped):
    blocks, options = choose_blocks(group, head_dim, v_head_dim, 4 if dtype == "fp32" else 2, aligned)
    constants = {"GROUP": group, "HEAD_DIM": head_dim, "V_HEAD_DIM": v_head_dim, **blocks}
    constants |= {"CAPPED": capped, "PRECISION": "ieee"}
    # What the just-in-time compiler makes of a contiguous last dimension.
    constants |= dict.fromkeys(("q_dim", "k_dim", "v_dim", "table_column"), 1)
    signature = {f"{name}_ptr": f"*{dtype}" for name in "qkv"}
    signature |= {
        "table_ptr": "*i32",
        "lengths_ptr": "*i64",
        "out_ptr": "*fp32",
        "lse_ptr": "*fp32",
        "scale": "fp32",
        "soft_cap": "fp32",
    }
    names = [*(name for name in signature if name.endswith("_ptr")), "chunk", "q_row", "q_head"]
    names += [f"{tensor}_{axis}" for tensor in "kv" for axis in ("block", "head", "slot")]
    return compile_kernel(attend_split, signature, constants, target, options, names if aligned else ())


def main():
    found = []
    for target in TARGETS:
        for shape in SHAPES if target != "gfx942" else SHAPES[:3]:
            compiled = compile_attend(target, *shape)
            threads = 32 * compiled.metadata.num_warps
            found.append({"shape": shape, "target": target, "threads": threads, **measure(compiled)})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
