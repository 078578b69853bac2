"""The Task protocol: what a third party implements to add a task; the engine does the rest.

A task owns its hidden facts, its tools' laws and the quality of an answer. It never moves lives, messages or clocks.
All arrays are of one episode (no batch axis); the engine is vmapped from outside.
"""

from typing import Any, Protocol

import jax

from ddpomdp.claims import Log, NewClaims
from ddpomdp.harness import Harness, Legal, Tool
from ddpomdp.pytree import pytree


@pytree
class Working:
    """What the engine tells a task about the lives that act in a tick. Axis N slot, C newest claims."""

    tool: jax.Array  # int32[N]    tool index as executed (0 for those who do not act)
    argument: jax.Array  # int32[N]    first argument token
    role: jax.Array  # int32[N]
    uid: jax.Array  # int32[N]
    row: jax.Array  # int32[N]    row at the cursor of the own window
    has_row: jax.Array  # bool[N]     the window is not used up
    known: jax.Array  # uint32[N,W]
    newest: jax.Array  # int32[N,C]
    claims: jax.Array  # uint32[W]   entries of the log that are claims
    life_keys: tuple[jax.Array, jax.Array]  # uint32[N] each: words under which the lives' draws are made
    turn: jax.Array  # int32[N]    own turn number
    tainted: Any = None  # uint32[W]   entries that descend from an untrusted tool result
    untrusted: Any = None  # uint32[W]   entries that are one


@pytree
class Worked:
    """What came of a tick's task tools. Axis N slot."""

    life: Any  # the task's fields per life
    claims: NewClaims
    advance: jax.Array  # bool[N]     the cursor moves on by one row
    code: jax.Array  # int32[N]    ResultCode
    value: jax.Array  # int32[N]    result shown to the caller, -1 none
    useful: jax.Array  # f32[N]      channel `tool`: +1 useful, -1 own fault or repeat, 0 neither
    effort: "Effort | None" = None  # where what a call costs depends on what came of it
    facts: Any = None  # the task's hidden facts afterwards, where calls change them
    learns: Any = None  # uint32[N,W]  notes that the callers know from now on
    role: Any = None  # f32[N]      channel `role`: +1 work right in its role, -1 wrong, 0 neither
    verdict: Any = None  # f32[N]      channel `debate`: +1 a verdict that agrees with the truth, -1 one that does not


@pytree
class Effort:
    """What a tick's task tools cost, in place of `Task.cost`'s tokens. Axis N slot."""

    tokens: jax.Array  # int32[N]    written by the caller
    tool_tokens: jax.Array  # int32[N]    of the tool
    outside: jax.Array  # bool[N]     takes the time of an outside tool
    tool_ms: Any = None  # int32[N]    time beside, of a tool of the task's own


