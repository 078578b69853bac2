"""Another library's learner on the orchestrator's view: Stable-Baselines3's checker, and its MaskablePPO, which learns.

`make test-external` sets up PyTorch and runs this; elsewhere it is skipped. The learning takes about four minutes.
"""

import importlib.util
import statistics

import gymnasium
import numpy as np
import pytest

from ddpomdp.bench.stats import summarise

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(
        importlib.util.find_spec("sb3_contrib") is None,
        reason="needs sb3-contrib and PyTorch, which are not among the packages of .venv: make test-external",
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of libraries that are not ours
]

ID = "ddpomdp:ddpomdp/Search-v0"
OPTIONS = {"preset": "tiny"}
SEEDS, STEPS, EPISODES = (0, 1, 2, 3, 4), 12_288, 100
TESTED = range(1_000_000, 1_000_000 + EPISODES)  # no training environment is seeded with these


def single(**form):
    return gymnasium.make(ID, **OPTIONS, **form)


@pytest.mark.parametrize("form", [{}, {"mask_in": "info"}, {"every_tick": True}], ids=str)
def test_the_checker_of_stable_baselines(form):
    from stable_baselines3.common.env_checker import check_env  # pyright: ignore[reportMissingImports]

    check_env(single(**form).unwrapped)


def play(choose):
    """Returns of the tested episodes, and how many calls were masked in them; `choose(observation, mask)` acts."""
    env, returns, masked = single(mask_in="info"), [], 0
    for seed in TESTED:
        observation, info = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action = int(choose(observation, info["action_mask"]))
            observation, reward, terminated, truncated, info = env.step(action)
            total, over = total + reward, terminated or truncated
        returns.append(total)
        masked += info["masked_calls"]
    return returns, masked


def test_maskable_ppo_learns_without_an_illegal_call():
    """Above random in the same episodes: the intervals over seeds do not overlap."""
    torch = pytest.importorskip("torch")
    from sb3_contrib import MaskablePPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import DummyVecEnv  # pyright: ignore[reportMissingImports]

    class Count(BaseCallback):
        """Episodes finished in training, the calls that were masked in them, and all steps."""

        episodes = masked = steps = 0

        def _on_step(self):
            for over, info in zip(self.locals["dones"], self.locals["infos"], strict=True):
                self.steps += 1
                if over:
                    self.episodes += 1
                    self.masked += info["masked_calls"] + info["illegal"]
            return True

    torch.set_num_threads(1)
    assert torch.version.cuda is None  # a CPU build
    trained, random, steps = {}, {}, 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        random[seed], masked = play(lambda _, mask, rng=rng: rng.choice(np.flatnonzero(mask)))
        assert masked == 0
        envs = DummyVecEnv([lambda: single(mask_in="info")] * 4)
        model = MaskablePPO(
            "MlpPolicy",
            envs,
            seed=seed,
            device="cpu",
            n_steps=256,
            batch_size=128,
            n_epochs=6,
            gamma=1.0,
            learning_rate=1e-3,
            ent_coef=0.01,
        )
        count = Count()
        model.learn(STEPS, callback=count)
        assert count.episodes > 100 and count.masked == 0
        steps += count.steps
        trained[seed], masked = play(lambda told, mask, model=model: model.predict(told, action_masks=mask)[0])
        assert masked == 0
    learned, chance = summarise(trained), summarise(random)
    for name, found in (("MaskablePPO", learned), ("random", chance)):
        means = ", ".join(f"{value:.3f}" for value in found["per_seed"].values())
        print(f"{name}: return {found['mean']:.3f} ({found['low']:.3f} to {found['high']:.3f}); by seed {means}")
    print(f"{len(SEEDS)} seeds, {steps:,} decisions of training, 0 illegal calls; {EPISODES} tested episodes each")
    assert steps == len(SEEDS) * STEPS
    assert learned["low"] > chance["high"]
    assert statistics.median(learned["per_seed"].values()) > 1.5 * chance["mean"]
