"""The workload bar: one set of choices for every page, kept in the address.

Widgets are bound to the query string by key, so a copied address reopens the same view. Streamlit drops a value
that a widget does not allow without a word; ``warn_refused`` says which one it was, and what stands instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

import hardware_profiles as hw
from dashboard.words import plain
from hardware_profiles.calibration import for_accelerator
from hardware_profiles.errors import NoNetwork, UnfilledUnits
from roofline import presets
from roofline.models.config import from_config
from roofline.planner import alone, largest, resized
from roofline.training import ACHIEVABLE, PEAK
from roofline.units import parse, show
from roofline.workload import Workload

DEFAULT_CLUSTER = "dgx-h100-superpod"
DEFAULT_MODEL = "llama-3-70b"
CUSTOM = "custom"
TOKENS = [f"{n}Ki" for n in (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)]
TOKENS += [f"{n}Mi" for n in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)]
MOST_GPUS = 131_072
SEQUENCES = [2**n for n in range(9, 21)]
BIND: dict[str, Any] = {"bind": "query-params"}


@dataclass(frozen=True)
class Scenario:
    """What the bar says, as the objects that roofline takes."""

    cluster: hw.Cluster  # with the GPU count chosen, at peak or as achieved
    profile: hw.Cluster  # as the file states it
    model: str
    work: Workload
    sequence: int
    overlay: hw.Calibration | None

    @property
    def gpus(self) -> int:
        """GPUs in the job."""
        return self.cluster.gpus

    @property
    def machine(self) -> hw.Cluster:
        """The cluster at its datasheet's rates: whole steps have calibrations of their own."""
        return self.profile.resized(self.gpus)

    @property
    def rates(self) -> str | hw.Calibration:
        """Whose rates a whole step is predicted with; a calibration of this session is told itself."""
        if self.overlay is None:
            return PEAK
        return self.overlay if self.overlay in calibrations().values() else ACHIEVABLE

    def line(self, *, steps: bool = False) -> str:
        """The scenario in one line, for the top of a page.

        Args:
            steps: of a page with whole steps, that are at peak where none has been calibrated.
        """
        overlay = self.overlay
        if steps and overlay is not None and overlay.step is None:
            overlay = None
        rate = (self.cluster if overlay else self.machine).flops(self.work.dtype)
        basis = f"achievable by {overlay.name}" if overlay else "peak"
        chip, name = plain(self.profile.accelerator.title), plain(self.profile.name)
        return (
            f"**{self.gpus:,} × {chip}** ({name}) · **{self.model}** · "
            f"{show(self.work.tokens)} tokens a batch · {self.work.dtype} at {show(rate, 'FLOP/s')} a GPU ({basis})"
        )


def current() -> Scenario:
    """The scenario of this run; the bar has been drawn before any page."""
    scenario: Scenario = st.session_state["scenario"]
    return scenario


def profiles() -> dict[str, hw.Cluster]:
    """Profiles edited or uploaded in this session, by name."""
    mine: dict[str, hw.Cluster] = st.session_state.setdefault("profiles", {})
    return mine


def calibrations() -> dict[str, hw.Calibration]:
    """Calibrations uploaded or fitted in this session, by name; the last comes first."""
    mine: dict[str, hw.Calibration] = st.session_state.setdefault("calibrations", {})
    return mine


def overlay_of(accelerator: str) -> hw.Calibration | None:
    """The calibration that stands for an accelerator: this session's own, else the catalogue's."""
    own = (each for each in reversed(calibrations().values()) if accelerator in each.accelerators)
    return next(own, None) or for_accelerator(accelerator)


def cluster(name: str) -> hw.Cluster:
    """A profile of this session or of the catalogue, by name."""
    return profiles().get(name) or hw.cluster(name)


def cluster_names() -> list[str]:
    """Everything that can be chosen, this session's own first."""
    return [*profiles(), *hw.clusters()]


def workload_bar(rates: str = PEAK) -> None:
    """Draw the bar and keep what it says; an impossible choice ends the page with a message that names the way out.

    ``rates`` are those of the page, until somebody chooses: forecasts are at achievable rates, and
    a page that holds a formula against the datasheet is at peak.
    """
    st.session_state.setdefault(
        "asked", {key: st.query_params.get_all(key) for key in st.query_params}
    )
    wrong: ValueError | None = None
    try:
        with st.sidebar:
            st.session_state["scenario"] = _bar(rates)
    except ValueError as error:
        wrong = error
    warn_refused("cluster", "gpus", "model", "sequence", "tokens", "dtype", "rates")
    if wrong is not None:
        st.error(str(wrong), icon=":material/error:")
        if isinstance(wrong, UnfilledUnits):
            _offer("gpus", [gpus for gpus in wrong.nearest if gpus])
        if isinstance(wrong, NoNetwork):
            _offer("gpus", [wrong.most])
        st.stop()


