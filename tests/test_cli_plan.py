"""``plan``, ``compare``, ``export`` and ``import``: their numbers are the library's."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hardware_profiles as hw
from roofline import planner
from roofline.cli import asked
from roofline.compare import compare
from roofline.export import load
from roofline.outcome import outcome
from roofline.planner import plan
from roofline.presets import preset
from roofline.ranking import CUT, KIND
from roofline.units import DAY, show
from tests.test_cli import document, keys_of, refused, run

ROOT = Path(__file__).parent.parent
H100 = hw.cluster("dgx-h100-superpod")
LLAMA = preset("llama-3-8b").model
JOB = "--model llama-3-8b --gpus 16 --tokens 512Ki"
FEW = f"{JOB} --framework megatron --cp 1 --chunks 1"
ASKED: dict[str, Any] = {"tokens": 2**19, "sequence": 4096, "framework": "megatron"}
FOUND = plan(LLAMA, H100, 16, cp=1, chunks=1, **ASKED)


class TestPlan:
    def test_the_document_is_the_plan(self) -> None:
        found = document(f"plan {FEW} --budget 1T --price 2 --top 5")
        assert found["seen"] == FOUND.seen
        assert found["fitting"] == FOUND.fitting
        assert len(found["ranked"]) == 5
        assert [row["step_s"] for row in found["ranked"]] == FOUND.ranked["seconds"][:5].tolist()
        assert found["best"]["seconds"] == FOUND.ranked["seconds"][0]
        assert sum(row["seconds"] for row in found["best"]["terms"]) == pytest.approx(
            found["best"]["seconds"]
        )
        brought = outcome(FOUND.best, budget=1e12, price=2.0) if FOUND.best else None
        assert brought is not None
        assert found["best"]["train_s"] == pytest.approx(float(brought.days) * DAY)
        assert found["best"]["money"] == pytest.approx(float(brought.money))
        assert found["explanation"] == list(FOUND.explain().sentences)

    def test_limits_are_kept(self) -> None:
        found = document(f"plan {FEW} --tp 2-4 --recompute none,full --zero 1")
        assert {row["tp"] for row in found["ranked"]} <= {2, 4}
        assert {row["recompute"] for row in found["ranked"]} <= {"none", "full"}
        assert found["limits"]["tp"] == "2-4"

    def test_people_read_the_same(self) -> None:
        result = run(f"plan {FEW} --top 3 --budget 1T --days 1000 --price 2.5")
        assert result.exit_code == 0
        for sentence in FOUND.explain().sentences:
            assert sentence in result.stdout
        assert "the deadline of 1000 days is kept" in result.stdout
        assert " at 2.5 a GPU hour" in result.stdout
        assert result.stderr == ""

    def test_your_layout_beside_the_best(self) -> None:
        found = document(f"plan {FEW} --compare tp=8,pp=2")
        (mine,) = found["compare"]
        own = plan(LLAMA, H100, 16, tp=8, pp=2, cp=1, ep=1, etp=1, **ASKED)
        assert mine["best"]["step_s"] == own.ranked["seconds"][0]
        slower = mine["best"]["step_s"] / found["best"]["seconds"] - 1
        assert f"{slower:.1%} slower" in mine["sentence"]

    def test_a_launch_file_comes_with_it(self, tmp_path: Path) -> None:
        file = tmp_path / "train.sh"
        result = run(f"plan {FEW} --export megatron --output {file}")
        assert result.exit_code == 0
        assert load(file.read_text()).layout.tp == FOUND.layout().tp
        assert document(f"plan {FEW} --export plain")["export"]["text"] == FOUND.export("plain")

    def test_notes_of_a_file_without_comments_are_told(self) -> None:
        result = run(f"plan {FEW} --export deepspeed")
        assert "note: model: its sizes have no options in this file" in result.stderr
        assert "note:" not in result.stdout

    def test_other_words_for_a_format(self) -> None:
        same = document(f"plan {FEW} --export json")["export"]
        assert same["text"] == FOUND.export("plain")
        assert document(f"plan {FEW} --export nemo")["export"]["text"] == FOUND.export("bridge")

    def test_minor_choices_are_listed_when_asked_for(self) -> None:
        few, all_ = (document(f"plan {FEW} --top 200")[name] for name in ("distinct", "ranked"))
        assert few[0] == all_[0]
        assert len(few) < len(all_)
        kinds = [tuple(row[name] for name in KIND) for row in few]
        assert len(set(kinds)) == len(kinds)
        for one in all_:  # whoever is not listed has a faster one of its cut, or saves no memory
            faster = [row for row in few if row["place"] <= one["place"]]
            alike = [row for row in faster if all(row[n] == one[n] for n in CUT)]
            assert alike
            own = any(all(row[n] == one[n] for n in KIND) for row in alike)
            assert own or one["memory_bytes"] >= 0.99 * min(row["memory_bytes"] for row in alike)
        plain, twins = (run(f"plan {FEW} {more}").stdout for more in ("", "--twins"))
        assert plain != twins

    def test_a_layout_that_does_not_fit_says_how_much_and_how_fast(self) -> None:
        line = "plan --model llama-3-8b --gpus 16 --tokens 512Ki --framework megatron"
        found = document(f"{line} --cp 1 --chunks 1 --compare tp=1,recompute=none,micro_batch=8")
        mine = found["compare"][0]
        assert mine["best"] is None
        row = mine["smallest"]
        assert show(row["step_s"], "s") in mine["sentence"]
        more = show(row["memory_bytes"] - FOUND.question.room, "B")
        assert (
            f"it needs {show(row['memory_bytes'], 'B')} a GPU, {more} more than" in mine["sentence"]
        )
        beside = run("plan --model llama-3-405b --gpus 8 --compare tp=8").stdout
        assert re.search(r"tp=8 \(.*\) takes .* a step and does not fit: it needs .* GB", beside)

    def test_a_file_that_cannot_be_written_is_refused_before_the_search(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def searched(*_: Any, **__: Any) -> None:
            raise AssertionError("searched")

        monkeypatch.setattr(planner, "_rows", searched)
        beyond = tmp_path / "no" / "train.sh"
        told = {
            tmp_path: " is a folder",
            beyond: f" cannot be written: there is no folder {beyond.parent}",
        }
        for file, why in told.items():
            for command in (f"plan {FEW} --export megatron", f"export megatron {JOB}"):
                assert f"--output: {file}{why}" in refused(f"{command} --output {file}")
        assert "--output: a launch file needs --export" in refused(f"plan {FEW} --output x.sh")

    def test_an_interrupt_leaves_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(planner, "_rows", interrupted)
        result = run(f"plan {FEW} --export megatron --output {tmp_path / 'train.sh'}")
        assert result.exit_code == 130
        assert list(tmp_path.iterdir()) == []

    def test_nothing_fits(self) -> None:
        result = run("plan --model llama-3-405b --gpus 8 --framework megatron")
        assert result.exit_code == 1
        assert "none of" in result.stdout
        assert "What would fit: " in result.stdout

    def test_a_config_file_is_a_model(self, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
        file.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 50257, **sizes}))
        found = document(f"plan --model {file} --gpus 8 --tokens 64Ki --sequence 1024 --tp 1")
        assert found["best"]["tp"] == 1

    def test_interrupted_is_130(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(planner, "_rows", interrupted)
        result = run(f"plan {FEW}")
        assert result.exit_code == 130
        assert result.stdout == ""

    def test_an_interrupt_leaves_no_traceback(self) -> None:
        """A process that gets SIGINT in the middle of its search, also where whoever started the
        tests ignores it, as shells do for what runs in the background.
        """
        program = (
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from roofline import planner\n"
            "planner._rows = lambda *_: signal.raise_signal(signal.SIGINT)\n"
            "from roofline.cli import main\n"
            f"sys.argv = ['roofline', 'plan', *{FEW.split()}]\n"
            "main()\n"
        )
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        said = "Interrupted: no answer, and no file was written.\n"
        assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


class TestFind:
    def test_fewest_gpus(self) -> None:
        line = "plan --model llama-3-8b --tokens 512Ki --framework megatron --cp 1 --chunks 1"
        found = document(f"{line} --budget 100e9 --days 20")
        assert found["find"] == "gpus"
        assert found["best"]["train_s"] <= 20 * DAY
        assert f"{found['best']['value']:,} GPUs" in found["answer"]

    def test_gpus_are_the_most_of_a_search_for_them(self) -> None:
        line = "plan --model llama-3-8b --tokens 512Ki --framework megatron --cp 1 --chunks 1"
        found = json.loads(run(f"{line} --find gpus --budget 1T --days 1 --gpus 24 --json").stdout)
        assert found["best"] is None
        assert max(row["value"] for row in found["tries"]) == 24
        assert "not met by any number of GPUs up to 24" in found["answer"]

    def test_the_answer_of_a_search_is_exported(self, tmp_path: Path) -> None:
        file = tmp_path / "train.sh"
        line = f"plan {FEW} --find batch --export megatron --output {file} --json"
        found = json.loads(run(line).stdout)
        assert found["export"]["text"] == file.read_text()
        assert load(file.read_text()).layout.batch == found["best"]["value"] / 4096

    def test_a_cluster_that_is_too_small_keeps_its_reason(self) -> None:
        found = document(f"plan {FEW} --cluster l40s-box,dgx-h100-superpod")
        assert found["best"]["value"] == "dgx-h100-superpod"
        reason = next(row["reason"] for row in found["tries"] if row["value"] == "l40s-box")
        assert "l40s-box has 8 GPUs and no network beyond" in reason

    def test_gpus_that_fill_no_node_are_told_apart_from_the_machine(self) -> None:
        result = run("plan --model llama-3-8b --gpus 13 --tokens 208Ki --framework megatron")
        assert result.stdout.startswith("13 of 16 × NVIDIA H100")
        assert "on 13 × NVIDIA H100" in result.stdout

    def test_cheapest(self) -> None:
        line = "plan --model llama-3-8b --tokens 512Ki --framework megatron --cp 1 --chunks 1"
        found = document(f"{line} --budget 100e9 --price 2")
        assert found["find"] == "money"
        paid = [row["money"] for row in found["tries"] if row["money"]]
        assert found["best"]["money"] == min(paid)

    @pytest.mark.parametrize("what", ["batch", "sequence"])
    def test_batch_and_sequence(self, what: str) -> None:
        result = run(f"plan {FEW} --find {what}")
        assert result.exit_code == 0
        assert "tokens" in result.stdout

    def test_clusters(self) -> None:
        found = document(f"plan {FEW} --cluster dgx-h100-superpod,dgx-a100-superpod")
        assert found["best"]["value"] == "dgx-h100-superpod"
        assert [row["value"] for row in found["tries"]][1] == "dgx-a100-superpod"


class TestCompare:
    def test_layouts(self) -> None:
        found = document(f"compare tp=2 tp=8,pp=2 {JOB} --framework megatron")
        both = [
            plan(LLAMA, H100, 16, **(dict.fromkeys(asked.DEGREES, 1) | limits), **ASKED)
            for limits in ({"tp": 2}, {"tp": 8, "pp": 2})
        ]
        side = compare(both)
        assert found["seconds"] == side.seconds.tolist()
        assert [row["name"] for row in found["terms"]] == list(side.terms)
        assert "% slower than tp=2" in found["sentences"][0]

    def test_clusters_and_models(self) -> None:
        line = "compare cluster=dgx-h100-superpod cluster=dgx-a100-superpod,gpus=32"
        found = document(f"{line} {FEW.split(' --cp')[0]}")
        assert [job["cluster"] for job in found["jobs"]] == [
            "dgx-h100-superpod",
            "dgx-a100-superpod",
        ]
        assert run(f"compare model=llama-3-8b model=llama-2-7b {JOB}").exit_code == 0


class TestFiles:
    def test_export_prints_the_file_alone(self) -> None:
        result = run(f"export megatron tp=2,pp=2 {JOB} --framework megatron")
        assert result.exit_code == 0
        assert result.stdout.startswith("#!/bin/bash")
        assert load(result.stdout).layout.pp == 2
        assert result.stderr.startswith("TP 2 · PP 2 · DP 4")

    def test_what_an_export_cannot_say_is_a_note(self) -> None:
        result = run(f"export deepspeed tp=2 {JOB} --framework deepspeed")
        assert "note: model: its sizes have no options" in result.stderr
        json.loads(result.stdout)

    def test_back_again(self, tmp_path: Path) -> None:
        file = tmp_path / "train.sh"
        text = FOUND.export("megatron")
        file.write_text(text)
        found = document(f"import {file}")
        again = load(text).training(H100)
        assert found["seconds"] == float(again.time.seconds)
        assert found["layout"]["tp"] == FOUND.layout().tp
        assert found["format"] == "megatron"
        assert found["ignored"] == []

    def test_what_is_ignored_is_listed(self, tmp_path: Path) -> None:
        file = tmp_path / "args.txt"
        file.write_text("--tensor-model-parallel-size 2 --lr 3e-4 --bf16 --micro-batch-size 1")
        result = run(f"import {file} --model llama-3-8b --gpus 8")
        assert result.exit_code == 0
        assert "--lr" in result.stdout
        assert "a step, MFU" in result.stdout
        alone = run(f"import {file}")
        assert alone.exit_code == 1
        assert "No prediction: the file states no sizes" in alone.stdout

    def test_a_layout_that_cannot_be_is_told(self, tmp_path: Path) -> None:
        file = tmp_path / "args.txt"
        file.write_text("--tensor-model-parallel-size 3 --bf16 --micro-batch-size 1")
        result = run(f"import {file} --model llama-3-8b --json")
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert "tp: 3 is refused; allowed: divisors of the 32 heads" in found["refused"]
        assert found["seconds"] is None

    def test_more_gpus_than_the_profile_has(self, tmp_path: Path) -> None:
        file = tmp_path / "plan.json"
        found = plan(LLAMA, H100, 2048, tokens=2**23, sequence=4096, tp=2, pp=1, cp=1)
        file.write_text(found.export("plain"))
        assert document(f"import {file}")["gpus"] == 2048


@pytest.mark.parametrize(
    "line",
    [
        f"plan {FEW} --budget 1T --price 2 --compare tp=8 --export plain",
        f"plan {FEW} --find batch",
        f"compare tp=2 tp=4 {JOB}",
        "import docs/train.sh",
    ],
)
def test_every_key_is_documented(line: str) -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    keys = keys_of({**document(line), "refused": []})
    assert not [key for key in sorted(keys) if f"`{key}`" not in text]


@pytest.mark.parametrize("command", ["plan", "compare", "export", "import"])
def test_help_is_given(command: str) -> None:
    result = run(f"{command} --help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


BAD = {
    f"plan {JOB} --tp 7": "tp=7 leaves no layout on 16 GPUs; the nearest that does: tp=8",
    f"plan {JOB} --tp x": "--tp: 'x' is refused; allowed: whole numbers",
    f"plan {JOB} --recompute most": "--recompute: 'most' is not one; .*allowed: none, attention",
    "plan --model llama-3-9b": "--model: 'llama-3-9b' is not one; the nearest",
    "plan --model no/config.json": "--model: no/config.json: cannot be read",
    f"plan {JOB} --framework megatrn": "--framework: 'megatrn' is not one; the nearest",
    f"plan {JOB} --headroom 2": "--headroom: 2.0 is refused",
    "plan --gpus 16 --tokens 5000": "--tokens: 5,000 is refused; .* the nearest: 4,096 and 8,192",
    f"plan {JOB} --compare tq=2": "--compare: 'tq' is not one; the nearest is tp",
    f"plan {JOB} --compare tp": "--compare: 'tp' is refused; allowed: NAME=VALUE",
    f"plan {JOB} --compare tp=1,tp=2": "--compare: tp is given twice",
    f"plan {JOB} --export megatrn": "--export: 'megatrn' is not one; the nearest",
    f"plan {JOB} --export nmeo": "--export: 'nmeo' is not one; the nearest",
    "plan --gpus 509": "GPUs that do: 504 and 512; .* 4169728 tokens .1,018 sequences. and 6254592 ",
    f"plan {JOB} --budget 1T --days 0": "--days: 0 is refused; allowed: above 0",
    "plan --budget 1T --days 0": "--days: 0 is refused; allowed: above 0",
    f"plan {JOB} --cluster dgx-a100-superpod --precision fp8": "--precision: 'fp8' is .* has no fp8 rate",
    "explain --cluster dgx-a100-superpod --precision fp8": "--precision: 'fp8' is refused: a100-sxm-80gb "
    "has no fp8 rate; allowed: bf16, fp16; the nearest is bf16",
    f"plan {JOB} --compare tp=8,foo=3": "--compare: 'foo' is not one; allowed: tp, cp",
    "explain --gpus 3": "--tokens: 1024 sequences .* 12288 tokens .3 sequences, one a GPU",
    "plan --model llama-3.2-405b": "--model: 'llama-3.2-405b' is not one; the nearest are? llama-3",
    "plan --gpus 97 --model deepseek-v3": "no layout of deepseek-v3 on 97 GPUs .* 96 and 104",
    "plan --gpus 100000": "100,000 GPUs divides a batch of 1,024 .* 98,304 and 100,352; ",
    "explain --model mixtral-8x7b --gpus 64 --imbalance 0.5": "--imbalance: 0.5 is refused; allowed: 1 "
    ".balanced. to 8, where one of the 8 experts has all tokens",
    "plan --model mixtral-8x7b --gpus 64 --imbalance 8.5": "--imbalance: 8.5 is refused; allowed: 1 .bal",
    "scale --model mixtral-8x7b --gpus 64 --imbalance nan": "--imbalance: nan is refused; allowed: 1 ",
    "plan --gpus 64 --imbalance 1.3": "--imbalance: 1.3 is refused; allowed: 1, for llama-3-70b has no",
    "explain --gpus 4 --cluster local": "--gpus: 4 is refused; local has 1 GPU and no network beyond; "
    "the nearest profiles with a network: ",
    "strategies --gpus 64 --cluster l40s-box": "--gpus: 64 is refused; l40s-box has 8 GPUs and no ",
    "collectives --gpus 64 --cluster l40s-box": "--gpus: 64 is refused; l40s-box has 8 GPUs and no ",
    "guide --gpus 64 --cluster l40s-box": "--gpus: 64 is refused; l40s-box has 8 GPUs and no ",
    "plan --gpus 64 --cluster l40s-box": "--gpus: 64 is refused; l40s-box has 8 GPUs and no network",
    "plan --find gpus": "--budget: missing; --find gpus needs --budget and --days",
    "plan --find size": "--find: 'size' is not one; allowed: gpus, money",
    "plan --find gpus --budget 1T --days 0": "--days: 0 is refused",
    "plan --find money --budget 1T": "--price: the profile of dgx-h100-superpod states none",
    f"compare tp=2 {JOB}": "jobs: 1 is refused; allowed: two",
    f"compare tp=2 tp=2 {JOB}": "names: tp=2, tp=2 is refused; allowed: 2 that differ",
    "compare tp=1 tp=2 --gpus 8 --model llama-3-405b": "LAYOUT: 'tp=1' is refused: .* none of",
    f"export megatrn {JOB}": "FORMAT: 'megatrn' is not one; the nearest",
    "export megatron --gpus 8 --model llama-3-405b": "none of",
    "import nope.sh": "FILE: nope.sh cannot be read: No such file",
    "import README.md --format torchtitan": "not TOML",
    "import docs/rooflines.png": "FILE: docs/rooflines.png .*(not text|bytes)",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_refused_in_one_line(line: str) -> None:
    assert re.search(BAD[line], refused(line))


class TestBar:
    def test_it_is_there_after_a_second(self) -> None:
        with asked.Bar() as bar:
            bar(0.1, 10)
            assert bar.shown is None
            bar.start -= 2 * asked.QUIET
            bar(0.5, 20)
            assert bar.shown is not None
            assert bar.shown.disable  # no terminal here
            assert bar.shown.tasks[0].completed == 0.5
