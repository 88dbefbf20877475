"""Sizes and layouts as Megatron-Core calls them: rows that Megatron-LM and Megatron-Bridge share.

Options bear the names of Megatron-Core's configuration classes (``tensor_model_parallel_size``);
``megatron`` and ``bridge`` say how each is written in their files. Order matters: a row may read
what those above it have found.

Names: TransformerConfig, ModelParallelConfig, DistributedDataParallelConfig of Megatron-Core, as
Megatron-LM's main branch of summer 2026 has them (functional tests at 61874f77 and 1c3b5080).
"""

from __future__ import annotations

from roofline import frameworks
from roofline.export import uneven
from roofline.export.core_model import MODEL
from roofline.export.fields import Fields, data_ranks, default_recipe, repeated
from roofline.export.rows import Options, Row, named, same, switch
from roofline.layout import ORDER, modules_in
from roofline.run_schema import MODULE_NAMES

ROW = next(row for row in frameworks.FRAMEWORKS if row.name == "Megatron-Bridge")
A2A_HIDDEN = frameworks.exchange_overlap({"extra": {"moe_a2a_overlap": True}}, ROW)
INSIDE, OUTSIDE = ORDER  # replicas and pipeline: which lies outside
SHARDING = {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}


def _write_chunks(f: Fields) -> Fields:
    chunks = f.get("layout.chunks", 1)
    told = chunks > 1 and not uneven.uneven(f)
    return {"virtual_pipeline_model_parallel_size": chunks} if told else {}


def _read_chunks(o: Options, f: Fields) -> Fields:
    per_stage = "num_layers_per_virtual_pipeline_stage"
    o.clash("virtual_pipeline_model_parallel_size", per_stage)
    layers = o.whole(per_stage)
    if layers is None:
        usual = uneven.chunks(o, f) or 1
        return {"layout.chunks": o.whole("virtual_pipeline_model_parallel_size", usual)}
    total = f.get("model.layers")
    if total is None:
        o.leave(per_stage, layers, "the number of layers is not stated; chunks = 1 in its place")
        return {"layout.chunks": 1}
    chunks, rest = divmod(total, layers * f["layout.pp"])
    if rest or not chunks:
        o.refuse(per_stage, layers, f"divisors of {total} layers over {f['layout.pp']} stages")
    return {"layout.chunks": chunks}


