"""The gate and the schedules of W and M: what STARE (arXiv 2606.19236, section 4.4) decides once a rollout."""

from __future__ import annotations

import math

from openrlhf_stare.algorithms.config import StareConfig

State = dict[str, bool | int | float]


class StareController:
    """Gate, W and M, moved once a rollout by the batch-mean entropy. The same on all ranks if that entropy is.

    Attributes:
        gate_on: whether the weights act; on before the first update.
        reweight_w, reweight_m: the coming `fit`'s W and M; before the first update the config's, under `pi` both 1.
        integral: I of the `pi` schedule, in nats of log W; 0 under the others.
        updates: how many batch entropies were taken.
        rejected: how many were not, because they were not finite.
    """

    def __init__(self, config: StareConfig):
        self.config = config
        self.gate_on = True
        self.reweight_w = 1.0 if config.schedule == "pi" else float(config.reweight_w)
        self.reweight_m = 1.0 if config.schedule == "pi" else float(config.reweight_m)
        self.integral = 0.0
        self.updates = 0
        self.rejected = 0

    def update(self, batch_entropy: float) -> bool:
        """Set the gate, W and M for the coming `fit`.

        Args:
            batch_entropy: H̄ in nats, over all tokens of the batch and all ranks.

        Returns:
            Whether it was taken. A value that is not finite changes nothing but the counter `rejected`.
        """
        batch_entropy = float(batch_entropy)
        if not math.isfinite(batch_entropy):
            self.rejected += 1
            return False
        self.updates += 1
        shortfall = self.config.target_entropy - batch_entropy
        if self.config.schedule == "pi":
            self._proportional_integral(shortfall / self.config.target_entropy)
        else:
            self.gate_on = batch_entropy < self.config.target_entropy
            if self.config.schedule == "adaptive":
                self._step(shortfall)
        return True

    def _step(self, shortfall: float) -> None:
        """`adaptive`: W up and M down by alpha while entropy is too low, the other way while it is too high."""
        step = 0.0 if shortfall == 0 else math.copysign(self.config.alpha, shortfall)
        self.reweight_w = _clip(self.reweight_w + step, 1.0, self.config.w_max)
        self.reweight_m = _clip(self.reweight_m - step, self.config.m_min, 1.0)

    def _proportional_integral(self, error: float) -> None:
        """`pi` (ours): log W is proportional to the relative error plus its clipped sum, so W settles at H̄ = H_tgt."""
        ceiling = math.log(self.config.w_max)
        self.integral = _clip(self.integral + self.config.k_i * error, 0.0, ceiling)
        log_w = _clip(self.config.k_p * error + self.integral, 0.0, ceiling)
        self.reweight_w = min(math.exp(log_w), float(self.config.w_max))  # exp(log w_max) can round to above w_max
        self.reweight_m = max(self.config.m_min, 1.0 / self.reweight_w)
        self.gate_on = self.reweight_w > 1.0

    def strengths(self) -> dict[str, float]:
        """W and M as they act: 1 while the gate is off."""
        if not self.gate_on:
            return {"reweight_w": 1.0, "reweight_m": 1.0}
        return {"reweight_w": self.reweight_w, "reweight_m": self.reweight_m}

    def state_dict(self) -> State:
        """What a checkpoint keeps: plain numbers, all of the controller but its config."""
        return {name: value for name, value in vars(self).items() if name != "config"}

    def load_state_dict(self, state: State) -> None:
        """Take back what `state_dict` gave, bit for bit.

        Raises:
            ValueError: a key is missing or unknown.
        """
        own = self.state_dict()
        if own.keys() != state.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise ValueError(
                f"controller state lacks {', '.join(missing) or 'nothing'} and has the unknown "
                f"{', '.join(unknown) or 'nothing'}: give what state_dict() of this version wrote"
            )
        for name, value in state.items():
            setattr(self, name, value)


def _clip(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))
