"""The policy network: attention over the roster, autoregressive heads under the legal-token mask, a roster pointer.

An agent reads its own features, its newest claims and the result of its last call; a parent also reads its roster
(attention, queried by its own features) and its board (a mean over rows). A turn is spoken token by token: the logits
of a position depend on the tokens before it, and only legal tokens have any probability. Where a token names a child,
its logit is a pointer: the product of what the speaker looks for with that child's row of the roster; in a crew, whose
rows are its roles, the row's own logit is added.

Sizes of team, roster and task do not enter the weights, the grammar does. Axis letters: E entry (a slot of a tick, or a
recorded decision), P parent place, R roster row, M row of the board, A argument position, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ddpomdp.enums import ResultCode
from ddpomdp.env import Env
from ddpomdp.harness import STOP, Harness, Legal
from ddpomdp.luck import Purpose, draw, unit
from ddpomdp.pytree import pytree
from ddpomdp.timestep import Observation, TimeStep
from ddpomdp_baselines import deciding, losses
from ddpomdp_baselines.prices import log_price

MASKED = -1e9  # logit of a token that is not legal
STOP_HEADS = ("none", "hazard")
FIRST_HAZARD = -2.2  # logit: a fresh stop head stops in one decision of ten


@pytree
class View:
    """What the network reads, one entry per agent; rosters and boards belong to the entries `at`."""

    self: jax.Array  # f32[E,.]
    claims: jax.Array  # f32[E,C,.]
    last_result: jax.Array  # f32[E,.]
    legal: Legal  # [E]
    at: jax.Array  # int32[P]    entry of the parent, E or more: none
    roster: jax.Array  # f32[P,R,.]
    roster_uid: jax.Array  # int32[P,R]  -1 empty
    board: jax.Array  # f32[P,M,.]


@pytree
class Spoken:
    """Probabilities of turns, token by token; 0 where only one token was legal."""

    logp: jax.Array  # f32[E,1+A]
    entropy: jax.Array  # f32[E,1+A]   of the legal tokens, nats
    choice: jax.Array  # bool[E,1+A]  more than one token was legal: the tokens that count


def view(observation: Observation, legal: Legal) -> View:
    """The view of all slots of a tick."""
    num_slots = observation.self.shape[0]
    return View(
        self=observation.self,
        claims=observation.claims,
        last_result=observation.last_result,
        legal=legal,
        at=jnp.where(observation.parent_slot >= 0, observation.parent_slot, num_slots),
        roster=observation.roster,
        roster_uid=observation.roster_uid,
        board=observation.board,
    )


class Net(nnx.Module):
    """Weights of one policy. Everything is a function of the grammar and of `width`."""

    def __init__(self, env: Env, width: int, rngs: nnx.Rngs, stop_head: str = "none"):
        """Fresh weights: the last layers start small, so that a fresh policy is close to uniform over legal tokens."""
        spec, harness = env.spec, env.harness
        self.num_tools, self.vocabulary = len(spec.tools), spec.vocabulary
        heads = 1 + spec.num_args
        small = nnx.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")
        linear = lambda size_in, size_out, **k: nnx.Linear(size_in, size_out, rngs=rngs, **k)  # noqa: E731
        self.read = linear(flat_size(env), width)
        self.think = linear(width, width)
        self.query = linear(width, width, use_bias=False)
        self.child = linear(len(spec.roster_features), width)
        self.child_value = linear(width, width, use_bias=False)
        self.row = linear(len(spec.board_features), width)
        self.rows = linear(width, width, use_bias=False)
        self.speak = linear(width, width)
        self.said = nnx.Param(small(rngs.params(), (heads - 1, self.num_tools * self.vocabulary, width)))
        self.heads = nnx.Param(small(rngs.params(), (heads, width, self.vocabulary)))
        self.bias = nnx.Param(jnp.zeros((heads, self.vocabulary)))
        self.point = nnx.Param(small(rngs.params(), (width, width)))
        self.offsets = pointers(harness)
        self.crew = env.rules.topology.crew
        self.stop_head = stop_head
        if stop_head == "hazard":
            self.price = log_price(float(env.params.price_token))
            self.stop_read = linear(width + 1, width)
            self.stop = linear(width, 1, kernel_init=small, bias_init=nnx.initializers.constant(FIRST_HAZARD))

    def mind(self, seen: View) -> tuple[jax.Array, jax.Array]:
        """(f32[E,D] what each entry makes of its view, f32[P,R,D] the parents' children)."""
        hidden = nnx.relu(self.read(flat_view(seen, self.num_tools)))
        hidden = nnx.relu(self.think(hidden))
        if not seen.at.shape[0]:
            return hidden, jnp.zeros((0, 1, hidden.shape[-1]))
        filled = seen.roster_uid >= 0
        roster = jnp.where(filled[..., None], seen.roster, 0.0)  # what empty rows hold reaches no value and no gradient
        children = nnx.relu(self.child(squash(roster)))
        own = hidden.at[seen.at].get(mode="fill", fill_value=0)
        score = jnp.einsum("pd,prd->pr", self.query(own), children) * hidden.shape[-1] ** -0.5
        share = jax.nn.softmax(jnp.where(filled, score, MASKED), axis=-1) * filled
        attended = jnp.einsum("pr,prd->pd", share, self.child_value(children))
        board = jnp.mean(nnx.relu(self.row(squash(seen.board))), axis=1)
        return hidden.at[seen.at].add(attended + self.rows(board), mode="drop"), children

    def logits(self, position: int, context: jax.Array, tool: jax.Array, at: jax.Array, children: jax.Array):
        """f32[E,V] of a position; `context` f32[E,D] holds the tokens before it."""
        out = nnx.relu(context) @ self.heads[position] + self.bias[position]
        named = sorted({offset for (_, place), offset in self.offsets.items() if place == position})
        if not named or not at.shape[0]:
            return out
        looks_for = context.at[at].get(mode="fill", fill_value=0) @ self.point[...]
        score = jnp.einsum("pd,prd->pr", looks_for, children)
        told = tool.at[at].get(mode="fill", fill_value=0)[:, None]
        own = out.at[at].get(mode="fill", fill_value=0)
        for offset in named:
            tools = [index for (index, place), other in self.offsets.items() if (place, other) == (position, offset)]
            room = out.shape[-1] - offset
            placed = jnp.pad(score[:, :room], ((0, 0), (offset, max(room - score.shape[1], 0))))
            names_child = (jnp.arange(out.shape[-1]) >= offset) & jnp.isin(told, jnp.asarray(tools))
            # A crew stands in the order of its roles: there a row has a meaning of its own, beside who stands in it.
            own = jnp.where(names_child, placed + own if self.crew else placed, own)
        return out.at[at].set(own, mode="drop")

    def with_stop(self, logits: jax.Array, legal: jax.Array, hidden: jax.Array) -> jax.Array:
        """Logits f32[E,V] of the tool: `stop` has the probability of the head's hazard, the rest share what is left.

        With z_i the other legal tools' logits: log_softmax(z)_i for them and the hazard's logit for `stop`, since
        exp(h) / (exp(h) + 1) = sigmoid(h). Where nothing but `stop` is legal, or `stop` is not, nothing changes.
        """
        price = jnp.full((hidden.shape[0], 1), self.price)
        hazard = self.stop(nnx.relu(self.stop_read(jnp.concatenate([hidden, price], axis=-1))))
        stops = jnp.arange(logits.shape[-1]) == STOP
        others = jax.nn.log_softmax(jnp.where(legal & ~stops, logits, MASKED), axis=-1)
        both = legal[:, STOP : STOP + 1] & jnp.any(legal & ~stops, axis=-1, keepdims=True)
        return jnp.where(both, jnp.where(stops, hazard, others), logits)


def flat_size(env: Env) -> int:
    """Size of what `flat_view` gives."""
    spec = env.spec
    claims = spec.observed_claims * (1 + len(spec.claim_features))
    return len(spec.self_features) + claims + len(spec.tools) + len(ResultCode)


def flat_view(seen: View, num_tools: int) -> jax.Array:
    """f32[E,.]: an agent's own features, its newest claims, the tool and the result of its last call."""
    there = jnp.any(seen.claims != 0, axis=-1, keepdims=True).astype(jnp.float32)
    claims = jnp.concatenate([there, squash(seen.claims)], axis=-1)
    tool = jax.nn.one_hot(seen.last_result[:, 0].astype(jnp.int32), num_tools)
    code = jax.nn.one_hot(seen.last_result[:, 1].astype(jnp.int32), len(ResultCode))
    return jnp.concatenate([squash(seen.self), claims.reshape(claims.shape[0], -1), tool, code], axis=-1)


def pointers(harness: Harness) -> dict[tuple[int, int], int]:
    """{(tool, position): first token that names a roster row}."""
    return {
        (index, 1 + place): argument.values.index("row_0")
        for index, tool in enumerate(harness.tools)
        for place, argument in enumerate(tool.arguments)
        if "row_0" in argument.values
    }


def squash(x: jax.Array) -> jax.Array:
    """sign(x) log(1 + |x|): minutes and thousands of tokens come to the size of flags."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


@dataclass(frozen=True)
class Network:
    """A `Policy` whose parameters are the weights of a `Net`; the same weights for all roles, or one set per role.

    Attributes:
      env: names the features and the grammar.
      width: units per layer.
      per_role: parameters carry a leading role axis.
      seed: of the fresh weights that `init` gives.
      greedy: speak the most probable token instead of drawing one.
      stop_head: "hazard": a head of its own says how likely the root stops, from what it sees and the price of a token
        (the environment's own, the same in all of a run); "none": `stop` is a tool like the others.
    """

    env: Env
    width: int = 32
    per_role: bool = False
    seed: int = 0
    greedy: bool = False
    stop_head: str = "none"

    def _net(self, seed: jax.Array | int) -> Net:
        return Net(self.env, self.width, nnx.Rngs(params=seed), self.stop_head)

    @property
    def _graph(self) -> Any:
        return nnx.split(nnx.eval_shape(lambda: self._net(0)))[0]

    def init(self, env: Env) -> dict[str, Any]:
        """Fresh weights as nested dicts of arrays."""
        fresh = lambda seed: nnx.to_pure_dict(nnx.state(self._net(seed)))  # noqa: E731
        if not self.per_role:
            return fresh(self.seed)
        nets = [fresh(self.seed + index) for index in range(len(self.env.spec.roles))]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)

    def carry(self, env: Env) -> tuple:
        """No memory."""
        return ()

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """A turn for every slot; aux holds `logp` f32[N,1+A] and `choice` bool[N,1+A].

        Noise comes from `key`, the lives' lineages and their own turn numbers.
        """
        positions = 1 + self.env.spec.num_args
        words = [draw(key, ts.lineage, ts.turn, Purpose.POLICY + i) for i in range((positions + 1) // 2)]
        luck = jnp.stack([unit(word[:, i]) for word in words for i in range(2)][:positions], axis=-1)

        def say(params: Any, seen: View, luck: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def choose(position: int, logp: jax.Array) -> jax.Array:
                if self.greedy:
                    return jnp.argmax(logp, axis=-1).astype(jnp.int32)
                return drawn(logp, luck[:, position])

            turns, spoken = self._speak(params, seen, choose)
            return turns, spoken.logp, spoken.choice

        seen = view(ts.observation, ts.legal)
        turns, logp, choice = deciding.act(self.env.harness, say, params, seen, luck)
        return turns, carry, {"logp": logp, "choice": choice}

    def score(self, params: Any, seen: View, turns: jax.Array) -> Spoken:
        """Probabilities of given turns int32[E,1+A]."""
        return self._speak(params, seen, lambda position, logp: turns[:, position])[1]

    def _speak(self, params: Any, seen: View, choose: Any) -> tuple[jax.Array, Spoken]:
        if not self.per_role:
            return speak(nnx.merge(self._graph, params), self.env.harness, seen, choose)
        each = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(len(self.env.spec.roles))]
        all_said = [speak(nnx.merge(self._graph, part), self.env.harness, seen, choose) for part in each]
        role = jnp.argmax(seen.self[:, : len(each)], axis=-1)[:, None]  # the first features name the role
        said = all_said[0]
        for index, other in enumerate(all_said[1:], 1):
            said = jax.tree.map(lambda a, b, mine=role == index: jnp.where(mine, b, a), said, other)
        return said


def speak(net: Net, harness: Harness, seen: View, choose: Any) -> tuple[jax.Array, Spoken]:
    """Turns int32[E,1+A] token by token, and their probabilities.

    Args:
      net: the weights.
      harness: the grammar.
      seen: one entry per speaker.
      choose: (position, log-probabilities f32[E,V]) -> token int32[E].
    """
    hidden, children = net.mind(seen)
    context = net.speak(hidden)
    turns = jnp.zeros((hidden.shape[0], 1 + harness.num_args), jnp.int32)
    logps, entropies, choices = [], [], []
    for position in range(1 + harness.num_args):
        legal = harness.legal_tokens(seen.legal, turns, position)
        logits = net.logits(position, context, turns[:, 0], seen.at, children)
        if position == 0 and net.stop_head != "none":
            logits = net.with_stop(logits, legal, hidden)
        logp = jax.nn.log_softmax(jnp.where(legal, logits, MASKED), axis=-1)
        choice = jnp.sum(legal, axis=-1) > 1
        token = jnp.where(choice, choose(position, logp), jnp.argmax(legal, axis=-1)).astype(jnp.int32)
        turns = turns.at[:, position].set(token)
        spoken = jnp.take_along_axis(logp, token[:, None], axis=-1)[:, 0]
        logps.append(jnp.where(choice, spoken, 0.0))
        entropies.append(losses.entropy(logits, legal))
        choices.append(choice)
        if position < harness.num_args:
            context = context + net.said[position][turns[:, 0] * net.vocabulary + token]
    stack = lambda columns: jnp.stack(columns, axis=-1)  # noqa: E731
    return turns, Spoken(logp=stack(logps), entropy=stack(entropies), choice=stack(choices))


def choices(harness: Harness, legal: Legal, turns: jax.Array) -> jax.Array:
    """bool[E,1+A]: positions of given turns at which more than one token was legal."""
    counts = [jnp.sum(harness.legal_tokens(legal, turns, i), axis=-1) for i in range(1 + harness.num_args)]
    return jnp.stack(counts, axis=-1) > 1


def drawn(logp: jax.Array, luck: jax.Array) -> jax.Array:
    """int32[E]: tokens drawn by inverting the cumulative sum of exp(logp) f32[E,V] at luck f32[E] in [0, 1)."""
    below = jnp.cumsum(jnp.exp(logp), axis=-1)
    count = jnp.sum(below <= (luck * below[:, -1])[:, None], axis=-1)
    last = logp.shape[-1] - 1 - jnp.argmax((logp > 0.5 * MASKED)[:, ::-1], axis=-1)
    return jnp.minimum(count, last).astype(jnp.int32)
