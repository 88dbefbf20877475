"""What the commands say beside their numbers: on whose rates, how far off, and what was left out."""

import json
import re
from pathlib import Path

from roofline import backtest
from tests.test_cli import document, run

JOB = "--model llama-3-8b --gpus 16 --tokens 512Ki"
FEW = f"{JOB} --framework megatron --cp 1 --chunks 1"


def test_every_prediction_says_what_it_was_held_against() -> None:
    """A band where there are runs left out of the fit; that there are none where there are none."""
    band = "nine in ten within .* %: .* s to .* s"
    bare = "Nobody has held such predictions against measured runs"
    few = f"{FEW} --tp 2 --pp 1"
    assert re.search(band, run(f"plan {few}").stdout)
    assert bare in run(f"plan {few} --cluster h800-deepseek").stdout
    assert re.search(band, run(f"plan {few} --find sequence").stdout)
    assert re.search(f"tp=2: .*{band}", run(f"compare tp=2 tp=4 {JOB}").stdout)
    assert re.search(band, run("import docs/train.sh").stdout)
    best = document(f"plan {few}")["best"]
    assert best["band_s"][0] < best["seconds"] < best["band_s"][1]
    assert document(f"plan {few} --cluster h800-deepseek")["best"]["band_s"] is None


def test_clusters_are_compared_on_one_footing() -> None:
    pair, few = ("dgx-h100-superpod", "mi300x-pod"), f"{FEW} --tp 2 --pp 1"
    found = document(f"plan {few} --cluster {','.join(pair)}")
    assert found["rates"] == "peak"
    assert "whole steps of mi300x-pod" in found["footing"]
    sides = document(f"compare {' '.join(f'cluster={name},tp=2' for name in pair)} {JOB}")
    assert "whole steps of cluster=mi300x-pod" in sides["footing"]
    tries = {row["value"]: row["step_s"] for row in found["tries"]}
    alone = {name: document(f"plan {few} --cluster {name} --rates peak") for name in pair}
    assert tries == {name: one["best"]["seconds"] for name, one in alone.items()}
    assert document(f"plan {few} --cluster dgx-h100-superpod,dgx-a100-superpod")["footing"] is None


def test_a_machine_of_another_size_is_called_by_its_name() -> None:
    assert " (dgx-h100-superpod, cut), " in run(f"plan {FEW}").stdout
    grown = run("placement tp=8 dp=256 --gpus 2048").stdout
    assert "2,048 × NVIDIA H100 SXM5 80 GB (dgx-h100-superpod, grown), " in grown


class TestImport:
    def test_gpus_that_the_file_fixes_are_listed_as_ignored(self, tmp_path: Path) -> None:
        file = tmp_path / "train.toml"
        file.write_text(
            "[parallelism]\ndata_parallel_shard_degree = 8\ntensor_parallel_degree = 2\n"
        )
        found = document(f"import {file} --gpus 64 --model llama-3-8b")
        assert found["gpus"] == 16
        why = "the file's own numbers come to 16 GPUs"
        assert found["ignored"] == [{"name": "gpus", "value": 64, "why": why}]
        assert document(f"import {file} --gpus 16 --model llama-3-8b")["ignored"] == []

    def test_a_misspelt_degree_is_told_before_the_result(self, tmp_path: Path) -> None:
        file = tmp_path / "args.txt"
        file.write_text("--tensor-model-paralel-size 8 --lr 3e-4 --bf16 --micro-batch-size 1")
        first = run(f"import {file} --model llama-3.1-70b --gpus 8").stdout.splitlines()[:3]
        assert first[0] == (
            "--tensor-model-paralel-size is ignored; the nearest option is "
            "--tensor-model-parallel-size"
        )
        assert first[1].startswith("Megatron-LM arguments: ")
        assert first[2].startswith("llama-3-70b, bf16, 8 GPUs of dgx-h100-superpod: ")
        assert first[2].endswith("of 80 GB: does not fit")

    def test_the_size_that_is_missing_is_named(self, tmp_path: Path) -> None:
        sizes = {
            **{"num-layers": 32, "hidden-size": 4096, "ffn-hidden-size": 14336},
            **{"num-attention-heads": 32, "seq-length": 4096, "micro-batch-size": 1},
        }
        file = tmp_path / "args.txt"
        file.write_text(" ".join(f"--{name} {n}" for name, n in sizes.items()) + " --bf16")
        assert "the file states no vocabulary, but other sizes" in run(f"import {file}").stdout

    def test_eight_bits_beside_fp32_are_no_bf16_run(self, tmp_path: Path) -> None:
        file = tmp_path / "args.txt"
        file.write_text("--tensor-model-parallel-size 2 --fp8-format hybrid --micro-batch-size 1")
        found = document(f"import {file} --model llama-3-8b --gpus 8")
        assert found["precision"] == "fp8"
        told = "bf16 beside the matmuls in fp8; the file has fp32 there, which is not modelled"
        assert told in found["assumed"]
        assert not any("precision = bf16" in line for line in found["assumed"])


class TestBacktestOfOnesOwn:
    def test_only_what_the_file_has(self, tmp_path: Path) -> None:
        """Dense H100 runs: no row of experts, and no columns of a fit that was not theirs."""
        dense = [
            one
            for one in backtest.published()
            if "h100" in str(one["gpu"]).lower() and "llama" in str(one["model"]).lower()
        ]
        file = tmp_path / "mine.jsonl"
        file.write_text("\n".join(json.dumps(dict(one)) for one in dense[:2]))
        text = run(f"backtest {file}").stdout
        assert "left out: median" in text
        assert "h100, dense" in text
        assert "h100, moe" not in text
        assert "fitted: median" not in text
        assert "fitted" not in text.split("Shipped calibrations")[1].splitlines()[0]
