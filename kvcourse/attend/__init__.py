"""Attention over what a cache holds: one module for what a token stores."""
