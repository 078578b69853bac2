"""PettingZoo's views: `parallel_env`, where all agents of a tick act together, and `aec_env`, where they take turns.

**Open population** (default). Every life is an agent of its own, whose name never returns: `lead_0` is the root, the
17th searcher of an episode is `searcher_17` whatever slot it sits in. `possible_agents` holds every name that can ever
occur; `agents` those who act next, in order of birth. Newborns join in the tick of their birth, with reward 0 and both
flags False, and act in the next; a life's last tick carries its flags, its last observation and its reward.

**Fixed population**. The agents are the slots `slot_0 ...`, all in every dict, all ending together: terminated where
the root stopped or a budget ran out, truncated at the horizon. Observations tell who sits there (`alive`, `uid`, role);
`infos[slot]["life_end"]` tells when a life ends in mid-episode. The mask of an empty slot leaves `wait`.

**Late reward**. What falls due to lives after they have left cannot be paid to agents that are gone. Each info tells
under `late_reward` how much of it fell due in this tick, all lives together; the attribute `late_reward` tells it by
uid, for the episode so far. With `linger` lives that left stay in `agents`, wait only, and are paid until the episode
ends; then they are terminated, and infos report nothing as unpaid.

**Infos** have the same keys for every agent and tick, all numbers: `uid` (-1 empty), `blocked` and `idle` (the next
turn is a forced wait), `life_end` (`LifeEnd`), `masked_calls` (of this agent so far: calls that were not legal and
became `wait`), `ignored_calls` (of all agents so far: calls for names that are listed but not alive; for empty slots
and those that linger only calls other than `wait`), `late_reward`, `seed` (of the episode: `reset(seed)` with it
repeats the episode), and the mask where `mask_in="info"`.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import OrderEnforcingWrapper
from pettingzoo.utils.conversions import parallel_to_aec_wrapper

from ddpomdp.enums import LifeEnd, StopReason
from ddpomdp.options import UsageError, choose, refusal, truth
from ddpomdp.registry import make
from ddpomdp.views import seeds
from ddpomdp.views.flat import Outlook
from ddpomdp.views.menu import KINDS
from ddpomdp.views.packed import fetch
from ddpomdp.views.programs import Seen, Ticks, program

POPULATIONS = ("open", "fixed")


def parallel_env(
    id: str,
    population: str = "open",
    actions: str = "menu",
    mask_in: str = "observation",
    obs_key: str = "observation",
    linger: bool = False,
    render_mode: str | None = None,
    **options: Any,
) -> ParallelEnv:
    """An environment as a PettingZoo `ParallelEnv`.

    Args:
      id: as in `ddpomdp.make`.
      population: "open" (an agent is a life) or "fixed" (an agent is a slot).
      actions: "menu" (`Discrete(K)`, exact mask int8[K]) or "tokens" (`MultiDiscrete`, a mask per position).
      mask_in: "observation" (a dict of vector f32[D] and `action_mask`) or "info" (the vector alone).
      obs_key: the vector's key in that dict, "observation" or, for RLlib, "observations".
      linger: keep lives that ended in `agents`, wait only, so that late rewards reach them.
      render_mode: None or "ansi".
      options: of the environment, as in `ddpomdp.make`.

    Raises:
      ValueError: unknown id, option or value, with what is allowed; a menu of more than 1,024 calls.
    """
    choose("population", population, POPULATIONS)
    choose("actions", actions, KINDS)
    truth("linger", linger)
    if linger and population == "fixed":
        raise UsageError("linger: got True, allowed with population='open' only (slots are listed until the end)")
    ticks = program(Ticks, make(id, **options), actions)
    view = {"open": Lives, "fixed": Slots}[population]
    return view(ticks, Outlook(mask_in, obs_key), linger, render_mode)


def aec_env(id: str, **options: Any) -> AECEnv:
    """An environment as a PettingZoo `AECEnv`: agents give their calls one after the other, then the tick is taken.

    Takes what `parallel_env` takes. A bad call is refused at once, by a ValueError naming its agent, and changes
    nothing.
    """
    return OrderEnforcingWrapper(Turns(parallel_env(id, **options)))


class Team(ParallelEnv[str, Any, Any]):
    """What both populations share: spaces, seeds, checks of calls, and the step."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "is_parallelizable": True}  # noqa: RUF012

    def __init__(self, ticks: Ticks, outlook: Outlook, linger: bool, render_mode: str | None):
        if render_mode not in (None, "ansi"):
            raise UsageError(f"render_mode: got {render_mode!r}, allowed: None, 'ansi'")
        self.env, self.render_mode = ticks.env, render_mode
        self.metadata = {**type(self).metadata, "name": ticks.env.id}
        self.feature_names = ticks.features
        self.possible_agents = self._all_names()
        self._possible = frozenset(self.possible_agents)
        self.agents: list[str] = []
        self.late_reward: dict[int, float] = {}
        self._ticks, self._outlook, self._linger = ticks, outlook, linger
        self._action_space = ticks.actions.space()
        self._observation_space = outlook.space(len(ticks.features), ticks.actions.mask_space())
        self._generator: np.random.Generator | None = None
        self._closed, self._state, self._seen = False, None, None

    # PettingZoo's contract -----------------------------------------------------------------------------------------

    def observation_space(self, agent: str) -> spaces.Space:
        """The observation space, the same object for every agent; ValueError for an unknown one."""
        self._known(agent)
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space:
        """The action space, the same object for every agent; ValueError for an unknown one."""
        self._known(agent)
        return self._action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start an episode: (observations, infos).

        Args:
          seed: names the episode, and the sequence of episodes that follow from resets without a seed.
          options: has no effect.
        """
        if self._closed:
            raise ClosedEnvironmentError("reset: the environment is closed")
        seed = seeds.checked(seed)
        if seed is not None or self._generator is None:
            self._generator = seeds.generator(seed)
        self.episode_seed = seeds.drawn(self._generator) if seed is None else seed
        self._luck, self._state, seen = self._ticks.reset(seeds.words(self.episode_seed))
        self._seen = fetch(seen)
        self._masked: dict[str, int] = {}
        self._ignored, self.late_reward = 0, {}
        self._begin(self._seen)
        observations = {agent: self._observation(slot) for agent, slot in self._rows().items()}
        return observations, {agent: self._info(agent, slot, 0.0) for agent, slot in self._rows().items()}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """One tick: (observations, rewards, terminations, truncations, infos).

        Args:
          actions: a call for every agent in `agents` that is alive. Calls for listed agents that are not alive are
            ignored and counted; a call that is not legal becomes `wait` and is counted.

        Raises:
          ValueError: an unknown agent, a missing one, or a call of the wrong kind, shape, dtype or range, by the name
            of its agent. Nothing has changed then.
          ResetNeeded: before the first reset, or after the end.
        """
        seen = self._present()
        if not isinstance(actions, Mapping):
            raise ValueError(f"actions: got {type(actions).__name__}, must be a dict of agent and call")
        turns, ignored = self._read(actions)
        self._state, told = self._ticks.step(self._luck, self._state, turns)
        after: Seen = fetch(told)
        for agent, slot in self._rows().items():
            if slot is not None and seen.alive[slot]:
                self._masked[agent] = self._masked.get(agent, 0) + int(not after.valid[slot])
        self._ignored += ignored
        self._seen = after
        return self._advance(seen, after)

    def close(self) -> None:
        """Let go of the state; closing twice is allowed."""
        self._closed, self._state, self._seen, self.agents = True, None, None, []

    def render(self) -> str | None:
        """Who is there and what each may do, a line per agent; None without a render mode."""
        if self.render_mode is None:
            return None
        seen = self._present(ended=True)
        lines = [f"tick {seen.tick}: {StopReason(int(seen.stop_reason)).name.lower()}"]
        for agent, slot in self._rows().items():
            if slot is None or not seen.alive[slot]:
                lines.append(f"{agent}: not alive")
            else:
                word = "blocked" if seen.blocked[slot] else "idle" if seen.idle[slot] else "may act"
                lines.append(f"{agent}: {word}")
        return "\n".join(lines)

    # What a population says ----------------------------------------------------------------------------------------

    def _all_names(self) -> list[str]:
        raise NotImplementedError

    def _begin(self, seen: Seen) -> None:
        raise NotImplementedError

    def _rows(self) -> dict[str, int | None]:
        """Slot of every agent in `agents`, None of one that has left."""
        raise NotImplementedError

    def _advance(self, before: Seen, seen: Seen) -> tuple[dict, dict, dict, dict, dict]:
        raise NotImplementedError

    # Shared --------------------------------------------------------------------------------------------------------

    def check(self, agent: str, action: Any) -> np.ndarray:
        """int32[1+A] of an agent's call; ValueError naming the agent and what is wrong."""
        return self._ticks.actions.turn(action, f"action of {agent}")

    def _known(self, agent: Any) -> None:
        if not isinstance(agent, str) or agent not in self._possible:
            raise ValueError(refusal("agent", agent, self.possible_agents))

    def _present(self, ended: bool = False) -> Seen:
        if self._closed:
            raise ClosedEnvironmentError("the environment is closed")
        if self._seen is None:
            raise ResetNeeded("call reset() before anything else")
        if self._seen.last and not ended:
            raise ResetNeeded("the episode has ended: call reset()")
        return self._seen

    def _read(self, actions: Mapping[str, Any]) -> tuple[np.ndarray, int]:
        """Turns int32[N, 1+A] of all slots, and how many calls are ignored; changes nothing."""
        spec, alive, rows = self.env.spec, self._present().alive, self._rows()
        turns, ignored = np.zeros((spec.capacity, 1 + spec.num_args), np.int32), 0
        for agent, action in actions.items():
            self._known(agent)
            slot = rows.get(agent)
            if slot is not None and alive[slot]:
                turns[slot] = self.check(agent, action)
            else:
                ignored += not (agent in rows and self._waits(action))
        missing = [agent for agent, slot in rows.items() if slot is not None and alive[slot] and agent not in actions]
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise ValueError(f"actions: no call for {', '.join(missing[:5])}{more}; every living agent needs one")
        return turns, ignored

    def _waits(self, action: Any) -> bool:
        """Whether a call of somebody who cannot act is the one its mask leaves."""
        try:
            return not self.check("", action).any()
        except ValueError:
            return False

    def _observation(self, slot: int | None, vector: np.ndarray | None = None) -> Any:
        assert self._seen is not None
        row = np.array(self._seen.observation[slot]) if vector is None else vector
        return self._outlook.observation(row, self._mask(slot))

    def _mask(self, slot: int | None) -> Any:
        """The mask of a slot; of None: `wait` for one, the first call of any menu and the first token anywhere."""
        assert self._seen is not None
        mask = self._ticks.actions.of_slot(self._seen.mask, 0 if slot is None else slot)
        if slot is None:
            for part in mask if isinstance(mask, tuple) else (mask,):
                part[:] = 0
                part[0] = 1
        return mask

    def _info(self, agent: str, slot: int | None, late: float, uid: int | None = None) -> dict[str, Any]:
        seen = self._seen
        assert seen is not None
        end = LifeEnd.ALIVE
        if slot is None:
            end = LifeEnd.DESPAWNED
        elif seen.terminated[slot] or seen.truncated[slot]:
            end = LifeEnd.EPISODE if seen.last and self._lived(slot) else LifeEnd.DESPAWNED
        return {
            "uid": int(seen.uid[slot]) if uid is None else uid,
            "blocked": int(slot is not None and seen.blocked[slot]),
            "idle": int(slot is not None and seen.idle[slot]),
            "life_end": int(end),
            "masked_calls": self._masked.get(agent, 0),
            "ignored_calls": self._ignored,
            "late_reward": late,
            "seed": self.episode_seed,
            **(self._outlook.info(self._mask(slot)) if self._outlook.mask_in == "info" else {}),
        }

    def _pay_late(self, seen: Seen, left: Iterable[int]) -> dict[int, float]:
        """What falls due in this tick to lives that had left before it, by uid."""
        late = {uid: float(seen.late[uid]) + float(seen.team) for uid in left}
        for uid, due in late.items():
            self.late_reward[uid] = self.late_reward.get(uid, 0.0) + due
        return late

    def _lived(self, slot: int) -> bool:
        """Whether the life in a slot was there to the end of the episode: the vector's first feature is `alive`."""
        assert self._seen is not None
        return bool(self._seen.observation[slot, 0] > 0)


