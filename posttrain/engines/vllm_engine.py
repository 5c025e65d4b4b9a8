"""vLLM inside this process: token ids in, token ids and logprobs out, weights swapped and never restarted."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posttrain.engines.base import Completion, GenerationRequest, SamplingParameters
from posttrain.engines.process_state import engine_threads, keep_process_state, prepare_environment
from posttrain.engines.requests import check_requests, usable_logprobs
from posttrain.engines.served import Served, check_same_architecture, read_served
from posttrain.errors import FingerprintError, InfrastructureError
from posttrain.fingerprint import Fingerprint, check_served, must_move
from posttrain.progress import progress

logger = logging.getLogger("posttrain")
BATCHED_TOKENS = 4096  # prompt tokens in one step
BLOCK_TOKENS = 32  # of the prefix cache; the CPU kernels want a multiple of 32, the default of 128 shares only long prompts
FINISH_REASONS = {"stop": "stop", "length": "length", "abort": "aborted", "error": "aborted", "repetition": "stop"}


class VllmEngine:
    """An Engine (see `posttrain.engines.base`) on vLLM; one at a time in a process."""

    name = "vllm"

    def __init__(self, directory: Path, *, dtype: str, max_model_tokens: int, trust_remote_code: bool = False) -> None:
        """Starts vLLM on the policy in `directory` and checks its fingerprint.

        Args:
            dtype: `float32` or `bfloat16`, of weights and arithmetic.
            max_model_tokens: context, prompt and completion together.

        Raises:
            PolicyError, FingerprintError: see `load_policy`.
            InfrastructureError: vLLM could not start, for example for lack of memory.
        """
        self.dtype, self.max_model_tokens, self.trust_remote_code = dtype, max_model_tokens, trust_remote_code
        self._num_requests = 0
        self._probe_logprobs: list[float] = []  # of the last check that passed
        self._served = read_served(directory, trust_remote_code)
        self._llm: Any = _start(directory, dtype, max_model_tokens, trust_remote_code)
        self._vocabulary_size: int = self._llm.model_config.get_vocab_size()
        try:
            self._announce()
        except Exception:
            self.close()  # nobody holds the engine yet, and vLLM takes one in a process
            raise

    @property
    def policy_version(self) -> int:
        return self._served.manifest.version

    @property
    def end_ids(self) -> frozenset[int]:
        return self._served.end_ids

    @property
    def closed(self) -> bool:
        return self._llm is None

    def load_policy(self, directory: Path) -> None:
        self._require_open()
        served = read_served(directory, self.trust_remote_code)
        check_same_architecture(self._served, served)
        if served.manifest.hash == self._served.manifest.hash:
            self._announce()
        else:
            self._swap(served)

    def check_fingerprint(self) -> float:
        self._require_open()
        served, recorded = self._served, self._served.manifest.fingerprint
        probe = recorded.probe_ids[: self.max_model_tokens]
        largest = 0.0
        if len(probe) == len(recorded.probe_ids):
            # first through the prefix cache, which `prompt_logprobs` never reads: a block of another policy shows here
            last = self._last_logprob(probe)
            tail = Fingerprint(probe[-2:], recorded.logprobs[-1:], recorded.bfloat16_logprobs[-1:])
            largest = check_served([last], tail, self.dtype, "vllm (prefix cache)", str(served.directory))
        logprobs = self.sequence_logprobs(probe)
        largest = max(largest, check_served(logprobs, recorded, self.dtype, "vllm", str(served.directory)))
        self._probe_logprobs = logprobs
        return largest

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParameters) -> list[Completion]:
        self._require_open()
        check_requests(requests, self.max_model_tokens, self._vocabulary_size)
        self.check_fingerprint()
        prompts = [list(request.prompt_ids) for request in requests]
        parameters = [self._parameters(request, sampling) for request in requests]
        started = datetime.now(UTC)
        completions: list[Completion | None] = [None] * len(requests)
        for position, result in progress(self._run(prompts, parameters), "rollouts", len(requests), "completion"):
            completions[position] = _completion(result.outputs[0], started)
        return [completion for completion in completions if completion is not None]

    def sequence_logprobs(self, sequence_ids: Sequence[int]) -> list[float]:
        from vllm import SamplingParams

        # one more token than the last is sampled, so a sequence of the full context goes without its last id's successor
        ids = list(sequence_ids)
        scored, last = (ids, []) if len(ids) < self.max_model_tokens else (ids[:-1], [self._last_logprob(ids)])
        parameters = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        ((_, result),) = self._run([scored], [parameters])
        return [entry[token].logprob for token, entry in zip(scored[1:], result.prompt_logprobs[1:], strict=True)] + last

    def close(self) -> None:
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        _release()

    def _announce(self) -> None:
        largest = self.check_fingerprint()
        logger.debug("vllm serves policy version %d, fingerprint within %.2g nats", self.policy_version, largest)

    def _swap(self, served: Served) -> None:
        old, before = self._served, self._probe_logprobs
        self._probe_logprobs = []
        self._reload(served.directory)
        self._served = served  # what it claims from here on; the checks say whether it is true
        self._announce()
        if before == self._probe_logprobs and must_move(old.manifest.fingerprint, served.manifest.fingerprint):
            self._served = old  # two policies nearer to each other than the tolerance, and not a bit has moved
            raise FingerprintError(f"vllm serves what it served before {served.directory}: no new weights. Start a new engine.")

    def _reload(self, directory: Path) -> None:
        try:
            with engine_threads():  # weights packed for another number of threads are garbage to kernels made before
                self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
                self._llm.collective_rpc("rebuild_packed_heads")
        except Exception as error:
            self.close()  # half of the old weights, half of the new
            raise InfrastructureError(f"vllm could not take the weights of {directory} ({error!r}).") from error
        self._llm.reset_prefix_cache()

    def _parameters(self, request: GenerationRequest, sampling: SamplingParameters) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=request.seed,
            logprobs=0,
            detokenize=False,
            max_tokens=min(sampling.max_completion_tokens, self.max_model_tokens - len(request.prompt_ids)),
            stop_token_ids=sorted(self.end_ids),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _last_logprob(self, sequence_ids: Sequence[int]) -> float:
        """Logprob (temperature 1) of the last id given those before it, read through the prefix cache."""
        from vllm import SamplingParams

        *before, last = sequence_ids
        parameters = SamplingParams(temperature=1.0, max_tokens=1, logprob_token_ids=[last], detokenize=False)
        ((_, result),) = self._run([before], [parameters])
        return result.outputs[0].logprobs[0][last].logprob

    def _run(self, prompts: Sequence[list[int]], parameters: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yields (position, finished request) as they finish; when left early, the rest is aborted.

        Raises:
            InfrastructureError: vLLM died; the engine is closed.
        """
        engine = self._llm.llm_engine
        positions = {str(self._num_requests + position): position for position in range(len(prompts))}
        self._num_requests += len(prompts)
        try:
            for name, prompt, parameter in zip(positions, prompts, parameters, strict=True):
                engine.add_request(name, {"prompt_token_ids": prompt}, parameter)
            while positions:
                with engine_threads():
                    results = engine.step()
                for result in results:
                    if result.finished:
                        yield positions.pop(result.request_id), result
        except (RuntimeError, MemoryError) as error:  # EngineDeadError and CUDA's OutOfMemoryError are RuntimeErrors
            positions.clear()
            self.close()
            raise InfrastructureError(f"vllm died while generating ({error!r}). A new engine may succeed.") from error
        finally:
            if positions:
                engine.abort_request(list(positions))

    def _require_open(self) -> None:
        if self._llm is None:
            raise InfrastructureError("the vllm engine was closed or died. Ask shared_engine for a new one.")