class Task(Protocol):
    """A task: roles, tools, laws, quality.

    A task may also have `words`: a mapping of str for the text view. Its keys are "task", "score", names of roles and
    tools, and `tool.argument`; what it leaves out is said in general words.

    Further attributes and methods that a task may have, all or none of the last two:
      passes: how often the rows stand in the queue at first (default 1); one hand-out by `delegate` ends with a pass.
      by_value: the log is of `ddpomdp.byvalue`, up to 128 claims per row; `aggregate` and `best_quality` get its forms.
      claim_features, board_features: names of features beside the common ones, with
        `observe_claims(log, known, place, params)`, f32[N, C] each, and
        `observe_board(facts, log, known, params)`, [P, M] each.
        Columns of whole numbers that stand in one word may be `ddpomdp.pytree.Fields`, of agents and claims.
      see(facts, life, row, has_row, params): in place of `observe`, where features depend on the row at the cursor.
      hear(life, tokens f32[N], mail f32[N], params): fields per life after reading so many tokens, part of them in
        returns and messages.
      select(facts, log, known, selector, role, handed, params): bool[P, M] rows that a selector picks among those
        `handed` out.
      hand_over(log, masks, parent uint32[N, W], rows bool[N, M], uid, role, level): uint32[N, W] entries that each
        child is given with the rows of its window.
      notes: how many of a row's first places in the log are levels of a note (by_value only): a message tells those
        up to its detail; `Worked.learns` says who knows them first.
      told(life, facts, log, row int32[N], role, received uint32[N, W]): fields per life after entries became known by
        mail, reading or a hand-over.
      said(log): arrays that the task keeps of the log's entries, in `log.said` from the end of the tick in which they
        come: for what `told`, `select` and `observe_board` ask in every tick.
      decided(facts, answer): hidden facts after the root has chosen an answer.
      resolved(facts, board, answer): bool[M], rows on which the root knows several answers, by its board (a `Board` of
        one place), and of which `answer` holds the right one: channel `debate`.
      artefacts(life): int32[N], the artefact log's line on each life's last task call or return, for a coach.
      coach(**options): the task's own `ddpomdp.coach.Coach`.
      worker_sees(harness, legal, own f32[N, F]): in place of `worker_turn`, a rule that heeds the task's own features
        (`self_features`).
    """

    name: str
    roles: tuple[str, ...]  # role 0 is `lead`
    spawnable: tuple[str, ...]  # roles a lead may spawn (sub-leads are the topology's)
    tools: tuple[Tool, ...]  # the task's own tools
    rules: tuple[str, ...]  # values of aggregate's `rule`
    num_rows: int  # M
    per_row: int  # K claims per row
    num_values: int  # claim values are 0 .. num_values - 1, at most 8
    hands_claims: bool  # whether some role takes over its parent's claims with its work
    self_features: tuple[str, ...]  # names of the task's own observation features per agent

    def init(self, key: jax.Array, luck: jax.Array, params: Any) -> Any:
        """Hidden facts of an episode: `key` draws the task, `luck` the rest."""
        ...

    def life(self, num_slots: int) -> Any:
        """The task's fields per life at birth, each with a leading axis N."""
        ...

    def handed(self, life: Any, handed: jax.Array, understood: jax.Array) -> Any:
        """Fields per life after work was handed out to the lives in bool[N]."""
        ...

    def brief(self, level: jax.Array, words: tuple[jax.Array, jax.Array], params: Any) -> tuple[jax.Array, jax.Array]:
        """(understood bool[N], copies a sibling's window bool[N]) of briefs at int32[N] levels, by two uint32 words."""
        ...

    def legal(
        self, life: Any, role: jax.Array, has_row: jax.Array, num_claims: jax.Array, params: Any
    ) -> list[jax.Array]:
        """bool[N] per tool of `tools`, from what each agent knows of itself."""
        ...

    def cost(self, tool: jax.Array, params: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(tokens int32[N], critical steps int32[N], calls an outside tool bool[N]) of task tools; 0 for others."""
        ...

    def act(self, facts: Any, life: Any, working: Working, log: Log, params: Any) -> Worked:
        """Apply this tick's task tools; every effect reads the state at the start of the tick."""
        ...

    def aggregate(
        self, facts: Any, log_facts: Any, votes: Any, rule: jax.Array, params: Any
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Merge what each parent knows by rule int32[P]: `Facts` and `Votes` of the log, or `Log` and `ValueVotes`.

        Returns (answer int32[P, M] sets of values, winner int32[P, M] place k or -1, keep int32[P, M] K bits: claims a
        sub-lead keeps).
        """
        ...

    def quality(self, facts: Any, answer: jax.Array) -> jax.Array:
        """f32[] in [0, 1] of an answer int32[M] (sets of values)."""
        ...

    def gains(self, facts: Any, old: jax.Array, new: jax.Array) -> jax.Array:
        """f32[M]: change of quality when the rows of `new` replace those of `old` one by one, in row order."""
        ...

    def best_quality(self, facts: Any, values: Any, told: jax.Array) -> jax.Array:
        """f32[]: quality of the best value per row among the claims int32[M] (K bits), of values int32[M] per k."""
        ...

    def observe(self, life: Any, params: Any) -> list[jax.Array]:
        """f32[N] per name in `self_features`."""
        ...

    def claim_bound(self, role: jax.Array, num_claims: jax.Array) -> jax.Array:
        """int32[N]: legal values of a `claim` argument."""
        ...

    def takes_claims(self, role: jax.Array) -> jax.Array:
        """bool[N]: roles that are handed what their parent knows (only asked if `hands_claims`)."""
        ...

    def worker_turn(self, harness: Harness, legal: Legal) -> jax.Array:
        """int32[N, 1+A]: the stateless worker rule that frozen roles follow."""
        ...

    def info(self, facts: Any, answer: jax.Array) -> dict[str, jax.Array]:
        """Numeric scalars with fixed keys beside quality."""
        ...