class Lives(Team):
    """Open population: an agent is a life."""

    def _all_names(self) -> list[str]:
        lead, *others = self.env.spec.max_lives.items()
        names = [f"{lead[0]}_{i}" for i in range(lead[1])]
        return names + [f"{role}_{1 + i}" for role, most in others for i in range(most)]

    def _begin(self, seen: Seen) -> None:
        self._uids: dict[str, int] = {}  # of every agent of this episode, in order of birth
        self._slot: dict[str, int | None] = {}  # of every agent in `agents`
        self._count = [0] * len(self.env.spec.roles)
        self._admit(seen)

    def _rows(self) -> dict[str, int | None]:
        return self._slot

    def _admit(self, seen: Seen) -> None:
        """Name the newborns, in order of birth, and list them."""
        known = set(self._uids.values())
        slots = [slot for slot in np.flatnonzero(seen.alive).tolist() if int(seen.uid[slot]) not in known]
        for slot in sorted(slots, key=lambda slot: seen.uid[slot]):
            role = int(seen.role[slot])
            number = self._count[role] + (role != 0)  # the root is lead_0, later leads lead_1, lead_2, ...
            self._count[role] += 1
            name = f"{self.env.spec.roles[role]}_{number}"
            self._uids[name], self._slot[name] = int(seen.uid[slot]), slot
        self.agents = list(self._slot)

    def uid(self, agent: str) -> int:
        """The uid of an agent of this episode, as rosters and traces know it; ValueError for one not born."""
        self._known(agent)
        self._present(ended=True)
        if agent not in self._uids:
            raise ValueError(f"agent {agent}: not born in this episode")
        return self._uids[agent]

    def _advance(self, before: Seen, seen: Seen) -> tuple[dict, dict, dict, dict, dict]:
        here = set(before.uid[before.alive].tolist())
        late = self._pay_late(seen, [uid for uid in self._uids.values() if uid not in here])
        owed = 0.0 if self._linger else sum(late.values())
        self._admit(seen)
        observations, rewards, terminations, truncations, infos = {}, {}, {}, {}, {}
        for agent, slot in list(self._slot.items()):
            if slot is None:
                vector = np.array(self._last[agent])
                reward, terminated, truncated = late[self._uids[agent]], bool(seen.last), False
            else:
                vector = None
                reward = float(seen.reward[slot])
                terminated, truncated = bool(seen.terminated[slot]), bool(seen.truncated[slot])
            observations[agent] = self._observation(slot, vector)
            infos[agent] = self._info(agent, slot, owed, self._uids[agent])
            if terminated and slot is not None and self._linger and not seen.last:
                self._last[agent], self._slot[agent], terminated = np.array(seen.observation[slot]), None, False
            elif terminated or truncated:
                del self._slot[agent]
            rewards[agent], terminations[agent], truncations[agent] = reward, terminated, truncated
        self.agents = list(self._slot)
        return observations, rewards, terminations, truncations, infos

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start an episode: (observations, infos). See `Team.reset`."""
        self._last: dict[str, np.ndarray] = {}  # last observations of those that linger
        return super().reset(seed, options)


class Slots(Team):
    """Fixed population: an agent is a slot."""

    def _all_names(self) -> list[str]:
        return [f"slot_{slot}" for slot in range(self.env.spec.capacity)]

    def _begin(self, seen: Seen) -> None:
        self.agents = list(self.possible_agents)
        self._left: set[int] = set()  # uids of lives that have ended

    def _rows(self) -> dict[str, int | None]:
        return {agent: slot for slot, agent in enumerate(self.possible_agents)}

    def _advance(self, before: Seen, seen: Seen) -> tuple[dict, dict, dict, dict, dict]:
        late = sum(self._pay_late(seen, self._left).values())
        self._left |= set(seen.uid[seen.terminated | seen.truncated].tolist())
        over = StopReason(int(seen.stop_reason))
        terminated, truncated = over in (StopReason.STOPPED, StopReason.BUDGET), over == StopReason.HORIZON
        rows = self._rows()
        told = (
            {agent: self._observation(slot) for agent, slot in rows.items()},
            {agent: float(seen.reward[slot]) for agent, slot in rows.items()},
            dict.fromkeys(rows, terminated),
            dict.fromkeys(rows, truncated),
            {agent: self._info(agent, slot, late) for agent, slot in rows.items()},
        )
        self.agents = [] if seen.last else list(self.possible_agents)
        return told


class Turns(parallel_to_aec_wrapper[str, Any, Any]):
    """The parallel view turn by turn: PettingZoo's conversion, which keeps calls until the last agent of a tick.

    What it adds: a bad call is refused when it is made, and observations are copies.
    """

    def step(self, action: Any) -> None:
        """The call of `agent_selection`; None for an agent that has ended."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            if action is not None:
                raise ValueError(f"action of {agent}: got {action!r}, must be None: the agent has ended")
        else:
            team: Any = self.env
            team.check(agent, action)
        super().step(action)

    def observe(self, agent: str) -> Any:
        """What an agent sees, a copy."""
        if agent not in self._observations:
            raise ValueError(refusal("agent", agent, self._observations))
        return copy.deepcopy(self._observations[agent])