def _start(directory: Path, dtype: str, max_model_tokens: int, trust_remote_code: bool) -> Any:
    prepare_environment()
    with keep_process_state(), engine_threads(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, at vllm's import
        from vllm import LLM
        from vllm.platforms import current_platform

        on_cpu = current_platform.is_cpu()
        options: dict[str, Any] = {
            "model": str(directory),
            "dtype": dtype,
            "max_model_len": max_model_tokens,
            "trust_remote_code": trust_remote_code,
            "skip_tokenizer_init": True,
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            # a prompt cut into chunks rewinds its seeded generator, which the CPU's cannot do ("does not use offset")
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(max_model_tokens, BATCHED_TOKENS),
            "worker_extension_cls": "posttrain.engines.vllm_worker.WeightReload",
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "enforce_eager": on_cpu,
            **({"block_size": BLOCK_TOKENS} if on_cpu else {}),
        }
        try:
            return LLM(**options)
        except (RuntimeError, MemoryError) as error:
            raise InfrastructureError(f"vllm could not start on {directory} ({error!r}).") from error


def sampled_logprobs(
    completion_ids: Sequence[int], entries: Sequence[Mapping[int, Any] | None] | None
) -> tuple[float, ...] | None:
    """Logprob of each sampled token, looked up by id in its entry (id → object with `logprob`); None when one is unusable."""
    found = [entry.get(token) if entry else None for token, entry in zip(completion_ids, entries or [], strict=bool(entries))]
    if len(found) != len(completion_ids):
        return None
    return usable_logprobs([None if value is None else value.logprob for value in found])


def _completion(output: Any, started: datetime) -> Completion:
    ids = tuple(output.token_ids)
    logprobs = sampled_logprobs(ids, output.logprobs)
    return Completion(ids, logprobs, FINISH_REASONS[output.finish_reason], started, datetime.now(UTC))


def _release() -> None:
    """Gives up what vLLM keeps for the whole process, so that another engine can start."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
    gc.collect()
