"""The coach of Search-v0 and Math-v0: its options, by scores reckoned by hand (its bands: test_channels.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddpomdp import make
from ddpomdp.coach import RIGHT, WRONG, Actions, coach_of
from ddpomdp.enums import ResultCode
from ddpomdp.harness import FIRST_TASK_TOOL, RETURN, WAIT
from ddpomdp_envs.answers_coach import Rubric
from ddpomdp_envs.datascience_coach import Rubric as Science

# (tool, result code, log, role, legal): what was done, and its score by a coach that reads.
WORK = FIRST_TASK_TOOL
DONE = (
    ((WORK, ResultCode.FOUND, RIGHT, 1, True), 9),
    ((WORK, ResultCode.FOUND, WRONG, 1, True), 2),
    ((WORK, ResultCode.FAULT, 0, 1, True), 4),
    ((WORK, ResultCode.FOUND, WRONG, 1, False), 1),
    ((RETURN, ResultCode.NOTHING, 0, 1, True), 6),
    ((WAIT, ResultCode.NOTHING, 0, 1, True), 5),
    ((RETURN, ResultCode.NOTHING, 0, 0, True), None),  # the lead's: not scored
)
SCORES = [score for _, score in DONE]
COPIES = 4_000


def actions(times: int = 1) -> Actions:
    """An episode of those actions by one life each, in each of so many ticks."""
    tool, code, log, role, legal = (jnp.asarray([row] * times) for row in zip(*(done for done, _ in DONE), strict=True))
    uid = jnp.broadcast_to(jnp.arange(tool.shape[1]), tool.shape)
    return Actions(uid, role, tool, legal, code, tool * 0, log, {})


@pytest.fixture(scope="module")
def many():
    return actions(COPIES)


def told(coach, read, seed=0):
    """[T, N] scores, of which those of the lead are 0."""
    score, scored = map(np.asarray, coach.score(read, jax.random.key(seed)))
    assert scored.all(axis=0).tolist() == [score is not None for score in SCORES] and (scored == scored[0]).all()
    assert (score[~scored] == 0).all() and (score >= 0).all() and (score <= 10).all()
    return score


def test_without_slips_every_score_is_the_rubrics():
    assert told(Rubric(), actions()).tolist() == [[9, 2, 4, 1, 6, 5, 0]]
    # What was said wrong was found all the same: 8 by a coach that does not know.
    assert told(Rubric(accuracy=0.0), actions()).tolist() == [[8, 8, 4, 1, 6, 5, 0]]


def test_accuracy_is_the_share_of_episodes_that_it_reads():
    coach = jax.jit(jax.vmap(lambda key: Rubric(accuracy=0.25).score(actions(), key)[0]))
    score = np.asarray(coach(jax.random.split(jax.random.key(1), COPIES)))[:, 0]
    reads = score[:, 0] == 9
    assert (score[reads, :2] == [9, 2]).all() and (score[~reads, :2] == 8).all()  # of all its work, or of none
    assert reads.mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / COPIES) ** 0.5)


def test_noise_is_a_normal_of_that_size_clipped_to_the_scale(many):
    score = told(Rubric(noise=0.5), many)
    error = score - told(Rubric(), many)
    for column in (1, 2, 4, 5):  # 2, 4, 6, 5: four standard deviations from the ends
        assert error[:, column].mean() == pytest.approx(0, abs=4 * 0.5 / COPIES**0.5)
        assert error[:, column].std() == pytest.approx(0.5, rel=4 / (2 * COPIES) ** 0.5)
    assert abs(np.corrcoef(error[:, 1], error[:, 2])[0, 1]) < 4 / COPIES**0.5  # each action has its own
    # 9 with noise of size 1: above 10 with chance 1 - Phi(1) = 0.1587, and there it is 10.
    high = told(Rubric(noise=1.0), many)[:, 0]
    assert (high == 10).mean() == pytest.approx(0.1587, abs=4 * (0.1587 * 0.8413 / COPIES) ** 0.5)
    assert (told(Rubric(noise=1.0), many, seed=1)[:, 0] != high).any()


def test_a_lost_score_is_five_whatever_it_was(many):
    plain, part = told(Rubric(), many), told(Rubric(parse_failure=0.25), many)
    lost = part != plain
    assert (part[lost] == 5).all()
    for column in (0, 1, 2, 3, 4):
        assert lost[:, column].mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / COPIES) ** 0.5)
    assert told(Rubric(parse_failure=1.0, noise=3.0), actions()).tolist() == [[5, 5, 5, 5, 5, 5, 0]]  # no noise on it


@pytest.mark.parametrize("coach", [Rubric, Science])
@pytest.mark.parametrize("option", ["accuracy", "parse_failure"])
def test_what_is_no_probability_is_refused_by_both_coaches(coach, option):
    for value in (-0.1, 2):
        with pytest.raises(ValueError, match=f"{option}: got {value}, allowed: 0 to 1"):
            coach(**{option: value})
    coach(**{option: jnp.float32(0.5)})  # a schedule's number


def test_it_is_the_coach_of_both_tasks_of_answers():
    for name in ("Search-v0", "Math-v0"):
        assert coach_of(make(name, preset="tiny"), noise=0.5) == Rubric(noise=0.5)
