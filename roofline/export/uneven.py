"""Stages that are not equal, as Megatron-Core is told of them: ``Et*4|t*4|t*3|t*3mL``.

    E embedding   t layer   m module that predicts a further token   L loss   | next virtual stage

Layers that do not divide are spread as ``roofline.stages`` does: the longer pieces first, and where
the ends count as layers the outer pieces have one less.

Names: ``pipeline_model_parallel_layout`` of Megatron-Core's TransformerConfig.
"""

from __future__ import annotations

import re

from roofline.export.fields import Fields, pieces
from roofline.export.rows import Options

OPTION = "pipeline_model_parallel_layout"
BY_HAND = (OPTION, "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
MOST = 10_000  # letters of a layout


def expanded(text: str) -> str:
    """A layout with every repetition written out.

    >>> expanded("Et*2|(tt|)*2,mL")
    'Ett|tt|tt|mL'
    """
    plain = re.sub(r"[\s,\"']", "", text)
    plain = re.sub(r"\(([^()]*)\)\*(\d{1,4})", _again, plain)
    return re.sub(r"([EtmL|])\*(\d{1,4})", _again, plain[:MOST])[:MOST]


def _again(found: re.Match[str]) -> str:
    return found[1] * min(int(found[2]), MOST)


def uneven(fields: Fields) -> bool:
    """True where Megatron-Core has to be told which stage holds which layers."""
    stages, even = fields.get("layout.pp", 1), fields.get("layout.even", 0)
    if stages == 1 or "model.layers" not in fields:
        return False
    slots = fields["model.layers"] + (2 if even else 0)
    return bool(even == 2 or slots % (stages * fields.get("layout.chunks", 1)))


def write(fields: Fields) -> Fields:
    """Options of stages that are not equal."""
    if uneven(fields):
        cut = pieces(fields, fields.get("layout.even", 0))
        return {OPTION: cut} if cut else {}
    both = fields.get("layout.even") == 1 and fields.get("layout.pp", 1) > 1
    return dict.fromkeys(ENDS, True) if both else {}


def chunks(options: Options, fields: Fields) -> int | None:
    """Virtual stages per rank that a layout means; None where there is none."""
    if (text := options.left.get(OPTION)) is None:
        return None
    count = expanded(str(text)).count("|") + 1
    some, rest = divmod(count, int(fields["layout.pp"]))
    if rest:
        limit = f"stages in multiples of {fields['layout.pp']}; it has {count}"
        options.refuse(OPTION, text, limit)
    return some


def read(options: Options, fields: Fields) -> Fields:
    """How stages are cut: as layers divide, with a slot for each end, or by hand."""
    ends = [options.flag(name) for name in ENDS]
    stated = {n: v for n in BY_HAND if (v := options.take(n)) is not None}
    if not stated:
        if any(ends) and not all(ends):
            options.assumed.append("embedding and loss both take a layer's slot; one in the file")
        return {"layout.even": int(any(ends))}
    cut = expanded(str(stated.get(OPTION, "")))
    ends_counted = 2 if fields.get("model.mtp") else 1  # as the planner cuts
    for even in (ends_counted, 0) if "model.layers" in fields else ():
        if cut and cut == expanded(pieces(fields, even)):
            return {"layout.even": even}
    for name, value in stated.items():
        options.assumed.append(f"{options.label(name)} {value}: cut by hand, to equal stages")
    return {"layout.even": 2}
