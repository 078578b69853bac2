"""Environments that break one rule each: wrappers around one good environment, whose compiled step they share.

A wrapper is called like the environment and breaks the rule outside the compiled step, on numpy copies. The table says
which check has to catch it, and which line of the model, or of the official checkers, it breaks.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.enums import EventKind, Group, LifeEnd, StopReason
from ddpomdp.harness import STOP
from ddpomdp.pytree import replace
from ddpomdp.testing.trees import numpy


class Compiled:
    """A good environment whose functions are compiled once and shared by all wrappers."""

    def __init__(self, env: Any):
        self.env, self.id, self.spec, self.harness, self.params = env, env.id, env.spec, env.harness, env.params
        self.reset, self.step = jax.jit(env.reset), jax.jit(env.step)
        self.observe, self.sample_turns = jax.jit(env.observe), jax.jit(env.sample_turns)
        self.legal_tokens = env.legal_tokens


class Broken:
    """Passes everything on; a subclass breaks one rule. The methods below are where most of them do."""

    def __init__(self, good: Compiled):
        self.good, self.id = good, type(self).__name__
        self.spec, self.harness, self.params = good.spec, good.harness, good.params
        self.legal_tokens = good.legal_tokens

    def reset(self, key: Any, luck: Any = None) -> Any:
        state, ts = self.good.reset(key, jax.random.fold_in(key, 1) if luck is None else luck)
        return state, self.first(numpy(ts))

    def step(self, luck: Any, state: Any, turns: Any) -> Any:
        after, ts = self.good.step(luck, self.into(state), self.asked(state, turns))
        return after, self.shown(state, after, numpy(ts))

    def observe(self, state: Any) -> Any:
        return self.good.observe(state)

    def sample_turns(self, key: Any, ts: Any) -> Any:
        return self.good.sample_turns(key, ts)

    def first(self, ts: Any) -> Any:
        return ts

    def into(self, state: Any) -> Any:
        return state

    def asked(self, state: Any, turns: Any) -> Any:
        return turns

    def shown(self, state: Any, after: Any, ts: Any) -> Any:
        return ts


@dataclass(frozen=True)
class Case:
    """A broken environment, the check that has to name it, and the rule's source."""

    env: type[Broken]
    check: str
    rule: str


CASES: list[Case] = []


def breaks(check: str, rule: str) -> Any:
    """Enter a broken environment into the table."""

    def enter(env: type[Broken]) -> type[Broken]:
        CASES.append(Case(env, check, rule))
        return env

    return enter


def newborns(state: Any, ts: Any) -> np.ndarray:
    return ts.alive & ~np.asarray(state.lives.alive)


# Model, section 3: lives -------------------------------------------------------------------------------------------


@breaks("lives.root", "model 3: uid 0 is the root, role lead")
class RootOfAnotherRole(Broken):
    def shown(self, state, after, ts):
        return replace(ts, events=replace(ts.events, role=np.where(ts.events.uid == 0, 1, ts.events.role)))


@breaks("lives.never-return", "model 3: lives never come back; peers 3.1: no agent is revived")
class NamesComeBack(Broken):
    """A newborn takes the name of the last life that left."""

    def reset(self, key, luck=None):
        self.gone, self.now = [], {}
        return super().reset(key, luck)

    def shown(self, state, after, ts):
        left = ts.events.end_reason == LifeEnd.DESPAWNED
        self.gone += [uid for uid in ts.events.uid[left].tolist() if uid not in self.gone]
        uid = ts.uid.copy()
        for slot in np.flatnonzero(newborns(state, ts)):
            if self.gone:
                self.now[int(uid[slot])] = self.gone[-1]
        for slot, name in enumerate(uid):
            uid[slot] = self.now.get(int(name), name)
        return replace(ts, uid=uid)


