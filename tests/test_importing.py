"""Other programs' files as results: samples written after what nccl-tests 2.13 to 2.16, nvbandwidth
0.4 to 0.8, nvidia-smi and torch 2.3 to 2.6 print, whole and broken."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hardware_profiles as hp
from roofline import collectives
from validation import page
from validation.__main__ import app
from validation.importing import nccl, nvbandwidth, topo, trace
from validation.report import report
from validation.results import Measured, Results, read

H100 = "NVIDIA H100 80GB HBM3"
COLUMNS = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = {
    "all_reduce": " 1073741824 268435456 float sum -1 4500.0 238.61 447.39 0 4480.0 239.67 449.39 0",
    "all_gather": " 1073741824 16777216 float none -1 3300.0 325.38 305.04 0 3310.0 324.39 304.12 0",
    "reduce_scatter": " 1073741824 16777216 bfloat16 sum -1 3200.0 335.54 314.57 0 3210.0 334.50 313.59 0",
    "alltoall": " 1073741824 16777216 half none -1 11000 97.61 91.51 0 11200 95.87 89.88 N/A",
    "broadcast": " 1073741824 268435456 float none 0 4000.0 268.44 268.44 0 4010.0 267.77 267.77 0",
    "reduce": " 1073741824 268435456 float sum 0 4000.0 268.44 268.44 0 4010.0 267.77 267.77 0",
    "scatter": " 1073741824 16777216 float none 0 9000.0 119.30 111.85 0 9010.0 119.17 111.72 0",
    "gather": " 1073741824 16777216 float none 0 9000.0 119.30 111.85 0 9010.0 119.17 111.72 0",
    "sendrecv": " 1073741824 268435456 uint8 sum -1 24000 44.74 44.74 0 24100 44.55 44.55 N/A",
}


def log(program: str, hosts: int = 2, each: int = 8, row: str = "", gpu: str = H100) -> str:
    """One table with a multi-node header."""
    ranks = [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on    node-{rank // each} device {rank % each} "
        f"[0x{rank % each:x}8] {gpu}"
        for rank in range(hosts * each)
    ]
    head = [
        f"# nccl-tests version 2.13.8 {program}_perf",
        "NCCL version 2.21.5+cuda12.4",
        "# Using devices",
    ]
    return "\n".join(
        [
            *head,
            *ranks,
            "#",
            COLUMNS.rstrip(),
            row or ROWS[program],
            "# Out of bounds values : 0 OK",
            "",
        ]
    )


def run(tmp_path: Path, kind: str, text: str | bytes, *more: str) -> tuple[Any, Results]:
    """The command on a file with this text, and the results it left."""
    file, out = tmp_path / "input.txt", tmp_path / "out"
    tmp_path.mkdir(exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    told = CliRunner().invoke(app, ["import", kind, str(file), "--out", str(out), *more])
    return told, read(out) if out.exists() else Results()


@pytest.mark.parametrize("program", ROWS)
def test_every_program_of_nccl_tests(program: str, tmp_path: Path) -> None:
    """In place and out of place, with the whole array, a prediction and what was checked."""
    told, found = run(tmp_path, "nccl-tests", log(program))
    assert told.exit_code == 0, told.output
    assert not found.problems
    (header,) = found.headers.values()
    assert header.hosts == {"node-0": 8, "node-1": 8}
    assert header.devices == {H100: 16}
    assert header.versions["nccl"] == "2.21.5+cuda12.4"
    assert [tier["degree"] for tier in header.cluster["tiers"][:2]] == [8, 2]
    out, inside = found.measured
    words = ROWS[program].split()
    name = collectives.find(out.kernel)
    assert out.parameters["bytes"] == 2**30 * (16 if program == "alltoall" else 1)
    assert (out.seconds, inside.seconds) == (
        pytest.approx(float(words[5]) * 1e-6),
        pytest.approx(float(words[9]) * 1e-6),
    )
    assert (name is collectives.SWAP) == (program == "sendrecv")  # round a ring, both ways at once
    assert (out.size, out.stride) == (16, 1)
    assert inside.parameters["in_place"] is True
    assert out.correct == "yes"
    assert inside.correct == ("elsewhere" if words[-1] == "N/A" else "yes")
    assert out.predicted is not None
    assert 0.3 < out.predicted / out.seconds < 3 or program in ("scatter", "gather", "sendrecv")


def test_a_log_of_one_thread_is_predicted_with_its_launches(tmp_path: Path) -> None:
    """reduce_scatter_perf -g 4: 21.4 us on four H100, waynehacking8/nccl-collectives-bench.

    A thread for each GPU: a third of that (ai-dynamo/aiconfigurator: 7.6).
    """
    row = "        1024            64     float     sum      -1    21.36    0.05    0.04       0"
    said = "# nThread 1 nGpus 4 minBytes 8 maxBytes 8589934592 graph: 0\n"
    text = log("reduce_scatter", hosts=1, each=4, row=row)
    (_, own), (_, one) = (
        run(tmp_path / name, "nccl-tests", told) for name, told in (("a", text), ("b", said + text))
    )
    (alone,), (launched,) = own.measured, one.measured
    assert "per_thread" not in alone.parameters
    assert launched.parameters["per_thread"] == 4
    assert alone.predicted is not None
    assert launched.predicted is not None
    assert alone.predicted < 11e-6
    assert launched.predicted == pytest.approx(21.36e-6, rel=0.2)


@pytest.mark.parametrize("gpus", [3, 99])
def test_gpus_that_no_thread_can_have_are_told_and_dropped(gpus: int, tmp_path: Path) -> None:
    """Every thread of nccl-tests has as many GPUs: -g divides the ranks."""
    text = f"# nThread 1 nGpus {gpus} minBytes 8 graph: 0\n" + log("all_reduce", hosts=1)
    told, found = run(tmp_path, "nccl-tests", text)
    assert f"all-reduce: nGpus {gpus} of 8 ranks: taken as not said" in told.output
    assert len(found.measured) == 2
    assert not any("per_thread" in line.parameters for line in found.measured)


def test_wrong_results_and_old_columns(tmp_path: Path) -> None:
    """#wrong 5 is wrong; versions before 2.12 print the largest error, 1e-07, which is not."""
    wrong = " 1048576 262144 float sum -1 50.0 20.97 39.32 5 50.0 20.97 39.32 0"
    _, found = run(tmp_path, "nccl-tests", log("all_reduce", row=wrong))
    assert [m.correct for m in found.measured] == ["no", "yes"]
    old = (
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
        "#   Rank  0 Pid  99 on  box device  0 [0x07] A100-SXM4-40GB\n"
        "#   Rank  1 Pid  99 on  box device  1 [0x0f] A100-SXM4-40GB\n"
        "#                                                       out-of-place                       in-place\n"
        "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "     1048576        262144     float     sum    36.01   29.12   29.12  1e-07    35.71   29.36   29.36  1e-07\n"
    )
    (table,) = nccl.read(old)
    assert table.world == 2
    assert [s.correct for s in table.samples] == ["yes", "yes"]
    assert table.samples[0].kernel == "all-reduce"


