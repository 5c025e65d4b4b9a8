"""What an algorithm holds in memory and computes on a workload."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.planner.hardware import Decoding, Gpu, decoding
from posttrain.planner.model import ModelShape


@dataclass(frozen=True)
class Workload:
    """What all algorithms are compared on: the same model trains on the same number of tokens."""

    model: ModelShape
    num_pairs: int
    mean_sequence_tokens: float
    mean_prompt_tokens: float
    num_epochs: int
    gpu: Gpu
    model_flop_utilisation: float

    @property
    def epoch_tokens(self) -> float:
        """Two sequences, each with its prompt, for every pair."""
        return 2 * self.num_pairs * self.mean_sequence_tokens

    @property
    def generated_tokens(self) -> float:
        """What an algorithm that explores generates to train on as many tokens: each completion is trained on once."""
        return 2 * self.num_pairs * (self.mean_sequence_tokens - self.mean_prompt_tokens) * self.num_epochs

    def gpu_s(self, flop_per_parameter: float, tokens: float) -> float:
        """GPU-seconds of passes over `tokens`."""
        flop = flop_per_parameter * self.model.num_parameters * tokens
        return flop / (self.gpu.peak_flop_per_s * self.model_flop_utilisation)

    def decoding(self) -> Decoding:
        """The engine that generates; the mean length stands for the mean context."""
        return decoding(self.model, self.gpu, self.mean_sequence_tokens)


@dataclass(frozen=True)
class AlgorithmCost:
    """One algorithm on a workload; N is the number of parameters of each of its models, which are of equal size."""

    name: str
    models: tuple[str, ...]
    services: tuple[str, ...]
    given_up: str
    bytes_per_parameter: int
    flop_per_parameter_token: int  # train side, in every epoch
    once_flop_per_parameter_token: int  # one pass over the pairs before training
    generates: bool
    workload: Workload

    @property
    def resident_bytes(self) -> int:
        """Weights, gradients and optimiser state of all models, over the whole cluster."""
        return self.bytes_per_parameter * self.workload.model.num_parameters

    @property
    def train_gpu_s(self) -> float:
        """Updates and the forward passes that they need, without the pass that is made once."""
        return self.workload.gpu_s(self.flop_per_parameter_token, self.workload.epoch_tokens * self.workload.num_epochs)

    @property
    def once_gpu_s(self) -> float:
        """The reference precompute, which is cached and shared by all runs on these pairs."""
        return self.workload.gpu_s(self.once_flop_per_parameter_token, self.workload.epoch_tokens)

    @property
    def generation_gpu_s(self) -> float:
        """Decoding at the roofline, without any idle time."""
        return self.workload.generated_tokens * self.workload.decoding().gpu_s_per_token if self.generates else 0.0

    @property
    def total_gpu_s(self) -> float:
        return self.train_gpu_s + self.once_gpu_s + self.generation_gpu_s