@breaks("lives.returned", "model 3: return leaves the worker idle, until its parent has read it")
class ReturnedGoOn(Broken):
    def shown(self, state, after, ts):
        came = ts.events.kind == EventKind.RETURN
        return replace(ts, legal=replace(ts.legal, tools=np.where(came & ts.alive, ts.legal.tools | 8, ts.legal.tools)))


@breaks("lives.freed-slots", "model 3: a slot freed at tick t can be filled from t + 1")
class FilledAtOnce(Broken):
    def shown(self, state, after, ts):
        return replace(ts, alive=ts.alive | (ts.events.end_reason == LifeEnd.DESPAWNED))


@breaks("ends.nobody-after", "model 3: nobody is born in a tick that ends the episode")
class BornAtTheEnd(Broken):
    def shown(self, state, after, ts):
        empty = np.flatnonzero(ts.uid < 0)
        if not ts.last or bool(state.ended) or not len(empty):
            return ts
        uid = ts.uid.copy()
        uid[empty[0]] = 99
        return replace(ts, uid=uid)


@breaks("lives.newborn", "model 3: a newborn is observed with reward 0; peers 3.1: keys of newborns")
class NewbornsArePaid(Broken):
    def shown(self, state, after, ts):
        born = newborns(state, ts)
        return replace(ts, reward=np.where(born, np.float32(0.5), ts.reward))


@breaks("lives.newborn", "model 3: a newborn has flags False")
class NewbornsAreFlagged(Broken):
    def shown(self, state, after, ts):
        return replace(ts, truncated=ts.truncated | newborns(state, ts))


@breaks("clocks.totals", "model 3: what does not fit is refused and counted")
class RefusalsAreNotCounted(Broken):
    def shown(self, state, after, ts):
        return replace(ts, info=ts.info | {"refused_births": np.zeros_like(ts.info["refused_births"])})


@breaks("mail.next-tick", "model 3: claims received in a tick cannot be sent on in it")
class SentOnAtOnce(Broken):
    def shown(self, state, after, ts):
        more = np.where(ts.events.claims_sent > 0, ts.events.claims_sent + 9, 0).astype(np.int32)
        return replace(ts, events=replace(ts.events, claims_sent=more))


@breaks("lives.owners", "model 3: nobody is ownerless")
class Orphans(Broken):
    def shown(self, state, after, ts):
        parent = np.where(ts.events.parent_uid >= 0, 77, -1).astype(np.int32)
        return replace(ts, events=replace(ts.events, parent_uid=parent))


@breaks("ends.cut", "model 3: when the root stops, running children are cut and truncated")
class CutIsTermination(Broken):
    def shown(self, state, after, ts):
        if ts.stop_reason != StopReason.STOPPED:
            return ts
        return replace(ts, terminated=ts.terminated | ts.truncated, truncated=np.zeros_like(ts.truncated))


@breaks("ends.nobody-after", "model 3: nobody acts after the end")
class ActsAfterTheEnd(Broken):
    def shown(self, state, after, ts):
        return replace(ts, alive=ts.alive | (np.asarray(state.lives.alive) & ts.last))


@breaks("pay.individual", "model 3: what falls due after a life's end goes to the life")
class GainsAreLost(Broken):
    def shown(self, state, after, ts):
        zero = np.zeros_like(ts.reward)
        weight = np.float32(self.params.weights["individual"])
        reward = (ts.reward - weight * ts.channels["individual"]).astype(np.float32)
        channels = ts.channels | {"individual": zero}
        return replace(ts, reward=reward, channels=channels, events=replace(ts.events, channels=channels))


@breaks("pay.nobody", "model 3: late reward goes to the life, not to the slot")
class TheSlotIsPaid(Broken):
    def shown(self, state, after, ts):
        return replace(ts, reward=np.where(np.asarray(state.lives.alive), ts.reward, np.float32(0.1)))


