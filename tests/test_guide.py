"""The strategy guide: row by row of the Hugging Face notes, and from numbers."""

import json
from pathlib import Path

import pytest

from roofline.guide import Situation, assess, recommend
from roofline.machine import Ideal, Tier
from roofline.workload import Workload

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "decisions.jsonl").read_text("utf-8").splitlines()
]
QUESTIONS = (
    "scale",
    "model_fits_one_gpu",
    "largest_layer_fits_one_gpu",
    "fast_intra_node",
    "fast_inter_node",
    "low_gpu_memory",
)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_row_of_the_guide(row: dict) -> None:
    """Hugging Face, "Parallelism methods", which strategy to use when."""
    advice = recommend(Situation(**{question: row[question] for question in QUESTIONS}))
    assert list(advice.names) == row["ordered_choices"]
    assert advice.tied == ("ties expected" in row["note"])
    assert all(choice.reason for choice in advice.choices)


def test_slow_links_with_ample_memory() -> None:
    """Not in the guide: replicas first when the model fits, shards inside the node when not."""
    for fits, first in ((True, "DDP"), (False, "HSDP")):
        situation = Situation("multi node", fits, fast_inter_node=False, low_gpu_memory=False)
        advice = recommend(situation)
        assert advice.names[0] == first
        assert "HSDP" in advice.names
        assert "open" in advice.note


def test_many_nodes_with_fast_links() -> None:
    fits = recommend(Situation("multi node", True, fast_inter_node=True))
    assert fits.names == ("DDP", "ZeRO")
    wide = Situation("multi node", False, largest_layer_fits_one_gpu=False, fast_inter_node=True)
    assert recommend(wide).names == ("PP+TP+DP", "ZeRO with memory-centric tiling")


def test_unknown_memory_is_low_when_the_model_does_not_fit() -> None:
    advice = recommend(Situation("multi node", False, fast_inter_node=False))
    assert advice.names == ("DP+PP+TP+ZeRO-1",)


def test_open_questions_that_decide() -> None:
    with pytest.raises(ValueError, match="fast_inter_node: None leaves open what decides"):
        recommend(Situation("multi node", False))
    with pytest.raises(ValueError, match="scale: 'planet' is not one; allowed: single gpu"):
        recommend(Situation("planet", True))  # type: ignore[arg-type]


H100 = Ideal(990e12, (Tier(8, 450e9, "node"), Tier(64, 400e9, "network")), hbm_bytes=80e9)
SLOW = Ideal(990e12, (Tier(8, 25e9, "pcie"), Tier(64, 12.5e9, "ethernet")), hbm_bytes=80e9)


class TestAssess:
    """Fits below 0.9 of the memory; fast where tokens per GPU exceed C / W."""

    WORK = Workload(4e6, 8192, 28672)

    def test_seventy_billion_on_many_nodes(self) -> None:
        """16 bytes a parameter are 1.1 TB; 7812 tokens per GPU exceed 2475."""
        found = assess(self.WORK, H100, gpus=512, parameters=70e9, largest_layer=0.86e9)
        assert found == Situation("multi node", False, True, True, True, True)
        assert recommend(found).names == ("ZeRO", "PP+TP+DP")

    def test_few_tokens_make_the_same_network_slow(self) -> None:
        few = Workload(0.5e6, 8192, 28672)
        found = assess(few, H100, gpus=512, parameters=70e9, largest_layer=1e9)
        assert found.fast_inter_node is False
        assert recommend(found).names == ("DP+PP+TP+ZeRO-1",)

    def test_slow_links(self) -> None:
        found = assess(self.WORK, SLOW, gpus=8, parameters=20e9, largest_layer=1e9)
        assert (found.scale, found.fast_intra_node) == ("single node", True)  # 500k tokens each
        found = assess(Workload(1e5, 8192, 28672), SLOW, gpus=8, parameters=20e9, largest_layer=1e9)
        assert found.fast_intra_node is False

    @pytest.mark.parametrize(("params", "fits"), [(4.5e9, True), (4.51e9, False)])
    def test_nine_tenths_of_the_memory(self, params: float, fits: bool) -> None:
        """72 of 80 GB, at 16 bytes a parameter."""
        found = assess(self.WORK, H100, gpus=1, parameters=params, largest_layer=params)
        assert found.scale == "single gpu"
        assert found.model_fits_one_gpu is fits
        assert found.largest_layer_fits_one_gpu is fits
        assert found.fast_intra_node is None

    def test_more_gpus_than_there_are(self) -> None:
        with pytest.raises(ValueError, match="gpus: 1024 is refused; allowed: 1 to the 512"):
            assess(self.WORK, H100, gpus=1024, parameters=1e9, largest_layer=1e9)
