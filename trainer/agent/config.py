"""Configuration of the agent: network, distributional loss, support, exploration, health, optimizer.

No torch here: thin clients read configs too. Units: *reward* is the environment's unit of reward, *sigma* the running
standard deviation of a lane's rewards (PopArt), *steps* are learn steps unless said otherwise.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from trainer.fields import Frozen, dynamic, static


class AgentConfig(Frozen):
    """Branching duelling C51 agent, rows S16 to S29 and S39."""

    # Network (S16, S39)
    hidden: int = static(64, unit="units", ge=8, le=8192, multiple_of=8, doc="width of the trunk")
    blocks: int = static(1, unit="blocks", ge=0, le=32, doc="residual blocks of the trunk")
    atoms: int = static(52, unit="atoms", ge=2, le=512, doc="atoms of every value distribution")
    bottleneck_dim: int = static(
        16, unit="units", ge=1, le=1024, doc="market features of one bar are squeezed into these"
    )
    flow_dim: int = static(8, unit="units", ge=1, le=1024, doc="order-flow features of one bar are embedded into these")
    temporal: Literal["flat", "attention"] = static(
        "flat", doc="how the window's bars are joined: side by side, or by attention of the last bar over all of them"
    )
    attention_heads: int = static(4, unit="heads", ge=1, le=64, doc="heads of the temporal attention")
    attention_dim: int = static(8, unit="units", ge=1, le=512, doc="width of one attention head")

    # Optimizer
    lr: float = dynamic(1e-5, unit="1/step", gt=0, le=1, doc="learning rate of Adam")
    lr_end: float = dynamic(
        1.0, unit="share of lr", gt=0, le=1, doc="learning rate after the decay; 1 keeps it constant"
    )
    lr_decay: int = dynamic(10_000, unit="steps", ge=1, le=10**9, doc="steps of the linear decay of the learning rate")
    adam_beta1: float = dynamic(0.9, unit="", ge=0, lt=1, doc="decay of Adam's first moment")
    adam_beta2: float = dynamic(0.999, unit="", ge=0, lt=1, doc="decay of Adam's second moment")
    adam_epsilon: float = dynamic(1e-5, unit="", gt=0, le=1, doc="added to the root of Adam's second moment")
    clip_norm: float = dynamic(10.0, unit="", gt=0, le=1e9, doc="largest global gradient norm of a lane")
    tau: float = dynamic(
        0.01, unit="1/step", ge=0, le=1, doc="share of the online network that enters the target network"
    )
    gamma: float = dynamic(0.99, unit="1/bar", ge=0, le=1, doc="discount of one bar")

    # Loss (S20, S21)
    c51_alpha_max: float = dynamic(1.0, unit="", ge=0, le=1, doc="largest share of the C51 loss; the rest is MSE")
    c51_warmup_epochs: float = dynamic(0, unit="epochs", ge=0, le=1e6, doc="epochs of pure MSE before the ramp")
    c51_ramp_epochs: float = dynamic(
        1, unit="epochs", ge=1, le=1e6, doc="epochs in which the share would rise from 0 to 1"
    )
    smoothing: float = dynamic(0.02, unit="", ge=0, le=1, doc="label smoothing of the target at health 0")

    # Support (S18)
    support_start: Literal["cold", "warm"] = static("cold", doc="first bounds: as configured, or from observed rewards")
    support_low: float = dynamic(-1.0, unit="reward", lt=0, ge=-1e9, doc="cold start: lower end")
    support_high: float = dynamic(1.0, unit="reward", gt=0, le=1e9, doc="cold start: upper end")
    support_warm_quantile: float = dynamic(0.99, unit="", gt=0, le=1, doc="warm start: quantile of the rewards' size")
    support_warm_scale: float = dynamic(1.0, unit="", gt=0, le=1e3, doc="warm start: times this")
    support_period: int = dynamic(50, unit="steps", ge=1, le=1_000_000, doc="steps between two decisions to expand")
    support_cooldown: int = dynamic(
        100, unit="steps", ge=0, le=1_000_000, doc="steps after an expansion without another"
    )
    support_growth: float = dynamic(
        0.1, unit="", ge=0, le=0.1, doc="an end moves out by this share; 0 keeps the support"
    )
    support_margin: float = dynamic(0.2, unit="width", ge=0, le=0.5, doc="nearer than this to an end counts as near")
    support_spread: float = dynamic(
        1.0, unit="std", ge=0, le=10, doc="a value reaches its mean and this many deviations"
    )
    support_clamped: float = dynamic(0.01, unit="mass", ge=0, le=1, doc="target mass beyond an end that asks for room")

    # PopArt (S25)
    popart_rate: float = dynamic(
        0.01, unit="1/update", gt=0, le=1, doc="weight of a new batch of rewards, at least 1/updates"
    )
    popart_warmup: int = dynamic(1, unit="updates", ge=1, le=1_000_000, doc="updates before sigma leaves 1")
    popart_floor: float = dynamic(1e-8, unit="reward^2", gt=0, le=1, doc="least variance")

    # Exploration (S28)
    noise_sigma: float = dynamic(
        0.1, unit="sigma", ge=0, le=1e3, doc="Gaussian noise on each action value when collecting"
    )
    temperature: float = dynamic(
        0.02, unit="sigma", ge=0, le=1e3, doc="Boltzmann temperature when collecting; 0 is greedy"
    )
    epsilon_start: float = dynamic(0.5, unit="", ge=0, le=1, doc="share of uniform actions at the first collect step")
    epsilon_end: float = dynamic(0.05, unit="", ge=0, le=1, doc="share of uniform actions after the decay")
    epsilon_decay: int = dynamic(1000, unit="collect steps", ge=1, le=10**9, doc="steps of the linear decay")

    # Health (S22)
    health_rate: float = dynamic(
        0.02, unit="1/step", gt=0, le=1, doc="weight of a new value in the signals, at least 1/steps"
    )
    health_gap: float = dynamic(0.05, unit="sigma", gt=0, le=1e3, doc="Q-gap from which a lane counts as fully healthy")
    health_diversity: float = dynamic(
        0.2, unit="", gt=0, le=1, doc="diversity from which a lane counts as fully healthy"
    )
    health_gradient_low: float = dynamic(
        1e-4, unit="", gt=0, le=1e6, doc="gradient norm under which learning has stopped"
    )
    health_gradient_high: float = dynamic(
        100.0, unit="", gt=0, le=1e9, doc="gradient norm over which learning is unstable"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.health_gradient_low >= self.health_gradient_high:
            raise ValueError("health_gradient_low must be below health_gradient_high")
        return self
