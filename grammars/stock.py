"""Schemas that come with the package."""

import json
from importlib import resources
from typing import Any


def stock_schema_names() -> list[str]:
    """The names of the stock schemas, sorted."""
    folder = resources.files(__package__) / "stock"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def stock_schema(name: str) -> dict[str, Any]:
    """A stock schema by name. Raises KeyError, naming the ones there are, if there is none."""
    if name not in stock_schema_names():
        raise KeyError(f"No stock schema {name!r}; there are {', '.join(stock_schema_names())}.")
    text = (resources.files(__package__) / "stock" / f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
