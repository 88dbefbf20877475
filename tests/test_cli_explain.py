"""``explain`` on the command line: every field of a layout as an option, models of one's own."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hardware_profiles as hw
from roofline.cli import app
from roofline.layout import ORDER, RECOMPUTE, ZERO_KIND
from roofline.limits import FRAMEWORKS
from roofline.outcome import outcome
from roofline.presets import preset
from roofline.training import training

H100 = hw.cluster("dgx-h100-superpod").resized(64)
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def run(line: str) -> Any:
    return CliRunner().invoke(app, shlex.split(line))


def document(line: str) -> Any:
    result = run(f"{line} --json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(line: str) -> str:
    result = run(line)
    assert result.exit_code == 2, result.output
    (message,) = result.stderr.splitlines()
    return str(message)


BATCH = {"gpus": 64, "batch": 256, "sequence": 4096}


@pytest.mark.parametrize(
    ("options", "model", "fields", "recipe"),
    [
        ("--tp 2 --recipe qlora --lora-rank 8", "llama-3-8b", {"tp": 2, "lora_rank": 8}, "qlora"),
        ("--tp 2 --lora-rank 8", "llama-3-8b", {"tp": 2, "lora_rank": 8}, None),
        ("--recipe bf16-gradients --tp 2", "llama-3-8b", {"tp": 2}, "bf16-gradients"),
        ("--tp 2 --ep 4 --etp 2", "mixtral-8x7b", {"tp": 2, "ep": 4, "etp": 2}, None),
        (
            "--pp 2 --order tp-cp-pp-dp --zero-kind all-reduce", "llama-3-8b",
            {"pp": 2, "order": ORDER["tp-cp-pp-dp"], "zero_kind": ZERO_KIND["all-reduce"]}, None,
        ),
        (
            "--tp 2 --offload-share 0.5 --recompute full --recompute-share 0.25", "llama-3-8b",
            {"tp": 2, "offload_share": 0.5, "recompute": RECOMPUTE["full"], "recompute_share": 0.25},
            None,
        ),
        ("--zero 3 --shard 8", "llama-3-8b", {"zero": 3, "shard": 8}, None),
    ],
)  # fmt: skip
def test_options_are_the_fields_of_a_layout(
    options: str, model: str, fields: dict[str, Any], recipe: str | None
) -> None:
    """The numbers are the library's, with the habits of the framework that plans take too."""
    found = document(f"explain --model {model} --gpus 64 --tokens 1Mi {options}")
    split = float(fields.get("tp", 1) > 1)
    habits = FRAMEWORKS["any"].base
    habits = replace(habits, gradient_bytes=2 if recipe == "bf16-gradients" else 4)
    layout = replace(habits, **BATCH, **fields, sequence_parallel=split)
    job = training(preset(model).model, layout, H100, recipe=recipe)
    assert found["seconds"] == pytest.approx(float(job.time.seconds))
    assert found["memory"]["total"] == pytest.approx(float(job.memory.total))
    assert found["mfu"] == pytest.approx(float(outcome(job).mfu))
    rows = {"order": ORDER, "zero_kind": ZERO_KIND, "recompute": RECOMPUTE}
    for name, value in fields.items():
        shown = found["layout"][name]
        assert rows[name][shown] == value if name in rows else shown == value


TYPED = (
    *("tp", "cp", "pp", "ep", "etp", "chunks", "micro_batch", "zero", "shard", "order"),
    *("schedule", "recompute", "recompute_share", "offload_share"),
)


@pytest.mark.parametrize(
    "line",
    [
        "--model llama-3-70b --gpus 512 --sequence 8192 --framework megatron",
        "--model llama-3-70b --gpus 512 --sequence 8192 --framework torchtitan",
        "--model llama-3-8b --gpus 8 --cluster l40s-box --tokens 512Ki",
        "--model mixtral-8x7b --gpus 64 --framework megatron",
        "--model llama-3-8b --gpus 64 --framework deepspeed",
        "--model qwen3-30b-a3b --gpus 32 --framework nanotron --precision fp8",
        "--model llama-3-8b --gpus 64 --recipe bf16-gradients",
        "--model llama-3-8b --gpus 64 --framework fsdp --rates peak",
        "--model mixtral-8x7b --gpus 64 --imbalance 1.5",
    ],
)
def test_the_winner_of_a_plan_typed_as_options_is_the_same_step(line: str) -> None:
    """Habits and recipe of a framework are one thing for ``plan`` and for ``explain``."""
    best = document(f"plan {line} --top 1")["best"]
    row = plan_row(line)
    typed = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in row.items())
    found = document(f"explain {line} {typed}")
    assert found["seconds"] == best["seconds"]
    assert found["memory"]["total"] == sum(part["bytes"] for part in best["memory"])


