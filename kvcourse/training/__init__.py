"""A small trainer for our decoders: AdamW on windows of a text, seeded, and resumable to the bit.

Made for models that a CPU trains in minutes: everything is in the model's own dtype, float32 or float64. One step
reads `batch` windows of `context` tokens and predicts the token after each. Losses are in nats per token; for a
model whose tokens are bytes that is nats per byte.
"""

from kvcourse.training.balance import balance
from kvcourse.training.recipe import History, Recipe
from kvcourse.training.trainer import held_out_loss, train
from kvcourse.training.weights import initialise

__all__ = ["History", "Recipe", "balance", "held_out_loss", "initialise", "train"]
