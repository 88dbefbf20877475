"""Every reference that a formula cites: what it is and where to read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """A work; calling it with a place gives a citation."""

    key: str
    title: str
    url: str

    def __call__(self, where: str) -> Source:
        return Source(self, where)


@dataclass(frozen=True, slots=True)
class Source:
    """A place in a work: section, equation, table or question."""

    work: Reference
    where: str

    def __str__(self) -> str:
        return f"{self.work.title}, {self.where}"


SCALING_BOOK = Reference(
    "scaling-book", "How to Scale Your Model", "https://jax-ml.github.io/scaling-book/"
)
GPUS = Reference(
    "scaling-book-gpus",
    "How to Scale Your Model: GPUs",
    "https://jax-ml.github.io/scaling-book/gpus/",
)
TRAINING = Reference(
    "scaling-book-training",
    "How to Scale Your Model: Training",
    "https://jax-ml.github.io/scaling-book/training/",
)
NCCL_TESTS = Reference(
    "nccl-tests",
    "nccl-tests: Performance",
    "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
)
ZERO = Reference(
    "zero",
    "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    "https://arxiv.org/abs/1910.02054",
)
MEGATRON = Reference(
    "megatron",
    "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
    "https://arxiv.org/abs/2104.04473",
)
RECOMPUTE = Reference(
    "recompute",
    "Reducing Activation Recomputation in Large Transformer Models",
    "https://arxiv.org/abs/2205.05198",
)
GPIPE = Reference(
    "gpipe",
    "GPipe: Efficient Training of Giant Neural Networks",
    "https://arxiv.org/abs/1811.06965",
)
ZERO_BUBBLE = Reference(
    "zero-bubble", "Zero Bubble Pipeline Parallelism", "https://arxiv.org/abs/2401.10241"
)
CONTROLLABLE = Reference(
    "controllable-memory",
    "Pipeline Parallelism with Controllable Memory",
    "https://arxiv.org/abs/2405.15362",
)
DUALPIPE = Reference("dualpipe", "DualPipe", "https://github.com/deepseek-ai/DualPipe")
DEEPSEEK_V3 = Reference(
    "deepseek-v3", "DeepSeek-V3 Technical Report", "https://arxiv.org/abs/2412.19437"
)
RABENSEIFNER = Reference(
    "thakur",
    "Optimization of Collective Communication Operations in MPICH",
    "https://doi.org/10.1177/1094342005051521",
)
TWO_TREES = Reference(
    "two-trees",
    "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
    "https://doi.org/10.1016/j.parco.2009.09.001",
)
COUNTED = Reference("counted", "Counted byte by byte on small arrays", "tests/simulate.py")
CS336 = Reference(
    "cs336",
    "Stanford CS336: Language Modeling from Scratch",
    "https://stanford-cs336.github.io/spring2025/",
)
HF_GUIDE = Reference(
    "hf-parallelism",
    "Hugging Face: Parallelism methods",
    "https://huggingface.co/docs/transformers/perf_train_gpu_many",
)
YOUNG = Reference(
    "young",
    "A first order approximation to the optimum checkpoint interval",
    "https://doi.org/10.1145/361147.361115",
)
ESTI = Reference(
    "esti", "Efficiently Scaling Transformer Inference", "https://arxiv.org/abs/2211.05102"
)
PALM = Reference(
    "palm", "PaLM: Scaling Language Modeling with Pathways", "https://arxiv.org/abs/2204.02311"
)
MEGATRON_LM = Reference("megatron-lm", "Megatron-LM", "https://github.com/NVIDIA/Megatron-LM")
FOUNDRY = Reference("llm-foundry", "llm-foundry", "https://github.com/mosaicml/llm-foundry")
INTERNEVO = Reference("internevo", "InternEvo", "https://github.com/InternLM/InternEvo")
TORCHTITAN = Reference("torchtitan", "torchtitan", "https://github.com/pytorch/torchtitan")