def turn_to(page: str) -> None:
    """Note that this page is drawn now."""
    if st.session_state.get("page") != page:
        st.session_state.update(page=page, turned=True)


def carried(*keys: str) -> None:
    """Bring the values that these controls have on other pages to the one just turned to.

    A widget belongs to its page, even where another page has one of the same key. To be called
    before the widgets are drawn; ``carry`` after.
    """
    kept: dict[str, Any] = st.session_state.setdefault("carried", {})
    if st.session_state.pop("turned", False):
        st.session_state.update({key: kept[key] for key in keys if key in kept})


def carry(*keys: str) -> None:
    """Keep what these controls show for the other pages that have them."""
    st.session_state["carried"] |= {key: st.session_state[key] for key in keys}


def warn_refused(*keys: str) -> None:
    """Say which values of the opening address the widgets ``keys`` did not take, while what they show still stands."""
    asked: dict[str, list[str]] = st.session_state["asked"]
    refused: dict[str, Any] = st.session_state.setdefault("refused", {})
    for key in keys:
        if key not in asked or key not in st.session_state:
            continue
        shown = st.session_state[key]
        if key not in refused:
            refused[key] = () if _same(asked[key], shown) else (shown,)
        if refused[key] == (shown,):
            st.warning(
                f"The address asks for `{key}={' '.join(asked[key])}`, which is not possible here; "
                f"{'nothing' if shown is None else f'`{shown}`'} is shown instead.",
                icon=":material/link_off:",
            )


def _same(asked: list[str], value: Any) -> bool:
    values = [str(v) for v in (value if isinstance(value, list | tuple) else [value])]
    if values == asked:
        return True
    try:
        return [float(v) for v in values] == [float(v) for v in asked]
    except ValueError:
        return str(value).lower() == " ".join(asked).lower()


def _bar(rates: str) -> Scenario:
    names = cluster_names()
    name = st.selectbox("Cluster", names, index=names.index(DEFAULT_CLUSTER), key="cluster", **BIND)
    profile = cluster(name)
    _hold(profile)
    gpus = _gpus(profile)
    st.caption(f"{profile.title}: {' → '.join(tier.name for tier in profile.tiers)}")
    model, work = _model()
    sequence = st.select_slider("Sequence length", SEQUENCES, 4096, key="sequence", **BIND)
    tokens = _tokens()
    st.caption(f"{show(tokens)} tokens, {show(tokens / sequence)} sequences a batch")
    dtype = _dtype(profile)
    overlay = _overlay(profile, rates)
    machine = resized(profile, gpus)
    machine = hw.calibrate(machine, overlay) if overlay else machine
    return Scenario(
        machine, profile, model, replace(work, tokens=tokens, dtype=dtype), int(sequence), overlay
    )


def _gpus(profile: hw.Cluster) -> int:
    """GPUs of the machine, at first those of the profile up to 1,024.

    The widget has no default: addresses leave defaults out, and each cluster has another.
    """
    own, most = _whole(profile, min(profile.gpus, 1024)), max(profile.gpus, MOST_GPUS)
    if st.session_state.get("gpus") is None:
        asked = st.session_state["asked"].get("gpus", [""])[0]
        fine = asked.isdecimal() and len(asked) < 9 and 1 <= int(asked) <= most
        if "gpus" in st.session_state or not fine:  # cleared, or nothing that can be
            st.session_state["gpus"] = own
    help, step = "The outermost tier grows or shrinks to this number.", profile.tiers[0].degree
    return st.number_input("GPUs", 1, most, None, step, key="gpus", help=help, **BIND) or own


def _hold(profile: hw.Cluster) -> None:
    """Another cluster keeps the number of GPUs, a server without a network no more than it has."""
    turned = st.session_state.get("held_by", profile.name) != profile.name
    st.session_state["held_by"] = profile.name
    if turned and (st.session_state.get("gpus") or 1) > largest(profile):
        st.session_state["gpus"] = profile.gpus
        st.info(f"{plain(alone(profile))}.", icon=":material/info:")
    elif turned:
        st.session_state["gpus"] = st.session_state.get(
            "gpus"
        )  # the address names what is put anew


def _whole(profile: hw.Cluster, gpus: int) -> int:
    """``gpus``, or the next number below that fills whole units."""
    try:
        return profile.resized(gpus).gpus
    except UnfilledUnits as error:
        return error.nearest[0]


def choose_rates(rates: str) -> None:
    """From now on these, on every page."""
    st.session_state.update(rates=rates, rates_chosen=True)


