"""JSON Schema of the two kinds of profile, for editors, forms and other programs."""

from __future__ import annotations

from typing import Any

from hardware_profiles.schema import Accelerator, Cluster


def schema_json() -> dict[str, Any]:
    """JSON Schema (2020-12) of both kinds; the property of a quantity names its ``unit``.

    >>> schema_json()["accelerator"]["properties"]["hbm_bandwidth"]["unit"]
    'B/s'
    """
    accelerator = Accelerator.model_json_schema()
    cluster = Cluster.model_json_schema()
    named = {
        "type": "string",
        "description": "name of an accelerator in the catalogue, or its file",
    }
    whole = cluster["properties"]["accelerator"]
    cluster["properties"]["accelerator"] = {"anyOf": [named, whole]}
    for schema, kind in ((accelerator, "accelerator"), (cluster, "cluster")):
        schema["properties"] = {"kind": {"const": kind}} | schema["properties"]
        for part in (schema, *schema.get("$defs", {}).values()):
            for field in part.get("properties", {}).values():
                _raise_unit(field)
    return {"accelerator": accelerator, "cluster": cluster}


def _raise_unit(field: dict[str, Any]) -> None:
    """An optional quantity, or a table of them, says its unit on the property itself."""
    inner = [*field.get("anyOf", ()), field.get("additionalProperties")]
    unit = next((part["unit"] for part in inner if isinstance(part, dict) and "unit" in part), None)
    if unit is not None:
        field.setdefault("unit", unit)
