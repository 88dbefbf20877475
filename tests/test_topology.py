"""Topology: tables as ``nvidia-smi topo -m`` prints them, written after NVIDIA's manuals."""

import pytest

from roofline.topology import Topology, read

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks

"""


def table(nvlinks: int, nics: int, near: dict[int, list[int]], coloured: bool = False) -> str:
    """Eight GPUs; card j is behind one switch with the GPUs that ``near`` has for it."""
    gpus = [f"GPU{i}" for i in range(8)]
    cards = [f"NIC{j}" for j in range(nics)]

    def socket(name: str) -> int:
        of = 8 if name.startswith("GPU") else nics
        return int(name[3:]) * 2 // of

    def code(a: str, b: str) -> str:
        if a == b:
            return "X"
        if a[0] == b[0] == "G":
            return f"NV{nvlinks}"
        if a[0] != b[0]:
            gpu, card = sorted((a, b))
            if int(gpu[3:]) in near[int(card[3:])]:
                return "PXB"
        return "NODE" if socket(a) == socket(b) else "SYS"

    names = gpus + cards
    head = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\x1b[4m{head}\x1b[0m" if coloured else head]
    for a in names:
        tail = [f"{48 * socket(a)}-{48 * socket(a) + 47}", str(socket(a)), "N/A"]
        row = [a, *(f" {code(a, b)} " for b in names), *(tail if a in gpus else [])]
        lines.append("\t".join(row))
    legend = "NIC Legend:\n\n" + "".join(f"  NIC{j}: mlx5_{j}\n" for j in range(nics))
    return "\n".join(lines) + "\n" + LEGEND + legend


H100 = table(18, 8, {j: [j] for j in range(8)}, coloured=True)
A100 = table(12, 4, {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]})


@pytest.mark.parametrize(("text", "links", "cards"), [(H100, 18, 8), (A100, 12, 4)])
def test_eight_gpus_behind_switches(text: str, links: int, cards: int) -> None:
    """DGX H100: 18 fourth-generation NVLinks, DGX A100: 12 of the third, to every other GPU."""
    found = read(text)
    assert [gpu.name for gpu in found.gpus] == [f"GPU{i}" for i in range(8)]
    assert len(found.nics) == cards
    assert found.nvlinks == tuple(tuple(0 if i == j else links for j in range(8)) for i in range(8))
    assert found.fully_connected
    assert found.link("GPU0", "GPU7").means == f"{links} NVLinks"
    assert found.link("GPU3", "GPU3").code == "X"


def test_a_gpu_and_its_card_share_a_switch() -> None:
    """One card for each GPU of an H100 node, one for two of an A100 node."""
    found = read(H100)
    assert [found.nearest_nics(f"GPU{i}") for i in range(8)] == [(f"NIC{i}",) for i in range(8)]
    assert found.nics[3].called == "mlx5_3"
    assert read(A100).nearest_nics("GPU5") == ("NIC2",)
    assert found.gpus[7].cpus == "48-95"
    assert found.gpus[7].numa == "1"
    assert found.link("GPU0", "NIC7").means == "the link between NUMA nodes"


def test_gpus_without_nvlink() -> None:
    """A workstation: PCIe alone, cards named as older drivers name them."""
    found: Topology = read(
        """
        GPU0    GPU1    mlx5_0  CPU Affinity
GPU0     X      PHB     SYS     0-15
GPU1    PHB      X      NODE    0-15
mlx5_0  SYS     NODE     X
"""
    )
    assert not found.fully_connected
    assert found.nvlinks == ((0, 0), (0, 0))
    assert found.nearest_nics("GPU1") == ("mlx5_0",)
    assert found.nics[0].called == "mlx5_0"


def test_a_node_without_cards() -> None:
    """A laptop."""
    found = read("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n")
    assert found.nearest_nics("GPU0") == ()
    assert found.fully_connected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header with GPU0"),
        ("command not found", "no header with GPU0"),
        ("  GPU0 GPU1\nGPU0 X NV4\n", "line 1: no row for GPU1"),
        ("  GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4\n", "line 3: GPU1 has 1 links for 2 devices"),
        ("  GPU0 GPU1\nGPU0 X FOO\nGPU1 FOO X\n", "line 2: 'FOO' is no link; allowed: NV#, X, PIX"),
        ("  GPU0\nGPU0 X\nGPU1 X\n", "line 3: GPU1 is not in the header"),
        ("  GPU0\nGPU0 X\nGPU0 X\n", "line 1: 2 rows for 1 devices"),
    ],
)
def test_a_line_that_does_not_fit_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text)


def test_unknown_devices_are_named() -> None:
    with pytest.raises(ValueError, match="device: 'GPU9' is not in the table; allowed: GPU0"):
        read(H100).link("GPU9", "GPU0")
    with pytest.raises(ValueError, match="device: 'NIC9' is not in the table"):
        read(H100).link("GPU0", "NIC9")
