"""``scale``: its curves are those of the library, and where an axis stops paying follows from them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import hardware_profiles as hw
from roofline.planner import plan
from roofline.presets import preset
from roofline.scaling import scaling
from tests.test_cli import document, keys_of, refused, run

ROOT = Path(__file__).parent.parent
LINE = "scale tp=2 --model llama-3-8b --gpus 16 --tokens 512Ki --most 1024"


def test_the_document_is_the_library() -> None:
    found = document(LINE)
    own = plan(
        preset("llama-3-8b").model, hw.cluster("dgx-h100-superpod"), 16, tokens=2**19,
        tp=2, cp=1, pp=1, ep=1, etp=1,
    )  # fmt: skip
    for weak, batch in ((False, "stays"), (True, "grows")):
        curves = scaling(own.question, own.layout(), weak=weak, most=1024)
        rows = {row["axis"]: row for row in found["scaling"] if row["batch"] == batch}
        assert rows.keys() == curves.keys()
        for axis, row in rows.items():
            assert row["stops"] == curves[axis].stops
            assert [at["step_s"] for at in row["points"]] == curves[axis].seconds.tolist()


def test_an_axis_stops_at_the_first_doubling_that_brings_too_little() -> None:
    """By the definition that is printed: it fits, and at least ``pays`` times the tokens per second."""
    found = document(LINE)
    for row in found["scaling"]:
        points = row["points"]
        stop = points[0]["gpus"]
        for last, here in pairwise(points):
            if not here["fits"] or here["tokens_per_s"] < found["pays"] * last["tokens_per_s"]:
                break
            stop = here["gpus"]
        assert row["stops"] == stop
        assert points[-1]["gpus"] <= 1024
        tokens = 2**19 if row["batch"] == "stays" else 2**19 / 16 * points[-1]["gpus"]
        assert points[-1]["tokens_per_s"] == pytest.approx(tokens / points[-1]["step_s"])


def test_people_read_it() -> None:
    said = run(f"{LINE} --axis dp --batch grows").stdout
    assert "The batch grows (weak scaling): dp" in said
    assert "stays" not in said.replace("layout", "")
    assert said.count("100.0%") == 1
    both = run(LINE).stdout
    assert "strong scaling" in both
    assert "weak scaling" in both


def test_a_server_without_a_network_does_not_grow() -> None:
    said = run("scale --model llama-3-8b --gpus 8 --cluster l40s-box --tokens 512Ki").stdout
    assert "strong scaling): no axis can be doubled within 131,072 GPUs" in said
    assert (
        "l40s-box has 8 GPUs and no network beyond; the nearest profiles with a network: " in said
    )


def test_the_docs_show_what_it_prints() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    line, _, shown = (
        text.partition("$ python -m roofline scale")[2].partition("```")[0].partition("\n")
    )
    printed = [" ".join(row.split()) for row in run(f"scale{line}").stdout.splitlines()]
    assert [
        row for row in (" ".join(row.split()) for row in shown.splitlines()) if row not in printed
    ] == []


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert not [key for key in sorted(keys_of(document(LINE))) if f"`{key}`" not in text]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("scale --gpus 16 --axis dq", "--axis: 'dq' is not one; the nearest is dp"),
        ("scale --gpus 16 --batch grow", "--batch: 'grow' is not one; the nearest is grows"),
        ("scale --gpus 16 --most 8", "--most: 8 is refused; allowed: the 16 GPUs and more"),
        ("scale --gpus 16 --most few", "--most: 'few' is refused; allowed: 1 and more"),
        ("scale --gpus 8 --model deepseek-v3 --tokens 512Ki", "--gpus: "),
    ],
)
def test_bad_input_is_refused(line: str, message: str) -> None:
    assert message in refused(line)
