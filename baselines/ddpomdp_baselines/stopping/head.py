"""The stopping head: the margin of going on over stopping, from what the lead sees and the price; how it is learned.

    margin(seen, price) in quality points;   P(stop) = sigmoid(-margin / width)

What it is made of ("form"):
  table   one margin per information state and price; between prices, linear
  linear  one linear function of the features per decision and price; between prices, linear
  mlp     one network of features, decision and log price for all of them

How it is learned ("estimator"), always from suppressed episodes (see `trajectories`):
  margin        backward in time, regress what going on under the present rule pays on top of stopping now
                (Longstaff and Schwartz 2001, on the margin: the decision is its sign, and errors common to both
                sides cancel)
  fitted        the same with the fitted value of the next decision in place of what is paid after it (fitted Q;
                Tsitsiklis and Van Roy 2001): net_{t+1} + max(margin_{t+1}, 0) - net_t
  continuation  margin with the payoff of going on, less the payoff of stopping, which must be known
  expectation   gradient of the exact expected payoff sum_t P(stop at t) net_t of every episode
  hazard        policy gradient with sampled times, log P(tau) = log l_tau + sum_{t<tau} log(1 - l_t); the baseline
                is that of every decision it goes through
  grpo          hazard, with scores normalised in groups of episodes of one task draw, one time each (mean and std)
  dr_grpo       the same without the std

The payoff of stopping is "known" (expected on the lead's information) or "realised"; which one is always named.
Axis letters: B episode, T decision, F feature, K price.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from ddpomdp.options import UsageError, choose, number, whole
from ddpomdp_baselines.prices import log_price
from ddpomdp_baselines.stopping.trajectories import Suppressed

ESTIMATORS = ("margin", "fitted", "continuation", "expectation", "hazard", "grpo", "dr_grpo")
REGRESSED = ("margin", "fitted", "continuation")
GROUPED = ("grpo", "dr_grpo")
FORMS = ("table", "linear", "mlp")
SCALE = 0.05  # quality points: a usual size of margins, in which networks speak


class Grid(nnx.Module):
    """Weights per price: of every information state, or of every decision's features."""

    def __init__(self, prices: int, size: int):
        """All margins 0: stop everywhere."""
        self.weight = nnx.Param(jnp.zeros((prices, size)))