def test_broken_lines_are_listed_and_the_rest_is_kept(tmp_path: Path) -> None:
    text = (
        log("all_reduce")
        + " 2147483648 5368\n 4294967296 1073741824 float sum -1 abc 1 1 0\n[node-1] NCCL WARN x\n"
    )
    told, found = run(tmp_path, "nccl-tests", text)
    assert told.exit_code == 0
    assert len(found.measured) == 2
    assert told.output.count("left out:") == 3
    assert "time: 'abc' is not a number" in told.output


def test_one_bad_column_in_place_keeps_the_good_one(tmp_path: Path) -> None:
    row = " 1048576 262144 float sum -1 50.0 20.97 39.32 0 inf 20.97 39.32 0"
    told, found = run(tmp_path, "nccl-tests", log("all_reduce", row=row))
    (kept,) = found.measured
    assert kept.seconds == pytest.approx(50e-6)
    assert "in_place" not in kept.parameters
    assert "in place: time: 'inf' is refused" in told.output


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("inf 20.97 39.32 0", "time: 'inf' is refused"),
        ("nan nan nan 0", "time: 'nan' is refused"),
        ("0.00 0.00 0.00 0", "time 0: nothing was measured"),
        ("N/A N/A N/A N/A", "time: 'N/A' is not a number"),
        ("50.0 99.99 39.32 0", "the line says 100"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_of_two_columns_the_good_one_is_kept(
    bad: str, why: str, in_place: bool, tmp_path: Path
) -> None:
    """2^20 B in 50 µs are 20.97 GB/s; what is beside them is told with its reason."""
    good = "50.0 20.97 39.32 0"
    halves = f"{good} {bad}" if in_place else f"{bad} {good}"
    row = f" 1048576 262144 float sum -1 {halves}"
    told, found = run(tmp_path, "nccl-tests", log("all_reduce", row=row))
    assert told.exit_code == 0, told.output
    (kept,) = found.measured
    assert kept.trusted
    assert kept.seconds == pytest.approx(50e-6)
    assert kept.parameters.get("in_place", False) is not in_place
    assert told.output.count("left out:") == 1
    place = "in place" if in_place else "out of place"
    assert f"{place}: " in told.output
    assert why in told.output


@pytest.mark.parametrize("wrong", ["5", "inf", "-1"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_wrong_result_leaves_the_other_column_trusted(
    wrong: str, in_place: bool, tmp_path: Path
) -> None:
    checks = ("0", wrong) if in_place else (wrong, "0")
    row = " 1048576 262144 float sum -1 50.0 20.97 39.32 {} 50.0 20.97 39.32 {}".format(*checks)
    told, found = run(tmp_path, "nccl-tests", log("all_reduce", row=row))
    assert [m.trusted for m in found.measured] == [in_place, not in_place]
    assert f"{'in place' if in_place else 'out of place'}: {wrong} results are wrong" in told.output


def test_two_bad_columns_are_one_bad_row(tmp_path: Path) -> None:
    row = " 1048576 262144 float sum -1 nan 20.97 39.32 0 inf 20.97 39.32 0"
    told, found = run(
        tmp_path, "nccl-tests", log("all_reduce", row=row + "\n" + ROWS["all_reduce"])
    )
    assert len(found.measured) == 2
    assert told.output.count("left out:") == 1


def test_several_tables_in_a_file_are_several_runs(tmp_path: Path) -> None:
    _, found = run(tmp_path, "nccl-tests", log("all_reduce") + log("all_gather", hosts=1))
    assert sorted(header.world for header in found.headers.values()) == [8, 16]
    assert {m.run for m in found.measured} == set(found.headers)


def test_half_a_node_on_each_host(tmp_path: Path) -> None:
    """Four of eight GPUs have half of the node's cards."""
    _, found = run(tmp_path, "nccl-tests", log("all_reduce", each=4))
    (header,) = found.headers.values()
    node, network = header.cluster["tiers"]
    assert (node["degree"], network["degree"]) == (4, 2)
    assert network["bandwidth"] == pytest.approx(200e9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (log("all_reduce", gpu="Voodoo 2"), "Voodoo 2; say which machine it is of: --cluster NAME"),
        ("", "nothing imported"),
        ("not a log\n\x00\xff\n", "not a row"),
        (ROWS["all_reduce"], "no GPU; say which machine|does not say on how many ranks"),
        (
            log("all_reduce").replace("node-1 device 7", "node-2 device 7"),
            "different numbers of ranks",
        ),
    ],
)
def test_logs_that_cannot_be_used(text: str, why: str, tmp_path: Path) -> None:
    told, found = run(tmp_path, "nccl-tests", text)
    assert told.exit_code == 1
    assert not found.measured
    with pytest.raises(ValueError, match=why):
        raise ValueError(told.output)


def test_the_machine_can_be_told(tmp_path: Path) -> None:
    text = log("all_reduce", gpu="Voodoo 2")
    told, found = run(tmp_path, "nccl-tests", text, "--cluster", "aws-p5", "--overlay", "none")
    assert told.exit_code == 0
    (header,) = found.headers.values()
    assert (header.profile, header.overlay) == ("aws-p5", "")


NVBANDWIDTH = f"""\
nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 12060
CUDA Driver Version: 12060
Driver Version: 560.35.03

box
Device 0: {H100} (00000000:18:00)
Device 1: {H100} (00000000:2a:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.24     55.26

SUM host_to_device_memcpy_ce 110.50

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    387.98
 1    388.12       N/A

SUM device_to_device_memcpy_read_ce 776.10

Running device_to_device_bidirectional_memcpy_read_ce.
memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    763.00
 1    762.90       N/A

Running device_local_copy.
memcpy local GPU(column) bandwidth (GB/s)
           0         1
 0   1420.50   1421.10

Running device_to_device_latency_sm.
Device to Device Latency SM GPU(row) <-> GPU(column) (ns)
           0         1
 0       N/A    720.10
 1    719.90       N/A

Running multicast_one_to_all_all_reduce_sm.
Waived:
"""


def test_nvbandwidth(tmp_path: Path) -> None:
    told, found = run(tmp_path, "nvbandwidth", NVBANDWIDTH)
    assert told.exit_code == 0, told.output
    sends = [m for m in found.measured if m.kernel == "point-to-point"]
    (copy,) = [m for m in found.measured if m.kernel == "memory"]
    assert [m.seconds for m in sends] == [
        pytest.approx(512 * 2**20 / 387.98e9),
        pytest.approx(512 * 2**20 / 388.12e9),
    ]
    assert all(m.predicted and 0.5 < m.predicted / m.seconds < 2 for m in sends)
    assert copy.repeats == 2
    assert copy.seconds == pytest.approx(512 * 2**20 / 1420.8e9, rel=1e-4)
    (header,) = found.headers.values()
    assert header.devices == {H100: 2}
    assert header.versions == {"nvbandwidth": "v0.8", "driver": "560.35.03", "cuda": "12060"}
    for test in ("host_to_device", "bidirectional", "latency_sm", "multicast"):
        assert test in told.output


def test_nvbandwidth_that_was_cut() -> None:
    """Rows with too few numbers or with words are listed; those above stay."""
    text = NVBANDWIDTH[: NVBANDWIDTH.index(" 1    388.12")] + " 1    388.12\n 0    oops    1.0\n"
    (found,) = nvbandwidth.read(text)
    assert [s.seconds for s in found.samples] == [[512 * 2**20 / 387.98e9]]
    assert any("1 numbers in 2 columns" in why for why in found.left_out)
    assert any("'oops' is not a number" in why for why in found.left_out)
    assert nvbandwidth.read("")[0].samples == []


def gpus(codes: list[list[str]], nics: int = 0) -> str:
    """A table of links, with cards that are all far."""
    names = [f"GPU{i}" for i in range(len(codes))]
    cards = [f"NIC{i}" for i in range(nics)]
    head = "\t".join(["", *names, *cards, "CPU Affinity", "NUMA Affinity"])
    rows = [
        "\t".join([name, *links, *["SYS"] * nics, "0-31", "0"])
        for name, links in zip(names, codes, strict=True)
    ]
    rows += [
        "\t".join([card, *["SYS"] * len(names), *["X" if c == card else "SYS" for c in cards]])
        for card in cards
    ]
    return "\n".join([head, *rows, "", "Legend:", "  X = Self"])


def square(n: int, code: str) -> list[list[str]]:
    return [["X" if i == j else code for j in range(n)] for i in range(n)]


def test_topologies_as_tiers() -> None:
    """Bandwidths from the datasheets' links: 25 GB/s each of NVLink 3 and 4, one direction."""
    dgx = topo.cluster(gpus(square(8, "NV18"), 8), "h100-sxm", "mine", 50e9, 4)
    assert [(t.degree, t.bandwidth) for t in dgx.tiers] == [(8, 450e9), (4, 400e9)]
    assert not dgx.tiers[0].direct
    polaris = topo.cluster(gpus(square(4, "NV4")), "a100-sxm-40gb", "mine")
    assert [(t.degree, t.bandwidth, t.direct) for t in polaris.tiers] == [(4, 300e9, True)]
    (box,) = topo.cluster(gpus(square(8, "SYS")), "l40s", "mine").tiers
    assert (box.degree, box.bandwidth) == (8, 31.5e9)
    pairs = [
        ["X" if i == j else "NV4" if i // 2 == j // 2 else "SYS" for j in range(4)]
        for i in range(4)
    ]
    inner, outer = topo.cluster(gpus(pairs), "a100-sxm-80gb", "mine").tiers
    assert (inner.degree, inner.bandwidth, outer.degree) == (2, 100e9, 2)


@pytest.mark.parametrize(
    ("codes", "gpu", "why"),
    [
        (square(8, "NV18"), "a100-sxm-80gb", "has 12 NVLinks, the table 18"),
        (
            [["X", "NV4", "NV4"], ["NV4", "X", "SYS"], ["NV4", "SYS", "X"]],
            "a100-sxm-80gb",
            "no tiers",
        ),
        (square(2, "NV4"), "h1000", "h1000"),
    ],
)
def test_topologies_that_fit_nothing(codes: list[list[str]], gpu: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        topo.cluster(gpus(codes), gpu, "mine")


def test_a_topology_becomes_a_profile_that_loads(tmp_path: Path) -> None:
    table, out = tmp_path / "topo.txt", tmp_path / "mine.yaml"
    table.write_text(gpus(square(8, "NV18"), 8), "utf-8")
    asked = [
        "import",
        "topo",
        str(table),
        "--gpu",
        "h100-sxm",
        "--out",
        str(out),
        "--nic-gbps",
        "400",
        "--nodes",
        "2",
    ]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0, told.output
    made = hp.cluster(str(out))
    assert (made.gpus, made.tiers[1].bandwidth) == (16, 400e9)
    table.write_text("nothing", "utf-8")
    assert CliRunner().invoke(app, asked).exit_code == 2


def kernel(name: str, dur: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": 1.0,
        "dur": dur,
        "pid": 0,
        "tid": 7,
        "args": args,
    }


def asked(name: str, number: int, **args: Any) -> dict[str, Any]:
    told = {"External id": number} | args
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 0.5, "dur": 9.0, "args": told}


REDUCED = {
    "Collective name": "allreduce",
    "In msg nelems": 2**20,
    "Out msg nelems": 2**20,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}
GATHERED = REDUCED | {
    "Collective name": "_allgather_base",
    "In msg nelems": 1000,
    "Out msg nelems": 8000,
    "dtype": "Float",
    "Process Group Ranks": "[1, 9, 17, ...]",
}
EVENTS = [
    *(
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", dur, **REDUCED)
        for dur in (30.0, 40.0, 90.0)
    ),
    asked("record_param_comms", 5, **GATHERED),
    kernel("ncclDevKernel_AllGather_RING_LL(x)", 20.0, **{"External id": 5}),
    kernel("ncclKernel_AllReduce_RING_LL_Sum_float(x)", 11.0),
    kernel("ncclDevKernel_SendRecv(x)", 5.0, **REDUCED | {"Collective name": "barrier"}),
    asked(
        "aten::mm",
        6,
        **{"Input Dims": [[4096, 8192], [8192, 1024]], "Input type": ["c10::BFloat16"] * 2},
    ),
    kernel("nvjet_hsh_128x256_64x4_2x1_v_bz_coopB_TNN", 100.0, **{"External id": 6}),
    asked(
        "aten::addmm", 7, **{"Input Dims": [[64], [16, 32], [32, 64]], "Input type": ["float"] * 3}
    ),
    kernel("ampere_sgemm_32x32_sliced1x4_tn", 3.0, **{"External id": 7}),
    kernel("cublasLt::splitKreduce_kernel", 2.0, **{"External id": 7}),
    asked(
        "aten::bmm", 8, **{"Input Dims": [[2, 8, 16], [2, 16, 4]], "Input type": ["c10::Half"] * 2}
    ),
    kernel("cutlass_80_gemm", 4.0, **{"External id": 8}),
    asked(
        "aten::_scaled_mm",
        11,
        **{
            "Input Dims": [[512, 256], [256, 128], [], [], [], [], []],
            "Input type": ["c10::Float8_e4m3fn"] * 2 + ["float"] * 2 + ["", "", "Scalar"],
        },
    ),
    kernel("nvjet_sm90_qqtst_128x128_coopA", 6.0, **{"External id": 11}),
    asked("aten::mm", 9),
    kernel("sm90_xmma_gemm_bf16", 4.0, **{"External id": 9}),
    kernel("void at::native::vectorized_elementwise_kernel", 4.0, **{"External id": 10}),
    {"ph": "i", "name": "marker"},
    None,
]
TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": H100}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 64, "nccl_version": "2.21.5"},
    "traceEvents": EVENTS,
}


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace(packed: bool, tmp_path: Path) -> None:
    data = json.dumps(TRACE).encode()
    told, found = run(tmp_path, "trace", gzip.compress(data) if packed else data)
    assert told.exit_code == 0, told.output
    by = {(m.kernel, m.parameters.get("form", "")): m for m in found.measured}
    reduce, gather = by["all-reduce", ""], by["all-gather", ""]
    assert (reduce.parameters["bytes"], reduce.parameters["dtype"]) == (2**21, "bf16")
    assert (reduce.seconds, reduce.repeats) == (pytest.approx(40e-6), 3)
    assert (gather.parameters["bytes"], gather.size, gather.stride) == (32000, 8, 8)
    big: Measured = by["matmul", "rectangle"]
    shapes = {
        tuple(m.parameters[x] for x in "mnk"): m for m in found.measured if m.kernel == "matmul"
    }
    assert shapes[4096, 1024, 8192].seconds == pytest.approx(100e-6)
    assert shapes[4096, 1024, 8192].predicted == pytest.approx(
        2 * 4096 * 1024 * 8192 / 750e12, rel=0.3
    )
    assert shapes[16, 64, 32].seconds == pytest.approx(5e-6)
    assert shapes[512, 128, 256].parameters["dtype"] == "fp8"
    assert shapes[512, 128, 256].predicted is not None
    assert by["matmul", "batched"].parameters["batch"] == 2
    assert big.part == "math"
    for why in ("torch before 2.2", "'barrier' is no collective", "record_shapes=True"):
        assert why in told.output
    (header,) = found.headers.values()
    assert (header.world, header.versions["nccl"]) == (64, "2.21.5")


def test_a_trace_that_was_cut_keeps_its_whole_events() -> None:
    text = json.dumps(TRACE)
    (found,) = trace.read(text[: text.index("record_param_comms")])
    assert [s.kernel for s in found.samples] == ["all-reduce"]
    assert len(found.samples[0].seconds) == 3


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "no", '{"traceEvents": 5}', '{"traceEvents": [5]}', b"\x1f\x8b\x08"]
)
def test_traces_that_are_none(text: str | bytes, tmp_path: Path) -> None:
    told, found = run(tmp_path, "trace", text)
    assert told.exit_code == 1
    assert "nothing imported" in told.output
    assert not found.measured


