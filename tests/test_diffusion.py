"""The suite `diffusion`: slopes by hand, verdicts on series that are known, and one small run of it."""

import json
import math
from pathlib import Path

import jax
import pytest

from ddpomdp.credit import units
from ddpomdp.credit.plays import Player
from ddpomdp_envs import control_exact, diffusion_picture, diffusion_suite, slopes
from ddpomdp_envs.diffusion_worlds import STRUCTURES, exact, sizes, world

KEPT = Path(__file__).parents[1] / "results" / "diffusion-small"


def series(law, xs=(8, 32, 128, 512), error=0.01):
    return [(x, law(x), error) for x in xs]


def test_a_slope_by_hand():
    # u = log x, v = log d: points (0, 0), (1, -1), (2, -3) at equal weights: mean u 1, v -4/3, S = 2,
    # sum (u - 1)(v + 4/3) = -4/3 + 0 - 5/3 = -3, slope -3/2. Residuals -1/6, 1/3, -1/6: chi^2 = (1/6) / 0.01 = 16.7.
    points = [(math.exp(u), math.exp(v), 0.1) for u, v in ((0, 0), (1, -1), (2, -3))]
    found = slopes.fit(points)
    half = 1.959963984540054 * (1 / 6 / 0.01) ** 0.5 * (0.01 / 2) ** 0.5
    assert found["slope"] == pytest.approx(-1.5)
    assert (found["low"], found["high"]) == pytest.approx((-1.5 - half, -1.5 + half))
    assert [step["slope"] for step in slopes.local(points)] == pytest.approx([-1, -2])
    # The second point is a hundred times less certain than the first and third: they draw the line.
    assert slopes.fit([points[0], (*points[1][:2], 10.0), points[2]])["slope"] == pytest.approx(-1.5, abs=1e-3)
    assert slopes.fit(points[:1])["slope"] is None and slopes.fit([points[0], points[0]])["slope"] is None


@pytest.mark.parametrize(
    ("law", "answer", "shape"),
    [
        (lambda x: 2 * x**-0.5, "holds", "square root"),
        (lambda x: 3.0, "fails", "none"),
        (lambda x: x**0.25, "fails", "none"),
        (lambda x: math.exp(-x / 100), "holds", "faster than any power"),
        (lambda x: 1 / x, "holds", "other"),
    ],
)
def test_verdicts_on_known_series(law, answer, shape):
    found = slopes.verdict(series(law))
    assert (found["answer"], found["law"], found["resolved"]) == (answer, shape, 4)


def test_what_is_not_resolved_decides_nothing():
    noisy = slopes.verdict(series(lambda x: x**-0.5, error=0.6))
    assert (noisy["answer"], noisy["law"], noisy["resolved"]) == ("undecided", "not resolved", 0)
    wide = slopes.verdict(series(lambda x: x**-0.1, error=0.4))
    assert (wide["answer"], wide["resolved"]) == ("undecided", 4) and wide["low"] < -0.1 < wide["high"]
    two = slopes.verdict(series(lambda x: x**-0.5, xs=(8, 32)))
    assert (two["answer"], two["law"]) == ("holds", "too few sizes")
    gone = slopes.verdict([*series(lambda x: x**-0.5), (2_048, -0.01, math.inf), (4_096, 0.0, math.inf)])
    assert (gone["answer"], gone["resolved"], gone["points"]) == ("holds", 4, 6)


