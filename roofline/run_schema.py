"""The fields of a run's file: their types, what is allowed, and what null means.

``docs/runs.md`` holds the same table for people; a test holds the two together. A field of kind
``any`` is bookkeeping: it is allowed, and nothing is predicted from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roofline.calibrated import PRECISIONS
from roofline.layout import SCHEDULE
from roofline.model import LARGEST as MODEL_LARGEST

LARGEST = 1e9  # of any count: more is a typing mistake
SMALLEST = 1e-6  # of any time or rate
NONE = "there is none"
HABIT = "the framework's habit"


@dataclass(frozen=True, slots=True)
class Field:
    """One field: of which kind, in which range, and what null means; ``needed`` has no default."""

    kind: str  # of run_fields.READERS, or object
    null: str = ""  # what null means, in the words of docs/runs.md
    least: float = 1.0
    most: float = LARGEST
    choices: Mapping[str, str] = field(default_factory=dict)  # as typed in lower case → as meant
    needed: bool = False
    pattern: str = ""  # what a text has to look like, in lower case
    like: str = ""  # and how that is said


def _of(*names: str, **aliases: str) -> dict[str, str]:
    return {name: name for name in names} | aliases


def _size(null: str = "", least: int = 1, needed: bool = False) -> Field:
    return Field("whole", null, least, MODEL_LARGEST, needed=needed)


INTERLEAVED = "interleaved 1f1b"
FSDP = r"none.*|.*fsdp.*|hsdp.*"
WINDOW = r".*\d.*(window|chunk).*|.*(window|chunk).*\d.*"
SCHEDULES = (
    _of(*SCHEDULE)
    | {"zb-1p": "zb-h1", "zbvzerobubble": "zb-v"}
    | dict.fromkeys((INTERLEAVED, "interleaved1f1b", "1f1b-i", "interleaved"), INTERLEAVED)
)
RUN = {
    "id": Field("any", "run"),
    "framework": Field("text", "by the words of source and notes, else unknown"),
    "source": Field("text"),
    "notes": Field("text"),
    "year": Field("whole", "2024, but of Megatron-LM on GPUs before the H100 2022", 2012, 2100),
    "model": Field("object", needed=True),
    "gpu": Field("text", needed=True),
    "n_gpus": Field("whole", needed=True),
    "gpus_per_node": Field("whole", "tp or more, and 8 in an NVLink domain"),
    "precision": Field(
        "choice", "bf16", choices=_of(*PRECISIONS, bfloat16="bf16", float16="fp16", float8="fp8")
    ),
    "precision_detail": Field("text", HABIT),
    "tp": Field("whole", "1"),
    "pp": Field("whole", "1"),
    "cp": Field("whole", "1"),
    "ep": Field("whole", "1"),
    "etp": Field("whole", "1"),
    "vpp": Field("whole", "1, or 2 of an interleaved schedule"),
    "dp": Field("whole", "n_gpus / (tp · pp · cp)"),
    "sequence_parallel": Field("flag", "true where tp > 1, but of kernels without flash attention"),
    "zero_stage": Field("whole", "1, or 3 with fsdp", 0, 3),
    "fsdp": Field(
        "pattern",
        "no FSDP",
        pattern=FSDP,
        like="pytorch-fsdp FULL_SHARD, pytorch-fsdp SHARD_GRAD_OP, FSDP2 (dp_shard=32), "
        "HSDP (dp_shard=8), megatron-fsdp, jax-fsdp, none",
    ),
    "micro_batch_size": Field("whole", "by grad_accum_steps, else 1"),
    "global_batch_size": Field("whole", needed=True),
    "grad_accum_steps": Field("whole", "global_batch_size / (dp · micro_batch_size)"),
    "recompute": Field("choice", HABIT, choices=_of("none", "selective", "full")),
    "attention": Field(
        "pattern",
        HABIT,
        pattern=r".*(flash|fused|cudnn|sdpa|eager).*",
        like="FlashAttention, fused, cuDNN, SDPA, unfused, eager",
    ),
    "network": Field("object", "the GPU's reference cluster"),
    "extra": Field("object", "nothing"),
    "measured": Field("object", "predicted, not compared"),
    "derived": Field("object", "nothing"),
    "series": Field("text", "ranked with no other run"),
    **dict.fromkeys(
        (
            *("workload", "quality", "flags", "repeat_group", "flops_convention"),
            *("peak_tflops_for_mfu", "checks"),
        ),
        Field("any"),
    ),
}
MODEL = {
    "name": Field("text", "model"),
    "layers": _size(needed=True),
    "hidden": _size(needed=True),
    "ffn_hidden": _size("4 · hidden"),
    "heads": _size(needed=True),
    "kv_heads": _size("heads"),
    "head_dim": _size("hidden / heads"),
    "vocab": _size(needed=True),
    "seq_len": _size(needed=True),
    "gated_mlp": Field("flag", "false"),
    "tied_embeddings": Field("flag", "true where the MLP is not gated"),
    "attn_window": Field(
        "pattern",
        NONE,
        pattern=WINDOW,
        like="a number of tokens (every layer), '128-token sliding window on every other layer', "
        "'chunked 8192 on 3 of 4 layers'",
    ),
    "mtp_layers": _size(NONE, 0),
    "experts": _size(NONE, 0),
    "top_k": _size(NONE, 0),
    "moe_ffn_hidden": _size("ffn_hidden", 0),
    "shared_experts": _size(NONE, 0),
    "dense_layers": _size(NONE, 0),
    "moe_layers": _size("layers - dense_layers", 0),
    "mla": Field("object", NONE),
}
MLA = {
    "q_lora_rank": _size(NONE, 0),
    "kv_lora_rank": _size(needed=True),
    "qk_nope_head_dim": _size(needed=True),
    "qk_rope_head_dim": _size(needed=True),
    "v_head_dim": _size(needed=True),
}
NETWORK = {
    "internode_gbps_per_gpu": Field("number", "as in the GPU's reference cluster", 1e-3),
    "nvlink_domain_gpus": Field("whole", "a rack's 72, else gpus_per_node or the reference's"),
    "stated_in_source": Field("any"),
    "note": Field("any"),
}
MEASURED = {
    "step_time_s": Field("number", "by tokens_per_s_per_gpu", SMALLEST),
    "tokens_per_s_per_gpu": Field("number", "by derived.step_time_s_from_flops", SMALLEST),
    **dict.fromkeys(
        ("model_tflops_per_gpu", "hw_tflops_per_gpu", "mfu", "hfu", "mem_gb"), Field("any")
    ),
}
DERIVED = {
    "step_time_s": Field("number", "by measured", SMALLEST),
    "step_time_s_from_flops": Field("number", "", SMALLEST),
    "tokens_per_s_per_gpu": Field("any"),
    "params_B": Field("any"),
}
# Megatron-Core's names of what it recomputes; of "shared_experts" alone there is no row.
MODULE_NAMES = {
    "core_attn": "attention",
    "layernorm": "norms",
    "moe_act": "activation",
    "mla_up_proj": "mla-up",
    "mlp": "mlp",
    "moe": "experts",
}
SCOPES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration")
EXTRA = {  # the fields that are read; others may stand beside them
    "pp_schedule": Field("choice", "1f1b", choices=SCHEDULES),
    "num_microbatches": Field("whole", "global_batch_size / (dp · micro_batch_size)"),
    "recompute_modules": Field("choices", HABIT, choices=_of(*MODULE_NAMES)),
    "recompute_num_layers": Field("whole", "all", 0),
    "async_tp": Field("flag", HABIT),
    "moe_a2a_overlap": Field("flag", HABIT),
    "moe_dispatcher": Field(
        "choice", HABIT, choices=_of("hybridep", "deepep", "alltoall", "allgather", "none")
    ),
    "recipe_preset": Field("text", "no recipe is known"),
    "cuda_graph_impl": Field(
        "choice", HABIT, choices=_of("none", "local", "transformer_engine", "full_iteration")
    ),
    "cuda_graph_scope": Field("choices", "all that can be", choices=_of(*SCOPES)),
    "cuda_graphs": Field("switch", HABIT),
    "capacity_factor": Field("number", "dropless, but where notes speak of dropped tokens", 1, 1),
    "fsdp_shard": Field("whole", "by fsdp, else all ranks"),
    "zero1_group": Field("whole", "all ranks; so does -1", -1),
}
BESIDE = (  # fields of ``extra`` in the shipped file that are not read
    *("release_tags", "num_params_reported", "compile", "float8", "sequences_per_s_total"),
    *("also_in", "samples_per_gpu_per_s", "cpu_offloading_num_layers"),
)
SECTIONS: Mapping[str, Mapping[str, Field]] = {
    "": RUN,
    "model": MODEL,
    "model.mla": MLA,
    "network": NETWORK,
    "measured": MEASURED,
    "derived": DERIVED,
    "extra": EXTRA,
}
FREE = ("extra",)  # sections that may hold what nobody reads