def _overlay(profile: hw.Cluster, usual: str) -> hw.Calibration | None:
    """The calibration to apply: none at peak, or where nobody has measured this accelerator."""
    if not st.session_state.setdefault("rates_chosen", "rates" in st.session_state["asked"]):
        st.session_state["rates"] = usual
    rates = st.segmented_control(
        "Rates", [PEAK, ACHIEVABLE], default=usual, key="rates", required=True,
        on_change=st.session_state.update, kwargs={"rates_chosen": True}, **BIND,
    )  # fmt: skip
    overlay = overlay_of(profile.accelerator.name) if rates == ACHIEVABLE else None
    if rates == ACHIEVABLE and overlay is None:
        st.caption(f"Nobody has calibrated {profile.accelerator.title} yet: peak rates are shown.")
    return overlay


def _offer(key: str, choices: Sequence[Any]) -> None:
    """Buttons that put one of ``choices`` in the place of an impossible value of the widget ``key``."""
    with st.container(horizontal=True):
        for choice in choices:
            st.button(f"Use {choice:,}", on_click=st.session_state.update, kwargs={key: choice})


def _model() -> tuple[str, Workload]:
    names = [*presets.presets(), CUSTOM]
    model = st.selectbox("Model", names, index=names.index(DEFAULT_MODEL), key="model", **BIND)
    with st.popover("From a config.json", icon=":material/content_paste:", type="tertiary"):
        _config()
    if model != CUSTOM:
        return model, presets.workload(model, 1.0)
    left, right = st.columns(2)
    d_model = left.number_input("Width D", 1, 1_000_000, 8192, key="d_model", **BIND)
    d_ff = right.number_input("Feed-forward F", 1, 10_000_000, 28672, key="d_ff", **BIND)
    experts = left.number_input("Experts E", 1, 100_000, 1, key="experts", **BIND)
    top_k = right.number_input("Per token k", 1, 100_000, 1, key="top_k", **BIND)
    layers = left.number_input("Layers", 1, 10_000, 80, key="layers", **BIND)
    help = "Three matrices (SwiGLU) instead of two"
    gated = right.toggle("Gated", True, key="gated", help=help, **BIND)
    if top_k > experts:
        raise ValueError(
            f"Per token k: {top_k} experts per token, of {experts}; allowed: at most {experts}"
        )
    return CUSTOM, Workload(1.0, d_model, d_ff, 3 if gated else 2, experts, top_k, layers)


def _config() -> None:
    """A Hugging Face config.json, pasted or uploaded, becomes the numbers of a custom model."""
    upload = st.file_uploader("config.json", "json", key="config_file", max_upload_size=1)
    pasted = st.text_area("or paste it here", key="config_text", height=120)
    text = upload.getvalue().decode("utf-8", "replace") if upload else pasted
    if text.strip():
        st.button("Use this model", on_click=_use_config, args=(text,), type="primary")
    if problem := st.session_state.get("config_problem"):
        st.error(problem, icon=":material/error:")


def _use_config(text: str) -> None:
    try:
        model = from_config(json.loads(text))
        work = model.workload(1.0)
    except json.JSONDecodeError as error:
        st.session_state["config_problem"] = f"This is not JSON: {error}"
    except ValueError as error:
        st.session_state["config_problem"] = plain(str(error))
    else:
        sizes = {"d_model": work.d_model, "d_ff": work.d_ff, "layers": work.layers}
        sizes |= {"experts": work.experts, "top_k": work.experts_per_token}
        st.session_state.update({key: int(value) for key, value in sizes.items()})
        st.session_state.update(model=CUSTOM, gated=work.matrices == 3, config_problem="")
        st.session_state["config_model"] = model


def _tokens() -> float:
    """The batch; a number that an address asks for becomes one more stop of the slider."""
    extra = st.session_state.setdefault("token_stops", _asked_tokens())
    stops = sorted({*TOKENS, *extra}, key=_number)
    return _number(st.select_slider("Batch in tokens", stops, "1Mi", key="tokens", **BIND))


def _asked_tokens() -> list[str]:
    for text in st.session_state["asked"].get("tokens", []):
        try:
            if 1 <= _number(text) <= 1e12:
                return [text]
        except ValueError:
            return []
    return []


def _number(text: str) -> float:
    return parse(f"{text}B", "B")


def _dtype(profile: hw.Cluster) -> str:
    known = profile.accelerator.peak_flops
    rates = [d for d in ("bf16", "fp16", "fp8", "fp4") if d in known] or list(known)
    dtype: str = st.segmented_control(
        "Precision", rates, default=rates[0], key="dtype", required=True, **BIND
    )
    return dtype
