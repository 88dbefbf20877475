"""A plan explained: the sentences say what the numbers say, and a way out is one."""

import re
from typing import Any

import pytest

import hardware_profiles as hw
from roofline import reasons
from roofline.planner import Plan, plan
from roofline.presets import preset
from roofline.tries import between
from roofline.units import show

H100 = hw.cluster("dgx-h100-superpod")


def found(name: str = "llama-3-8b", gpus: int = 32, **more: Any) -> Plan:
    asked = {"tokens": 128 * 4096, "sequence": 4096, "framework": "megatron", **more}
    return plan(preset(name).model, H100, gpus, **asked)


FOUND = found()
TOLD = FOUND.explain()


def test_the_dominant_terms_are_the_largest() -> None:
    assert FOUND.best is not None
    terms = {name: float(each) for name, each in FOUND.best.time.terms.items()}
    first = max(terms, key=terms.__getitem__)
    share = terms[first] / float(FOUND.best.time.seconds)
    assert f"The step is {first} {share:.0%}" in str(TOLD)


def test_the_runner_up_is_the_next_of_another_kind() -> None:
    said = next(
        each for each in TOLD.sentences if each.startswith("The next of another kind, with ")
    )
    best, second = FOUND.layout(0), FOUND.layout(1, FOUND.distinct)
    assert reasons.changes(best, second) in said
    assert show(float(FOUND.distinct["seconds"][1]), "s") in said


def test_other_degrees_are_named_where_the_second_has_the_same() -> None:
    told = [each for each in TOLD.sentences if "with other degrees" in each]
    same = reasons.degrees(FOUND.layout(0)) == reasons.degrees(FOUND.layout(1, FOUND.distinct))
    assert bool(told) == same


def test_changes_name_every_choice_that_differs() -> None:
    best, other = FOUND.layout(0), FOUND.layout(30)
    text = reasons.changes(best, other)
    for name in reasons.CHOICES:
        differs = float(getattr(best, name)) != float(getattr(other, name))
        assert differs == bool(re.search(rf"(^|, ){name} ", text)), name


def test_rates_are_said_as_they_were_found() -> None:
    first = TOLD.rates[0]
    assert f"{first.name} {1 - first.doubled:.0%}" in str(TOLD)


def test_what_the_user_fixed_is_not_called_left_out() -> None:
    tight = found(tp=8, pp=1, cp=1, micro_batch=1).explain()
    better = next(row for row in tight.choices if row.fits)
    assert better.name == "tp"
    assert better.slower < 0  # so it would have been named
    for said in tight.sentences:
        if said.startswith("Faster, but"):
            assert not re.search(r"\b(tp|pp|cp|micro_batch) ", said)


def test_what_the_framework_cannot_do_is_called_left_out() -> None:
    """Megatron has no ZB-V, which would shorten this pipeline."""
    said = next(
        each
        for each in found(tp=1, pp=8, cp=1, micro_batch=1, chunks=1).explain().sentences
        if each.startswith("Faster, but left out")
    )
    assert "schedule zb-" in said


def test_what_the_framework_cannot_do_is_no_next_value() -> None:
    """Megatron has 1F1B alone, and no FSDP of this kind."""
    said = next(each for each in TOLD.sentences if each.startswith("One choice changed"))
    assert "schedule" not in said
    assert "zero 3" not in said


def test_zero_of_one_gpu_is_no_choice() -> None:
    one = found("qwen3-0.6b", 1, tokens=16 * 4096)
    assert one.best is not None
    assert not re.search(r"zero \d", str(one.explain()))


def test_whole_nodes_are_named_where_a_prime_number_of_gpus_wastes_them() -> None:
    """61 GPUs are 61 replicas or 61 stages; 56 cut as one likes. Each by a plan of its own."""
    prime = found("llama-3-70b", 61, tokens=61 * 16 * 4096)
    whole = found("llama-3-70b", 56, tokens=56 * 16 * 4096)
    assert prime.best is not None
    assert whole.best is not None
    ratio = float(prime.best.time.seconds) / float(whole.best.time.seconds)  # as many tokens a GPU
    assert ratio > 1.1
    said = next(each for each in prime.explain().sentences if "whole nodes" in each)
    assert said.startswith(f"56 GPUs, whole nodes, bring {ratio - 1:.0%} more tokens a second")
    assert "whole nodes" not in str(whole.explain())


def test_html_has_every_sentence() -> None:
    assert TOLD._repr_html_().count("<li>") == len(TOLD.sentences) - 1


@pytest.mark.parametrize("gpus", [16, 64])
def test_where_nothing_fits_the_way_out_fits(gpus: int) -> None:
    none = found("llama-3-405b", gpus, tokens=512 * 4096)
    assert none.best is None
    said = none.explain().sentences
    assert "none of" in said[0]
    assert said[1].startswith("Its memory: optimizer ")
    more = re.search(r"([\d,]+) GPUs: ", said[-1])
    assert more is not None
    need = int(more[1].replace(",", ""))
    assert found("llama-3-405b", need, tokens=512 * 4096).best is not None
    for less in between(H100, need // 2, need):  # every number that is tried below it
        try:
            smaller = found("llama-3-405b", less, tokens=512 * 4096)
        except ValueError:  # nothing divides
            continue
        assert smaller.best is None, less


def test_the_headroom_that_the_first_layout_needs_is_named() -> None:
    """To a thousandth: with it something fits, with a thousandth more nothing does."""
    asked = {"headroom": 0.4, "recompute": "none", "tp": 1, "pp": 1, "cp": 1}
    none = found(gpus=16, **asked)
    assert none.best is None
    said = str(none.explain())
    more = re.search(r"What would fit: headroom ([\d.]+) instead of 0.4: ", said)
    assert more is not None
    assert found(gpus=16, **(asked | {"headroom": float(more[1])})).best is not None
    assert found(gpus=16, **(asked | {"headroom": float(more[1]) + 0.0011})).best is None


def test_a_box_without_a_network_does_not_grow() -> None:
    box = hw.cluster("l40s-box")
    none = plan(preset("llama-3-70b").model, box, 8, tokens=64 * 4096, sequence=4096)
    assert none.best is None
    said = none.explain().sentences
    assert said[-2] == "Neither other choices nor more GPUs make it fit."
    assert said[-1].startswith("l40s-box has 8 GPUs and no network beyond; the nearest profiles")


def test_a_framework_that_is_in_the_way() -> None:
    """FSDP alone cannot split a layer: a sequence of 64 Ki tokens of an 8B needs what others have."""
    asked = {"tokens": 32 * 65536, "sequence": 65536, "recompute": "none"}
    none = found(gpus=32, **(asked | {"framework": "fsdp"}))
    assert none.best is None
    assert "any framework: " in str(none.explain())


def test_limits_that_are_in_the_way() -> None:
    none = found("llama-3-70b", 32, tp=1, pp=1, recompute="none", tokens=32 * 4096)
    assert none.best is None
    assert "no limits: " in str(none.explain())


def test_a_plan_is_exported() -> None:
    text = FOUND.export("megatron")
    best = FOUND.layout()
    assert f"--tensor-model-parallel-size {best.tp:g} " in text
    assert FOUND.best is not None
    assert text == FOUND.best.export("megatron")
    assert FOUND.export("plain", place=3) == FOUND.training(3).export("plain")
    with pytest.raises(ValueError, match="format: 'megatrn' is not one"):
        FOUND.export("megatrn")
    with pytest.raises(ValueError, match="place: 0 is refused"):
        found("llama-3-405b", 8).export("plain")
