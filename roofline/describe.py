"""A layout in words: what a person would say, and nothing that is off."""

from __future__ import annotations

from roofline.layout import ORDER, RECOMPUTE, SCHEDULE, Layout

SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "zb-h1": "ZB-H1", "zb-h2": "ZB-H2", "zb-v": "ZB-V",
    "dualpipe": "DualPipe", "zb-2p": "ZB-2p",
}  # fmt: skip
AGAIN = {
    "none": "no recomputation",
    "attention": "attention recomputed",
    "half": "every second matmul recomputed",
    "block": "blocks recomputed",
    "full": "all recomputed",
}
PARTS = {
    "attention": "attention",
    "norms": "norms",
    "activation": "activations",
    "mla-up": "MLA up-projections",
    "mlp": "MLPs",
    "experts": "experts",
}


def word(rows: dict[str, int], value: object) -> str:
    """The name of a row by its number."""
    return next(name for name, number in rows.items() if number == value)


def degrees(layout: Layout) -> str:
    """The axes: ``TP 4 · PP 8 · DP 16``."""
    axes = {"TP": layout.tp, "CP": layout.cp, "EP": layout.ep, "ETP": layout.etp, "PP": layout.pp}
    shown = [f"{name} {value:g}" for name, value in axes.items() if value > 1]
    return " · ".join([*shown, f"DP {layout.dp:g}"])


def recomputed(layout: Layout) -> str:
    """What is recomputed: ``norms and MLA up-projections recomputed``."""
    kind = word(RECOMPUTE, layout.recompute)
    if kind != "modules":
        return AGAIN[kind]
    *most, last = [said for name, said in PARTS.items() if layout.repeats(name)] or ["nothing"]
    return f"{', '.join(most)} and {last} recomputed" if most else f"{last} recomputed"


def describe(layout: Layout) -> str:
    """One layout in a line."""
    parts = [degrees(layout)]
    if layout.pp > 1:
        chunks = f", {layout.chunks:g} chunks a stage" if layout.chunks > 1 else ""
        parts.append(SCHEDULES[word(SCHEDULE, layout.schedule)] + chunks)
        if layout.order == ORDER["tp-cp-pp-dp"]:
            parts.append("replicas outermost")
    if layout.data_ranks > 1:
        parts.append(_zero(layout))
    parts.append(f"micro-batch {layout.micro_batch:g}")
    again = recomputed(layout)
    some = layout.recompute and layout.recompute_share < 1
    parts.append(f"{again} in {layout.recompute_share:.0%} of the layers" if some else again)
    if layout.offload_share > 0:
        parts.append(f"{layout.offload_share:.0%} of the activations on the host")
    if layout.lora_rank > 0:
        parts.append(f"LoRA of rank {layout.lora_rank:g}")
    return ", ".join(parts)


def _zero(layout: Layout) -> str:
    if layout.zero == 0:
        return "plain data parallelism"
    if layout.zero == 3:
        return f"HSDP over {layout.shard:g}" if layout.shard > 0 else "FSDP (ZeRO-3)"
    return f"ZeRO-{layout.zero:g}"
