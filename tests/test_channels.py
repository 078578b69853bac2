"""Every channel on every task by a worked example: played call by call, each amount reckoned by hand.

The numbers of the laws are set so that a call comes out as wanted (`laws`), which compiles nothing anew.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import Game, Run

from ddpomdp import coach as coach_
from ddpomdp import make
from ddpomdp.pytree import replace
from ddpomdp.timestep import CHANNELS


class Ledger(Run):
    """An episode that keeps what everyone is paid, and what a coach reads."""

    def __init__(self, game, seed=0):
        super().__init__(game, seed)
        self.paid, self.latency_ms, self.actions = [], 0, []

    def laws(self, **numbers):
        """Change numbers of the task's laws; a plain number fills a whole table."""
        task = self.params.task
        full = {k: jnp.full_like(getattr(task, k), v) for k, v in numbers.items()}
        self.params = replace(self.params, task=replace(task, **full))

    def take(self, turns):
        """A tick, its payments kept as {channel: {uid: amount}}."""
        state, ts = self.state, self.ts
        super().take(turns)
        uid = np.asarray(self.ts.events.uid)
        paid = {}
        for name in CHANNELS:
            amounts = np.asarray(self.ts.channels[name])
            paid[name] = {int(u): float(x) for u, x in zip(uid, amounts, strict=True) if u >= 0 and x != 0}
        self.paid.append(paid)
        self.latency_ms += int(np.asarray(self.ts.events.latency_ms).sum())
        self.actions.append(coach_.read(self.env, state, ts, self.ts, self.state))
        return self.ts

    def pays(self, channel, **amounts):
        """That the last tick paid in a channel exactly this, by uid."""
        due = {int(name[1:]): pytest.approx(x, abs=1e-6) for name, x in amounts.items() if abs(x) > 1e-6}
        assert self.paid[-1][channel] == due, channel

    def does(self, _role=0.0, _debate=0.0, _tool=0.0, **calls):
        """One life's call, which is paid so much in role, debate and tool; nobody else is paid anything."""
        (who,) = calls
        self.step(**calls)
        for channel, amount in (("role", _role), ("debate", _debate), ("tool", _tool), ("individual", 0.0)):
            self.pays(channel, **{who: amount})

    def total(self, channel):
        """What was paid in a channel so far, over all lives."""
        return sum(sum(paid[channel].values()) for paid in self.paid)

    def reads(self, rule):
        """The lead waits for all who are at work, and aggregates."""
        self.until_free()
        turns = self.turns(u0=("wait", {"for": "all"}))
        if self.env.harness.is_legal(self.ts.legal, jnp.asarray(turns))[0]:
            self.take(turns)
            self.until_free()
        rules = [a for a in self.env.harness.tools[self.env.harness.tool("aggregate")].arguments if a.name == "rule"]
        self.step(u0=("aggregate", {"rule": rule} if rules else {}))

    def scores(self, coach):
        """{uid: [score of each of its actions]} by a coach without noise, in the order of time."""
        actions = jax.tree.map(lambda *x: jnp.stack(x), *self.actions)
        actions = replace(actions, info=self.ts.info)
        score, scored = map(np.asarray, coach.score(actions, jax.random.key(0)))
        channel = np.asarray(coach_.process(score, scored))
        np.testing.assert_allclose(channel, np.where(scored, score / 10, 0), rtol=1e-6)
        found = {}
        for tick, slot in np.argwhere(scored):
            found.setdefault(int(actions.uid[tick, slot]), []).append(round(10 * float(channel[tick, slot]), 4))
        return found

    def ends(self, births, finished, split, aggregation, settled):
        """The lead stops: what is due at the end, by hand."""
        self.params = replace(self.params, price_token=jnp.float32(1e-5), price_second=jnp.float32(1e-3))
        assert {name for paid in self.paid for name in paid if paid[name]} <= {"individual", "role", "tool", "debate"}
        self.step(u0="stop")
        quality, tokens, wall = self.info("quality"), self.info("tokens"), self.info("wall_s")
        team = quality - 1e-5 * tokens - 1e-3 * wall
        living = [int(u) for u in np.asarray(self.ts.events.uid) if u >= 0]
        assert living == list(range(births + 1))
        self.pays("team", **{f"u{uid}": team for uid in living})
        self.pays("debate", u0=0.01 * settled)
        self.pays("orchestration_parallel", u0=births / 10)
        self.pays("orchestration_finish", u0=finished / births)
        self.pays("orchestration_split", u0=split)
        self.pays("orchestration_speedup", u0=1 - wall / (self.latency_ms / 1000))
        self.pays("orchestration_aggregation", u0=aggregation)
        assert self.total("individual") == pytest.approx(quality, abs=1e-6) and quality > 0
        assert self.total("process") == 0


