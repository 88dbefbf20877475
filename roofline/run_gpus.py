"""Names of GPUs in published runs: which profile they mean, and which cluster stands behind it.

A name is a family with words beside it: memory (``80GB``), form (``SXM5``, ``PCIe``), power. Words
that no profile of the family has refuse it: an H100 NVL is no H100 SXM. Words that are left open
take the first profile of the family, the SXM part, and are noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import hardware_profiles as hw
from hardware_profiles.errors import nearest
from hardware_profiles.schema import Accelerator
from roofline.machine import Tier, node_place, node_size
from roofline.run_fields import RunError, shown

MAKERS = frozenset(
    ("nvidia", "amd", "instinct", "geforce", "tesla", "gpu", "gpus", "tensor", "core", "quadro")
)
MEMORY, POWER = re.compile(r"(\d+)(?:gb?|gib)"), re.compile(r"(\d+)w")
ALIKE = {"h100-sxm-hbm2e": "h100-sxm"}  # accelerators that sit in the clusters of another
RACK = 8  # GPUs: larger NVLink domains are those of a rack, not of a node


@dataclass(frozen=True, slots=True)
class Part:
    """A profile and the words that may stand in its name."""

    profile: str
    family: str
    words: tuple[str, ...] = ()
    gigabytes: tuple[int, ...] = ()  # that are printed for it, beside those of the profile
    others: bool = False  # the family has parts in another form, or of more memory, that we lack


SXM = ("sxm", "hgx", "dgx")
PARTS = (
    Part("a100-sxm-80gb", "a100", (*SXM, "sxm4", "hbm2e"), others=True),
    Part("a100-sxm-40gb", "a100", (*SXM, "sxm4", "hbm2"), others=True),
    Part("h100-sxm", "h100", (*SXM, "sxm5", "hbm3"), others=True),
    Part("h100-sxm-hbm2e", "h100", (*SXM, "sxm5", "hbm2e"), others=True),
    Part("h100-pcie", "h100", ("pcie", "hbm2e"), others=True),
    Part("h200-sxm", "h200", (*SXM, "sxm5", "hbm3e"), others=True),
    Part("h800-sxm", "h800", (*SXM, "sxm5", "hbm3"), others=True),
    Part("h20", "h20", (*SXM, "sxm5", "hbm3")),
    Part("gh200", "gh200", ("hbm3", "superchip", "grace", "hopper"), (480,)),  # 480: of its host
    Part("b200-sxm", "b200", (*SXM, "sxm6", "hbm3e"), (192,)),
    Part("b300-sxm", "b300", (*SXM, "sxm6", "hbm3e"), (270,)),
    Part("gb200", "gb200", ("nvl72", "dgx", "hbm3e", "superchip", "superpod"), (192,)),
    Part("gb300", "gb300", ("nvl72", "dgx", "hbm3e", "superchip", "superpod"), (279,)),
    Part("v100-sxm", "v100", (*SXM, "sxm2", "sxm3", "hbm2"), others=True),
    Part("mi250x", "mi250x", ("oam", "hbm2e")),
    Part("mi300x", "mi300x", ("oam", "hbm3")),
    Part("mi325x", "mi325x", ("oam", "hbm3e")),
    Part("mi355x", "mi355x", ("oam", "hbm3e")),
    Part("l40s", "l40s", ("pcie", "gddr6")),
    Part("rtx-4090", "4090", ("rtx", "pcie", "gddr6x")),
)


@lru_cache(maxsize=256)
def gpu_named(gpu: str) -> tuple[str, str]:
    """The profile that a GPU's name means, and what was assumed of it: empty where it says all.

    Raises:
        RunError: no profile has all words of the name.

    >>> gpu_named("NVIDIA H100 80GB HBM3")
    ('h100-sxm', '')
    """
    name = "-".join(gpu.lower().replace("_", " ").replace("-", " ").split())
    if name in hw.accelerators():
        return name, ""
    words = [word for word in _words(name) if word not in MAKERS]
    family = [part for part in PARTS if part.family in words]
    fits = [part for part in family if _fits(part, [w for w in words if w != part.family])]
    if not fits:
        near = ", ".join(part.profile for part in family)
        verb = "is" if len(family) == 1 else "are"
        told = f"the nearest {verb} {near}" if near else nearest(name, [p.profile for p in PARTS])
        raise RunError(f"gpu: {shown(gpu)} is not known; {told}")
    found = fits[0]
    form = any(word in found.words for word in words)
    if len(fits) == 1 and (form or not found.others):
        return found.profile, ""
    memory = any(map(MEMORY.fullmatch, words))
    gap = " and ".join(["form"] * (not form) + ["memory"] * (len(fits) > 1 and not memory))
    return found.profile, f"gpu = {found.profile}: {shown(gpu)} does not say its {gap or 'form'}"


def _words(name: str) -> Iterator[str]:
    """Parts of a name, a number with its unit as one."""
    spaced = re.sub(r"(\d)-(gb|gib|w)(?![a-z0-9])", r"\1\2", name)
    spaced = re.sub(r"(?<![a-z0-9])rtx(?=\d)", "rtx-", spaced)
    return (word for word in re.split(r"[^a-z0-9]+", spaced) if word)


def _fits(part: Part, words: list[str]) -> bool:
    chip = hw.accelerator(part.profile)
    return all(word in part.words or _is_of(chip, part, word) for word in words)


def _is_of(chip: Accelerator, part: Part, word: str) -> bool:
    """Whether a word is the memory or the power of this GPU."""
    if memory := MEMORY.fullmatch(word):
        return int(memory[1]) in (round(chip.hbm_bytes / 1e9), *part.gigabytes)
    power = POWER.fullmatch(word)
    return bool(power and chip.power and int(power[1]) == round(chip.power))


def accelerator(gpu: str) -> str:
    """The profile that a GPU's name means: ``H100-80GB-SXM``, ``h100-sxm``.

    Raises:
        RunError: when none has all words of the name.

    >>> accelerator("H100-80GB-SXM")
    'h100-sxm'
    """
    return gpu_named(gpu)[0]


def reference_cluster(accelerator: str) -> str:
    """A shipped cluster of this accelerator: the vendor's own system, if there is one.

    Raises:
        RunError: when none comes with the package, naming those that have one.
    """
    found = _clusters(tuple(hw.clusters()))
    alike = ALIKE.get(accelerator, accelerator)
    if alike not in found:
        told = nearest(accelerator, found)
        raise RunError(f"gpu: no cluster with {accelerator} comes with the package; {told}")
    return found[alike]


@lru_cache(maxsize=8)
def _clusters(names: tuple[str, ...]) -> dict[str, str]:
    """The first cluster of every accelerator; super-pods come first."""
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: ("superpod" not in name, name)):
        if name != "local":
            found.setdefault(hw.cluster(name).accelerator.name, name)
    return found


def domain(accelerator: str, node: int | None) -> int:
    """GPUs under one NVLink domain where a run does not say: of its rack, its node, or the usual."""
    if not _clustered(accelerator):
        return node or RACK
    inner = int(hw.cluster(reference_cluster(accelerator)).tiers[0].degree)
    return inner if inner > RACK or node is None else node


def inside(accelerator: str) -> tuple[Tier, float]:
    """What a GPU has inside its node or NVLink domain, and what its cards bring beyond. [B/s]

    As in the reference cluster; of a part in no cluster the links of its datasheet, and
    ``known_network`` has runs state the rest.
    """
    if not _clustered(accelerator):
        link = hw.accelerator(accelerator).links[0]
        return Tier(RACK, link.total, link.name, transit=False), link.total
    tiers = hw.cluster(reference_cluster(accelerator)).tiers
    last, *beyond = tiers[node_place(tiers) :]
    size = node_size(tiers)
    wire = last.bandwidth / (size // last.degree)  # a link there serves all GPUs of the unit below
    card = beyond[0].bandwidth / size if beyond else wire
    return Tier(size, wire, last.name, transit=False), card


def known_network(accelerator: str) -> None:
    """Pass where a cluster says what its network is.

    Raises:
        RunError: when none does, so that the run has to.
    """
    told = f"no cluster with {accelerator} comes with the package"
    if _clustered(accelerator):
        name = reference_cluster(accelerator)
        if hw.cluster(name).networked:
            return
        told = f"{name} has no network"
    raise RunError(f"network.internode_gbps_per_gpu: missing, and {told} to take it from")


def _clustered(accelerator: str) -> bool:
    """Whether a cluster has it.

    Raises:
        RunError: when none has, and it is no GPU whose links alone would do.
    """
    found = _clusters(tuple(hw.clusters()))
    if ALIKE.get(accelerator, accelerator) in found:
        return True
    if not any(part.profile == accelerator for part in PARTS):
        reference_cluster(accelerator)
    return False
