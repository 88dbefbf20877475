"""A layout to begin with: the least model parallelism that fits, tensor parallelism inside the node.

    candidates   tp ≤ node, cp, pp, ep in powers of 2 and divisors of what they split, micro-batch 1
    of those     without recomputation before with it; pipelines that fill; least tp · cp · pp

One call of memory and constraints over all candidates. It is a place to start from, and no
optimum: a planner compares step times.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from roofline.constraints import misfits
from roofline.dims import Dims
from roofline.footprint import peak
from roofline.layout import RECOMPUTE, Layout
from roofline.machine import Machine, node_size
from roofline.model import Transformer
from roofline.recipes import RECIPES, Recipe
from roofline.units import Count

FULL = 0.92  # of a GPU's memory: beyond it allocators retry (``roofline.footprint``)


@dataclass(frozen=True, slots=True)
class First:
    """The layout, and whether it fits the memory."""

    layout: Layout
    fits: bool


def first(
    model: Transformer,
    cluster: Machine,
    gpus: int,
    batch: Count,
    sequence: Count,
    recipe: Recipe = RECIPES["mixed"],
) -> First:
    """A layout of ``gpus`` that works; where none fits the memory, the one that needs least.

    Raises:
        ValueError: where no candidate works, such as for a batch that no replicas divide.
    """
    dims = Dims.of(model)
    table = _candidates(dims, cluster, gpus, batch, sequence)
    bad = np.zeros(np.shape(table.tp), bool)
    for rows in misfits(dims, table).values():
        bad |= rows
    if bad.all():
        raise ValueError(
            f"batch: {batch:g} sequences of {sequence:g} tokens are refused on {gpus:,} GPUs; "
            f"allowed: what replicas can share out, such as {gpus * sequence:.0f} tokens ({gpus:,} "
            "sequences, one a GPU)"
        )
    need = np.asarray(peak(dims, table, recipe).total)
    fits = ~bad & (need <= FULL * cluster.hbm_bytes)
    short = (table.pp > 1) & (table.microbatches < table.pp)  # a bubble as long as the work
    split = table.tp * table.cp * table.pp
    keys = (
        [need] if not fits.any() else [table.ep, table.pp, table.cp, split, short, table.recompute]
    )
    ranked = np.lexsort([np.asarray(key, float) for key in keys])
    usable = fits if fits.any() else ~bad
    row = next(int(i) for i in ranked if usable[i])
    chosen = {each.name: _plain(getattr(table, each.name), row) for each in fields(Layout)}
    return First(Layout(**chosen), bool(fits.any()))


def _plain(column: Count, row: int) -> Count:
    value = float(np.broadcast_to(column, np.shape(column) or (row + 1,))[row])
    return int(value) if value.is_integer() else value


def _candidates(model: Dims, cluster: Machine, gpus: int, batch: Count, sequence: Count) -> Layout:
    node = node_size(cluster.tiers)
    twos = 2.0 ** np.arange(11)
    tp = twos[(twos <= node) & (twos <= gpus)]
    pp = np.unique(np.append(twos, [float(model.layers), model.layers / 2, model.layers / 3]))
    pp = pp[(pp <= model.layers) & (pp == np.round(pp))]
    experts = float(model.experts)
    ep = np.array([each for each in twos if experts % each == 0 and (each <= 64)])
    again = np.array([RECOMPUTE["none"], RECOMPUTE["full"]], float)
    grid = np.meshgrid(tp, twos[:8], pp, ep, again, indexing="ij")
    tps, cps, pps, eps, agains = (axis.ravel() for axis in grid)
    few = (tps * cps * pps <= gpus) & (gpus % (tps * cps * pps) == 0)
    return Layout(
        gpus=gpus, tp=tps[few], cp=cps[few], pp=pps[few], ep=eps[few], batch=batch,
        sequence=sequence, recompute=agains[few], sequence_parallel=np.where(tps[few] > 1, 1.0, 0.0),
    )  # fmt: skip
