"""The editor of the hardware page: fields and YAML over one draft, checked at every change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

import hardware_profiles as hw
from dashboard import hardware_edit as edit
from dashboard import hardware_figures as figures
from dashboard import parts, state
from dashboard.words import plain
from hardware_profiles.writing import fields

FIELDS, TEXT = "fields", "YAML"
# The verdict stays in view while one scrolls through the fields; on a phone it stands above them.
PLACES = """<style>
.st-key-hw_verdict { position: sticky; top: 4rem }
.st-key-hw_yaml textarea { font-family: var(--st-code-font, monospace); font-size: .84rem;
  white-space: pre; overflow-x: auto }
@media (max-width: 640px) {
  .st-key-hw_verdict { position: static }
  .st-key-hw_editor > div > [data-testid="stHorizontalBlock"],
  .st-key-hw_editor > [data-testid="stHorizontalBlock"] { flex-direction: column-reverse }
}
</style>"""
OF_TIER = {
    "name": "Name",
    "degree": "Degree",
    "bandwidth": "Bandwidth",
    "latency": "Latency",
    "oversubscription": "Oversubscription",
    "switches": "Switches",
}
OF_CHIP = {"hbm_bytes": "HBM", "hbm_bandwidth": "HBM bandwidth", "power": "Power"}
UNSAID = {"latency": "0 s", "oversubscription": "1"}  # what a field that is not given stands for
HELP = {
    "bandwidth": "What ONE child sends into the tier, ONE way, such as '400 GB/s' or '400 Gb/s'.",
    "degree": "How many children one unit joins.",
    "oversubscription": "7 for a 7:1 spine: each child gets a seventh when all talk at once.",
    "latency": "Of one step of a collective, such as '4 us'.",
    "switches": "In one unit of the tier.",
}


def editor(scenario: state.Scenario) -> None:
    """Change a copy of the profile and see what it does; keep it, take it away, bring one."""
    _begin(scenario)
    base: hw.Cluster = st.session_state["hw_base"]
    checked = edit.check(st.session_state["hw_draft"], _shipped())
    _bring(base)
    with st.container(key="hw_editor"):
        st.html(PLACES)
        left, right = st.columns([5, 4], gap="large")
    with left:
        chosen = st.segmented_control(
            "Edit as", [FIELDS, TEXT], default=FIELDS, key="hw_edit_as", required=True, **state.BIND
        )
        state.warn_refused("hw_edit_as")
        if chosen == FIELDS:
            _fields(checked)
        else:
            _text()
    with right, st.container(key="hw_verdict"):
        _verdict(scenario, base, checked)


def _shipped() -> set[str]:
    return set(hw.clusters())


def _begin(scenario: state.Scenario) -> None:
    """A draft of the sidebar's profile; one that nobody has touched follows the sidebar."""
    memory = st.session_state
    if "hw_draft" not in memory:
        restart(scenario.profile)
    untouched = memory["hw_draft"] == memory["hw_start"]
    if scenario.profile.name != memory["hw_base"].name and untouched:
        restart(scenario.profile)


def restart(base: hw.Cluster) -> None:
    """Throw the draft away and copy ``base``."""
    taken = {*state.cluster_names()}
    st.session_state["hw_base"], st.session_state["hw_refused"] = base, None
    st.session_state["hw_start"] = st.session_state["hw_draft"] = edit.start(base, taken)


def _bring(base: hw.Cluster) -> None:
    """Start over, upload, download the schema."""
    current = state.current().profile
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.markdown(f"A copy of **{plain(base.name)}**", width="content")
        st.button(
            f"Start over from {plain(current.name)}",
            on_click=restart, args=(current,), icon=":material/restart_alt:", key="hw_restart",
        )  # fmt: skip
        st.download_button(
            "JSON schema", lambda: json.dumps(hw.schema_json(), indent=1), "profile.schema.json",
            "application/json", on_click="ignore", icon=":material/schema:", key="hw_schema",
            help="Of both kinds of file, for an editor that completes and checks.",
        )  # fmt: skip
    with st.expander("Upload a profile", icon=":material/upload:"):
        st.file_uploader(
            "A cluster, or an accelerator that takes the place of this one's (YAML or JSON, up to "
            "1 MB)",
            type=["yaml", "yml", "json"], key="hw_upload", max_upload_size=2, on_change=_uploaded,
        )  # fmt: skip
    if refused := st.session_state.get("hw_refused"):
        parts.problems([f"{refused[0]}: {line}" for line in refused[1].split("\n")])


