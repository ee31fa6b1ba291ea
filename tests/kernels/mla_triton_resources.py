"""Compiles the Triton kernel of latent decode for GPUs that need not be here and prints what it uses, a JSON list.

Run as a program, without TRITON_INTERPRET: an interpreted kernel cannot be compiled.
"""

import json
import sys

from triton_resources import TARGETS, compile_kernel, measure

from kvcourse.kernels.mla_decode.triton import attend_split, choose_blocks

SHAPES = [  # num_heads, kv_lora_rank, qk_rope_head_dim, type, and whether addresses and strides are multiples of 16
    (16, 512, 64, "bf16", True),
    (128, 512, 64, "bf16", True),
    (128, 512, 64, "fp16", True),
    (9, 96, 32, "bf16", True),
    (9, 96, 32, "bf16", False),
    (4, 64, 16, "fp32", True),
]


def compile_attend(target, num_heads, rank, rope_dim, dtype, aligned):
    blocks, options = choose_blocks(num_heads, rank, rope_dim, 4 if dtype == "fp32" else 2)
    constants = {"RANK": rank, "ROPE_DIM": rope_dim, **blocks, "PRECISION": "ieee"}
    tensors = ("q_latent", "q_rope", "latent", "rope")
    # What the just-in-time compiler makes of a contiguous last dimension.
    constants |= dict.fromkeys(("q_latent_dim", "q_rope_dim", "latent_dim", "rope_dim", "table_column"), 1)
    signature = {f"{name}_ptr": f"*{dtype}" for name in tensors}
    signature |= {
        "table_ptr": "*i32",
        "lengths_ptr": "*i64",
        "out_ptr": "*fp32",
        "lse_ptr": "*fp32",
        "scale": "fp32",
    }
    names = [*(name for name in signature if name.endswith("_ptr")), "chunk"]
    names += [f"{tensor}_{axis}" for tensor in tensors[:2] for axis in ("row", "head")]
    names += [f"{tensor}_{axis}" for tensor in tensors[2:] for axis in ("block", "slot")]
    return compile_kernel(attend_split, signature, constants, target, options, names if aligned else ())


def main():
    found = []
    for target in TARGETS:
        for shape in SHAPES if target != "gfx942" else SHAPES[:3]:
            compiled = compile_attend(target, *shape)
            found.append(
                {
                    "shape": shape,
                    "target": target,
                    "threads": 128 if compiled.metadata.num_warps == 4 else 256,
                    **measure(compiled),
                    "shared": compiled.metadata.shared,
                }
            )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
