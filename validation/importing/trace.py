"""Chrome traces of the PyTorch profiler: collectives and matmuls by what they were asked to do.

Collectives are kernels whose name begins with nccl; the operation, its numbers and its group stand
in their own arguments (torch 2.2 and later), or in those of ``record_param_comms`` with the same
External id. Matmuls are the kernels under aten::mm, addmm, bmm, baddbmm, _scaled_mm; their shapes are there when the
profiler was told ``record_shapes=True``. The same case many times is one measurement with a spread.

A collective in a job waits for its slowest rank: its 10th percentile is nearer to the network than its
median. A trace that was cut off is read as far as it goes.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from validation.case import Case
from validation.importing.records import Found, Sample, typed
from validation.kernels.data import BYTES
from validation.results import MOST, Part, Value

Event = Mapping[str, Any]

# Names that ProcessGroupNCCL gives, ours, and whose numbers make up the whole array.
OPERATIONS = {
    "allreduce": ("all-reduce", "In"),
    "allreduce_coalesced": ("all-reduce", "In"),
    "allgather": ("all-gather", "Out"),
    "_allgather_base": ("all-gather", "Out"),
    "allgather_coalesced": ("all-gather", "Out"),
    "allgather_into_tensor_coalesced": ("all-gather", "Out"),
    "reduce_scatter": ("reduce-scatter", "In"),
    "_reduce_scatter_base": ("reduce-scatter", "In"),
    "reduce_scatter_tensor_coalesced": ("reduce-scatter", "In"),
    "all_to_all": ("all-to-all", "In"),
    "all_to_allv": ("all-to-all", "In"),
    "alltoall_base": ("all-to-all", "In"),
    "broadcast": ("broadcast", "In"),
    "_broadcast_oop": ("broadcast", "In"),
    "reduce": ("reduce", "In"),
    "_reduce_oop": ("reduce", "In"),
    "scatter": ("scatter", "In"),
    "gather": ("gather", "Out"),
    "send": ("point-to-point", "In"),
    "recv": ("point-to-point", "Out"),
}
LARGEST = 10**15  # numbers in an array, microseconds of a kernel: more than there can be
MATMULS = {  # first operand
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
}
_GEMM = re.compile(r"gemm|cutlass|xmma|nvjet|cublas|matmul|splitk", re.IGNORECASE)


def read(text: str) -> list[Found]:
    """One run: every case that a trace has times of.

    Raises:
        ValueError: no events in it.
    """
    document = _document(text)
    listed = document.get("traceEvents")
    events = [e for e in listed if _is_event(e)] if isinstance(listed, list) else []
    if not events:
        raise ValueError("no traceEvents: not a trace of the PyTorch profiler")
    found = _origin(document)
    asked = {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in (event.get("args") or {})
    }
    times: dict[str, tuple[Case, list[float]]] = {}
    missing: Counter[str] = Counter()
    for case, seconds in _timed(events, asked, missing):
        times.setdefault(case.id, (case, []))[1].append(seconds)
    for case, taken in times.values():
        part: Part = "math" if case.kernel == "matmul" else "comms"
        found.samples.append(
            Sample(case.kernel, part, case.parameters, taken, case.size, case.stride)
        )
    ranks = [s.size * s.stride for s in found.samples]
    found.world = max([found.world, *ranks])
    found.left_out += [f"{why} ({count} kernels)" for why, count in missing.most_common()]
    return [found]


def _is_event(event: Any) -> bool:
    """An object, with arguments that are one and an id that is a number, where it has them."""
    if not isinstance(event, dict):
        return False
    args = event.get("args") or {}
    return isinstance(args, dict) and isinstance(args.get("External id", 0), int)


def _origin(document: Mapping[str, Any]) -> Found:
    told = document.get("distributedInfo") or {}
    world = told.get("world_size", 1) if isinstance(told, dict) else 1
    known = isinstance(world, int) and 0 < world <= MOST
    found = Found("PyTorch profiler", world if known else 1)
    devices = document.get("deviceProperties") or []
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and device.get("name"):
            found.devices[str(device["name"])] = found.devices.get(str(device["name"]), 0) + 1
    if nccl := isinstance(told, dict) and told.get("nccl_version"):
        found.versions["nccl"] = str(nccl)
    return found


def _timed(
    events: Iterable[Event], asked: Mapping[Any, Event], missing: Counter[str]
) -> Iterator[tuple[Case, float]]:
    """Cases with a time each; kernels that cannot be placed are counted by reason."""
    matmuls: dict[Any, float] = defaultdict(float)
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in ("kernel", "Kernel"):
            continue
        name, took = str(event.get("name")), event.get("dur")
        if not isinstance(took, int | float) or not 0 < took < LARGEST:
            missing["a kernel without a duration"] += 1
            continue
        args = event.get("args") or {}
        above = asked.get(args.get("External id"), {})
        try:
            if name.startswith("nccl"):
                yield _collective({**(above.get("args") or {}), **args}), took * 1e-6
            elif above.get("name") in MATMULS and _GEMM.search(name):
                matmuls[args["External id"]] += took * 1e-6
        except ValueError as error:
            missing[f"{name.split('(')[0][:60]}: {error}"] += 1
    for call, seconds in matmuls.items():
        try:
            yield _matmul(asked[call]), seconds
        except ValueError as error:
            missing[f"{asked[call].get('name')}: {error}"] += 1


def _collective(args: Mapping[str, Any]) -> Case:
    told = args.get("Collective name")
    if told is None:
        raise ValueError("the trace does not say how large it was (torch before 2.2)")
    if not isinstance(told, str) or told not in OPERATIONS:
        raise ValueError(f"{told!r} is no collective of ours")
    operation, side = OPERATIONS[told]
    numbers = args.get(f"{side} msg nelems")
    if not isinstance(numbers, int) or not 0 < numbers <= LARGEST:
        raise ValueError(f"{side} msg nelems: {str(numbers)[:20]} is not a size")
    name = str(args.get("dtype"))
    kind = typed(name)
    width = 1 if "8" in name or name.lower() in ("byte", "char") else BYTES[str(kind["dtype"])]
    size, stride = _group(args)
    if operation == "point-to-point":
        size = 2
    nbytes = numbers * width * (size if operation == "all-to-all" else 1)
    return Case(operation, {"bytes": nbytes} | kind, size, stride)


def _group(args: Mapping[str, Any]) -> tuple[int, int]:
    """Ranks, and how far apart they are; a list of many is cut, but its beginning is there."""
    size = args.get("Group size")
    if not isinstance(size, int) or not 2 <= size <= MOST:
        raise ValueError(f"Group size: {str(size)[:20]} is no group; allowed: 2 to {MOST:,}")
    ranks = [
        int(word[:12]) for word in re.findall(r"\d+", str(args.get("Process Group Ranks", "")))
    ]
    apart = {b - a for a, b in pairwise(ranks)}
    if len(apart) > 1 or any(not 1 <= step <= MOST for step in apart):
        raise ValueError("the ranks of the group are not equally far apart")
    stride = apart.pop() if apart else 1
    if size * stride > MOST:
        raise ValueError(f"{size} ranks, {stride} apart, are more than {MOST:,}")
    return size, stride


def _matmul(event: Event) -> Case:
    args = event.get("args") or {}
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not shapes or not types:
        raise ValueError("no shapes: profile with record_shapes=True")
    first = MATMULS[str(event["name"])]
    try:
        a, b = ([int(x) for x in shape] for shape in shapes[first : first + 2])
        batch = a[0] if len(a) == 3 else 1
        (m, k), (k_too, n) = a[-2:], b[-2:]
    except (TypeError, ValueError):
        raise ValueError(f"Input Dims: {str(shapes)[:60]} are no matrices") from None
    if k != k_too or min(m, n, k, batch) < 1 or len(a) != len(b) or max(m, n, k, batch) > LARGEST:
        raise ValueError(f"Input Dims: {str(a)[:40]} by {str(b)[:40]} do not fit")
    form = "batched" if len(a) == 3 else "rectangle"
    shape: dict[str, Value] = {"form": form, "m": m, "n": n, "k": k, "batch": batch}
    name = str(types[first])
    kind: dict[str, Value] = {"dtype": "fp8"} if "Float8" in name else typed(name)
    if "type" in kind:
        raise ValueError(f"Input type: {types[first]!r} is not multiplied by the suite")
    return Case("matmul", shape | kind)


def _document(text: str) -> dict[str, Any]:
    """The trace; of one that was cut off, all whole events."""
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, dict) else {"traceEvents": whole}
    except RecursionError:
        raise ValueError("nested too deeply to be a trace of the PyTorch profiler") from None
    except ValueError:
        pass
    start = text.find('"traceEvents"')
    at = text.find("[", start) + 1
    if start < 0 or not at:
        raise ValueError("neither JSON nor the beginning of a trace") from None
    decoder, events = json.JSONDecoder(), []
    while at < len(text):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        events.append(event)
    return {"traceEvents": events}