def plan_row(line: str) -> dict[str, Any]:
    """The fields of the first place, as options take them."""
    row = document(f"plan {line} --top 1")["ranked"][0]
    return {name: row[name] for name in TYPED}


def test_habits_are_said_and_limits_of_the_framework_hold() -> None:
    said = run("explain --model llama-3-8b --gpus 64 --tp 2 --framework torchtitan").stdout
    assert "Habits of torchtitan: attention flash-2" in said
    assert "ZeRO-3" in said, "the only kind that it has"
    message = refused("explain --model llama-3-8b --gpus 64 --framework megatron --zero 3")
    assert "zero: 3 is refused, megatron cannot do it; allowed: 0, 1, or framework any" in message
    short = document("explain --model llama-3-8b --gpus 64 --tp 2 --tp-overlap none")
    assert "tensor-parallel overlap none" in short["habits"], "what is typed goes before habits"


def test_the_smallest_layout_is_of_what_is_trained() -> None:
    """QLoRA needs less memory: 70 B on 8 GPUs without any model parallelism but for a pair."""
    lines = [f"explain --gpus 8 --tokens 64Ki {more}" for more in ("", "--recipe qlora")]
    whole, narrow = (document(line)["layout"] for line in lines)
    assert narrow["tp"] * narrow["pp"] < whole["tp"] * whole["pp"]
    assert narrow["lora_rank"] == 16


def test_what_is_unusual_is_said() -> None:
    lines = run(
        "explain --model llama-3-8b --gpus 64 --tp 2 --recipe qlora --order tp-cp-pp-dp "
        "--offload-share 0.5"
    ).stdout
    assert "order tp-cp-pp-dp" in lines
    assert "50% of the activations on the host" in lines
    assert "LoRA of rank 16, frozen 4-bit weights" in lines
    assert "4 FLOPs a parameter" in lines
    plain = run("explain --model llama-3-8b --gpus 64 --tp 2").stdout
    assert "LoRA" not in plain
    assert "order" not in plain.partition("operation")[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--order tp-pp", ("--order", "'tp-pp'", "tp-cp-dp-pp")),
        ("--zero-kind scater", ("--zero-kind", "'scater'", "scatter")),
        ("--recipe qlra", ("--recipe", "'qlra'", "qlora")),
        ("--offload-share 1.5", ("--offload-share", "1.5", "0 to 1", "nearest: 1")),
        ("--recompute-share -1", ("--recompute-share", "-1", "0 to 1", "nearest: 0")),
        ("--etp 3", ("--etp", "3", "nearest: 1")),
        ("--recipe mixed --lora-rank 8", ("--lora-rank", "8", "lora, qlora")),
        ("--lora-rank -1", ("--lora-rank", "-1")),
    ],
)
def test_refusals(options: str, words: tuple[str, ...]) -> None:
    message = refused(f"explain --model llama-3-8b --gpus 64 --tp 2 {options}")
    assert all(word in message for word in words), message


@pytest.mark.parametrize("command", ["explain", "plan", "guide", "strategies"])
class TestModels:
    def test_a_config_is_the_model_it_describes(self, command: str, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**LLAMA, "_name_or_path": "llama-3-8b"}), "utf-8")
        ours, theirs = (
            document(f"{command} --gpus 64 --model {model}") for model in (file, "llama-3-8b")
        )
        assert ours == theirs

    def test_no_such_model(self, command: str) -> None:
        assert "--model: 'llama-3-8c' is not one; the nearest are llama-3-8b" in refused(
            f"{command} --gpus 64 --model llama-3-8c"
        )
        message = refused(f"{command} --gpus 64 --model /no/such/config.json")
        assert "--model: /no/such/config.json: cannot be read" in message


@pytest.mark.parametrize("command", ["explain", "plan"])
def test_where_nobody_has_calibrated_steps(command: str) -> None:
    """At peak rates, said once; the machine's line does not call them achievable."""
    said = run(f"{command} --cluster l40s-box --model llama-3-8b --tokens 64Ki").stdout
    assert said.count("Nobody has calibrated whole steps of NVIDIA L40S") == 1
    assert "peak rates" in said.splitlines()[0]
    calibrated = run(f"{command} --gpus 8 --model llama-3-8b --tokens 64Ki").stdout
    assert "Nobody has calibrated" not in calibrated
