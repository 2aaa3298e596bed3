"""The demo: from nothing to a first honest result, and a page that shows it."""

from coset.demo.experiment import METRICS as METRICS
from coset.demo.experiment import Result as Result
from coset.demo.experiment import Settings as Settings
from coset.demo.experiment import run_demo as run_demo
from coset.demo.page import build_page as build_page
from coset.demo.page import write_report as write_report
