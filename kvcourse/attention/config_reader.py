"""Reading the fields of a model's config, wherever it comes from and however it spells them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

from kvcourse.attention import known_models
from kvcourse.config import MOST_LAYERS
from kvcourse.errors import InputError
from kvcourse.hf_config import read_config
from kvcourse.paths import user_path


def config_dict(config: Any) -> dict[str, Any]:
    """The fields of a config as a dict, from anything that `layout_of` takes except a ModelConfig.

    Errors: InputError when a name is neither built in, nor a path, nor a reachable hub name.
    """
    if isinstance(config, str) and not os.path.exists(user_path(config)):
        model = known_models.KNOWN.get(config.lower())
        if model is not None:
            return dict(model.config)
        if config.count("/") == 1 and not config.endswith(".json") and config[0] not in "./~":
            return _from_hub(config)
        if "/" not in config and "\\" not in config and not config.endswith(".json"):
            raise InputError(known_models.unknown_name(config))
    return read_config(config)


def _from_hub(name: str) -> dict[str, Any]:
    """config.json of a hub repository: from the local cache, or with one request.

    The hub's own download function retries for half a minute before it says that there is no network.
    """
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        cached = huggingface_hub.try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            return read_config(cached)
        if HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        request = Request(huggingface_hub.hf_hub_url(name, "config.json"))
        for header, value in huggingface_hub.utils.build_hf_headers().items():
            request.add_unredirected_header(header, value)  # a token must not follow to another host
        with urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError) as error:
        raise InputError(
            f"could not fetch config.json of {name!r} from the hub ({error}): check the name and the network, "
            "or give a path to a config.json, a dict, or a built-in name (kvcourse memory --list)"
        ) from None


@dataclass(frozen=True)
class ConfigReader:
    """A config being read: asks for numbers by any of their names, and says which one is missing."""

    values: Mapping[str, Any]
    model_type: str
    needs: tuple[str, ...]

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that the config has, as a count of at least `least`."""
        for name in names:
            if name in self.values:
                value = self.values[name]
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise InputError(
                        f"{self.model_type}: {name}={value!r}, expected a whole number of at least {least}"
                    )
                return value
        if default is None:
            raise InputError(
                f"the {self.model_type} config lacks {names[0]}: it needs {', '.join(self.needs)}"
            )
        return default

    @property
    def num_layers(self) -> int:
        layers = self.number("num_hidden_layers", "n_layer")
        if layers > MOST_LAYERS:
            raise InputError(f"{self.model_type}: {layers} layers, expected at most {MOST_LAYERS}")
        return layers

    @property
    def num_heads(self) -> int:
        return self.number("num_attention_heads", "n_head")

    @property
    def head_dim(self) -> int:
        """`head_dim` where the config says it, else hidden_size / heads: the two may differ."""
        if "head_dim" in self.values:
            return self.number("head_dim")
        hidden = self.number("hidden_size", "n_embd", "n_embed")
        if hidden % self.num_heads:
            raise InputError(
                f"{self.model_type}: hidden_size={hidden} is no multiple of {self.num_heads} heads: "
                "give head_dim"
            )
        return hidden // self.num_heads

    def per_layer(self, name: str) -> list[Any] | None:
        """One entry a layer of the list `name`; None without it. Extra ones (multi-token prediction) are dropped."""
        entries = self.values.get(name)
        if entries is None:
            return None
        if not isinstance(entries, (list, tuple)) or len(entries) < self.num_layers:
            has = f"has {len(entries)} entries" if isinstance(entries, (list, tuple)) else f"is {entries!r}"
            raise InputError(
                f"{self.model_type}: {name} {has} for {self.num_layers} layers: give a list with one each"
            )
        if any(isinstance(entry, (list, dict)) for entry in entries):
            raise InputError(f"{self.model_type}: {name} holds lists: give one name or number a layer")
        return list(entries)[: self.num_layers]

    def layer_types(self) -> list[str] | None:
        """The config's own list of layer types."""
        return self.per_layer("layer_types")
