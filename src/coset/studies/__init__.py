"""Studies: published comparisons that can be run again, judged and shown.

Listing, judging and showing do not wait for torch; running does.
"""

from coset.studies.page import write_report as write_report
from coset.studies.registry import names as names
from coset.studies.running import run as run
from coset.studies.runs import Run as Run
from coset.studies.verdicts import Verdict as Verdict
