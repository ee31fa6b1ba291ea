"""Explorers: control panels that compute in the browser, live in JupyterLab and in the book's static pages.

The numbers come from arithmetic.mjs, which the tests compare with `kvcourse.memory` and `kvcourse.flops`. A terminal,
a page without JavaScript and nbval get a text instead.
"""

import re
import uuid
from collections import Counter
from functools import cache
from importlib.resources import files
from typing import ClassVar

import anywidget
import traitlets
from ipywidgets import Layout

from kvcourse import flops, memory
from kvcourse.attention.families import layout_of
from kvcourse.attention.known_models import KNOWN
from kvcourse.codecs.formats import get_format
from kvcourse.errors import InputError
from kvcourse.figures.alt_text import WIDGET_VIEW

MODELS = (
    "smollm2-135m", "llama-2-7b", "falcon-7b", "llama-3-8b", "llama-3-70b", "qwen3-32b", "mistral-7b-v0.1",
    "gemma-3-27b", "gpt-oss-120b", "qwen3.5-0.8b", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-pro",
)  # fmt: skip
CODECS = ("bf16", "fp8", "int8", "int4", "int2")
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


@cache
def bundle(name: str) -> str:
    """One ES module from `name` and the modules that it imports: a saved widget carries its code as one text."""
    imported = []

    def read(module):
        source = files("kvcourse.figures").joinpath(module).read_text("utf-8")
        for other in re.findall(r'^import .* from "\./(.+)";$', source, re.M):
            if other not in imported:
                imported.append(other)
                read(other)
        return re.sub(r"^import .*\n", "", source, flags=re.M)

    last = read(name)
    parts = [re.sub(r"^export (?!default)", "", read(module), flags=re.M) for module in imported]
    return "\n".join([*parts, last])


class Explorer(anywidget.AnyWidget):
    """Base of the explorers: the same style, a text for those without JavaScript, ids that do not change.

    data: what the panel needs to compute. start: the first values of its controls.
    """

    _esm = "export default { render() {} };"
    _css = files("kvcourse.figures").joinpath("panel.css").read_text("utf-8")
    _numbers: ClassVar = Counter()

    data = traitlets.Dict().tag(sync=True)
    start = traitlets.Dict().tag(sync=True)

    def __init__(self, text: str, **traits):
        # Ids drawn at random would change a notebook each time it is executed.
        name = type(self).__name__
        self._numbers[name] += 1
        number = self._numbers[name]
        layout = Layout(model_id=_stable_id(f"{name} {number} layout"))
        super().__init__(model_id=_stable_id(f"{name} {number}"), layout=layout, **traits)
        self.text = text

    def _repr_mimebundle_(self, **kwargs):
        shown, metadata = super()._repr_mimebundle_(**kwargs)
        return {**shown, "text/plain": self.text}, {**metadata, WIDGET_VIEW: {"fallback": self.text}}


def _stable_id(name: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"kvcourse {name}").hex


class MemoryExplorer(Explorer):
    """Model, context, requests and codec → bytes of the cache and what is left of a card next to the weights.

    models: names that `kvcourse.memory` takes, by default MODELS. context: tokens a request. batch: requests.
    codec: one of CODECS. card_bytes: memory of the card.
    Errors: InputError for a codec or a model that is not known.
    """

    _esm = bundle("memory_explorer.mjs")

    def __init__(
        self, models=None, context=32_768, batch=1, codec="bf16", card_bytes=80_000_000_000, model=None
    ):
        models = list(MODELS if models is None else models)
        first = models[0] if model is None else model
        for kind, name, known in (("codec", codec, CODECS), ("model", first, models)):
            if name not in known:
                raise InputError(
                    f"{kind} {name!r} is not in this explorer; expected one of {', '.join(known)}"
                )
        size = memory.bytes_at(first, context, batch, codec=codec)
        text = (
            "Memory explorer (interactive where JavaScript runs). "
            f"{KNOWN[first].title if first in KNOWN else first}, {context:,} tokens, {batch} at once, {codec}: "
            f"{size:,} bytes, {size / card_bytes:.1%} of {card_bytes / 1e9:.0f} GB."
        )
        super().__init__(
            text,
            data={
                "models": [model_data(name) for name in models],
                "codecs": [codec_data(name) for name in CODECS],
                "card_bytes": card_bytes,
            },
            start={
                "model": models.index(first), "codec": CODECS.index(codec), "context": context, "batch": batch,
            },
        )  # fmt: skip


def model_data(name: str) -> dict:
    """What arithmetic.mjs needs to know of a model: its fields, each with the number of layers that have it."""
    layout = layout_of(name)
    fields = Counter(field for layer in layout for field in layer.fields)
    try:
        weight_bytes = memory.weight_size(name)
    except InputError:  # mixtures of experts and other families that are not counted
        weight_bytes = None
    return {
        "title": KNOWN[name].title if name in KNOWN else name,
        "weight_bytes": weight_bytes,
        "state_bytes": sum(layer.state_bytes for layer in layout),
        "fields": [
            {
                "layers": layers,
                "rows": field.values // field.shape[-1],
                "width": field.shape[-1],
                "window": field.window,
                "stride": field.stride,
                "is_key": field.name == "k",
            }
            for field, layers in fields.items()
        ],
    }


def codec_data(name: str) -> dict:
    """What arithmetic.mjs needs to know of a codec, and its label."""
    form = get_format(name)
    bits = form.bits_per_value()
    return {
        "name": name,
        "label": name if form.metadata_bytes == 0 else f"{name} ({bits:g} bits with metadata)",
        "bits": form.bits,
        "group_size": form.group_size,
        "metadata_bytes": form.metadata_bytes,
        "group_tokens": form.group_tokens,
        "residual_length": form.residual_length,
    }


class StepExplorer(Explorer):
    """Generation one forward pass at a time: attention scores and the ledger of work, with and without a cache.

    prompt, answer: short strings, one a token. config: whose FLOPs are counted (anything that `kvcourse.flops`
    takes), by default SmolLM2-135M.
    Errors: InputError when prompt or answer is empty, and for a model with sliding layers.
    """

    _esm = bundle("step_explorer.mjs")

    def __init__(
        self,
        prompt=("The", "capital", "of", "France"),
        answer=("is", "Paris", ",", "a", "city"),
        config="smollm2-135m",
    ):
        without, cached = (
            flops.generation(config, len(answer), len(prompt), cached=flag).total for flag in (False, True)
        )
        text = (
            f"Step explorer (interactive where JavaScript runs). {len(answer)} tokens after a prompt of "
            f"{len(prompt)}: {without:,} FLOPs without a cache, {cached:,} with one, a factor of "
            f"{without / cached:.1f}."
        )
        lengths = [length for length in LENGTHS if length > len(prompt) + len(answer)]
        data = {"prompt": list(prompt), "answer": list(answer), "cost": cost_data(config), "lengths": lengths}
        super().__init__(text, data=data)


def cost_data(config) -> dict[str, int]:
    """What arithmetic.mjs needs to know of a model's work: FLOPs per token, per attention score and per pass."""
    if any(field.window for layer in layout_of(config) for field in layer.fields):
        raise InputError("this model has sliding layers, which the explorer does not draw; give one without")
    one = flops.forward(config, tokens=1)
    return {"per_token": one.linear, "per_cell": one.attention, "per_step": one.head}
