"""The report of a run: one self-contained HTML file, and the learning curve for the terminal."""

from posttrain.report.curve import ascii_curve
from posttrain.report.inputs import ReportInputs
from posttrain.report.page import render_report, write_report

__all__ = ["ReportInputs", "ascii_curve", "render_report", "write_report"]