def say(to="children", detail="full"):
    return "message", {"to": to, "claims": "all", "detail": detail}


def back(detail="full"):
    return "return", {"claims": "all", "detail": detail}


def test_search():
    """Six rows, all answerable. u1 finds row 0, u2 finds something wrong in row 2, and later in row 0."""
    play = Ledger(Game(make("Search-v0", preset="tiny", claims_per_row=4)), seed=1)
    play.laws(fault=0, length=1, hard_factor=1, understood=1, copies=0, garble=0, reject_wrong=0)
    play.step(u0=("spawn", {"role": "searcher", "count": 2, "chunk": 2, "brief": "detailed"}))
    play.until_free(1)
    play.laws(q=1)
    play.does(0.01, 0, 0.01, u1="search")
    play.until_free(2)
    play.laws(q=0, wrong_rate=1)
    play.does(-0.01, 0, 0.01, u2="search")
    play.step(u1=back(), u2=back())
    play.reads("majority")
    # Row by row: 2 right / (reported + 6). Row 0 is u1's: 2/7. With row 2, wrong, it is 2/8: u2 has cost 1/28.
    play.pays("individual", u1=2 / 7, u2=2 / 8 - 2 / 7)
    # Row 0's claim is accepted as it should be, row 2's is accepted though it is wrong; each is in the lead's list.
    seen = np.asarray(play.ts.observation.claims)[0, :2]  # row / 6, value, confidence, own
    assert sorted(np.rint(seen[:, 0] * 6)) == [0, 2] and (seen[:, 2] > 0).all()
    first, other = (int(np.flatnonzero(np.rint(seen[:, 0] * 6) == row)[0]) for row in (0, 2))
    play.laws(check_accept=1, check_reject=0)
    play.does(0.01, 0.01, 0.01, u0=("check", {"claim": first}))
    play.does(-0.01, -0.01, 0.01, u0=("check", {"claim": other}))
    play.does(0, 0, -0.01, u0=("check", {"claim": other}))  # once more: refused
    play.does(0, 0, 0, u0=say())
    play.does(0, -0.01, 0, u0=say())  # nothing of it is news
    play.step(u0=("delegate", {"to": "row_1", "rows": "again"}))
    play.until_free(2)
    play.does(-0.01, 0, -0.01, u2="search")  # useless: the lead has told it of row 0
    play.step(u2=back())
    play.reads("best")  # row 0's first claim has a verdict for it
    play.pays("individual")
    # Rows 0 to 3 were handed out twice, rows 4 and 5 once; the best of what was returned: row 0 alone, 2/7.
    play.ends(births=2, finished=2, split=2 / 6, aggregation=(2 / 8) / (2 / 7), settled=1)
    told = play.scores(coach_.coach_of(play.env))
    assert told == {0: [9, 2, 3], 1: [9, 5, 6], 2: [5, 2, 6, 2, 6]}  # 5: waiting for the other


