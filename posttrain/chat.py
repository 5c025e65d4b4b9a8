"""Messages to token ids and back: the only place that tokenises.

Token ids are the truth. What was sampled is never decoded and encoded again (huggingface/trl#5224).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from posttrain.errors import ConfigError

Message = Mapping[str, str]
_MARKER = "posttrain-marks-this-turn"
_THINK = "<think>"
_ANCHOR = "\n"  # a character that tokenizers do not join with the word behind it
_READ_WHOLE = 1 << 16  # characters of a text that are always tokenised, even if few ids are wanted


def encode_messages(tokenizer: Any, messages: Sequence[Message], num_tokens: int | None = None) -> list[int]:
    """Prompt ids of a conversation, ending where the completion begins.

    The chat template is applied once, with the generation prompt; a tokenizer without one takes the contents joined by a newline.
    There is exactly one leading BOS when the template writes one or the tokenizer adds one (OpenRLHF/OpenRLHF#393), else none.

    Args:
        num_tokens: see `encode_completion`.

    Raises:
        ConfigError: the chat template refuses the messages.
    """
    return encode_text(tokenizer, render_messages(tokenizer, messages), num_tokens)


def encode_text(tokenizer: Any, text: str, num_tokens: int | None = None) -> list[int]:
    """Ids of a text that begins a sequence: one BOS when the text or the tokenizer begins with one, and never an EOS added."""
    ids = _encode_start(tokenizer, text, num_tokens)
    start = tokenizer.bos_token_id
    if start is None:
        return ids
    rest = ids
    while rest[:1] == [start]:
        rest = rest[1:]
    return [start, *rest] if len(rest) < len(ids) or _prepends(tokenizer, start) else ids


def encode_completion(tokenizer: Any, text: str, num_tokens: int | None = None) -> list[int]:
    """Ids of a completion's text that continues a prompt: no BOS, no EOS and no space added.

    Tokenizers of SentencePiece put a space before a text; behind a prompt it would be one that nobody wrote.

    Args:
        num_tokens: when no more ids than these will be used, so that the rest of a huge text need not be tokenised. What is
            returned then may be longer or end early, but never with fewer ids than that.
    """
    if _puts_space_before(tokenizer):
        before = _encode(tokenizer, _ANCHOR)
        ids = _encode_start(tokenizer, _ANCHOR + text, None if num_tokens is None else num_tokens + len(before))
        if ids[: len(before)] == before:
            return ids[len(before) :]
    return _encode_start(tokenizer, text, num_tokens)


def opening_of_answer(tokenizer: Any) -> str:
    """What the chat template's generation prompt has already written of the answer: `<think>` and white space, or nothing."""
    if not tokenizer.chat_template:
        return ""
    rendered = _apply_template(tokenizer, [{"role": "user", "content": "?"}], add_generation_prompt=True)
    return rendered[len(rendered.rstrip()) - len(_THINK) :] if rendered.rstrip().endswith(_THINK) else ""


def end_of_answer(tokenizer: Any, conversational: bool) -> int:
    """The token that ends an answer: what the chat template writes behind an assistant's content if it is special, else EOS.

    Raises:
        ConfigError: neither exists, so that the model could never learn to stop.
    """
    if conversational and tokenizer.chat_template:
        conversation = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARKER}]
        _, marker, tail = _apply_template(tokenizer, conversation, add_generation_prompt=False).rpartition(_MARKER)
        first = _encode(tokenizer, tail)[:1] if marker else []
        if first and _is_special(tokenizer, first[0]):
            return first[0]
    if tokenizer.eos_token_id is None:
        raise ConfigError("data.model", tokenizer.name_or_path, "its tokenizer has no EOS token", "Choose a model that can stop.")
    return int(tokenizer.eos_token_id)


def render_messages(tokenizer: Any, messages: Sequence[Message]) -> str:
    """The text of a conversation with its generation prompt, as `encode_messages` encodes it.

    Raises:
        ConfigError: the chat template refuses the messages.
    """
    if not tokenizer.chat_template:
        return "\n".join(message["content"] for message in messages)
    return _apply_template(tokenizer, messages, add_generation_prompt=True)


def decode_completion(tokenizer: Any, completion_ids: Sequence[int], end_ids: Collection[int] | None = None) -> str:
    """Text of a completion without its final EOS; every other token stays, special ones too. Always valid UTF-8.

    Args:
        end_ids: what counts as EOS; the tokenizer's own when None.
    """
    ends = {tokenizer.eos_token_id} if end_ids is None else end_ids
    ids = list(completion_ids[:-1] if completion_ids and completion_ids[-1] in ends else completion_ids)
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text.encode("utf-8", errors="replace").decode("utf-8")  # a lone surrogate has no place in Arrow


def extend_conversation(
    tokenizer: Any, prompt_ids: Sequence[int], completion_ids: Sequence[int], new_messages: Sequence[Message]
) -> list[int]:
    """Prompt ids of the next turn: prompt ids + sampled ids + encoded new text; earlier text is never encoded again.

    Templates that drop or rewrite earlier reasoning (huggingface/trl#6363) so have no say in what was already sampled: the ids
    of this turn are always a prefix of the next.

    Raises:
        ConfigError: the chat template refuses the messages or does not repeat the assistant's content.
    """
    tail = _text_after_assistant(tokenizer, new_messages)
    if completion_ids and completion_ids[-1] in tokenizer.all_special_ids:  # the end of turn was sampled; do not write it twice
        tail = tail.removeprefix(tokenizer.decode([completion_ids[-1]]))
    return [*prompt_ids, *completion_ids, *_encode(tokenizer, tail)]


def _text_after_assistant(tokenizer: Any, new_messages: Sequence[Message]) -> str:
    """What the template writes after an assistant's content: end of turn, the new messages, the generation prompt."""
    conversation = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARKER}, *new_messages]
    before, marker, tail = render_messages(tokenizer, conversation).partition(_MARKER)
    if not marker or _MARKER in tail:
        why = "it does not repeat an assistant's content once"
        raise ConfigError("chat_template", before, why, "Train single turns, or change the template.")
    return tail


def _apply_template(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    from jinja2 import TemplateError

    plain = [dict(message) for message in messages]
    try:
        return tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=add_generation_prompt)
    except TemplateError as error:
        roles = [message["role"] for message in messages]
        why = f"the template refuses messages of these roles ({error})"
        raise ConfigError("chat_template", roles, why, "Change the messages, or take another model.") from error


def _encode_start(tokenizer: Any, text: str, num_tokens: int | None) -> list[int]:
    """The ids of `text`; of a huge one at least the first `num_tokens` and as many behind them, so that the cut is far off."""
    length = len(text) if num_tokens is None else max(_READ_WHOLE, 16 * num_tokens)
    while length < len(text):
        ids = _encode(tokenizer, text[:length])
        if num_tokens is not None and len(ids) >= 2 * num_tokens:
            return ids
        length *= 4
    return _encode(tokenizer, text)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@lru_cache(maxsize=8)
def _puts_space_before(tokenizer: Any) -> bool:
    return _encode(tokenizer, f"{_ANCHOR}a") != [*_encode(tokenizer, _ANCHOR), *_encode(tokenizer, "a")]


def _is_special(tokenizer: Any, token: int) -> bool:
    """Whether the token is special; one that was added without a role of its own is not among `all_special_ids`."""
    added = tokenizer.added_tokens_decoder.get(token)
    return token in tokenizer.all_special_ids or (added is not None and added.special)


def _prepends(tokenizer: Any, start: int) -> bool:
    return list(tokenizer("a")["input_ids"])[:1] == [start]
