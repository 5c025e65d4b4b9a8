"""The comparison of algorithms as text for a log and as HTML for the report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from posttrain.planner.costs import AlgorithmCost
from posttrain.planner.units import bytes_text, count_text, gpu_time_text

HEADINGS = ("", "bytes/param", "memory", "FLOP/token", "training", "generation", "in all")
OVERHEAD_GPU_S = 60  # below it the arithmetic counts the smaller part


def explain(costs: Sequence[AlgorithmCost]) -> str:
    """What was assumed: the workload, the utilisation, the decode batch, and what is left out."""
    work = costs[0].workload
    engine = work.decoding()
    floor = " Of times as short as these much goes to overheads." if costs[0].total_gpu_s < OVERHEAD_GPU_S else ""
    gpus = f"{engine.tensor_parallel} GPUs" if engine.tensor_parallel > 1 else "one GPU"
    return (
        f"N = {count_text(work.model.num_parameters)} parameters; {work.num_pairs:,} pairs of two sequences of "
        f"{work.mean_sequence_tokens:,.0f} tokens, {work.num_epochs} epoch{'s' if work.num_epochs != 1 else ''}; "
        f"{work.gpu.name} at {work.model_flop_utilisation * 100:.0f} % of its peak. PPO and GRPO train on as many tokens, "
        f"which they generate: {engine.num_sequences:,} sequences at a time on {gpus}, {engine.step_s * 1e3:.1f} ms a step "
        "(weights and KV cache at 75 % of the bandwidth, or FLOP at 55 % of the peak, + 1.5 ms). Left out: attention FLOP, "
        f"prefill, activations, and the idle time that generation brings and a supervised job does not have.{floor}"
    )


def plan_text(costs: Sequence[AlgorithmCost]) -> str:
    """An aligned table, then models, services and what is given up for each algorithm."""
    rows = [HEADINGS, *(_cells(cost) for cost in costs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    table = [
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    details = [
        f"{cost.name}\n  models    {', '.join(cost.models)}\n  services  {', '.join(cost.services)}\n  given up  {cost.given_up}"
        for cost in costs
    ]
    return "\n".join([*table, "", *details, "", explain(costs)])


def plan_html(costs: Sequence[AlgorithmCost]) -> str:
    """The same as an HTML table with a column for each algorithm."""
    headings = ("models resident", *HEADINGS[1:], "services", "given up")
    columns = [(", ".join(cost.models), *_cells(cost)[1:], ", ".join(cost.services), cost.given_up) for cost in costs]
    head = "".join(f"<th>{escape(cost.name)}</th>" for cost in costs)
    body = "".join(
        f"<tr><th>{escape(heading)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for heading, row in zip(headings, zip(*columns, strict=True), strict=True)
    )
    return (
        f'<div class="wide"><table class="comparison plan"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'<p class="muted">{escape(explain(costs))}</p>'
    )


def _cells(cost: AlgorithmCost) -> tuple[str, ...]:
    once = f" + {cost.once_flop_per_parameter_token} N once" if cost.once_flop_per_parameter_token else ""
    precompute = f" + {gpu_time_text(cost.once_gpu_s)}" if once else ""
    return (
        cost.name,
        f"{cost.bytes_per_parameter}",
        bytes_text(cost.resident_bytes),
        f"{cost.flop_per_parameter_token} N{once}",
        f"{gpu_time_text(cost.train_gpu_s)}{precompute}",
        gpu_time_text(cost.generation_gpu_s) if cost.generates else "-",
        gpu_time_text(cost.total_gpu_s),
    )