def _write_zero(f: Fields) -> Fields:
    stage = f.get("layout.zero", 0)
    sharded: Fields = {"use_distributed_optimizer": True} if stage else {}
    if stage >= 2:
        sharded |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": SHARDING[stage],
        }
    shard, ranks = f.get("layout.shard", 0), data_ranks(f)
    if stage and 0 < shard < ranks and not ranks % shard:
        sharded["num_distributed_optimizer_instances"] = int(ranks // shard)
    return sharded


def _read_zero(o: Options, f: Fields) -> Fields:
    o.clash("use_megatron_fsdp", "use_torch_fsdp2")
    stage = int(o.flag("use_distributed_optimizer"))
    strategy = o.text("data_parallel_sharding_strategy", "no_shard")
    if strategy not in SHARDING.values():
        o.refuse("data_parallel_sharding_strategy", strategy, ", ".join(SHARDING.values()))
    if o.flag("use_megatron_fsdp"):
        stage = max(stage, list(SHARDING.values()).index(strategy))
    found: Fields = {"layout.zero": stage}
    if o.flag("use_torch_fsdp2"):
        reshard = o.flag("torch_fsdp2_reshard_after_forward", True)
        found = {"layout.zero": 3, "layout.reshard": int(reshard)}
    instances = o.whole("num_distributed_optimizer_instances", 1)
    if instances > 1 and "layout.gpus" in f:
        found["layout.shard"] = max(1, int(data_ranks(f) // instances))
    return found


def _write_order(f: Fields) -> Fields:
    """Replicas outside the pipeline; Megatron FSDP has only the other order."""
    outside = f.get("layout.order") == OUTSIDE and f.get("layout.pp", 1) > 1
    return {"use_tp_pp_dp_mapping": True} if outside and f.get("layout.zero", 0) < 2 else {}


def _read_order(o: Options, f: Fields) -> Fields:
    return {"layout.order": OUTSIDE if o.flag("use_tp_pp_dp_mapping") else INSIDE}


def _write_recompute(f: Fields) -> Fields:
    kind = f.get("layout.recompute", "none")
    if kind == "none":
        return {}
    if kind == "modules":
        chosen, experts = repeated(f).split("+"), "model.experts.count" in f
        named = [
            name
            for name, ours in MODULE_NAMES.items()
            if ours in chosen and (experts or name != "moe_act")
        ]
        return {"recompute_granularity": "selective", "recompute_modules": named} if named else {}
    if kind in ("attention", "half"):
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    share, layers = f.get("layout.recompute_share", 1), f.get("model.layers")
    method = {"recompute_method": "uniform", "recompute_num_layers": 1}
    if share < 1 and layers:
        parts = f["layout.pp"] * f.get("layout.chunks", 1)
        some = max(1, round(share * layers / parts))
        method = {"recompute_method": "block", "recompute_num_layers": some}
    return {"recompute_granularity": "full"} | method


def _read_recompute(o: Options, f: Fields) -> Fields:
    kind = o.text("recompute_granularity", "none")
    if kind not in ("none", "selective", "full"):
        o.refuse("recompute_granularity", kind, "full, selective")
    modules, method = o.take("recompute_modules"), o.text("recompute_method", "uniform")
    some = o.whole("recompute_num_layers", 1)
    stated: Fields = {}
    if kind == "selective":
        stated["recompute_modules"] = list(modules or ["core_attn"])
    if kind == "full" and method == "block":
        stated["recompute_num_layers"] = some
    parts = f["layout.pp"] * f.get("layout.chunks", 1)
    run = {"recompute": kind, "extra": stated}
    again, share = frameworks.recompute(run, ROW, f.get("model.layers", parts), parts)
    found: Fields = {"layout.recompute": again, "layout.recompute_share": share}
    if again == "modules":
        found["layout.recompute_modules"] = "+".join(modules_in(frameworks.modules(run)))
    return found


def _write_offload(f: Fields) -> Fields:
    some = round(f.get("layout.offload_share", 0) * f.get("model.layers", 0) / f["layout.pp"])
    return {"cpu_offloading": True, "cpu_offloading_num_layers": some} if some else {}


def _read_offload(o: Options, f: Fields) -> Fields:
    o.flag("cpu_offloading")
    some, layers = o.whole("cpu_offloading_num_layers", 0, least=0), f.get("model.layers")
    return {"layout.offload_share": min(1, some * f["layout.pp"] / layers)} if layers else {}


def _write_dispatch(f: Fields) -> Fields:
    if f.get("layout.ep", 1) == 1 or "model.experts.count" not in f:
        return {}
    if f.get("layout.deduplicated"):
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    return {"moe_token_dispatcher_type": "alltoall"}


def _read_dispatch(o: Options, f: Fields) -> Fields:
    kind, backend = o.text("moe_token_dispatcher_type"), o.text("moe_flex_dispatcher_backend")
    flex = o.flag("moe_enable_deepep") or kind == "flex" or bool(backend)
    return {"layout.deduplicated": int(flex)}


def _write_limit(f: Fields) -> Fields:
    nodes = f.get("layout.ep", 1) * f.get("layout.etp", 1) // f.get("node", 8)
    limit = f.get("layout.node_limit", float("inf"))
    if "model.experts.count" not in f or not limit < nodes:
        return {}
    return {"moe_router_num_groups": nodes, "moe_router_group_topk": limit}


def _read_limit(o: Options, f: Fields) -> Fields:
    o.whole("moe_router_num_groups")
    limit = o.whole("moe_router_group_topk")
    return {"layout.node_limit": limit} if limit else {}


def _read_etp(o: Options, f: Fields) -> Fields:
    same_as_tp = f["layout.tp"] if "model.experts.count" in f else 1
    return {"layout.etp": o.whole("expert_tensor_parallel_size", same_as_tp)}


def _write_etp(f: Fields) -> Fields:
    there = "model.experts.count" in f
    return {"expert_tensor_parallel_size": f.get("layout.etp", 1)} if there else {}


def _write_sends(f: Fields) -> Fields:
    hidden = f.get("layout.pp_overlap", 1) or f.get("layout.chunks", 1) == 1
    return {} if hidden else {"overlap_p2p_comm": False}


def _read_sends(o: Options, f: Fields) -> Fields:
    hidden = o.flag("overlap_p2p_comm", True)
    return {"layout.pp_overlap": int(hidden and f["layout.chunks"] > 1)}


def _write_sequence(f: Fields) -> Fields:
    on = f.get("layout.sequence_parallel", 1) and f["layout.tp"] > 1
    return {"sequence_parallel": True} if on else {}


def _write_reduce(f: Fields) -> Fields:
    if not f.get("layout.dp_overlap", 1):
        return {}
    gather = {"overlap_param_gather": True} if f.get("layout.zero", 0) else {}
    return {"overlap_grad_reduce": True} | gather


def _read_reduce(o: Options, f: Fields) -> Fields:
    o.flag("overlap_param_gather")
    return {"layout.dp_overlap": int(o.flag("overlap_grad_reduce"))}


def _write_dropout(f: Fields) -> Fields:
    names = ("attention_dropout", "hidden_dropout")
    return {} if f.get("layout.dropout") else dict.fromkeys(names, 0.0)


def _read_dropout(o: Options, f: Fields) -> Fields:
    rates = [o.number(n, 0.1, 0) for n in ("attention_dropout", "hidden_dropout")]
    return {"layout.dropout": int(any(rates))}


def _write_graphs(f: Fields) -> Fields:
    kind = {1: "transformer_engine", 2: "full_iteration"}.get(f.get("layout.graphs", 0))
    return {"cuda_graph_impl": kind} if kind else {}


def _read_graphs(o: Options, f: Fields) -> Fields:
    kind = o.text("cuda_graph_impl", "none")
    scope = f"{o.take('cuda_graph_modules', '')} {o.take('cuda_graph_scope', '')}"
    if o.flag("enable_cuda_graph") and kind == "none":
        kind = "local"
    whole = kind == "full_iteration" or (kind != "none" and "full_iteration" in scope)
    return {"layout.graphs": 2 if whole else int(kind != "none")}


def _write_loss(f: Fields) -> Fields:
    fused = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
    return fused if f.get("layout.fused_loss") else {}


def _read_loss(o: Options, f: Fields) -> Fields:
    o.take("cross_entropy_fusion_impl")
    return {"layout.fused_loss": int(o.flag("cross_entropy_loss_fusion"))}


def _write_moments(f: Fields) -> Fields:
    if f.get("recipe") != "precision-aware":
        return {}
    moments = dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype"), "bf16")
    return {"use_precision_aware_optimizer": True} | moments


def _read_moments(o: Options, f: Fields) -> Fields:
    short = [o.text(n, "fp32") != "fp32" for n in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    if o.flag("use_precision_aware_optimizer") and all(short):
        return {"recipe": "precision-aware"}
    return {"recipe": f.get("recipe") or default_recipe(f.get("precision", "bf16"))}


LAYOUT = (
    same("layout.tp", "tensor_model_parallel_size", 1),
    same("layout.pp", "pipeline_model_parallel_size", 1),
    Row(_write_chunks, _read_chunks),
    same("layout.cp", "context_parallel_size", 1),
    same("layout.ep", "expert_model_parallel_size", 1, omit=1),
    Row(_write_etp, _read_etp),
    Row(
        _write_sequence,
        lambda o, f: {"layout.sequence_parallel": int(o.flag("sequence_parallel"))},
    ),
    same("layout.micro_batch", "micro_batch_size", 1),
    same("layout.sequence", "seq_length"),
    named(
        "layout.cp_kind",
        "cp_comm_type",
        {"ring": "p2p", "all-gather": "all_gather", "ulysses": "a2a"},
        "ring",
        also={"allgather": "all-gather"},
    ),
    Row(uneven.write, uneven.read),
    Row(_write_zero, _read_zero),
    Row(_write_order, _read_order),
    Row(_write_reduce, _read_reduce),
    Row(_write_sends, _read_sends),
    switch("layout.tp_overlap", "tp_comm_overlap", on="fine", off="backward"),
    Row(_write_recompute, _read_recompute),
    Row(_write_offload, _read_offload),
    Row(_write_dispatch, _read_dispatch),
    switch("layout.ep_overlap", "overlap_moe_expert_parallel_comm", on=A2A_HIDDEN, off=0),
    Row(_write_limit, _read_limit),
    named(
        "layout.attention",
        "attention_backend",
        {"flash": "auto", "unfused": "unfused", "flash-2": "flash", "flash-1": "flash"},
        "flash",
        also={"flash": "flash", "fused": "flash", "local": "unfused"},
    ),
    Row(_write_dropout, _read_dropout),
    Row(_write_graphs, _read_graphs),
    Row(_write_loss, _read_loss),
)
ROWS = (*MODEL, *LAYOUT)
MOMENTS = Row(_write_moments, _read_moments)


def batch(options: Options, found: Fields) -> Fields:
    """The global batch, one micro-batch per replica where it is not stated; the GPUs likewise."""
    ranks = found["layout.tp"] * found["layout.cp"] * found["layout.pp"]
    gpus = found.get("layout.gpus")
    if gpus is None:
        gpus = max(ranks, found["layout.ep"] * found["layout.etp"] * found["layout.pp"])
        options.assumed.append(f"gpus = {gpus}: the number is not stated; the fewest that it takes")
    found = found | {"layout.gpus": gpus}
    stated = options.whole("global_batch_size")
    if stated is None:
        stated = found["layout.micro_batch"] * max(1, gpus // ranks)
        options.assumed.append(f"batch = {stated}: not stated; a micro-batch for each replica")
    return found | {"layout.batch": stated}
