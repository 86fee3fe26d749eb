"""The agent's dynamic hyperparameters as tensors.

Legend: L lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AgentParams:
    """One float64 ``[L]`` tensor per dynamic field of :class:`trainer.agent.config.AgentConfig`, of the same name."""

    lr_L: Tensor
    lr_end_L: Tensor
    lr_decay_L: Tensor
    adam_beta1_L: Tensor
    adam_beta2_L: Tensor
    adam_epsilon_L: Tensor
    clip_norm_L: Tensor
    tau_L: Tensor
    gamma_L: Tensor
    c51_alpha_max_L: Tensor
    c51_warmup_epochs_L: Tensor
    c51_ramp_epochs_L: Tensor
    smoothing_L: Tensor
    support_low_L: Tensor
    support_high_L: Tensor
    support_warm_quantile_L: Tensor
    support_warm_scale_L: Tensor
    support_period_L: Tensor
    support_cooldown_L: Tensor
    support_growth_L: Tensor
    support_margin_L: Tensor
    support_spread_L: Tensor
    support_clamped_L: Tensor
    popart_rate_L: Tensor
    popart_warmup_L: Tensor
    popart_floor_L: Tensor
    noise_sigma_L: Tensor
    temperature_L: Tensor
    epsilon_start_L: Tensor
    epsilon_end_L: Tensor
    epsilon_decay_L: Tensor
    health_rate_L: Tensor
    health_gap_L: Tensor
    health_diversity_L: Tensor
    health_gradient_low_L: Tensor
    health_gradient_high_L: Tensor
