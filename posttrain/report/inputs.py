"""What a report is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from posttrain import tables


@dataclass(frozen=True)
class PairSample:
    """A pair worth reading; drift is policy − reference in nats, None where it was not computed."""

    prompt: str
    chosen: str
    rejected: str
    pair_id: str = ""
    margin: float | None = None  # by how much the data set judges the chosen side better
    chosen_logprob_drift: float | None = None
    rejected_logprob_drift: float | None = None


@dataclass(frozen=True)
class ReportInputs:
    """Everything but the title may be empty.

    `settings` is flat (`resolution.flatten`); `metrics` is METRICS, `events` is EVENTS; `samples` maps an iteration to its
    SCORED table, all rows or some; `prompts` is PROMPTS or maps prompt_id to text; `links` maps a label to text, a
    command or an address. Of a run that learns from pairs: `pairs` to show, and `num_pairs` that it trained on.
    `plan_html` is trusted: it comes from `posttrain.planner`.
    """

    title: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    metrics: pa.Table = field(default_factory=lambda: tables.empty("METRICS"))
    events: pa.Table = field(default_factory=lambda: tables.empty("EVENTS"))
    samples: Mapping[int, pa.Table] = field(default_factory=dict[int, pa.Table])
    prompts: pa.Table | Mapping[str, str] = field(default_factory=dict[str, str])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    pairs: Sequence[PairSample] = ()
    num_pairs: int = 0
    plan_html: str = ""

    def validate(self) -> None:
        """Raises ContractError when a table breaks its contract."""
        tables.validate(self.metrics, "METRICS")
        tables.validate(self.events, "EVENTS")
        for scored in self.samples.values():
            tables.validate(scored, "SCORED")
        if not isinstance(self.prompts, Mapping):
            tables.validate(self.prompts, "PROMPTS")

    def prompt_texts(self) -> Mapping[str, str]:
        """prompt_id → the messages as a person reads them."""
        if isinstance(self.prompts, Mapping):
            return self.prompts
        rows = self.prompts.select(["prompt_id", "messages"]).to_pylist()
        return {row["prompt_id"]: _read(row["messages"]) for row in rows}


def _read(messages: list[dict[str, str]]) -> str:
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
