"""What is masked, and what is left as it is, in everything that is kept or shown."""

from __future__ import annotations

import time

import pytest

from posttrain.tracking import mask_credentials

SECRETS = [
    ("https://me:p4ss@host/data.jsonl", "https://***@host/data.jsonl"),
    ("https://me:pa/ss@host/x", "https://***@host/x"),
    ("https://me:pa ss@host/x", "https://***@host/x"),
    ("https://me:pa\"s's@host/x", "https://***@host/x"),
    ("https://me:p@w@host:5000/x", "https://***@host:5000/x"),
    ("https://me:12/34@host", "https://***@host"),
    ("https://me@firm.example:p4ss@host/x", "https://***@host/x"),
    ("postgresql+psycopg://me:p?4#s@db/x", "postgresql+psycopg://***@db/x"),
    ("http://:p4ss@host", "http://***@host"),
    ("https://p4sstoken@host/x", "https://***@host/x"),
    ("see mysql://me:p4ss@db/x and s3://b/k", "see mysql://***@db/x and s3://b/k"),
    ("a://u:p4ss@one b://v:p4ss@two", "a://***@one b://***@two"),
    ("https://h/x?token=p4ss&split=train", "https://h/x?token=***&split=train"),
    ("https://h/x?access_token=p4ss", "https://h/x?access_token=***"),
    ("https://h/x?key=p4ss#part", "https://h/x?key=***#part"),
    ("https://h/x?API_KEY=p4ss&apikey=p4ss", "https://h/x?API_KEY=***&apikey=***"),
    ("https://h/x?signature=p4ss&sig=p4ss%3D", "https://h/x?signature=***&sig=***"),
    (
        "https://b.s3/x?X-Amz-Credential=p4ss%2Fs3&X-Amz-Date=1&X-Amz-Signature=p4ss&X-Amz-Security-Token=p4ss",
        "https://b.s3/x?X-Amz-Credential=***&X-Amz-Date=1&X-Amz-Signature=***&X-Amz-Security-Token=***",
    ),
    ("https://b/x?GoogleAccessId=me&AWSAccessKeyId=p4ss", "https://b/x?GoogleAccessId=me&AWSAccessKeyId=***"),
    ("host=db password='p4 ss' user=me", "host=db password=*** user=me"),
    ("client_secret=p4ss", "client_secret=***"),
    ("Authorization: Bearer p4ssp4ssp4ss", "Authorization: Bearer ***"),
    ("hf_" + "p4ssAbC" * 5, "hf_***"),
    ("token hf_p4ssp4ssP4SS in a text", "token hf_*** in a text"),
    ("ghp_" + "p4ss" * 9, "ghp_***"),
]  # fmt: skip
HARMLESS = [
    "s3://bucket/key",
    "hf://datasets/me/data@main/train.jsonl",
    "http://localhost:5000 is watched by ops@firm.example",
    "openai/gsm8k?config=main&split=test[:200]&prompt_column=question&answer_after=####",
    "max_completion_tokens=512, 3 tokens = 5",
    "the bearer of news about hf_transfer",
    "sqlite:////a b/mlflow.db?timeout=30",
    "monkey=banana",
    "12:30 me@firm.example",
]


@pytest.mark.parametrize(("text", "masked"), SECRETS)
def test_secrets_are_masked_and_the_rest_stays(text: str, masked: str) -> None:
    assert mask_credentials(text) == masked
    assert mask_credentials(masked) == masked
    assert "p4ss" not in masked


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_credentials(text) == text


@pytest.mark.parametrize("unit", ["a", "://", "a://b:", "a_", "token=", "@", "x-", "hf_", ":1"])
def test_masking_hostile_text_takes_linear_time(unit: str) -> None:
    started = time.monotonic()
    mask_credentials(unit * (200_000 // len(unit)))
    assert time.monotonic() - started < 5