@breaks("mail.conserved", "model 3: messages to the dead are undeliverable and counted")
class MailIsLost(Broken):
    def shown(self, state, after, ts):
        return replace(ts, info=ts.info | {"mail_undeliverable": np.zeros_like(ts.info["mail_undeliverable"])})


@breaks("slots.poison", "model 3: an empty slot's hidden fields influence nothing")
class EmptySlotsCount(Broken):
    def shown(self, state, after, ts):
        clock = np.asarray(after.lives.clock_ms, np.float64).sum()
        return replace(ts, info=ts.info | {"wall_s": ts.info["wall_s"] + np.float32(min(clock % 7, 0.5))})


@breaks("slots.order", "model 3: slot order influences nothing")
class TheFirstSlotWins(Broken):
    def shown(self, state, after, ts):
        bonus = np.where(np.arange(len(ts.reward)) == 0, np.float32(1e-3), np.float32(0)) * ts.alive
        channels = ts.channels | {"tool": ts.channels["tool"] + bonus}
        reward = ts.reward + np.float32(self.params.weights["tool"]) * bonus
        return replace(ts, reward=reward, channels=channels, events=replace(ts.events, channels=channels))


# The official checkers, peers 3 ------------------------------------------------------------------------------------


@breaks("luck.repeats", "peers 3.1, the parallel seed test sees one step: random from the second step on")
class RandomFromTheSecondStep(Broken):
    draws = 0

    def step(self, luck, state, turns):
        RandomFromTheSecondStep.draws += 1
        luck = luck if int(state.tick) < 1 else jax.random.key(RandomFromTheSecondStep.draws)
        return super().step(luck, state, turns)


@breaks("ends.horizon", "peers 3.1, max_cycles: one step too many")
class OneTickTooMany(Broken):
    def __init__(self, good):
        super().__init__(good)
        self.spec = replace(good.spec, max_ticks=good.spec.max_ticks - 1)


@breaks("contract.observe", "peers 3.2: the observation is what it is said to be")
class ObservedLate(Broken):
    def shown(self, state, after, ts):
        eyes = ts.observation
        return replace(ts, observation=replace(eyes, self=np.asarray(self.good.observe(state).self)))


@breaks("contract.fields", "peers 3.2: dtypes are those of the space")
class RewardOfAnotherType(Broken):
    def first(self, ts):
        return replace(ts, reward=ts.reward.astype(np.float64))

    def shown(self, state, after, ts):
        return self.first(ts)


@breaks("contract.forms", "bug B049: reset and step return other dtypes")
class StepOfAnotherType(Broken):
    def shown(self, state, after, ts):
        return replace(ts, turn=ts.turn.astype(np.int64))


@breaks("contract.after-last", "model 6: a step after the end changes nothing; peers 3.2: no reset by itself")
class PaidAfterTheEnd(Broken):
    def shown(self, state, after, ts):
        return replace(ts, reward=ts.reward + np.float32(0.1)) if bool(state.ended) else ts


@breaks("ends.flags", "peers 3.2: terminated and truncated apart")
class BothFlags(Broken):
    def shown(self, state, after, ts):
        return replace(ts, truncated=ts.truncated | ts.terminated)


# The rest of the model ---------------------------------------------------------------------------------------------


@breaks("legality.wait", "model 2: wait is always legal")
class NothingLegal(Broken):
    def shown(self, state, after, ts):
        return replace(ts, legal=replace(ts.legal, tools=np.where(ts.blocked, 0, ts.legal.tools)))


@breaks("legality.out-of-range", "bug B047: an index out of range hits another agent")
class ClampsTargets(Broken):
    def asked(self, state, turns):
        return np.clip(turns, 0, None)


@breaks("legality.illegal", "model 2: an illegal turn touches nobody else")
class IllegalTurnsAreMended(Broken):
    def asked(self, state, turns):
        turns = jnp.asarray(turns)
        bad = ~self.harness.is_legal(state.legal, turns) & state.lives.alive
        stays = jnp.zeros_like(turns[0])
        return jnp.where((bad & (state.lives.uid == 0))[:, None], stays.at[0].set(STOP), turns)


