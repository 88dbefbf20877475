"""nccl-tests logs: what is read, what is guessed, and what is skipped with a reason."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.collectives import COLLECTIVES
from roofline.nccl_log import PROGRAMS, Run, median_error, read

HEADER = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid    313 on     node-0 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    314 on     node-0 device  1 [0x2a] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
     1048576        262144     float     sum      -1    32.10   32.67   57.17      0    31.85   32.92   57.61      0
  1073741824     268435456     float     sum      -1   3922.1  273.77  479.09      0   3921.2  273.83  479.20    N/A
"""
FOOTER = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 268.268
#
"""


def only(text: str) -> Run:
    (run,) = read(text).runs
    return run


def test_the_usual_columns_in_si_units() -> None:
    """Columns and units as nccl-tests prints them (src/util.cu): B, µs, GB/s."""
    log = read("all_reduce_perf -b 8 -e 8G -f 2 -g 8\n" + HEADER + ROWS + FOOTER)
    assert not log.skipped
    run = log.runs[0]
    assert (run.operation, run.guessed, run.ranks) == ("all-reduce", False, 2)
    np.testing.assert_allclose(run.size, [2.0**20, 2.0**30])
    np.testing.assert_allclose(run.seconds, [32.10e-6, 3922.1e-6])
    np.testing.assert_allclose(run.algbw, [32.67e9, 273.77e9])
    np.testing.assert_allclose(run.busbw, [57.17e9, 479.09e9])
    np.testing.assert_allclose(run.in_place_seconds, [31.85e-6, 3921.2e-6])
    np.testing.assert_allclose(run.in_place_busbw, [57.61e9, 479.20e9])
    assert run.dtypes == ("float", "float")
    assert run.redops == ("sum", "sum")
    assert run.roots == (-1, -1)


@pytest.mark.parametrize(
    ("said", "per_thread"),
    [
        ("# nThread 1 nGpus 4 minBytes 8 iters: 50 graph: 0", 4),
        ("# nThread 8 nGpus 1 minBytes 8 iters: 50", 1),
        ("# nThread 1 nGpus 4 minBytes 8 iters: 50 graph: 1 unalign: 0", 0),
        ("# nThread 1 nGpus 0 minBytes 8 graph: 0", None),
        ("#", None),
    ],
)
def test_gpus_that_a_thread_calls_for(said: str, per_thread: int | None) -> None:
    """The header of nccl-tests: -t threads, -g GPUs of each, -G graphs, in which nobody calls."""
    assert only(said + "\n" + HEADER.split("\n", 1)[1] + ROWS).per_thread == per_thread


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NCCL version 2.21.5+cuda12.4", "2.21.5+cuda12.4"),
        ("# nccl-tests version 2.17.6 nccl-headers=22706 nccl-library=22807", "2.28.7"),
    ],
)
def test_the_version_of_nccl(said: str, version: str) -> None:
    """As NCCL_DEBUG=VERSION prints it, or nccl-tests since 2.17: the library counts, not headers."""
    assert only(said + "\n" + HEADER + ROWS).versions["NCCL"] == version


def test_a_header_is_of_the_table_that_follows() -> None:
    one = HEADER + ROWS + FOOTER
    log = read(one + one.replace("nGpus 8", "nGpus 1") + "# reduce_scatter_perf\n" + ROWS)
    assert [run.per_thread for run in log.runs] == [8, 1, 1]
    assert [run.ranks for run in log.runs] == [2, 2, 2]


def test_broken_lines_are_named_and_skipped() -> None:
    """A row cut by debug output, as in NVIDIA/nccl issue 1453, leaves its numbers behind."""
    text = (
        ROWS
        + "        8192          2048     float     sum      -1 NCCL INFO 8192 Bytes -> Algo 0\n"
        + "    75.38    0.05    0.10      0\n"
        + "     1048576        262144     float     sum      -1    32.10   99.99   57.17      0\n"
        + "     1048576        262144     float     sum      -1      nan   32.67   57.17      0\n"
        + "     1048576        262144     float     sum      -1   -32.10   32.67   57.17      0\n"
        + "           0             0     float     sum      -1     4.50    0.00    0.00      0\n"
        + "     1048576        262144     float     sum      -1     0.00    0.00    0.00      0\n"
        + "node-0: Test NCCL failure common.cu:123\n"
    )
    log = read(text)
    assert len(log.runs[0].size) == 2
    assert [skipped.line for skipped in log.skipped] == list(range(3, 11))
    whys = [skipped.why for skipped in log.skipped]
    for why, expected in zip(
        whys,
        ["time: 'NCCL'", "4 columns", "32.7 GB/s, but the line says 100", "'nan' is refused",
         "'-32.10' is refused", "size 0", "time 0", "does not begin with a size"],
        strict=True,
    ):  # fmt: skip
        assert expected in why


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "[0] ", "0: ", " 12: "])
def test_tags_of_launchers_are_no_part_of_a_line(tag: str) -> None:
    """mpirun --tag-output and srun -l put the rank before every line."""
    tagged = "\n".join(tag + line for line in (HEADER + ROWS + FOOTER).splitlines())
    log = read(tagged)
    assert not log.skipped
    assert log.runs[0].ranks == 2
    np.testing.assert_allclose(log.runs[0].size, [2.0**20, 2.0**30])


def test_several_tables_are_several_runs() -> None:
    """nccl-tests names the program since 2.17: "Collective test starting"."""
    text = "".join(
        f"# Collective test starting: {name}_perf\n{HEADER}{ROWS}{FOOTER}"
        f"# Collective test concluded: {name}_perf\n"
        for name in ("all_gather", "reduce_scatter", "sendrecv")
    )
    log = read(text)
    assert [r.operation for r in log.runs] == ["all-gather", "reduce-scatter", "point-to-point"]
    assert not any(run.guessed for run in log.runs)


def test_columns_follow_the_header() -> None:
    """-M adds statistics of the iterations between the two halves; old versions had no root."""
    per_iteration = """\
# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong
1048576 262144 float sum -1 32.10 32.67 57.17 0 30.1 40.2 40.0 5.5 31.85 32.92 57.61 0
"""
    assert only(per_iteration).in_place_busbw[0] == pytest.approx(57.61e9)
    old = """\
#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error
1048576 262144 float sum 32.10 32.67 57.17 4e-07 31.85 32.92 57.61 4e-07
"""
    assert only(old).seconds[0] == pytest.approx(32.10e-6)
    assert only(old).roots == (-1,)
    assert only(old).in_place_seconds[0] == pytest.approx(31.85e-6)


def test_one_half_is_enough() -> None:
    run = only("1048576 262144 float sum -1 32.10 32.67 57.17 0")
    assert run.seconds[0] == pytest.approx(32.10e-6)
    assert math.isnan(run.in_place_seconds[0])


def test_the_other_half_is_enough_too() -> None:
    """What is out of place cannot be used; operation and ranks follow from what is in place."""
    bad = "1048576 262144 float sum -1 nan nan nan N/A 32.10 32.67 57.17 0"
    good = "1073741824 268435456 float sum -1 3922.1 273.77 479.09 0"
    log = read(f"{bad}\n{good}")
    (run,) = log.runs
    (skipped,) = log.skipped
    assert skipped.line == 1
    assert skipped.why == "out of place: time: 'nan' is refused; allowed: 0 and more"
    assert np.isnan(run.seconds).tolist() == [True, False]
    assert run.in_place_seconds[0] == pytest.approx(32.10e-6)
    assert (run.operation, run.ranks) == ("all-reduce", 8)
    only_good = run.out_of_place
    assert only_good.size.tolist() == [2.0**30]
    assert only_good.roots == (-1,)
    assert only(bad).operation == "all-reduce"
    with pytest.raises(ValueError, match="no row has a time out of place"):
        only(bad).out_of_place  # noqa: B018


@pytest.mark.parametrize("text", ["", "\n\n", "#\n# size count\n", "hello\nworld", "\x00\x01"])
def test_texts_without_a_table(text: str) -> None:
    assert not read(text).runs


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    log = read(text)
    assert sum(len(run.size) for run in log.runs) + len(log.skipped) <= len(text.splitlines())


@given(
    st.sampled_from(sorted(PROGRAMS.values())),
    st.integers(2, 48),
    st.floats(1e-5, 1.0),
)
def test_operation_and_ranks_from_the_numbers_alone(op: str, ranks: int, seconds: float) -> None:
    """The factors of nccl-tests' "Performance", read backwards; never a wrong number of ranks."""
    size = 2.0**33
    algbw = size / seconds / 1e9
    busbw = algbw * float(COLLECTIVES[op].busbw(np.asarray(float(ranks))))
    redop = "sum" if "reduce" in op else "none"
    root = 0 if op in ("broadcast", "reduce", "scatter", "gather") else -1
    run = only(f"{size:.0f} 1 float {redop} {root} {seconds * 1e6} {algbw:.2f} {busbw:.2f} 0")
    assert run.guessed
    assert run.ranks in (ranks, None)
    if op in ("all-reduce", "reduce-scatter", "reduce", "broadcast", "all-gather"):
        assert run.operation == op


def test_median_error_is_relative_to_the_measurement() -> None:
    assert median_error([90.0, 120.0, 100.0], [100.0, 100.0, 100.0]) == pytest.approx(0.1)
