"""Compiles the Triton kernels for GPUs that need not be here and prints what they use, a JSON list.

Run as a program, without TRITON_INTERPRET: an interpreted kernel cannot be compiled.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvcourse.kernels.contiguous_decode.triton import attend_split, choose_blocks
from kvcourse.kernels.triton import merge_splits

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
SHAPES = [  # group, head_dim, v_head_dim, type, and whether addresses and strides are multiples of 16
    (3, 64, 64, "fp32", True),
    (1, 128, 128, "bf16", True),
    (4, 128, 128, "fp16", True),
    (5, 80, 80, "bf16", True),
    (71, 64, 64, "bf16", True),
    (16, 256, 256, "bf16", True),
    (7, 80, 80, "bf16", False),
]


def compile_kernel(kernel, signature, constants, target, options, aligned=()):
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        signature={name: "constexpr" if name in constants else signature.get(name, "i32") for name in names},
        constexprs=constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)


def compile_attend(target, group, head_dim, v_head_dim, dtype, aligned):
    blocks, options = choose_blocks(group, head_dim, v_head_dim, 4 if dtype == "fp32" else 2, aligned)
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "V_HEAD_DIM": v_head_dim,
        **blocks,
        "RING": True,
        "PRECISION": "ieee",
    }
    constants |= {
        "q_dim": 1,
        "k_dim": 1,
        "v_dim": 1,
    }  # what the just-in-time compiler makes of a contiguous last dimension
    signature = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), f"*{dtype}")
    signature |= {
        "lengths_ptr": "*i64",
        "starts_ptr": "*i64",
        "out_ptr": "*fp32",
        "lse_ptr": "*fp32",
        "scale": "fp32",
    }
    names = [*(name for name in signature if name.endswith("_ptr")), "chunk"]
    names += [f"{tensor}_{axis}" for tensor in "kv" for axis in ("row", "head", "token")]
    return compile_kernel(attend_split, signature, constants, target, options, names if aligned else ())


def compile_merge(target, v_head_dim, dtype):
    constants = {"V_HEAD_DIM": v_head_dim, "BLOCK_V": triton.next_power_of_2(v_head_dim), "BLOCK_S": 64}
    signature = {"parts_ptr": "*fp32", "lses_ptr": "*fp32", "lengths_ptr": "*i64", "out_ptr": f"*{dtype}"}
    signature["lse_ptr"] = "*fp32"
    return compile_kernel(merge_splits, signature, constants, target, {"num_warps": 4})


def measure(compiled):
    """Registers a thread, bytes of shared memory and of spilled registers; for an AMD GPU only the code size."""
    if "hsaco" in compiled.asm:
        return {"bytes": len(compiled.asm["hsaco"])}
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.asm["cubin"])
        text = subprocess.run(
            [tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True
        ).stdout
    counts = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", text)}
    shared = max(counts["SHARED"], compiled.metadata.shared)
    return {"registers": counts["REG"], "shared": shared, "spills": counts["STACK"] + counts["LOCAL"]}


def main():
    found = []
    for target in TARGETS:
        for shape in SHAPES if target != "gfx942" else SHAPES[:3]:
            found.append(
                {
                    "kernel": "attend_split",
                    "shape": shape,
                    "target": target,
                    **measure(compile_attend(target, *shape)),
                }
            )
        found.append(
            {
                "kernel": "merge_splits",
                "shape": (128,),
                "target": target,
                **measure(compile_merge(target, 128, "bf16")),
            }
        )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