def test_importing_twice_gives_the_same_cases(tmp_path: Path) -> None:
    _, once = run(tmp_path, "nccl-tests", log("all_reduce"))
    _, twice = run(tmp_path, "nccl-tests", log("all_reduce"))
    assert len(twice.headers) == len(once.headers)
    assert len(twice.latest()) == len(once.latest())


def test_report_works_on_what_another_program_measured(tmp_path: Path) -> None:
    """Bandwidth tests, traces and logs of ``-c 0`` count, and it is said that nobody here looked."""
    _, found = run(tmp_path, "trace", json.dumps(TRACE))
    assert all(m.correct == "elsewhere" and m.trusted for m in found.measured)
    judged = report(tmp_path / "out")
    assert judged.errors
    assert judged.summary["elsewhere"] == judged.summary["trusted"] == len(found.measured)
    assert f"{len(found.measured)} were measured by another program" in page.headline(judged)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        (gzip.compress(b'{"traceEvents": []}' * 99)[:-20], "compressed"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 40, "damaged"),
    ],
    ids=["deep", "cut", "damaged"],  # never the bytes: gzip's own hold the time of day
)
def test_hostile_traces_are_refused_in_one_sentence(
    text: str | bytes, why: str, tmp_path: Path
) -> None:
    told, _ = run(tmp_path, "trace", text)
    assert told.exit_code == 1
    assert why in told.output
    assert len(told.output.splitlines()) == 2


def test_one_absurd_kernel_leaves_the_others(tmp_path: Path) -> None:
    """A group of 10³⁰ ranks and a kernel that never ended are left out, each with a reason."""
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
    absurd = kernel(name, 30.0, **REDUCED | {"Group size": 10**30})
    events = [kernel(name, 30.0, **REDUCED), absurd, kernel(name, float("inf"), **REDUCED)]
    told, found = run(tmp_path, "trace", json.dumps(TRACE | {"traceEvents": events}))
    assert told.exit_code == 0, told.output
    assert "Group size" in told.output
    assert "without a duration" in told.output
    assert [m.repeats for m in found.measured] == [1]