def _uploaded() -> None:
    file = st.session_state["hw_upload"]
    st.session_state["hw_refused"] = None
    if file is None:
        return
    try:
        st.session_state["hw_draft"] = edit.upload(file.getvalue(), st.session_state["hw_base"])
    except hw.ProfileError as error:
        st.session_state["hw_refused"] = (file.name, str(error).replace("profile: ", ""))


def _text() -> None:
    st.session_state["hw_yaml"] = st.session_state["hw_draft"]
    st.text_area(
        "Profile", key="hw_yaml", height=620, on_change=_typed, label_visibility="collapsed",
        help="Ctrl+Enter checks it.",
    )  # fmt: skip
    st.caption("Ctrl+Enter, or a click elsewhere, checks it. Numbers carry their unit: 400 GB/s.")


def _typed() -> None:
    st.session_state["hw_draft"] = st.session_state["hw_yaml"]


def _fields(checked: edit.Checked) -> None:
    """The numbers that one changes most, each with its complaints under it."""
    draft = st.session_state["hw_draft"]
    try:
        tiers, chip = edit.get(draft, "tiers"), edit.get(draft, "accelerator")
    except hw.ProfileError:
        st.info(f"The text cannot be read, so there are no fields to show; mend it as {TEXT}.")
        return
    _grid(checked, {"name": "Name", "title": "Title"}, 2)
    for i in reversed(range(len(tiers) if isinstance(tiers, list) else 0)):
        if isinstance(tiers[i], Mapping):
            _tier(checked, i, str(tiers[i].get("name", i)))
    with st.container(horizontal=True):
        if checked.cluster:
            st.button("Add a tier outside", on_click=_grow, icon=":material/add:", key="hw_grow")
            if len(checked.cluster.tiers) > 1:
                outer = plain(checked.cluster.tiers[-1].name)
                st.button(
                    f"Remove {outer}", on_click=_shrink, icon=":material/remove:", key="hw_shrink"
                )
    if isinstance(chip, Mapping):
        _chip(checked, chip)


def _tier(checked: edit.Checked, index: int, name: str) -> None:
    with st.container(border=True):
        st.markdown(f"**{plain(name)}**")
        fields = {f"tiers.{index}.{field}": label for field, label in OF_TIER.items()}
        reason = f"tiers.{index}.reason"
        if edit.get(st.session_state["hw_draft"], reason) or checked.about(list(fields)[2]):
            fields[reason] = "Why faster than inside"
        _grid(checked, fields, 3)
        _flag(f"tiers.{index}.in_network_reduction", "Switches add (SHARP)", False)


def _chip(checked: edit.Checked, chip: Mapping[str, Any]) -> None:
    with st.container(border=True):
        names, own = hw.accelerators(), chip.get("name")
        st.session_state["hw_chip"] = own if own in names else None
        st.selectbox("Accelerator", names, key="hw_chip", on_change=_swap, placeholder=str(own))
        rates = chip.get("peak_flops")
        rates = rates if isinstance(rates, Mapping) else {}
        peaks = {f"peak_flops.{dtype}": f"{dtype} peak" for dtype in rates}
        fields = {f"accelerator.{field}": label for field, label in (peaks | OF_CHIP).items()}
        _grid(checked, fields, 3)


def _grid(checked: edit.Checked, fields: Mapping[str, str], columns: int) -> None:
    """Values of the draft as texts, then what is wrong with any of them and what would be right."""
    with st.grid(columns, min_column_width=130):
        for field, label in fields.items():
            _field(field, f":red[:material/error: {label}]" if checked.about(field) else label)
    for field, label in fields.items():
        for problem in checked.about(field):
            st.markdown(f":red[:material/error: **{label}**: {plain(problem.message)}]")
            with st.container(horizontal=True):
                for choice in problem.choices:
                    key = f"hw_field_{field}_{choice}"
                    st.button(choice, key=key, on_click=_put, args=(field, choice))


def _field(field: str, label: str) -> None:
    value, last = edit.get(st.session_state["hw_draft"], field), field.rsplit(".", 1)[-1]
    key = f"hw_field_{field}"
    st.session_state[key] = "" if value is None else str(value)
    unsaid = UNSAID.get(last, "not said")
    help = HELP.get(last)
    st.text_input(label, key=key, on_change=_set, args=(field,), help=help, placeholder=unsaid)


def _flag(field: str, label: str, default: bool) -> None:
    key = f"hw_field_{field}"
    value = edit.get(st.session_state["hw_draft"], field)
    st.session_state[key] = value if isinstance(value, bool) else default
    st.toggle(label, key=key, on_change=_set, args=(field,))


