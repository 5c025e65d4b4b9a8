"""Messages to ids and back: one BOS, nothing sampled is ever encoded again, think tags in pairs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from posttrain.chat import (
    decode_completion,
    encode_completion,
    encode_messages,
    encode_text,
    extend_conversation,
    opening_of_answer,
    render_messages,
)
from posttrain.errors import ConfigError
from tests.tiny_models import BOS_ID, CHAT_TEMPLATE, EOS_ID, build_tiny_tokenizer

USER = [{"role": "user", "content": "hi"}]
THINK_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% set content = message['content'].split('</think>')[-1] if message['role'] == 'assistant' else message['content'] %}"
    "{{ content }}</s>\n{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


def ids_of(text: str) -> list[int]:
    """Character by character, independent of any tokenizer call; `</s>` and `<s>` are single ids."""
    tokenizer = build_tiny_tokenizer()
    found: list[int] = []
    while text:
        token = next((special for special in ("</s>", "<s>") if text.startswith(special)), text[0])
        found.append(tokenizer.convert_tokens_to_ids(token))
        text = text[len(token) :]
    return found


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_template_with_bos_and_a_tokenizer_with_bos_give_one_bos(add_bos: bool) -> None:
    tokenizer = build_tiny_tokenizer(CHAT_TEMPLATE, add_bos=add_bos)
    ids = encode_messages(tokenizer, USER)
    assert ids == ids_of("<s>user: hi\nassistant: ")
    assert ids[0] == BOS_ID and ids.count(BOS_ID) == 1
    direct = tokenizer.apply_chat_template(USER, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ids == direct == encode_text(tokenizer, render_messages(tokenizer, USER))
    doubled = tokenizer(render_messages(tokenizer, USER))["input_ids"]
    assert doubled.count(BOS_ID) == 1 + add_bos  # what the naive route gives


def test_raw_text_gets_the_one_bos_of_a_tokenizer_that_adds_it_and_never_an_end_token() -> None:
    from tokenizers import processors

    assert encode_text(build_tiny_tokenizer(add_bos=True), "ab") == [BOS_ID, *ids_of("ab")]
    assert encode_text(build_tiny_tokenizer(add_bos=True), "<s>ab") == [BOS_ID, *ids_of("ab")]
    assert encode_text(build_tiny_tokenizer(), "ab") == ids_of("ab")
    both = build_tiny_tokenizer()
    both.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", BOS_ID), ("</s>", EOS_ID)]
    )
    assert encode_text(both, "ab") == [BOS_ID, *ids_of("ab")]


def test_without_a_template_the_contents_are_joined_by_a_newline() -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "add 1:"}]
    assert encode_messages(build_tiny_tokenizer(add_bos=True), messages) == ids_of("<s>be brief\nadd 1:")


def test_a_template_that_refuses_the_messages_is_a_clear_error() -> None:
    tokenizer = build_tiny_tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ConfigError, match=r"chat_template.*\['user'\].*roles must alternate"):
        encode_messages(tokenizer, USER)


def test_decoding_drops_the_final_end_token_only() -> None:
    tokenizer = build_tiny_tokenizer()
    assert decode_completion(tokenizer, [*ids_of("a=1"), EOS_ID]) == "a=1"
    assert decode_completion(tokenizer, [*ids_of("a"), EOS_ID, *ids_of("b")]) == "a</s>b"
    assert decode_completion(tokenizer, [BOS_ID, *ids_of("a"), 0]) == "<s>a<pad>"
    assert decode_completion(tokenizer, [*ids_of("ab")], end_ids={ids_of("b")[0]}) == "a"
    assert decode_completion(tokenizer, [EOS_ID]) == decode_completion(tokenizer, []) == ""


def test_broken_utf8_and_ids_outside_the_tokenizer_decode_to_valid_text() -> None:
    tokenizer = build_byte_tokenizer()
    euro = tokenizer("€")["input_ids"]
    assert len(euro) == 3
    assert decode_completion(tokenizer, euro) == "€"
    cut = decode_completion(tokenizer, [*tokenizer("a")["input_ids"], *euro[:2]])
    assert cut.startswith("a") and "�" in cut
    pa.array([cut], pa.large_string()).validate(full=True)
    assert decode_completion(tokenizer, tokenizer("👩‍🚀 \x00\x1b\r\n")["input_ids"]) == "👩‍🚀 \x00\x1b\r\n"
    assert decode_completion(build_tiny_tokenizer(), [*ids_of("a"), 70_000]) == "a"


def test_a_second_turn_keeps_the_sampled_ids_where_encoding_again_would_merge_them() -> None:
    tokenizer = build_merging_tokenizer()
    assert len(tokenizer("hello")["input_ids"]) == 2
    prompt = tokenizer("oh")["input_ids"]
    sampled = tokenizer.convert_tokens_to_ids(["h", "e", "l", "l", "o"])
    extended = extend_conversation(tokenizer, prompt, sampled, [{"role": "tool", "content": "hello"}])
    assert extended == [*prompt, *sampled, *tokenizer("\nhello")["input_ids"]]
    assert len(extended) == len(prompt) + 5 + 3


def test_a_second_turn_continues_the_template_after_the_sampled_end_token() -> None:
    tokenizer = build_tiny_tokenizer(CHAT_TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'] }}{{ eos_token }}"))
    first = encode_messages(tokenizer, USER)
    new = [{"role": "user", "content": "more"}]
    stopped = [*ids_of("yo"), EOS_ID]
    assert extend_conversation(tokenizer, first, stopped, new) == [*first, *stopped, *ids_of("\nuser: more</s>\nassistant: ")]
    truncated = ids_of("yo")
    closed = ids_of("</s>\nuser: more</s>\nassistant: ")
    assert extend_conversation(tokenizer, first, truncated, new) == [*first, *truncated, *closed]


def test_a_think_tag_opened_by_the_generation_prompt_is_closed_once_and_turns_are_prefixes() -> None:
    tokenizer = build_tiny_tokenizer(THINK_TEMPLATE)
    first = encode_messages(tokenizer, [{"role": "user", "content": "2+2?"}])
    completion = [*ids_of("2+2=4</think>4"), EOS_ID]
    second = extend_conversation(tokenizer, first, completion, [{"role": "user", "content": "3+3?"}])
    assert second[: len(first) + len(completion)] == first + completion
    turn = tokenizer.decode(first + completion)
    assert turn.count("<think>") == turn.count("</think>") == 1
    assert tokenizer.decode(second) == turn + "\n<|user|>3+3?</s>\n<|assistant|><think>\n"
    third = extend_conversation(tokenizer, second, [*ids_of("6</think>6"), EOS_ID], [{"role": "user", "content": "ok"}])
    assert third[: len(second)] == second


def test_a_template_that_loses_the_assistants_content_cannot_be_extended() -> None:
    tokenizer = build_tiny_tokenizer("{{ messages[-1]['content'] }}")
    with pytest.raises(ConfigError, match="does not repeat an assistant's content"):
        extend_conversation(tokenizer, [5], [6], USER)


def build_byte_tokenizer() -> Any:
    """Every byte is one id, as in byte-level BPE without merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def build_merging_tokenizer() -> Any:
    """A BPE in which `hello` is `he` + `llo`."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate(["h", "e", "l", "o", "\n", "he", "ll", "llo"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("h", "e"), ("l", "l"), ("ll", "o")]))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("kind", ["metaspace", "normalizer"])
@pytest.mark.parametrize("text", ["yes", " yes", "yes no", "\nyes", "  no"])
def test_sentencepiece_puts_no_space_before_a_completion(kind: str, text: str) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["\u2581", "\u2581yes", "\u2581no", "yes", "\n", *"yesnoq?"]
    scores = [("<unk>", -100.0), *((piece, -2.0 if len(piece) > 1 else -5.0) for piece in dict.fromkeys(pieces))]
    backend = Tokenizer(models.Unigram(scores, unk_id=0))
    if kind == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    else:  # as Llama 2
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    prompt_ids, ids = encode_text(tokenizer, "q?"), encode_completion(tokenizer, text)
    assert tokenizer.decode([*prompt_ids, *ids]) == f"q?{text}"
    assert encode_completion(tokenizer, text, 1)[:1] == ids[:1]


@pytest.mark.parametrize(("template", "opening"), [(THINK_TEMPLATE, "<think>\n"), (CHAT_TEMPLATE, ""), (None, "")])
def test_what_the_generation_prompt_writes_of_the_answer(template: str | None, opening: str) -> None:
    assert opening_of_answer(build_tiny_tokenizer(template)) == opening
