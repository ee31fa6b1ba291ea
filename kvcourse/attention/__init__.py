"""What one token stores: the attention axis."""
