"""kvcourse: every KV-cache optimisation, built, measured and combined."""

__version__ = "0.1.0"
