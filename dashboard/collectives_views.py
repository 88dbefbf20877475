"""The other views of the collectives page: algorithms, top-k, sharded arrays, what each does."""

from __future__ import annotations

import streamlit as st

from dashboard import collectives_compare as compare
from dashboard import collectives_does as does
from dashboard import collectives_figures as figures
from dashboard import live_chart, parts, state
from dashboard.collectives_controls import (
    SOURCES,
    choice,
    fits,
    form,
    group_controls,
    latency,
    message_size,
    number,
)
from dashboard.plain_table import table_html
from roofline import algorithms, collectives, routing, semantics
from roofline.collectives import COLLECTIVES, Collective
from roofline.groups import Group
from roofline.units import show

UNEVEN = 256  # experts shown where the model has none: DeepSeek-V3's


def side_by_side(scenario: state.Scenario) -> None:
    """Ways to run one collective: on this hierarchy, and in one flat domain with the old ones."""
    op = COLLECTIVES[choice("Collective", compare.RINGS, compare.RINGS[0], "coll_alg_op")]
    group = group_controls(scenario)
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        options = {"form": form(), "latency": latency()}
    if not fits(group, scenario):
        return
    setting = figures.Setting(scenario.cluster.tiers, group, options)
    answer, below = st.container(), st.container()
    with below:
        with st.expander("How each algorithm works, and its source", icon=":material/menu_book:"):
            st.html(table_html(compare.notes(op.name)))
        parts.sources(SOURCES, collectives, algorithms)
    with answer:
        ways_at_size(setting, op, scenario)


@st.fragment
def ways_at_size(setting: figures.Setting, op: Collective, scenario: state.Scenario) -> None:
    """The slider and every algorithm at its size."""
    size = message_size()
    st.subheader(f"On this cluster: {setting.group.size:,.0f} ranks", anchor=False)
    ways = compare.variants(setting, op)
    with st.container(horizontal=True, gap="small"):
        for name, there in ways.items():
            seconds = float(there.at(op, size).seconds)
            st.metric(name, show(seconds, "s"), border=True, width=151)
    alt = f"time of an {op.name} by algorithm against message size"
    live_chart.draw(compare.variants_figure(setting, op, size), "coll-ways", alt)
    if op.name == "all-reduce" and len(ways) == 3:
        st.caption("No tier of this cluster has switches that add.")
    flat(scenario, op.name, size, setting.options["latency"] is True)


def flat(scenario: state.Scenario, operation: str, size: float, latency_on: bool) -> None:
    """Every algorithm among ranks that are one link apart, the historical ones with them."""
    st.subheader("In one flat domain, the historical ones beside today's", anchor=False)
    tiers = scenario.cluster.tiers
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        ranks = number("Ranks n", 4096, int(tiers[0].degree), "coll_flat_ranks")
        names = tuple(tier.name for tier in tiers)
        link = choice("Links of the tier", names, names[0], "coll_flat_tier")
        against = choice("Against", ("message size", "ranks"), "message size", "coll_flat_x")
    tier = tiers[names.index(link)]
    domain = compare.Domain(ranks, tier.effective_bandwidth, tier.latency if latency_on else 0.0)
    st.caption(
        f"{ranks:,} ranks, each behind a link of {show(domain.link, 'B/s')} one way, "
        f"α {show(domain.latency, 's')} a message; {figures.size_label(size)}."
    )
    if refused := domain.refused(operation):
        below = 1 << (ranks.bit_length() - 1)
        needs = f"need a power of two; next to {ranks} are {below} and {2 * below}."
        st.info(f"{', '.join(refused)}: {needs}", icon=":material/info:")
    alt = f"time of {operation} algorithms against {against}"
    live_chart.draw(compare.flat_figure(domain, operation, size, against), "coll-flat", alt)
    st.html(table_html(compare.flat_table(domain, operation, size)))
    parts.downloads(
        "algorithms",
        lambda: (
            {"message size [B]": figures.SIZES}
            | {f"{name} [s]": domain.time(name, figures.SIZES) for name in domain.rows(operation)}
        ),
        "coll-flat",
    )


def routed(scenario: state.Scenario) -> None:
    """An all-to-all in which a token goes to k experts: the bound against the exact expectation."""
    work = scenario.work
    model = int(work.experts) if int(work.experts) > 1 else UNEVEN
    top_k = int(work.experts_per_token) if int(work.experts) > 1 else 8
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        experts = number("Experts E", 4096, model, "coll_experts")
        k = number("Experts per token k", experts, top_k, "coll_k")
        possible = compare.divisors(experts, scenario.gpus)
        usual = max(n for n in possible if n <= 16)
        ranks = st.select_slider(
            "Ranks N", possible, usual, key="coll_ep", width=260,
            help="Ranks over which the experts spread evenly", **state.BIND,
        ) if len(possible) > 1 else 1  # fmt: skip
        state.warn_refused("coll_ep")
        on = latency()
    setting = figures.Setting(scenario.cluster.tiers, Group(ranks), {"latency": on})
    answer, below = st.container(), st.container()
    with below:
        parts.sources(SOURCES, routing)
    with answer:
        routed_at_size(compare.Routed(setting, k, experts))


