"""What the engine needs done inside vLLM's worker; vLLM imports this module by name."""

from __future__ import annotations

from typing import Any


class WeightReload:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    model_runner: Any

    def rebuild_packed_heads(self) -> int:
        """Packs the output heads again from their present weights and says how many.

        On the CPU vLLM keeps a packed copy of the head for its GEMM. `reload_weights` writes a tied head through the embedding,
        so that copy silently stays old.
        """
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        heads = [module for module in self.model_runner.get_model().modules() if isinstance(module, ParallelLMHead)]
        packed = [head for head in heads if hasattr(head, "cpu_linear")]
        for head in packed:
            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
        return len(packed)
