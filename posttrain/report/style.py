"""The look of the report, light and dark. A module, because a remote run carries along only Python files."""

# ruff: noqa: E501
from __future__ import annotations

STYLE = """\
:root {
  color-scheme: light dark;
  --page: #ffffff; --surface: #f6f7f9; --line: #e2e5ea; --ink: #1a1d21; --muted: #5c6470; --grid: #e2e5ea;
  --accent: #2463d6; --second: #d2700a; --third: #17876d; --fourth: #8a4fd0; --fifth: #b83a6b; --sixth: #8b939e;
  --pass: #2a9d6f; --fail: #c3c9d2; --timeout: #e3a008; --unparseable: #8a63d2; --error: #d23f3f; --abstain: #4f9bc9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #121417; --surface: #1b1e23; --line: #2e333b; --ink: #e6e8eb; --muted: #9ba4b0; --grid: #2e333b;
    --accent: #6ea3ff; --second: #f0a04b; --third: #4cc3a5; --fourth: #b890f0; --fifth: #e87aa5; --sixth: #79828e;
    --pass: #35b583; --fail: #4a525e; --timeout: #e0ad2e; --unparseable: #a583ea; --error: #ea6262; --abstain: #6db6e2;
  }
}
body { margin: 0; background: var(--page); }
.report { max-width: 1100px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif; }
.report * { box-sizing: border-box; }
h1 { font-size: 1.05rem; font-weight: 600; color: var(--muted); margin: 0 0 .5rem; letter-spacing: .01em; }
.headline { font-size: clamp(1.3rem, 3.2vw, 1.85rem); line-height: 1.3; font-weight: 600; margin: 0 0 .75rem; max-width: 46rem; text-wrap: balance; }
.headline span { white-space: nowrap; font-weight: 400; font-size: .72em; color: var(--muted); }
h2 { font-size: 1.2rem; margin: 3rem 0 1rem; padding-top: 1.25rem; border-top: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 1.75rem 0 .6rem; }
p { margin: 0 0 .75rem; }
.muted { color: var(--muted); font-size: .92rem; overflow-wrap: anywhere; }
.warning { border: 2px solid var(--error); border-left-width: 10px; border-radius: 10px; background: var(--surface); padding: 1rem 1.25rem; margin: 1.25rem 0 1.75rem; }
.warning b { color: var(--error); font-size: 1.1rem; margin-right: .3rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
.tiles div { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; }
.tiles b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tiles span { color: var(--muted); font-size: .82rem; }
.links { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; margin: 0; font-size: .9rem; }
.links dt { color: var(--muted); }
.links dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 2rem 2.25rem; }
.figures.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 1.5rem 2rem; }
figure { margin: 0; min-width: 0; }
figcaption { margin-bottom: .4rem; font-size: .95rem; }
figcaption span { color: var(--muted); font-size: .85rem; }
svg { display: block; width: 100%; max-width: var(--width); height: auto; overflow: visible; }
.wide { overflow-x: auto; }
.wide svg { min-width: 46rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: .75rem; align-items: start; }
article { border: 1px solid var(--line); border-radius: 10px; min-width: 0; padding: .8rem 1rem; background: var(--surface); }
article p { margin: .5rem 0 0; }
.facts { display: flex; flex-wrap: wrap; gap: .2rem .8rem; align-items: center; font-size: .82rem; color: var(--muted); overflow-wrap: anywhere; }
.facts span { min-width: 0; }
.outcome { font-weight: 600; color: var(--ink); display: inline-flex; align-items: center; gap: .4rem; }
.outcome::before { content: ""; width: .65rem; height: .65rem; border-radius: 50%; background: var(--fail); }
.outcome.pass::before { background: var(--pass); }
.outcome.timeout::before { background: var(--timeout); }
.outcome.unparseable::before { background: var(--unparseable); }
.outcome.error::before { background: var(--error); }
.outcome.abstain::before { background: var(--abstain); }
pre { margin: .55rem 0 0; font: .86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 22rem; overflow: auto; unicode-bidi: isolate; direction: ltr; }
pre.prompt { color: var(--muted); border-left: 3px solid var(--line); padding-left: .75rem; }
pre i, .muted i { font-style: normal; font-size: .72em; color: var(--error); border: 1px solid var(--error); border-radius: 3px; padding: 0 .2em; }
pre em { color: var(--second); font-style: normal; display: block; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
summary { cursor: pointer; color: var(--muted); }
table { border-collapse: collapse; width: 100%; margin-top: .75rem; font-size: .88rem; table-layout: fixed; }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 400; color: var(--muted); width: 45%; }
.comparison { table-layout: auto; font-variant-numeric: tabular-nums; }
.comparison th, .comparison td { width: auto; overflow-wrap: normal; }
.comparison tbody th { color: var(--ink); white-space: nowrap; }
.trials { font-size: .8rem; }
.trials th, .trials td { padding-right: .55rem; }
.trials td { white-space: nowrap; }
.trials td:nth-child(2) { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
.plan thead th { color: var(--ink); font-weight: 600; }
.plan tbody th { color: var(--muted); }
.comparison .best { font-weight: 600; background: var(--surface); }
.answer { margin-top: .7rem; }
@media print { pre { max-height: none; } }
"""
