"""The root's view in words: a single language model plays the orchestrator, everyone else the task's worker rule.

The same episodes, decisions, rewards and seeds as Gymnasium's view of the root (`ddpomdp.views.gymnasium`): ticks in
which the root could only wait are played inside, so the model is asked only where it has a choice, and
`info["ticks"]` says how many ticks the last call took.

A call is an object or a text; `ddpomdp.views.spoken` says what is understood. A call that is not understood or not
legal is refused: the state stays, `done` is False, the reward 0, and the string says what was wrong. After
`max_refusals` refusals in a row the next bad call is played as `wait`, so that an episode always ends.

**Info** has the same keys after every step: `seed`, `ticks`, `refused_calls` and `replaced_calls` (so far in the
episode: refused; played as `wait`), `refused` (this call was), `terminated`, `truncated`, `stop_reason`, and all of
`TimeStep.info`. Quality stands there at every step: it is for the experimenter, and no prompt tells it before the end.
"""

from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from ddpomdp.enums import StopReason
from ddpomdp.options import whole
from ddpomdp.registry import make
from ddpomdp.views import prompt, seeds
from ddpomdp.views.grammar import all_calls, legal_calls
from ddpomdp.views.packed import Packed, fetch
from ddpomdp.views.programs import program
from ddpomdp.views.rootwise import Rootwise, Told, life_name
from ddpomdp.views.spoken import Refused, understand
from ddpomdp.views.toolwords import schemas


def text_env(env_id: str, *, max_refusals: int = 8, board_rows: int = 24, **options: Any) -> "TextEnv":
    """An environment whose orchestrator is played in words: `reset(seed)`, `tools()`, `step(call)`.

    Args:
      env_id: as in `ddpomdp.make`.
      max_refusals: calls refused in a row before a bad call is played as `wait`.
      board_rows: most rows of the table that a prompt lists one by one.
      options: of the environment, as in `ddpomdp.make`.

    Raises:
      ValueError: unknown id, option or value, with what is allowed.
    """
    return TextEnv(env_id, max_refusals, board_rows, options)


class TextEnv:
    """The root's view of one episode in words; see `text_env`."""

    def __init__(self, env_id: str, max_refusals: int, board_rows: int, options: dict[str, Any]):
        """Bind the view to an environment; arguments as of `text_env`."""
        whole("max_refusals", max_refusals, 0, 1_000_000)
        whole("board_rows", board_rows, 0, 100_000)
        self._program = program(Rootwise, make(env_id, **options))
        self.env = self._program.env
        self._max_refusals, self._board_rows = max_refusals, board_rows
        self._known = all_calls(self.env.harness)
        self._generator: np.random.Generator | None = None
        self._told: Told | None = None

    def reset(self, seed: int | None = None) -> str:
        """Start an episode: the system prompt of the lead and its first turn, one after the other.

        Args:
          seed: names the episode; None draws the next one, as Gymnasium's view does.

        Raises:
          ValueError: anything but a whole number from 0 to 2**63 - 1, or None.
        """
        given = seeds.checked(seed)
        if given is not None or self._generator is None:
            self._generator = seeds.generator(given)
        self._seed = seeds.drawn(self._generator) if given is None else given
        self._luck, self._state, told = self._program.reset(seeds.words(self._seed))
        self._refused = self._replaced = self._in_a_row = 0
        self._return = 0.0
        self._hear(told)
        return f"{self.system_prompt()}\n\n{self.prompt()}"

    def system_prompt(self, role: str = "lead") -> str:
        """What an agent of a role is told once: task, score, team, limits, tools, how to answer."""
        return prompt.system_prompt(self.env, role)

    def prompt(self) -> str:
        """What the lead is told now: its turn, or how the episode ended."""
        told = self._present()
        if not self._ended():
            return prompt.turn_prompt(self.env, self._seen, self._board_rows)
        info = told.info
        reason = StopReason(int(told.stop_reason))
        quality, wall_s, tokens = float(info["quality"]), float(info["wall_s"]), int(info["tokens"])
        return prompt.final_words(reason, quality, self._return, wall_s, tokens)

    def tools(self, all: bool = False) -> list[dict[str, Any]]:
        """What may be called now as function tools with JSON Schemas; none after the end.

        Args:
          all: every tool of the harness with every value instead; needs no reset.
        """
        words, roles = prompt.task_words(self.env), self.env.spec.roles
        if all:
            return schemas(self._known, words, roles)
        self._present()
        return [] if self._ended() else schemas(self._seen.legal, words, roles)

    def step(self, call: Any) -> tuple[str, float, bool, dict[str, Any]]:
        """One decision: (what the lead is told, reward, done, info).

        Args:
          call: `{"tool": ..., "args": {...}}`, a message or call object of a chat-completion endpoint, or a text.

        Raises:
          ResetNeeded: before the first reset, or after the end.
        """
        self._present()
        if self._ended():
            raise ResetNeeded("the episode has ended: call reset()")
        try:
            exact = understand(call, self._seen.legal, self._known)
        except Refused as refusal:
            self._refused += 1
            if self._in_a_row < self._max_refusals:
                self._in_a_row += 1
                text = f"Refused: {refusal}. Nothing has happened; call again."
                return text, 0.0, False, self._info(ticks=0, refused=True)
            self._replaced += 1
            waits = self._seen.legal["wait"].items()
            return self._play({"tool": "wait", "args": {name: values[0] for name, values in waits}}, str(refusal))
        return self._play(exact)

    def _play(self, call: dict[str, Any], refusal: str = "") -> tuple[str, float, bool, dict[str, Any]]:
        turn = self.env.harness.from_json(call, self._seen.names)
        assert self._told is not None
        self._state, told = self._program.step(self._luck, self._state, self._told.roles, turn)
        self._hear(told)
        reward = float(self._present().reward)
        self._return += reward
        self._in_a_row = 0
        said = f"Refused: {refusal}. After too many refusals a wait was played instead.\n\n" if refusal else ""
        return said + self.prompt(), reward, self._ended(), self._info(int(self._present().ticks), bool(refusal))

    def _hear(self, packed: Packed) -> None:
        """Keep what the root was told, as numbers of this machine."""
        told: Told = fetch(packed)
        self._told = told
        filled = [int(uid) for uid in told.roster_uid if uid >= 0]
        names = [life_name(uid, told.roles, self.env.spec.roles) for uid in filled]
        legal: Any = told.legal
        self._seen = prompt.Seen(
            own=np.asarray(told.own),
            result=np.asarray(told.result),
            claims=np.asarray(told.claims),
            roster=np.asarray(told.roster),
            board=np.asarray(told.board),
            names=names,
            legal=legal_calls(
                self.env.harness, int(legal.tools), int(legal.whom), [int(b) for b in legal.bounds], names
            ),
        )

    def _present(self) -> Told:
        if self._told is None:
            raise ResetNeeded("call reset() before anything else")
        return self._told

    def _ended(self) -> bool:
        told = self._present()
        return bool(told.terminated) or bool(told.truncated)

    def _info(self, ticks: int, refused: bool) -> dict[str, Any]:
        told = self._present()
        return {
            "seed": self._seed,
            "ticks": ticks,
            "refused": refused,
            "refused_calls": self._refused,
            "replaced_calls": self._replaced,
            "terminated": bool(told.terminated),
            "truncated": bool(told.truncated),
            "stop_reason": int(told.stop_reason),
            **{name: value.item() for name, value in told.info.items()},
        }