def test_math():
    """Three problems. u1 solves problem 0, u2 fails at problem 1, and later at problem 0; u3 judges both claims."""
    env = make("Math-v0", preset="tiny", topology="swarm", num_subtasks=3)
    play = Ledger(Game(env), seed=2)
    play.laws(loop=0, stretch=1, copy=0, fault=0, accept=1, reject=1)
    play.step(u0=("spawn", {"role": "solver", "count": 2, "chunk": 1}))
    play.until_free(1)
    play.laws(chance=1)
    play.does(0.01, 0, 0.01, u1=("solve", {"effort": "high"}))
    play.until_free(2)
    play.laws(chance=0)
    play.does(-0.01, 0, 0.01, u2=("solve", {"effort": "high"}))
    play.step(u1=back(), u2=back())
    play.reads("majority")
    play.pays("individual", u1=1 / 3)  # one of three problems; a wrong answer costs nothing here
    play.step(u0=("spawn", {"role": "verifier", "count": 1, "chunk": 1}))
    play.until_free(3)
    play.does(0, 0, -0.01, u3="verify")  # nobody has answered problem 2
    play.step(u3=back())
    play.reads("majority")
    play.step(u0=("delegate", {"to": "row_2", "rows": "missing", "brief": "short"}))
    play.until_free(3)
    play.does(0.01, 0.01, 0.01, u3="verify")
    play.laws(reject=0)
    play.does(-0.01, -0.01, 0.01, u3="verify")  # problem 1: wrong and accepted
    play.step(u3=back())
    play.reads("best")
    play.pays("individual")
    play.does(0, 0, 0, u0=say())
    play.does(0, -0.01, 0, u0=say())
    play.step(u0=("delegate", {"to": "row_1", "rows": "next", "brief": "short"}))  # problems 0, 1, 2 once more
    play.until_free(2)
    play.does(-0.01, 0, 0.01, u2=("solve", {"effort": "high"}))
    play.step(u2=back())
    play.reads("best")
    play.pays("individual")
    # Problems 0 and 1 were handed out more than once. Problem 0 has two answers, and the right one is chosen.
    play.ends(births=3, finished=3, split=0, aggregation=1.0, settled=1)
    told = play.scores(coach_.coach_of(play.env))
    assert told == {1: [9, 5, 6], 2: [5, 2, 6, 2, 6], 3: [4, 6, 9, 2, 6]}  # 5: waiting for the other


def test_datascience():
    """Two variants. The model of variant 1 leaks, a check tells; variant 0 is picked and submitted."""
    env = make("DataScience-v0", preset="tiny", topology="swarm", turn_cap=8)
    play = Ledger(Game(env), seed=3)
    play.laws(crash=-99, miss=0, mismatch=0, false_belief=0, noise=0, leak=0, breaks=0)
    play.step(u0=("spawn", {"role": "engineer", "count": 1, "brief": "short"}))
    play.until_free(1)
    play.does(0.01, 0, 0.01, u1="write_features")
    play.step(u1=back("list"))
    play.reads("last")
    play.step(u0=("spawn", {"role": "modeler", "count": 1, "brief": "short"}))
    play.until_free(2)
    play.laws(miss=1)
    play.does(-0.01, 0, 0, u2="train_model")  # clean, but no model file, and it sees that
    play.laws(miss=0, leak=1)
    play.does(0.01, 0, 0.01, u2="train_model")
    play.does(0.01, 0, 0.01, u2="tune")
    play.laws(reveals=0)
    play.does(0, -0.01, 0.01, u2="check_artifacts")  # a leak that it does not see
    play.laws(reveals=1)
    play.does(0, 0.01, 0.01, u2="check_artifacts")
    play.step(u2=back("list"))
    play.reads("verdict")
    play.pays("individual")  # the only score is of a model known to leak: nothing is picked
    play.step(u0=("delegate", {"to": "row_1", "rows": "missing", "brief": "short"}))
    play.until_free(2)
    play.laws(leak=0)
    play.does(0.01, 0, 0.01, u2="train_model")
    play.step(u2=back("list"))
    play.reads("verdict")  # variant 0 is picked; it has no submission yet
    play.pays("individual")
    play.does(0, 0, 0, u0=say(detail="list"))
    play.does(0, -0.01, 0, u0=say(detail="list"))
    play.step(u0=("spawn", {"role": "analyst", "count": 1, "brief": "short"}))
    play.until_free(3)
    play.does(0.01, 0, 0.01, u3="submit")
    play.step(u3=back("list"))
    play.reads("verdict")
    disk = play.state.task
    quality = np.floor(np.clip(float(disk.base) + float(disk.variant[0]), 0, 1) * 2**16) / 2**16
    play.pays("individual", u2=quality)  # the score of the pick is the modeler's
    # Variant 0 went to engineer, modeler and analyst, variant 1 to the modeler alone; no better submission was there.
    play.ends(births=3, finished=3, split=1 / 2, aggregation=1.0, settled=1)
    told = play.scores(coach_.coach_of(play.env, truth=False))
    assert told == {1: [9, 8], 2: [4, 9, 8, 6, 6, 8, 9, 8], 3: [9, 8]}
