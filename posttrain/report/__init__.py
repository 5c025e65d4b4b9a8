"""The report of a run: one self-contained HTML file, and the learning curve for the terminal."""

from posttrain.report.collapse import collapse_warning
from posttrain.report.curve import ascii_curve
from posttrain.report.inputs import PairSample, ReportInputs
from posttrain.report.page import render_report, write_report

__all__ = ["PairSample", "ReportInputs", "ascii_curve", "collapse_warning", "render_report", "write_report"]