def test_seeds_are_pooled_by_hand():
    base = {"decisions": 100.0, "extra_one": 3.0, "extra_all": 15.0, "coupling": 0.25, "many": 50.0}
    base |= {"exact_delta": 0.2, "exact_sigma": 0.5, "exact_rho": None}
    rows = [
        {**base, "n": 100.0, "delta": 0.1, "stderr": 0.04, "sigma": 0.5},
        {**base, "n": 300.0, "delta": 0.3, "stderr": 0.02, "sigma": 0.5},
    ]
    point = diffusion_suite.pooled(rows)
    assert point["delta"] == pytest.approx(0.25) and point["d"] == pytest.approx(0.5)  # (0.1 + 3 * 0.3) / 4
    assert point["delta_stderr"] == pytest.approx((4**2 + 6**2) ** 0.5 / 400)
    assert point["log_error"] == pytest.approx(math.hypot(point["delta_stderr"] / 0.25, 1 / 800**0.5))
    assert point["rho"] == pytest.approx(0.125 / math.hypot(0.125, 0.5))
    assert point["rho_low"] < point["rho"] < point["rho_high"] < 1
    # A million decisions are 10,000 episodes, or 2,500 with three others each, or 625 with fifteen.
    assert point["z_one"] == pytest.approx(0.25 * 2_500**0.5) and point["z_all"] == pytest.approx(0.25 * 625**0.5)


def test_sizes_grow_by_level_and_every_structure_says_what_it_assumes():
    assert sizes("additive", "small") == [8, 64, 512] and sizes("additive", "large") == [8, 64, 512, 4_096]
    assert sizes("Search-v0, more rows", "small") == [6, 24]
    assert all(len(sizes(name, "small")) >= 2 for name in STRUCTURES)  # or there would be no slope
    assert max(sizes("additive, wider team", "usual")) == 300
    assert all(row.assumes and row.expected and sizes(name, "usual") for name, row in STRUCTURES.items())


def grows(structure, points):
    """That at the largest size there are three times as many calls of the task's tools, or workers who make them."""
    (few, before), *_, (many, after) = points
    if STRUCTURES[structure].grows == "team":
        assert many > 3 * few and after == before  # more share the same work
    else:
        assert after > 3 * before > 0


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_grew_in_the_run_that_is_kept(structure):
    """By calls as they were played: an option may have the name of a size, and lengthen nothing."""
    options = {"structures": [structure], "level": "small", "seeds": [0, 1], "contexts": 1_024}
    points = {}
    for cell in diffusion_suite.cells(options):
        rows = [json.loads(line) for line in (KEPT / "rows" / f"{cell.id}.jsonl").read_text("utf-8").splitlines()]
        for row in rows:
            assert row | cell.settings == row  # what the suite would run today
            points.setdefault(row["size"], []).append(row["many"])
    grows(structure, [(size, sum(calls) / len(calls)) for size, calls in sorted(points.items())])


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_really_grows(structure):
    points = []
    for size in (ends := sizes(structure, "small"))[0], ends[-1]:
        env, policy, numbers = world(structure, size)
        keys = jax.random.split(jax.random.key(0), 4)
        played = Player(env, policy, policy.init(env), numbers.params, at_most=4).ordinary(keys, keys)
        calls = units.decision_mask(played.decides, played.kind, played.decision, "tool")  # [B, T, N]
        points.append((calls.any(axis=1).sum(axis=-1).mean(), calls.sum(axis=(1, 2)).mean()))
    grows(structure, points)


def test_closed_forms_have_the_slopes_that_are_expected():
    def found(structure, *xs):
        return slopes.verdict([(x, exact(structure, x)["d"], 0.01) for x in xs])

    assert found("additive", 8, 64, 512)["law"] == "square root"
    assert found("majority", 8, 32, 128)["law"] == "square root"
    assert found("additive, deeper subtasks", 8, 64, 512)["slope"] == pytest.approx(-1, abs=0.02)
    assert found("chain", 8, 32, 128)["slope"] == pytest.approx(-1, abs=0.02)
    assert found("additive, irrelevant decisions", 8, 64, 512)["law"] == "none"
    assert found("additive, wider team", 2, 8, 64)["law"] == "none"
    for structure in ("majority, off centre", "chain, fixed chances"):
        assert found(structure, 8, 16, 32, 64)["law"] == "faster than any power"
    assert exact("Search-v0, more rows", 6) is None


@pytest.fixture(scope="module")
def measured():
    """All structures that share the shape of Additive-v0 with 8 subtasks, as a run gives them."""
    options = {"structures": ["additive"], "level": "small", "seeds": [0, 1], "contexts": 512}
    cells = [cell for cell in diffusion_suite.cells(options) if cell.settings["size"] == 8]
    assert [cell.id for cell in cells] == ["additive.8.s0", "additive.8.s1"]
    return [{"seed": cell.seed, **cell.settings, **row} for cell in cells for row in diffusion_suite.run(cell)]