def _set(field: str) -> None:
    value = st.session_state[f"hw_field_{field}"]
    _put(field, value if isinstance(value, bool) else edit.typed(value) if value.strip() else None)


def _put(field: str, value: Any) -> None:
    st.session_state["hw_draft"] = edit.put(st.session_state["hw_draft"], field, value)


def _swap() -> None:
    if name := st.session_state["hw_chip"]:
        try:
            draft = edit.with_accelerator(st.session_state["hw_draft"], name)
        except hw.ProfileError as error:  # a user's own file may be broken
            st.session_state["hw_refused"] = (name, str(error))
        else:
            st.session_state["hw_draft"] = draft


def _grow() -> None:
    draft = st.session_state["hw_draft"]
    st.session_state["hw_draft"] = edit.grown(draft, edit.cluster_of(draft))


def _shrink() -> None:
    st.session_state["hw_draft"] = edit.shrunk(st.session_state["hw_draft"])


def _verdict(scenario: state.Scenario, base: hw.Cluster, checked: edit.Checked) -> None:
    """Whether it holds, what was changed, what that does, and what to do with it."""
    if checked.cluster is None:
        _refused(checked)
        return
    copy = edit.signed(base, checked.cluster)
    st.success(f"**{plain(copy.name)}** is a valid profile.", icon=":material/check_circle:")
    _keep(copy)
    changes = edit.changes(base, copy)
    if not changes:
        st.info("Nothing is changed yet. Change a number on the left and see here what it does.")
        return
    st.markdown("**Changed**, and marked so in the sources")
    st.table(
        {
            "": [plain(edit.said(copy, change.field)) for change in changes],
            "from": [_cell(change.before) for change in changes],
            "to": [_cell(change.after) for change in changes],
        },
        border="horizontal",
        alt="Changed numbers",
    )
    _effect(base, copy, scenario.work.dtype)


def _refused(checked: edit.Checked) -> None:
    count = len(checked.problems)
    st.error(
        f"**{count} problem{'s' if count > 1 else ''}**; the profile cannot be used yet.",
        icon=":material/error:",
    )
    for problem in checked.problems:
        where = f"`{problem.field}` " if problem.field else ""
        st.markdown(f"- {where}{plain(problem.message)}")


def _effect(base: hw.Cluster, copy: hw.Cluster, dtype: str) -> None:
    table = figures.compare({base.name: base, copy.name: copy}, dtype)
    before, after = table.values()
    differing = [m for m in before if before[m] != after[m]]
    st.markdown("**What it does**")
    if not differing:
        st.caption("No number that the pages compare by changes.")
        return
    st.table(
        {
            "": differing,
            "before": [_cell(str(before[m])) for m in differing],
            "after": [_cell(str(after[m])) for m in differing],
        },
        border="horizontal",
        alt="Before and after",
    )


def _cell(text: str) -> str:
    """A value of a table, its unit kept on its line."""
    return plain(text) if len(text) > 16 else plain(text).replace(" ", "\u00a0")


def _keep(copy: hw.Cluster) -> None:
    """Use it on every page, or take it away as a file."""
    clicked = st.button(
        "Use on every page", on_click=_use, args=(copy,), type="primary", key="hw_use",
        icon=":material/done_all:",
        help="Chooses it in the sidebar. It lasts as long as this browser tab: download to keep.",
    )  # fmt: skip
    files = {"YAML": lambda: hw.to_yaml(copy), "JSON": lambda: as_json(copy)}
    with st.container(horizontal=True):
        for kind, text in files.items():
            st.download_button(
                kind, text, f"{copy.name}.{kind.lower()}", f"application/{kind.lower()}",
                on_click="ignore", icon=":material/download:", key=f"hw_save_{kind}",
            )  # fmt: skip
    if copy.name in state.profiles():
        st.caption(f"In use in this session as `{copy.name}`; using it again replaces it.")
    if clicked:
        st.rerun()


def as_json(cluster: hw.Cluster) -> str:
    """The profile as a JSON file that ``hardware_profiles.read`` takes back."""
    return json.dumps({"kind": "cluster"} | fields(cluster), indent=1, ensure_ascii=False)


def _use(copy: hw.Cluster) -> None:
    """Keep the copy in this session and choose it; a job that no longer fits gets all of it."""
    state.profiles()[copy.name] = copy
    st.session_state["cluster"] = copy.name
    try:
        copy.resized(state.current().gpus)
    except ValueError:
        st.session_state["gpus"] = copy.gpus