class Mlp(nnx.Module):
    """Margin in units of `SCALE` from features, decision and log price."""

    def __init__(self, inputs: int, width: int, rngs: nnx.Rngs):
        """The last layer starts small: every hazard begins near that of its bias."""
        small = nnx.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")
        self.first = nnx.Linear(inputs, width, rngs=rngs)
        self.second = nnx.Linear(width, width, rngs=rngs)
        self.out = nnx.Linear(width, 1, kernel_init=small, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """f32[...]."""
        return self.out(nnx.relu(self.second(nnx.relu(self.first(x)))))[..., 0]


@dataclass(frozen=True)
class Head:
    """Settings of a head and of its learning.

    Attributes:
      estimator: one of `ESTIMATORS`.
      form: one of `FORMS`.
      payoff: "known" or "realised": what it learns from.
      prices: at which it is fitted; the price is an input everywhere.
      ridge: of the regressions, in units of the features' variance.
      width: of the network's layers.
      steps: gradient steps, of `mlp` and of the gradient estimators.
      batch: episodes per gradient step.
      learning_rate: of Adam.
      sweeps: passes of a network's regression; its targets come from the rule before each pass.
      softness: width of the sigmoid, quality points.
      seed: of weights and draws.
    """

    estimator: str = "margin"
    form: str = "table"
    payoff: str = "realised"
    prices: tuple[float, ...] = (1e-6,)
    ridge: float = 1e-3
    width: int = 64
    steps: int = 1_500
    batch: int = 256
    learning_rate: float = 3e-3
    sweeps: int = 8
    softness: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that cannot be used."""
        choose("estimator", self.estimator, ESTIMATORS)
        choose("form", self.form, FORMS)
        choose("payoff", self.payoff, ("known", "realised"))
        for price in self.prices:
            number("prices", price, 0.0, 1e9)
        if not self.prices or list(self.prices) != sorted(set(self.prices)):
            raise UsageError(f"prices: got {self.prices}, allowed: one and more, rising")
        number("ridge", self.ridge, 0.0, 1e9)
        number("softness", self.softness, 1e-9, 1e9)
        number("learning_rate", self.learning_rate, 0.0, 1e3)
        for name in ("width", "steps", "batch", "sweeps"):
            whole(name, getattr(self, name), 1, 10**7)
        whole("seed", self.seed, 0, 2**31 - 1)

    def fit(self, data: Suppressed) -> "Fitted":
        """Learn from suppressed episodes.

        Raises:
          ValueError: a form or payoff that these episodes do not have.
        """
        data.payoff(self.payoff)
        if self.form == "table" and data.cell is None:
            raise UsageError("form: got 'table', allowed here: linear, mlp (information states are not known)")
        if self.estimator in GROUPED and data.group < 2:
            raise UsageError(
                f"estimator: got {self.estimator!r}, allowed with episodes collected in groups of 2 and more"
            )
        forms = {"continuation": ("table",), "fitted": ("table", "linear")}.get(self.estimator, FORMS)
        if self.form not in forms:
            raise UsageError(f"form: got {self.form!r} with estimator {self.estimator!r}, allowed: {', '.join(forms)}")
        if self.estimator == "continuation":
            data.payoff("known")
        blank = self._blank(data)
        if self.estimator in REGRESSED:
            return blank.regressed(data)
        return blank.climbed(data)

    @property
    def program(self) -> "Head":
        """The same but for its seed: heads of all seeds share their compiled programs."""
        return replace(self, seed=0)

    def _blank(self, data: Suppressed) -> "Fitted":
        flat = data.seen[data.here].astype(np.float64)
        mean, spread = flat.mean(axis=0), flat.std(axis=0)
        varies = spread > 1e-6
        scale = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
        horizon, features = data.here.shape[1], flat.shape[1]
        if self.form == "mlp":
            module: Any = Mlp(features + 2, self.width, nnx.Rngs(params=self.seed))
        else:
            assert self.form == "linear" or data.cell is not None
            size = int(data.cell.max()) + 1 if self.form == "table" and data.cell is not None else 0
            module = Grid(len(self.prices), size or horizon * (1 + features))
        params = nnx.to_pure_dict(nnx.state(module))
        if self.estimator in ("hazard", "expectation", *GROUPED):  # hazards begin near 1 / H
            start = self.softness * np.log(max(horizon - 1, 1))
            if self.form == "mlp":
                params["out"]["bias"] = params["out"]["bias"] + start / SCALE
            elif self.form == "table":
                params["weight"] = params["weight"] + start
            else:
                weight = params["weight"].reshape(len(self.prices), horizon, -1)
                params["weight"] = weight.at[..., 0].set(start).reshape(len(self.prices), -1)
        return Fitted(self, params, mean, scale, horizon)


@dataclass(frozen=True)
class Fitted:
    """A head with its weights (nested dicts of arrays of its Flax module)."""

    head: Head
    params: Any
    mean: np.ndarray  # f64[F]
    scale: np.ndarray  # f64[F]  1 / standard deviation; 0 of features that do not vary
    horizon: int

    def margin(self, data: Suppressed, price: float) -> np.ndarray:
        """f64[B, T]: predicted margin of going on over stopping, in quality points; -infinity at the last decision."""
        number("price", price, 0.0, 1e9)
        out = np.asarray(_margin(self.head.program, self.params, self.inputs(data), jnp.float32(price)), np.float64)
        return np.where(self.last(data), -np.inf, out)

    def stop_probability(self, data: Suppressed, price: float) -> np.ndarray:
        """f64[B, T], exactly 1 at the last decision."""
        out = np.asarray(jax.nn.sigmoid(-self.margin(data, price) / self.head.softness), np.float64)
        return np.where(self.last(data), 1.0, out)

    def wants(self, data: Suppressed, price: float) -> np.ndarray:
        """bool[B, T]: the rule without chance, P(stop) >= 1/2; ties stop."""
        return self.margin(data, price) <= 0

    def table(self, price: float) -> np.ndarray:
        """f64[S]: margins of all states met in training, of form `table`."""
        choose("form", self.head.form, ("table",))
        between = np.asarray(_between(self.head.prices, jnp.float32(price)), np.float64)
        return between @ np.asarray(self.params["weight"], np.float64)

    def last(self, data: Suppressed) -> np.ndarray:
        """bool[B, T]: nothing comes after it."""
        return np.arange(data.here.shape[1]) >= data.last[:, None]

    def inputs(self, data: Suppressed) -> dict[str, jax.Array]:
        """What the module reads: standardised features, cells, decisions; of one form only what it needs."""
        time = np.broadcast_to(np.arange(data.here.shape[1]), data.here.shape)
        if self.head.form == "table":
            if data.cell is None:
                raise UsageError("form: got 'table', but information states are not known here")
            return {"cell": jnp.asarray(data.cell, jnp.int32), "time": jnp.asarray(time, jnp.int32)}
        seen = np.clip((data.seen - self.mean) * self.scale, -6, 6)
        return {"seen": jnp.asarray(seen, jnp.float32), "time": jnp.asarray(time, jnp.int32)}

    # Regression ------------------------------------------------------------------------------------------------------

    def regressed(self, data: Suppressed) -> "Fitted":
        """Regression: backward in time for `table` and `linear`, in sweeps for `mlp`."""
        if self.head.form == "mlp":
            return self._swept(data)
        weight = np.zeros_like(np.asarray(self.params["weight"], np.float64))
        x = self.inputs(data)
        for k, price in enumerate(self.head.prices):
            net = data.net(price, self.head.payoff)
            future = _pick(net, data.last)
            for t in reversed(range(data.here.shape[1] - 1)):
                goes = data.last > t
                sunk = price * data.cost[:, t]
                if self.head.estimator != "continuation":
                    fit, place, row = self._regression(x, data, t, goes, future - net[:, t])
                    margin = fit
                else:
                    fit, place, row = self._regression(x, data, t, goes, future + sunk)
                    margin = fit - data.payoff("known")[:, t]
                    row = self._less_known(row, data, t)
                weight[k, place] = row
                if self.head.estimator == "fitted":
                    future = np.where(goes, net[:, t] + np.maximum(margin, 0.0), future)
                else:
                    future = np.where(goes & (margin <= 0), net[:, t], future)
        return Fitted(self.head, {"weight": jnp.asarray(weight, jnp.float32)}, self.mean, self.scale, self.horizon)

    def _less_known(self, row: np.ndarray, data: Suppressed, t: int) -> np.ndarray:
        """Values of going on in the information states of decision t as margins."""
        places, first = np.unique(np.asarray(data.cell)[:, t], return_index=True)
        assert len(places) == len(row)
        return row - data.payoff("known")[first, t]

    def _regression(
        self, x: dict[str, jax.Array], data: Suppressed, t: int, goes: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """(fit f64[B], which weights, their values f64[.]) of the target on the inputs of decision t."""
        if self.head.form == "table":
            cell = np.asarray(x["cell"])[:, t]
            places, number = np.unique(cell, return_inverse=True)
            count = np.bincount(number[goes], minlength=len(places))
            row = np.bincount(number[goes], weights=target[goes], minlength=len(places)) / np.maximum(count, 1)
            return row[number], places, row
        seen = np.asarray(x["seen"], np.float64)[:, t]
        basis = np.concatenate([np.ones((len(seen), 1)), seen], axis=1)
        used = basis[goes]
        ridge = self.head.ridge * max(len(used), 1) * np.eye(basis.shape[1])
        ridge[0, 0] = 1e-9
        row = np.linalg.solve(used.T @ used + ridge, used.T @ target[goes])
        place = slice(t * basis.shape[1], (t + 1) * basis.shape[1])
        return basis @ row, place, row

    def _swept(self, data: Suppressed) -> "Fitted":
        """Regression of a network: all decisions and prices at once; targets from the rule of the sweep before."""
        now = self
        x = self.inputs(data)
        goes = jnp.asarray(~self.last(data))
        for sweep in range(self.head.sweeps):
            targets = []
            for price in self.head.prices:
                net = data.net(price, self.head.payoff)
                wants = now.wants(data, price) if sweep else self.last(data)
                targets.append(_gain(net, wants, data))
            target = jnp.asarray(np.stack(targets), jnp.float32)
            steps = max(self.head.steps // self.head.sweeps, 1)
            params = _regress_mlp(
                self.head.program, now.params, x, goes, target, jax.random.key(self.head.seed + sweep), steps
            )
            now = Fitted(self.head, params, self.mean, self.scale, self.horizon)
        return now

    # Gradients -------------------------------------------------------------------------------------------------------

    def climbed(self, data: Suppressed) -> "Fitted":
        """Gradient ascent on the expected payoff, exact or by sampled times."""
        x = self.inputs(data)
        net = np.stack([data.net(price, self.head.payoff) for price in self.head.prices])
        last = jnp.asarray(self.last(data))
        key = jax.random.key(self.head.seed)
        group = data.group if self.head.estimator in GROUPED else 1
        params = _climb(self.head.program, self.params, x, jnp.asarray(net, jnp.float32), last, key, group)
        return Fitted(self.head, params, self.mean, self.scale, self.horizon)


def _pick(values: np.ndarray, time: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, time[:, None], axis=1)[:, 0]


def _gain(net: np.ndarray, wants: np.ndarray, data: Suppressed) -> np.ndarray:
    """f64[B, T]: what going on pays on top of stopping now, if `wants` is followed from the next decision on."""
    horizon = net.shape[1]
    future, out = _pick(net, data.last), np.zeros_like(net)
    for t in reversed(range(horizon)):
        goes = data.last > t
        out[:, t] = np.where(goes, future - net[:, t], 0.0)
        future = np.where(goes & wants[:, t], net[:, t], future)
    return out


# The module as a function of its weights ---------------------------------------------------------------------------


def _between(prices: tuple[float, ...], price: jax.Array) -> jax.Array:
    """f32[K]: weights of linear interpolation between the prices; the nearest one outside them."""
    knots = jnp.asarray(prices, jnp.float32)
    if len(prices) == 1:
        return jnp.ones(1)
    place = jnp.interp(price, knots, jnp.arange(len(prices), dtype=jnp.float32))
    return jnp.maximum(0.0, 1.0 - jnp.abs(place - jnp.arange(len(prices))))


@partial(jax.jit, static_argnames=("head",))
def _margin(head: Head, params: Any, x: dict[str, jax.Array], price: jax.Array) -> jax.Array:
    """f32[..., T]: the margin in quality points."""
    if head.form == "mlp":
        time = x["time"].astype(jnp.float32) / 10.0
        more = jnp.stack([time, jnp.broadcast_to(log_price(price), time.shape)], axis=-1)
        inputs = jnp.concatenate([x["seen"], more], axis=-1)
        graph = nnx.split(nnx.eval_shape(lambda: Mlp(inputs.shape[-1], head.width, nnx.Rngs(0))))[0]
        return SCALE * nnx.merge(graph, params)(inputs)
    weight = _between(head.prices, price) @ params["weight"]
    if head.form == "table":
        size = weight.shape[0]  # states never met in training stop
        return jnp.where(x["cell"] < size, weight[jnp.minimum(x["cell"], size - 1)], 0.0)
    features = x["seen"].shape[-1] + 1
    rows = weight.reshape(-1, features)
    rows = rows[jnp.minimum(x["time"], rows.shape[0] - 1)]
    return rows[..., 0] + jnp.sum(rows[..., 1:] * x["seen"], axis=-1)


def expected(rate: jax.Array, net: jax.Array) -> jax.Array:
    """f32[...]: expected payoff sum_t l_t prod_{s<t} (1 - l_s) net_t of hazards f32[..., T], backwards in time.

    Hazards may be exactly 0 and 1: no logarithm and no quotient is taken, so values and gradients are finite.
    """

    def back(after: jax.Array, here: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        rate, net = here
        return rate * net + (1.0 - rate) * after, None

    rates, nets = jnp.moveaxis(rate, -1, 0), jnp.moveaxis(net, -1, 0)
    return jax.lax.scan(back, nets[-1], (rates, nets), reverse=True)[0]


def log_probability(logit: jax.Array, last: jax.Array, time: jax.Array) -> jax.Array:
    """f32[...]: log l_tau + sum_{t < tau} log(1 - l_t), from logits f32[..., T] of the hazards.

    Args:
      logit: of stopping; infinite ones count as +-40, so that values and gradients are finite.
      last: bool[..., T], decisions at which the hazard is exactly 1: they add 0.
      time: int32[...], tau.
    """
    logit = jnp.clip(logit, -40.0, 40.0)
    at = jnp.arange(logit.shape[-1])
    stops = (at == time[..., None]) & ~last
    goes = (at < time[..., None]) & ~last
    return jnp.sum(
        jnp.where(stops, jax.nn.log_sigmoid(logit), 0.0) + jnp.where(goes, jax.nn.log_sigmoid(-logit), 0.0), -1
    )


def normalised(score: jax.Array) -> jax.Array:
    """f32[G, ...]: scores less their mean over the group, over their spread; exactly 0 where all are equal."""
    level = jnp.max(jnp.abs(score), axis=0)
    some = jnp.max(score, axis=0) - jnp.min(score, axis=0) > 1e-6 * jnp.maximum(1.0, level)
    variance = jnp.where(some, jnp.var(score, axis=0, ddof=1), 1.0)  # the root's slope at 0 is infinite
    return jnp.where(some, (score - jnp.mean(score, axis=0)) / (jnp.sqrt(variance) + 1e-6), 0.0)


def _draw(key: jax.Array, rate: jax.Array) -> jax.Array:
    """int32[...]: a time by hazards f32[..., T], the last of which is 1."""
    return jnp.argmax(jax.random.uniform(key, rate.shape) < rate, axis=-1)


@partial(jax.jit, static_argnames=("head", "group"))
def _climb(
    head: Head, params: Any, x: dict[str, jax.Array], net: jax.Array, last: jax.Array, key: jax.Array, group: int
) -> Any:
    """The weights after `head.steps` steps of Adam on batches of (groups of) episodes, each at a price of its own."""
    decay = optax.cosine_decay_schedule(head.learning_rate, head.steps)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(decay))
    prices = jnp.asarray(head.prices, jnp.float32)
    groups = last.shape[0] // group

    def loss(params: Any, rows: jax.Array, k: jax.Array, key: jax.Array) -> jax.Array:
        part = jax.tree.map(lambda x: x[rows], x)
        margin = jax.vmap(lambda x, price: _margin(head, params, x, price))(part, prices[k])
        ends, pays = last[rows], net[k, rows]
        logit = -margin / head.softness
        rate = jnp.where(ends, 1.0, jax.nn.sigmoid(logit))
        if head.estimator == "expectation":
            return -jnp.mean(expected(rate, pays)) / SCALE
        time = _draw(key, jax.lax.stop_gradient(rate))
        paid = jnp.take_along_axis(pays, time[:, None], axis=1)[:, 0]
        members = paid.reshape(-1, group).T
        if head.estimator == "grpo":
            score = normalised(members).T.reshape(-1)
        elif head.estimator == "dr_grpo":
            score = (members - jnp.mean(members, axis=0)).T.reshape(-1) / SCALE
        else:
            score = (paid - jnp.mean(paid)) / SCALE
        return -jnp.mean(score * log_probability(logit, ends, time))

    def step(carry: tuple, i: jax.Array) -> tuple[tuple, None]:
        params, state = carry
        rows, price, draw = jax.random.split(jax.random.fold_in(key, i), 3)
        size = min(max(head.batch // group, 1), groups)
        first = jax.random.randint(rows, (size,), 0, groups) * group
        index = (first[:, None] + jnp.arange(group)).reshape(-1)
        k = jnp.repeat(jax.random.randint(price, (size,), 0, len(head.prices)), group)
        gradient = jax.grad(loss)(params, index, k, draw)
        change, state = rule.update(gradient, state, params)
        return (optax.apply_updates(params, change), state), None

    return jax.lax.scan(step, (params, rule.init(params)), jnp.arange(head.steps))[0][0]


@partial(jax.jit, static_argnames=("head", "steps"))
def _regress_mlp(
    head: Head, params: Any, x: dict[str, jax.Array], goes: jax.Array, target: jax.Array, key: jax.Array, steps: int
) -> Any:
    """Adam on squared errors of the margin over batches of episodes, each at a price of its own."""
    rule = optax.adam(optax.cosine_decay_schedule(head.learning_rate, steps))
    prices = jnp.asarray(head.prices, jnp.float32)
    episodes = goes.shape[0]

    def loss(params: Any, rows: jax.Array, k: jax.Array) -> jax.Array:
        part = jax.tree.map(lambda x: x[rows], x)
        margin = jax.vmap(lambda x, price: _margin(head, params, x, price))(part, prices[k])
        error = jnp.where(goes[rows], margin - target[k, rows], 0.0) / SCALE
        return jnp.sum(jnp.square(error)) / jnp.maximum(jnp.sum(goes[rows]), 1)

    def step(carry: tuple, i: jax.Array) -> tuple[tuple, None]:
        params, state = carry
        rows, price = jax.random.split(jax.random.fold_in(key, i))
        size = min(head.batch, episodes)
        index = jax.random.randint(rows, (size,), 0, episodes)
        k = jax.random.randint(price, (size,), 0, len(head.prices))
        change, state = rule.update(jax.grad(loss)(params, index, k), state, params)
        return (optax.apply_updates(params, change), state), None

    return jax.lax.scan(step, (params, rule.init(params)), jnp.arange(steps))[0][0]
