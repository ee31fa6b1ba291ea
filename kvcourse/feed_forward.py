"""The gated feed-forward network of a decoder layer."""

from torch import Tensor, nn
from torch.nn.functional import silu


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, hidden_size). Returns the same shape."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
