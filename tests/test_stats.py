import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ddpomdp.bench.stats import difference, summarise, t_975


def test_hand_worked():
    # seed means 1, 2, 6: mean 3, sd sqrt(7), half = 4.30265273 * sqrt(7 / 3)
    summary = summarise({0: [0.0, 2.0], 1: [2.0], 2: [5.0, 6.0, 7.0]})
    assert summary["per_seed"] == {"0": 1.0, "1": 2.0, "2": 6.0}
    assert summary["mean"] == 3.0
    assert summary["high"] - 3.0 == pytest.approx(4.30265273 * math.sqrt(7 / 3), rel=1e-12)
    assert 3.0 - summary["low"] == pytest.approx(summary["high"] - 3.0)
    assert (summary["seeds"], summary["episodes"], summary["missing"], summary["note"]) == (3, 6, 0, "")


@pytest.mark.parametrize("df", [*range(1, 41), 60, 120, 1000, 10**6])
def test_quantiles(df):
    assert t_975(df) == pytest.approx(scipy_stats.t.ppf(0.975, df), abs=1e-7)


def test_df_zero_is_refused():
    with pytest.raises(ValueError, match="df 0"):
        t_975(0)


@pytest.mark.parametrize(
    ("values", "mean", "note"),
    [
        ({}, None, "no value"),
        ({0: [None], 1: []}, None, "no value"),
        ({0: [1.0, 2.0]}, 1.5, "one seed: no interval"),
        ({0: [1.0, 2.0], 1: [None]}, 1.5, "one seed: no interval"),
        ({0: [0.1, 0.1, 0.1], 1: [0.1]}, 0.1, "all seeds equal: no interval"),
    ],
)
def test_not_estimable(values, mean, note):
    summary = summarise(values)
    assert (summary["low"], summary["high"], summary["note"]) == (None, None, note)
    assert summary["mean"] == (mean if mean is None else pytest.approx(mean))


def test_missing_values_are_counted():
    summary = summarise({0: [1.0, None], 1: [3.0, None, 3.0]})
    assert (summary["mean"], summary["episodes"], summary["missing"]) == (2.0, 3, 2)


def test_large_totals_are_exact():
    assert summarise({0: [10**12 + n for n in range(1000)]})["mean"] == 10**12 + 499.5


def test_paired_difference_uses_common_seeds():
    summary = difference({0: [1.0], 1: [2.0], 2: [9.0]}, {0: [0.5], 1: [1.0], 3: [0.0]})
    assert summary["per_seed"] == {"0": 0.5, "1": 1.0}


@pytest.mark.parametrize("between_sd", [0.0, 0.1, 1.0])
def test_coverage_at_ten_seeds(between_sd):
    """1,000 studies of 10 seeds x 8 episodes: the nominal 95% interval covers the truth in 93 to 97%."""
    rng = np.random.default_rng(1)
    seeds = rng.normal(0.4, between_sd, (1000, 10, 1))
    studies = seeds + rng.normal(0.0, 0.3, (1000, 10, 8))
    summaries = [summarise(dict(enumerate(study.tolist()))) for study in studies]
    covered = np.mean([summary["low"] <= 0.4 <= summary["high"] for summary in summaries])
    assert 0.93 <= covered <= 0.97


def test_coverage_of_pass_rates_at_ten_seeds():
    rng = np.random.default_rng(2)
    studies = (rng.random((1000, 10, 20)) < 0.7).astype(float)
    summaries = [summarise(dict(enumerate(study.tolist()))) for study in studies]
    covered = np.mean([summary["low"] <= 0.7 <= summary["high"] for summary in summaries])
    assert 0.93 <= covered <= 0.97
