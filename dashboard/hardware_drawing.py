"""The hierarchy drawn: each tier as its switches, links and children, the first child opened below.

Plain HTML rather than a chart: it takes the theme's own text colour, and folds into one column on a
phone. Everything that a profile says is escaped, for it may be a stranger's file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from dashboard import theme
from hardware_profiles import Accelerator, Cluster, NetworkTier
from hardware_profiles.derived import TierCapacity, capacities
from hardware_profiles.writing import written
from roofline.units import show

CORES = {"NVIDIA": "SMs", "AMD": "compute units"}
MOST_BOXES, MOST_SWITCHES, LAST = 40, 18, 3
STYLE = """
.hw { container-type: inline-size; line-height: 1.35 }
.hw section { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 6fr);
  column-gap: 26px; --line: rgba(128,140,155,.5) }
.hw .pic { display: flex; flex-direction: column; max-width: 680px }
.hw .cap { font-weight: 600; font-size: .84rem; padding: 3px 0 4px; text-align: center;
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
.hw .sw { display: flex; gap: 3px; height: 17px }
.hw i { position: relative; --fill: var(--c) }
.hw i::before, .hw .mem::before { content: ""; position: absolute; inset: 0; border-radius: 2px;
  background: var(--fill, var(--c)); opacity: var(--o, .2) }
.hw .sw > i { flex: 1; border: 1.5px solid var(--c); border-radius: 4px }
.hw .sw > i.unknown { border-style: dashed }
.hw .kids { display: flex; justify-content: space-around }
.hw .kid { flex: 1 1 0; min-width: 0; display: flex; flex-direction: column; align-items: center }
.hw .kid > b { height: 44px; max-width: 60%; background: var(--c); opacity: .8 }
.hw .kid > i { width: calc(100% - 2px); max-width: 46px; height: 26px; border-radius: 4px;
  border: 1.5px solid var(--in); --fill: var(--in) }
.hw .kid:first-child > i { --o: .9 }
.hw .more { align-self: flex-end; font-weight: 600; font-size: .84rem; padding: 0 4px 4px;
  white-space: nowrap }
.hw .fan { flex: 1; min-height: 18px; background: var(--in); opacity: .2;
  --half: min(23px, var(--m));
  clip-path: polygon(calc(var(--m) - var(--half)) 0, calc(var(--m) + var(--half)) 0,
    100% 100%, 0 100%) }
.hw .mem { position: relative; border: 1.5px solid var(--c); border-radius: 4px;
  padding: 4px 9px 7px; margin-top: 5px; font-size: .86rem; --o: .09 }
.hw .pic > .mem { margin-top: 0 }
.hw h4 { margin: 0; padding: 2px 0 0; font-size: 1.02rem }
.hw h4 i { display: inline-block; width: .75em; height: .75em; margin-right: .5em; --o: 1 }
.hw small, .hw .quiet { opacity: .75; font-weight: 400; font-size: .86rem }
.hw p { margin: 2px 0; font-size: 1.02rem }
.hw ul { margin: 4px 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: 4px 6px;
  font-size: .84rem }
.hw li { margin: 0; padding: 1px 8px; border: 1px solid var(--line); border-radius: 9px }
.hw li.alarm { border: 1.5px solid #d64541; font-weight: 600 }
.hw section > div:last-child { padding-bottom: 14px }
@container (max-width: 620px) {
  .hw section { grid-template-columns: minmax(0, 1fr) }
  .hw .fan { display: none }
  .hw .pic { margin-bottom: 6px }
}
"""


def hierarchy(cluster: Cluster) -> str:
    """The cluster from its outermost tier down to one accelerator, as HTML."""
    rows = list(enumerate(zip(cluster.tiers, capacities(cluster), strict=True)))
    tiers = "".join(_tier(cluster, i, tier, row) for i, (tier, row) in reversed(rows))
    return f'<style>{STYLE}</style><div class="hw">{tiers}{_chip(cluster)}</div>'


def color(index: int) -> str:
    """The colour of tier ``index`` on this page; -1 is the accelerator."""
    return theme.SEQUENCE[(index + 1) % len(theme.SEQUENCE)]


def child_name(cluster: Cluster, index: int) -> str:
    """What a unit of tier ``index`` joins: the tier inside it, or accelerators."""
    if index > 0:
        return cluster.tiers[index - 1].name
    return "chip" if "tpu" in cluster.accelerator.name else "GPU"


def _tier(cluster: Cluster, index: int, tier: NetworkTier, row: TierCapacity) -> str:
    child, gpu = escape(child_name(cluster, index)), child_name(cluster, 0)
    label = f"{tier.name}: {tier.degree} × {child}, {show(tier.effective_bandwidth, 'B/s')} each"
    many = f"{row.units:,} in the cluster, " if row.units > 1 else ""
    share = f' <span class="quiet">= {_exact(row.per_gpu)} a {gpu}</span>' if index else ""
    middle = 50 / min(tier.degree, MOST_BOXES)  # of the first child, which the fan opens
    reason = f'<div class="quiet">{escape(tier.reason)}</div>' if tier.reason else ""
    return (
        f'<section style="--c:{color(index)};--in:{color(index - 1)}">'
        f'<div class="pic" role="img" aria-label="{escape(label)}" style="--m:{middle:.2f}%">'
        f'{_switches(tier)}{_children(tier)}<div class="fan"></div></div>'
        f"<div><h4><i></i>{escape(tier.name)} "
        f"<small>{many}{_count(row.gpus, gpu)}{' each' if row.units > 1 else ''}</small></h4>"
        f"<p>{_exact(tier.effective_bandwidth)} for each {child}, one way{share}</p>"
        f"<ul>{''.join(_stated(tier, row, child))}</ul>"
        f'<div class="quiet">{" · ".join(_derived(tier, row))}</div>{reason}</div></section>'
    )


def _stated(tier: NetworkTier, row: TierCapacity, child: str) -> Iterator[str]:
    """What the profile says of a tier beyond its bandwidth, a few words each."""
    if tier.oversubscription > 1:
        yield f'<li class="alarm">oversubscribed {tier.oversubscription:g}:1</li>'
    yield f"<li>{tier.degree:,} × {child}</li>"
    if tier.technology:
        yield f"<li>{escape(tier.technology)}</li>"
    if tier.switches:
        ports = f" of {tier.switch_ports} ports" if tier.switch_ports else ""
        yield f"<li>{tier.switches} {'switches' if tier.switches > 1 else 'switch'}{ports}</li>"
    if row.cables and tier.link_bandwidth:
        yield f"<li>{row.cables:,} links of {show(tier.link_bandwidth, 'B/s')} in all</li>"
    if tier.latency:
        yield f"<li>{show(tier.latency, 's')} a step</li>"
    if tier.oversubscription == 1:
        yield "<li>not oversubscribed</li>"
    if tier.in_network_reduction:
        yield "<li>switches add (SHARP)</li>"
    if not tier.transit:
        yield "<li>traffic outwards bypasses it</li>"


def _derived(tier: NetworkTier, row: TierCapacity) -> Iterator[str]:
    """What follows for one unit of a tier."""
    if math.isfinite(row.collective):
        yield f"collective {_exact(row.collective)}"
    yield f"bisection {_exact(row.bisection)}"
    if row.egress:
        yield f"{_exact(row.egress)} out of it"
    if tier.oversubscription > 1:
        yield f"links carry {_exact(tier.bandwidth)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _exact(value: float, unit: str = "B/s") -> str:
    """Three figures to read, the whole number on hover."""
    return f'<b title="{value:,.15g} {unit}">{show(value, unit)}</b>'


def _switches(tier: NetworkTier) -> str:
    """A box per switch; one dashed box where nobody says how many there are, or none are needed."""
    count = tier.switches or 0
    boxes = "<i></i>" * (count if count <= MOST_SWITCHES else 1) or '<i class="unknown"></i>'
    name = f"{count} switches" if count > 1 else "1 switch" if count else ""
    text = " · ".join(filter(None, (name, tier.technology))) or tier.name
    return f'<div class="cap">{escape(text)}</div><div class="sw">{boxes}</div>'


def _children(tier: NetworkTier) -> str:
    """The children in a row under their switches, each on its link; too many are abridged."""
    kid = f'<div class="kid"><b style="width:{_thickness(tier):.1f}px"></b><i></i></div>'
    if tier.degree <= MOST_BOXES:
        return f'<div class="kids">{kid * tier.degree}</div>'
    more = f'<span class="more">… {tier.degree - MOST_BOXES:,} more …</span>'
    return f'<div class="kids">{kid * (MOST_BOXES - LAST)}{more}{kid * LAST}</div>'


def _thickness(tier: NetworkTier) -> float:
    """Pixels of a link: one more for each doubling of a child's bandwidth, from 1 at 1 GB/s."""
    return max(1.0, min(16.0, math.log2(tier.effective_bandwidth / 1e9)))


def _chip(cluster: Cluster) -> str:
    """The accelerator at the bottom: its memories nested, its rates beside them."""
    chip, host = cluster.accelerator, cluster.host_link
    facts = [f"{show(rate, 'FLOP/s')} {dtype}" for dtype, rate in chip.peak_flops.items()]
    facts += [show(chip.power, "W")] if chip.power else []
    facts += [f"{show(host.total, 'B/s')} to the host ({host.name})"] if host else []
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<section style="--c:{color(-1)}"><div class="pic" role="img" '
        f'aria-label="{escape(chip.title)}: HBM around L2 around the SMs">{_memories(chip)}</div>'
        f"<div><h4><i></i>{escape(chip.title)} <small>{escape(chip.architecture)}</small></h4>"
        f"<p>{_exact(chip.hbm_bandwidth)} from {_exact(chip.hbm_bytes, 'B')} of HBM</p>"
        f"<ul>{items}</ul></div></section>"
    )


def _memories(chip: Accelerator) -> str:
    def nest(name: str, facts: list[str], inside: str = "") -> str:
        text = " · ".join(facts) or "not in the profile"
        return f'<div class="mem"><b>{name}</b> {text}{inside}</div>'

    def said(value: float | None, unit: str, of: str = "") -> list[str]:
        return [written(value, unit) + of] if value else []  # exact: caches are sized in KiB

    sms = said(chip.shared_memory_per_sm, "B", " L1")
    sms += said(chip.registers_per_sm, "B", " registers")
    core = nest(
        f"{chip.sms or ''} {CORES.get(chip.vendor, 'cores')}", [f"{fact} each" for fact in sms]
    )
    l2 = nest("L2", said(chip.l2_bytes, "B") + said(chip.l2_bandwidth, "B/s"), core)
    return nest("HBM", [show(chip.hbm_bytes, "B"), show(chip.hbm_bandwidth, "B/s")], l2)
