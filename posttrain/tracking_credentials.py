"""Secrets in text that is kept or shown: credentials of addresses, signed queries, access tokens."""

from __future__ import annotations

import re

_MASK = "***"
# A password may hold anything, also `@`, `/`, quotes and spaces: it ends at the last `@` before the next address or line.
# What looks like a host's port (digits, then a blank or punctuation) is not taken for a password.
_PASSWORD = re.compile(r"(?<=://)[^\s/:]*:(?!\d{1,5}(?:[\s\"'),;\]}?#]|$))(?:(?!://)[^\n])*@")
_USER = re.compile(r"(?<=://)[^\s/@]+@")
_NAMED = re.compile(
    r"(?<![A-Za-z0-9])((?:[A-Za-z0-9]{1,20}[_-]){0,4}"
    r"(?:token|password|passwd|pwd|secret|signature|credentials?|sig|key|(?:api|access|account|secret)key|AWSAccessKeyId)"
    r"(?:=|%3D))(?:'[^'\n]*'|\"[^\"\n]*\"|[^&#\s]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer\s+)[A-Za-z0-9._~+/=-]{12,}")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(hf_|api_org_|gh[opsru]_|github_pat_|glpat-|sk-|AKIA|dapi)(?=[A-Za-z0-9_-]{0,40}[A-Z0-9])[A-Za-z0-9_-]{10,}"
)


def mask_credentials(text: str) -> str:
    """The text with `user:password@` of every address, values of secret parameters (`token=`, `sig=`, …) and access
    tokens (`hf_…`, `ghp_…`, …) replaced by `***`. Masks rather too much than too little; masking twice changes nothing.
    """
    masked = _USER.sub(f"{_MASK}@", _PASSWORD.sub(f"{_MASK}@", text))
    masked = _NAMED.sub(rf"\1{_MASK}", masked)
    return _TOKEN.sub(rf"\1{_MASK}", _BEARER.sub(rf"\1{_MASK}", masked))