def test_a_measured_point_hits_the_closed_form(measured):
    (shared, *others) = diffusion_suite.analyse(measured)["series"]
    (point,) = shared["points"]
    truth = control_exact.signal_to_noise(world("additive", 8)[2])
    assert point["contexts"] == 1_024 and point["calls"] == 8 and point["exact_rho"] == pytest.approx(truth["rho"])
    assert abs(point["delta"] - truth["delta"]) < 3 * point["delta_stderr"] < 0.3 * truth["delta"]
    assert abs(point["sigma"] - truth["sigma"]) < 3 * point["sigma_stderr"] < 0.1 * truth["sigma"]
    assert point["rho_low"] - 0.02 < truth["rho"] < point["rho_high"] + 0.02
    assert point["coupling"] == 0  # subtasks do not touch each other
    rho = {line["estimator"]: line["points"][0]["rho"] for line in (shared, *others)}
    assert rho["leave_one_out"] < rho["shared"] < rho["removal"] < rho["counterfactual"]
    # At equal budget a counterfactual of one decision wins by more than one of all decisions.
    z = {line["estimator"]: line["points"][0] for line in (shared, *others)}
    assert z["counterfactual"]["z_one"] / z["shared"]["z_one"] > 2 * z["counterfactual"]["z_all"] / z["shared"]["z_all"]


def test_the_report_shows_numbers_and_figure(measured):
    analysis = diffusion_suite.analyse(measured)
    head, part = diffusion_suite.sections(measured, {"analysis": analysis})
    (verdicts,), (table,), (curve,) = head.tables, part.tables, part.curves
    assert [row[2] for row in verdicts.rows] == list(diffusion_suite.ESTIMATORS)
    assert {row[3] for row in verdicts.rows} == {"undecided"}  # one size has no slope
    assert table.rows[0][6] == "0.05000"  # 0.4 / 8, the exact effect
    assert set(curve.lines) == {*diffusion_suite.ESTIMATORS, "shared, exact"} and curve.x_scale == "log"
    from ddpomdp.bench import report

    assert "shared, exact" in report._draw(curve, {k: list(v) for k, v in curve.lines.items()}, "light")


def test_the_picture_has_a_panel_per_structure_and_leaves_out_what_is_not_resolved(measured, tmp_path, monkeypatch):
    series = diffusion_suite.analyse(measured)["series"]
    other = [{**line, "structure": "chain"} for line in series]
    other[1] = {**other[1], "points": [{**other[1]["points"][0], "log_error": None}]}
    figure = diffusion_picture.draw([*series, *other], ["additive", "chain"])
    first, second = (axis for axis in figure.axes if axis.get_visible())
    assert (first.get_title(), second.get_title()) == ("additive", "chain")
    assert len(first.containers) == 4 and len(second.containers) == 3  # a line with bars per estimator
    assert first.containers[0].lines[0].get_ydata()[0] == pytest.approx(series[0]["points"][0]["rho"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*diffusion_suite.ESTIMATORS, "shared, exact"]
    (tmp_path / "results.json").write_text(json.dumps({"analysis": {"series": series}}))
    monkeypatch.setattr("sys.argv", ["", str(tmp_path), str(tmp_path / "picture.png")])
    diffusion_picture.main()
    assert (tmp_path / "picture.png").stat().st_size > 5_000


def test_unknown_levels_and_structures_are_refused():
    options = {"structures": ["additive"], "level": "small", "seeds": [0], "contexts": 64}
    with pytest.raises(ValueError, match="huge"):
        list(diffusion_suite.cells({**options, "level": "huge"}))
    with pytest.raises(ValueError, match="additiv"):
        list(diffusion_suite.cells({**options, "structures": ["additiv"]}))
    with pytest.raises(ValueError, match="contexts: got 2"):
        list(diffusion_suite.cells({**options, "contexts": 2}))
