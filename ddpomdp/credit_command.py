"""`ddpomdp credit`: what one decision was worth."""

import json
import math
import time
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from ddpomdp.options import UsageError, bad_input

Positional = tyro.conf.Positional
arg = tyro.conf.arg
PREFERRED = ("heuristic", "team")  # policies that are taken if none is named, in this order


@dataclass(frozen=True)
class Worth:
    """Say what one decision was worth: E[return | it] - E[return | wait instead], same prefix, common luck.

    key=value words are options of the environment, policy.KEY=value words those of the policy.

    Example: ddpomdp credit Search-v0 --decision spawn --samples 256 model=weak
    """

    env: Annotated[Positional[str], arg(metavar="ENV")]
    """Environment, see `ddpomdp envs`."""
    decision: str
    """Kind of decision: spawn, delegate, communicate, aggregate, stop, or tool (calls of the task's own tools)."""
    policy: str | None = None
    """Who plays: a policy of the environment; `heuristic`, `team` or else `random` if not given."""
    nth: int = 0
    """Which decision of that kind in the episode, from 0; chosen waits are not counted."""
    samples: int = 256
    """Episodes per alternative, with fresh luck each."""
    seed: int = 0
    """Seed of the episode and of the luck, from 0."""
    as_json: Annotated[bool, arg(name="json")] = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Play, branch, print."""
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"seed {self.seed}; allowed: integers from 0 to 2^32 - 1")
        for name, value, low in (("nth", self.nth, 0), ("samples", self.samples, 2)):
            if not low <= value <= 1_000_000:
                raise UsageError(f"{name} {value}; allowed: integers from {low} to 1000000")
        of_policy = options.pop("policy", {})
        if not isinstance(of_policy, dict):
            raise UsageError(f"got policy={of_policy!r}; the policy is named by --policy, its options policy.KEY=value")
        import ddpomdp
        from ddpomdp.credit import units
        from ddpomdp.progress import waiting
        from ddpomdp.registry import policy_names

        with bad_input():
            wanted = units.decision_kind(self.decision)
            env = ddpomdp.make(self.env, **options)
            offered = policy_names(self.env)
            name = self.policy or next((p for p in PREFERRED if p in offered), "random")
            policy = ddpomdp.policy(name, env, **of_policy)
            params = policy.init(env)
        began = time.perf_counter()
        with waiting("compiling, playing and branching"), bad_input():
            found = worth(env, policy, params, wanted, nth=self.nth, samples=self.samples, seed=self.seed)
        what = {"env": self.env, "policy": name, "seed": self.seed, "decision": self.decision, **found}
        if self.as_json:
            print(json.dumps(what, indent=1, allow_nan=False))
            return 0
        from ddpomdp.cli import print_table

        low, high = found["interval"]
        lines = [
            ("turn", json.dumps(found["turn"])),
            ("by", f"{found['agent']} (uid {found['uid']}), tick {found['tick']}"),
            ("worth", f"{found['worth']:+.4f} (95% interval {low:+.4f} to {high:+.4f})"),
            ("return with it", f"{found['with']:.4f}"),
            ("return with wait instead", f"{found['without']:.4f}"),
            ("return of the episode itself", f"{found['returned']:.4f}"),
            ("samples", f"{found['samples']:,} pairs with common luck"),
            ("computed in", f"{time.perf_counter() - began:.1f} s"),
        ]
        print_table((f"{self.env}, {name}, seed {self.seed}, {self.decision} {self.nth}", ""), lines)
        return 0


def worth(env: Any, policy: Any, params: Any, wanted: Any, *, nth: int, samples: int, seed: int) -> dict[str, Any]:
    """What the n-th decision of a kind was worth in the episode of a seed, as JSON values."""
    import jax
    import numpy as np

    from ddpomdp.bench.stats import t_975
    from ddpomdp.credit import units
    from ddpomdp.credit.plays import player
    from ddpomdp.enums import EventKind

    plays = player(env, policy, params)
    key = jax.random.key(seed)[None]
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(key)
    episode = plays.ordinary(key, luck)
    found = units.decision_mask(episode.decides, episode.kind, episode.decision, wanted)[0]
    places = np.argwhere(found & (episode.kind[0] != EventKind.WAIT))
    if len(places) <= nth:
        kind = wanted if isinstance(wanted, str) else wanted.name.lower()
        raise UsageError(f"nth {nth}: this episode has {len(places)} {kind} decisions (other seeds may have more)")
    tick, slot = (int(x) for x in places[nth])
    turn = episode.tokens[0, tick, slot]
    moment = plays.advance(key, luck, np.asarray([tick]))
    fresh = jax.random.split(jax.random.fold_in(luck[0], 7), samples)
    here, who = moment.at(np.zeros(samples, int)), np.full(samples, slot)
    alternatives = turn, np.zeros_like(turn)
    sides = [plays.play_on(here, fresh, who, np.tile(x, (samples, 1))).returns for x in alternatives]
    with_it, without = (side.astype(np.float64) for side in sides)
    effect = with_it - without
    half = t_975(samples - 1) * effect.std(ddof=1) / math.sqrt(samples)
    uid = int(np.asarray(moment.state.lives.uid)[0, slot])
    roster = [f"row_{row}" for row in range(env.spec.roster)]
    return {
        "turn": env.harness.to_json(turn, roster),
        "agent": env.spec.roles[int(np.asarray(moment.state.lives.role)[0, slot])],
        "uid": uid,
        "tick": tick,
        "worth": float(effect.mean()),
        "interval": [float(effect.mean() - half), float(effect.mean() + half)],
        "with": float(with_it.mean()),
        "without": float(without.mean()),
        "returned": float(episode.returns[0]),
        "samples": samples,
    }
