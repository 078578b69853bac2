"""Credit: what each decision of an episode was worth, by estimators that can be checked against the truth.

The truth is E[R | d], from branches (`expected_return`). `assign` credits the decisions of an episode by unit and
estimator, `snr` says how well a credit points at it. See docs/credit.md.
"""

from ddpomdp.credit.assign import Credit, assign
from ddpomdp.credit.signal import expected_return, snr
from ddpomdp.credit.table import ESTIMATORS, Estimator

__all__ = ["ESTIMATORS", "Credit", "Estimator", "assign", "expected_return", "snr"]
