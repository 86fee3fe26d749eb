"""One process of the comparison: train some trials of one contender to the end, validate, print one line of JSON.

Every contender sees the same market, train range, episodes, discount, batch and number of gradient steps, and the
final agents run through the same backtest of the same validation range.

    python -m benchmarks.peers_run '{"contender": "dqn", "seeds": [0], "lr": 0.001, "epochs": 20, "batch": 256}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.config import TrialConfig, load_config
from trainer.env.actions import unflatten_action
from trainer.env.observe import Observation
from trainer.env.state import EnvState
from trainer.env.task import Task, make_task
from trainer.evaluation.backtest import make_slots, paths, rollout
from trainer.evaluation.metrics import backtest_metrics
from trainer.training.prepare import Prepared, prepare

FOLD = 2
"""The last fold: the longest train range."""


@dataclass(frozen=True)
class Job:
    """What one process does."""

    contender: str  # ours | dqn | qrdqn
    seeds: tuple[int, ...]
    lr: float
    epochs: int
    batch: int
    single: bool = False  # peers only: one episode at a time through the Gymnasium adapter


def main() -> None:
    """Read the job from the command line, do it, print what came of it."""
    torch.set_num_threads(1)
    job = Job(**json.loads(sys.argv[1]))
    config = trial_config(job)
    prepared = prepare(config, torch.device("cpu"))
    started = time.perf_counter()
    train = _train_ours if job.contender == "ours" else _train_peers
    sharpes = train(job, config, prepared)
    print(json.dumps({**asdict(job), "sharpes": sharpes, "train_seconds": time.perf_counter() - started}))


def env_steps(config: TrialConfig) -> int:
    """Environment steps of one trial."""
    training = config.training
    return training.epochs * training.collect_steps * training.episodes


def trial_config(job: Job, seed: int = 0) -> TrialConfig:
    """The smoketest profile with settings that learn on the easy market; the decay spans the run."""
    steps = job.epochs * 64
    return load_config(
        "smoketest",
        [
            f"seed={seed}",
            "market.synthetic.preset=easy",
            "env.session_episodes=true",
            "env.churn_penalty_scale=0",
            f"agent.lr={job.lr}",
            "agent.lr_end=0.03",
            f"agent.lr_decay={steps}",
            "agent.gamma=0.9",
            "agent.noise_sigma=0.02",
            f"agent.epsilon_decay={steps}",
            "agent.support_start=warm",
            "agent.hidden=64",
            "agent.blocks=1",
            f"training.batch={job.batch}",
            f"training.epochs={job.epochs}",
            "training.episodes=64",
            "training.collect_steps=64",
            "training.learn_steps=64",
            "training.validate_every=10000",
            "training.score_epochs=1",
        ],
    )


def _train_ours(job: Job, config: TrialConfig, prepared: Prepared) -> list[float]:
    from trainer.training.group import LaneGroup

    group = LaneGroup(config, prepared, torch.device("cpu"))
    for seed in job.seeds:
        group.admit(f"seed {seed}", trial_config(job, seed), folds=[FOLD])
    for _ in range(job.epochs):
        reports = group.advance()
    return [fold.numbers()["val_sharpe"] for report in reports for fold in report.folds]


def _train_peers(job: Job, config: TrialConfig, prepared: Prepared) -> list[float]:
    return [_train_peer(job, config, prepared, seed) for seed in job.seeds]


def _train_peer(job: Job, config: TrialConfig, prepared: Prepared, seed: int) -> float:
    from sb3_contrib import QRDQN
    from stable_baselines3 import DQN

    from benchmarks.peers_env import PeerVectorEnv
    from trainer.env.gym_single import TradingEnv

    fold, training, agent = prepared.folds[FOLD], config.training, config.agent
    task = make_task(
        prepared.market,
        fold.train,
        prepared.instrument,
        [config.env],
        prepared.scalings[FOLD],
        prepared.bar_moves[FOLD],
        window=training.window,
        mirror=training.mirror == "episode",
    )
    width = agent.hidden
    policy: dict[str, Any] = {"net_arch": [width, width, width]}
    if job.contender == "qrdqn":
        policy["n_quantiles"] = agent.atoms
    steps = env_steps(config)
    end = agent.lr_end
    model = (QRDQN if job.contender == "qrdqn" else DQN)(
        "MlpPolicy",
        TradingEnv(task) if job.single else PeerVectorEnv(task, training.episodes, seed),
        learning_rate=lambda left: job.lr * (end + (1.0 - end) * left),
        buffer_size=config.replay.capacity,
        learning_starts=training.collect_steps * training.episodes // 4,
        batch_size=job.batch,
        gamma=agent.gamma,
        tau=agent.tau,
        target_update_interval=1,
        train_freq=training.episodes if job.single else 1,
        gradient_steps=1,
        exploration_initial_eps=agent.epsilon_start,
        exploration_final_eps=agent.epsilon_end,
        exploration_fraction=1.0,
        policy_kwargs=policy,
        seed=seed,
        device="cpu",
    )
    model.learn(steps)
    return validate(config, prepared, task, _greedy(model))


Act = Callable[[Tensor], Tensor]
"""Observations ``[N, W * F + P]`` to actions ``[N, 4]``."""


def _greedy(model: Any) -> Act:
    def act(seen: Tensor) -> Tensor:
        with torch.no_grad():
            return unflatten_action(model.policy._predict(seen, deterministic=True))

    return act


def validate(config: TrialConfig, prepared: Prepared, task: Task, act: Act) -> float:
    """Sharpe of a peer's greedy agent in the backtest that Paceline's own agents go through."""
    from trainer.training.lane_state import slot_width, slots_of

    session_N = prepared.table.session_N
    ranges = slots_of(config, session_N, prepared.folds[FOLD].validation)
    slots = make_slots([ranges], slot_width([ranges]), torch.device("cpu"))
    limit = float(task.normaliser.clip_L.max())

    def policy(_step: int, _state: EnvState, observe: Callable[[], Observation]) -> Tensor:
        obs = observe()
        seen = torch.cat((obs.features.flatten(2), obs.portfolio), dim=-1).clamp(-limit, limit)
        return act(seen[0]).unsqueeze(0)

    run = rollout(
        task.params,
        prepared.market,
        task.normaliser,
        slots,
        max(end - start for start, end in ranges) - 1,
        config.training.window,
        policy,
    )
    (path,) = paths(task.params, session_N, run)
    metrics = backtest_metrics(
        path,
        sessions_per_year=prepared.instrument.sessions_per_year,
        min_trades=config.evaluation.min_trades,
        benchmark_sharpe=config.evaluation.benchmark_sharpe,
    )
    return float(metrics.sharpe)


if __name__ == "__main__":
    main()