@st.fragment
def routed_at_size(found: compare.Routed) -> None:
    """The slider and dense against ragged at its size."""
    size = message_size()
    k, experts, ranks = found.k, found.experts, int(found.setting.group.size)
    bound, exact = found.share("bound"), found.share("distinct")
    st.markdown(
        f"A token's **{k} of {experts:,} experts** lie on **{exact:.1%}** of {ranks} ranks: "
        f"the bound min(k/N, 1) says {bound:.1%}, **{bound / exact - 1:.0%} too many**. "
        f"Messages are padded buffers of {figures.size_label(size)} a rank."
    )
    with st.container(horizontal=True, gap="small"):
        st.metric(compare.DENSE.label, show(float(found.dense(size)), "s"), border=True, width=192)
        for name, look in compare.FORMS.items():
            st.metric(look.label, show(float(found.time(name, size)), "s"), border=True, width=192)
    left, right = st.columns(2, gap="medium")
    with left:
        alt = "share of the ranks that a token reaches against ranks, bound and exact"
        live_chart.draw(compare.reached_figure(k, experts, ranks), "coll-reached", alt)
    with right:
        alt = "time of dense and top-k all-to-all against message size"
        live_chart.draw(compare.routed_figure(found, size), "coll-routed", alt)
    parts.downloads(
        "top-k-all-to-all",
        lambda: (
            {"message size [B]": figures.SIZES, "dense [s]": found.dense(figures.SIZES)}
            | {f"{name} [s]": found.time(name, figures.SIZES) for name in compare.FORMS}
        ),
        "coll-routed",
    )


def sharded(scenario: state.Scenario) -> None:
    """A collective over X of an array that is also sharded Y ways on another axis."""
    if scenario.gpus == 1:
        st.info("One GPU has nobody to share an array with.", icon=":material/info:")
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        op = COLLECTIVES[choice("Collective", compare.RINGS, compare.RINGS[0], "coll_alg_op")]
        where = choice(
            "Other axis Y", ("inner", "outer"), "inner", "coll_y",
            "inner: ranks of Y are neighbours, those of X are Y apart; outer: the reverse",
        )  # fmt: skip
        options = {"form": form(), "latency": latency()}
    powers = [2**n for n in range(scenario.gpus.bit_length())]
    node = int(scenario.cluster.tiers[0].degree)
    columns = st.columns(3, gap="medium")
    with columns[0]:
        ranks = power("Ranks X of the collective", powers[1:] or powers, 16, "coll_x")
    with columns[1]:
        room = [n for n in powers if n * ranks <= scenario.gpus]
        shards = power("Shards Y of the array", room, node, "coll_shards")
    with columns[2]:
        size = message_size()
    found = compare.Sharded(scenario.cluster.tiers, op, size, where == "inner", options)
    now, whole = float(found.time(ranks, shards)), float(found.time(ranks, 1))
    st.markdown(
        f"**{op.name} over {ranks:,} ranks** of an array of {figures.size_label(size)} that is "
        f"sharded **{shards:,} ways** on an {where} axis: **{show(now, 's')}**; "
        f"{show(whole, 's')} if it were not sharded."
    )
    left, right = st.columns(2, gap="medium")
    with left:
        alt = "time against the degree of the other axis, exact and by the rule for paper"
        live_chart.draw(compare.sharded_figure(found, ranks, shards), "coll-sharded", alt)
    with right:
        alt = "time for every pair of ranks X and shards Y"
        live_chart.draw(compare.sharded_heat(found, ranks, shards), "coll-heat", alt)
    st.caption(
        "The message is the array over all its shards. The rule for paper keeps charging the node "
        "for axes that are no longer in it; the exact form counts what each uplink carries."
    )
    parts.downloads("sharded-array", lambda: compare.sharded_table(found, ranks), "coll-sharded")
    parts.sources(SOURCES, collectives)


def power(label: str, stops: list[int], default: int, key: str) -> int:
    """A power of two, by a slider."""
    if len(stops) < 2:
        st.markdown(f"{label}: {stops[0]}")
        return stops[0]
    nearest = max((stop for stop in stops if stop <= default), default=stops[0])
    value = st.select_slider(label, stops, nearest, key=key, **state.BIND)
    state.warn_refused(key)
    return int(value)


def semantic(scenario: state.Scenario) -> None:
    """Who holds what before and after each collective."""
    names = tuple(COLLECTIVES)
    op = choice("Collective", names, names[0], "coll_does")
    count = choice("Ranks", ("2", "3", "4", "6"), "4", "coll_does_ranks")
    st.markdown(f"**{op}.** {does.sentence(op)}")
    alt = f"parts that each of {count} ranks holds before and after: {does.sentence(op)}"
    live_chart.draw(does.figure(op, int(count)), "coll-does", alt)
    st.caption(
        "A letter and colour for the rank that a part comes from, a number for the part; Σ0 is the "
        "sum of everybody's part 0. Nothing is drawn where the operation leaves nothing defined."
    )
    parts.sources(SOURCES, semantics)
