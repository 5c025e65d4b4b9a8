"""One raw pair → one row of PREFERENCES: its token ids, with one end token, within the budget of each side."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from posttrain import chat
from posttrain.config_dpo import PreferenceData
from posttrain.errors import ConfigError
from posttrain.preference_sources import EMPTY_ANSWER, LeftOut, RawPair
from posttrain.sources import with_system

ID_COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
IDENTICAL_TOKENS = "chosen and rejected have the same token ids"
END_INSIDE = "an answer goes on behind its end token, which no sampler would"
NO_FIRST_TOKEN = "the prompt is empty and the tokenizer has no BOS: the answer's first token cannot be scored"


class PairEncoder:
    """Encodes pairs by one tokenizer; what `posttrain.preferences.load_preferences` says of ids and truncation is done here."""

    def __init__(self, tokenizer: Any, data: PreferenceData) -> None:
        self._tokenizer, self._data = tokenizer, data
        self._end_of_answer = cache(lambda conversational: chat.end_of_answer(tokenizer, conversational))
        self._opening = cache(lambda: chat.opening_of_answer(tokenizer))

    def encode(self, pair: RawPair) -> dict[str, Any]:
        """The row of PREFERENCES.

        Raises:
            LeftOut: nothing can be learned from the pair.
            ConfigError: the tokenizer has no end token, or a system prompt is set and the pair is plain text.
        """
        conversational, prompt_ids = not isinstance(pair.prompt, str), self._prompt_ids(pair)
        if not prompt_ids:
            raise LeftOut(NO_FIRST_TOKEN)
        row = {
            "pair_id": pair.pair_id,
            "prompt_id": pair.prompt_id or f"prompt:{digest(prompt_ids).hex()}",
            "prompt_ids": prompt_ids,
            "chosen_ids": self._answer_ids(pair.chosen, conversational),
            "rejected_ids": self._answer_ids(pair.rejected, conversational),
            "source": pair.source,
            "margin": pair.margin,
        }
        return fit(row, self._data.max_pair_tokens)

    def _prompt_ids(self, pair: RawPair) -> list[int]:
        limit, system_prompt = self._data.max_pair_tokens, self._data.system_prompt
        if not isinstance(pair.prompt, str):
            try:
                return chat.encode_messages(self._tokenizer, with_system(pair.prompt, system_prompt), limit)
            except ConfigError as error:
                raise LeftOut(error.why) from error
        if system_prompt:
            why = f"pair {pair.pair_id!r} is plain text, which takes no system message"
            raise ConfigError("data.system_prompt", system_prompt, why, "Leave it out, or give the pairs as messages.")
        start = self._tokenizer.bos_token_id
        return chat.encode_text(self._tokenizer, pair.prompt, limit) or ([] if start is None else [start])

    def _answer_ids(self, text: str, conversational: bool) -> list[int]:
        if conversational:
            text = self._without_opening(text)
        ids, end = chat.encode_completion(self._tokenizer, text, self._data.max_pair_tokens), self._end_of_answer(conversational)
        ends = (end, self._tokenizer.eos_token_id)
        length = len(ids)
        while length and ids[length - 1] in ends:
            length -= 1
        if not length:
            raise LeftOut(EMPTY_ANSWER)
        if any(end_id in ids[:length] for end_id in ends):
            raise LeftOut(END_INSIDE)
        return [*ids[:length], *(ids[length : length + 1] or [end])]  # the text's own end token, if it has one

    def _without_opening(self, text: str) -> str:
        """The answer without the `<think>` that the generation prompt has already written."""
        opening = self._opening()
        tag, begun = opening.rstrip(), text.lstrip()
        return begun.removeprefix(tag).removeprefix(opening.removeprefix(tag)) if tag and begun.startswith(tag) else text


def fit(row: dict[str, Any], max_pair_tokens: int) -> dict[str, Any]:
    """The row with each answer cut to what the prompt leaves it (huggingface/trl#6548).

    Raises:
        LeftOut: the prompt leaves nothing, or the answers are the same.
    """
    room = max_pair_tokens - len(row["prompt_ids"])
    if room < 1:
        raise LeftOut(f"the prompt leaves no room for an answer in data.max_pair_tokens = {max_pair_tokens}")
    chosen_ids, rejected_ids = row["chosen_ids"][:room], row["rejected_ids"][:room]
    if chosen_ids == rejected_ids:
        is_cut = max(len(row["chosen_ids"]), len(row["rejected_ids"])) > room
        truncated = f"chosen and rejected become identical by truncation to data.max_pair_tokens = {max_pair_tokens}"
        raise LeftOut(truncated if is_cut else IDENTICAL_TOKENS)
    return {**row, "chosen_ids": chosen_ids, "rejected_ids": rejected_ids}


def digest(ids: Sequence[int]) -> bytes:
    """16 bytes that name a sequence of token ids."""
    return hashlib.sha256(np.asarray(ids, np.int32).tobytes()).digest()[:16]