@breaks("legality.forced", "model 2: a forced wait is no decision")
class ForcedWaitsDecide(Broken):
    def shown(self, state, after, ts):
        waits = ts.events.is_decision | (np.asarray(state.lives.blocked) & np.asarray(state.lives.alive))
        return replace(ts, events=replace(ts.events, is_decision=waits))


@breaks("clocks.forward", "model 5: clocks never run backwards")
class ClocksRunBack(Broken):
    def shown(self, state, after, ts):
        return replace(ts, info=ts.info | {"wall_s": -ts.info["wall_s"]})


@breaks("clocks.latency", "model 5: a call takes 1 ms at least")
class CallsTakeNoTime(Broken):
    def shown(self, state, after, ts):
        free = ts.events.kind == EventKind.MESSAGE
        return replace(ts, events=replace(ts.events, latency_ms=np.where(free, 0, ts.events.latency_ms)))


@breaks("ends.stop-reason", "model 6: stop_reason is set with the last tick")
class EndsWithoutReason(Broken):
    def shown(self, state, after, ts):
        return replace(ts, stop_reason=np.zeros_like(ts.stop_reason))


@breaks("ends.budget", "model 6: budget")
class BudgetAsHorizon(Broken):
    def shown(self, state, after, ts):
        spent = ts.stop_reason == StopReason.BUDGET
        return replace(ts, stop_reason=np.where(spent, np.int32(StopReason.HORIZON), ts.stop_reason))


@breaks("luck.group-shares-task", "model 7: rollouts of a group share the task, not the luck")
class LuckDrawsTheTask(Broken):
    def reset(self, key, luck=None):
        luck = jax.random.fold_in(key, 1) if luck is None else luck
        words = jax.random.key_data(key) ^ jax.random.key_data(luck)
        return super().reset(jax.random.wrap_key_data(words), luck)


@breaks("luck.noise-by-lineage", "model 7: noise by lineage and own turn number")
class NoiseBySlot(Broken):
    def sample_turns(self, key, ts):
        slots = np.arange(self.spec.capacity, dtype=np.uint32)
        lineage = np.broadcast_to(slots[:, None], ts.lineage.shape)
        return self.good.sample_turns(key, replace(ts, lineage=np.ascontiguousarray(lineage)))


@breaks("pay.weights", "model: reward = weights . channels")
class RewardIsTheChannel(Broken):
    def shown(self, state, after, ts):
        return replace(ts, reward=sum(ts.channels.values(), start=np.zeros_like(ts.reward)))


@breaks("contract.pure", "api: step is pure")
class Remembers(Broken):
    calls = 0

    def shown(self, state, after, ts):
        Remembers.calls += 1
        return replace(ts, info=ts.info | {"serial_s": ts.info["serial_s"] + np.float32(Remembers.calls)})


@breaks("slots.zero", "api: observations of empty slots are zero")
class EmptySlotsAreSeen(Broken):
    def shown(self, state, after, ts):
        seen = ts.observation.self.copy()
        seen[~ts.alive] += 1
        return replace(ts, observation=replace(ts.observation, self=seen))


@breaks("mail.counted", "model 2: per receiver, what is sent is counted")
class GroupMailCountsOnce(Broken):
    def shown(self, state, after, ts):
        many = ts.events.target_group == Group.CHILDREN
        told = {name: ts.info[name] + np.int32(many.sum()) for name in ("mail_sent", "mail_in_flight")}
        return replace(ts, info=ts.info | told)


@breaks("contract.finite", "api: numbers are finite")
class NotANumber(Broken):
    def shown(self, state, after, ts):
        claims = ts.observation.claims.copy()
        claims[ts.last | ts.alive] = np.nan
        return replace(ts, observation=replace(ts.observation, claims=claims))
