"""GPUs by name, and how fast one generates."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.planner.model import ModelShape

USABLE_MEMORY = 0.9  # of a GPU, for weights, KV cache and activations
ACTIVATION_BYTES = 2e9
BANDWIDTH_EFFICIENCY = 0.75
COMPUTE_EFFICIENCY = 0.55
STEP_OVERHEAD_S = 1.5e-3
MAX_SEQUENCES = 1024  # that one engine decodes at a time


@dataclass(frozen=True)
class Gpu:
    """Data sheet values: dense bfloat16 FLOP/s, memory in bytes, memory bandwidth in bytes/s."""

    name: str
    peak_flop_per_s: float
    memory_bytes: float
    bandwidth_bytes_per_s: float


A100 = Gpu("A100", 312e12, 80e9, 2.039e12)
H100 = Gpu("H100", 989e12, 80e9, 3.35e12)
H200 = Gpu("H200", 989e12, 141e9, 4.8e12)
H20 = Gpu("H20", 148e12, 96e9, 4.0e12)
L40S = Gpu("L40S", 362e12, 48e9, 0.864e12)
GPUS = {gpu.name: gpu for gpu in (A100, H100, H200, H20, L40S)}


@dataclass(frozen=True)
class Decoding:
    """One engine in the middle of its work: `tensor_parallel` GPUs decode `num_sequences` at a time."""

    tensor_parallel: int
    num_sequences: int
    step_s: float

    @property
    def gpu_s_per_token(self) -> float:
        return self.tensor_parallel * self.step_s / self.num_sequences


def decoding(model: ModelShape, gpu: Gpu, context_tokens: float) -> Decoding:
    """The roofline of a decode step at the largest batch that the KV cache holds.

    With W weight bytes, kv bytes of keys and values per token, N parameters, tp GPUs of bandwidth B and peak F:

        b = min(1024, (0.9 · memory · tp − W − 2 GB) / (kv · context))
        step = max[(W + b · context · kv) / (tp · B · 0.75), 2 · N · b / (tp · F · 0.55)] + 1.5 ms

    tp is the smallest power of two with which half of the memory is left for the KV cache. `context_tokens` is the mean
    context of a decoded token: half of the length where all lengths are equal, about the mean length where they are lognormal
    with σ = 0.8 (long sequences hold most of the tokens).
    """
    parallel = 1
    while _room_bytes(model, gpu, parallel) < parallel * gpu.memory_bytes * USABLE_MEMORY / 2:
        parallel *= 2
    bytes_per_sequence = max(1.0, context_tokens) * model.kv_bytes_per_token
    num_sequences = max(1, min(MAX_SEQUENCES, int(_room_bytes(model, gpu, parallel) / bytes_per_sequence)))
    moved_s = (model.weight_bytes + num_sequences * bytes_per_sequence) / (
        parallel * gpu.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY
    )
    computed_s = 2 * model.num_parameters * num_sequences / (parallel * gpu.peak_flop_per_s * COMPUTE_EFFICIENCY)
    return Decoding(parallel, num_sequences, max(moved_s, computed_s) + STEP_OVERHEAD_S)


def _room_bytes(model: ModelShape, gpu: Gpu, parallel: int) -> float:
    return USABLE_MEMORY * gpu.memory_bytes * parallel - model.weight_bytes - ACTIVATION_BYTES
