"""Per-fold scaling and the reward's unit: fitted on the train range and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.market.bars_table import BarTable
from trainer.market.folds import Range
from trainer.market.normalise import bar_move, fit_scaling, normalise
from trainer.market.normalise_config import NormaliseConfig

STD, IQR = NormaliseConfig(method="std"), NormaliseConfig(method="iqr")


def column(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)[:, None]


def test_std_by_hand() -> None:
    scaling = fit_scaling(column(99.0, 1.0, 3.0, 1.0, 3.0, 99.0), Range(1, 5), STD)
    assert (scaling.shift_F[0], scaling.scale_F[0]) == (2.0, 1.0)


def test_iqr_by_hand_ignores_an_outlier() -> None:
    """Quartiles of 0 to 39 and 1e6 are 10, 20, 30; 36 lie between the 5 and 95 % quantiles: 10.9 against 14.8."""
    scaling = fit_scaling(column(*range(40), 1e6), Range(0, 41), IQR)
    assert scaling.shift_F[0] == 20.0
    assert scaling.scale_F[0] == pytest.approx(20.0 / 1.3489795)


def test_a_column_that_is_mostly_one_value_is_scaled_by_its_tails() -> None:
    """Sixteen times 0 and five times 3: the quartiles agree, the tails lie 3 apart."""
    scaling = fit_scaling(column(*([0.0] * 16 + [3.0] * 5)), Range(0, 21), IQR)
    assert scaling.shift_F[0] == 0.0
    assert scaling.scale_F[0] == pytest.approx(3.0 / 3.2897073)


def test_iqr_of_a_rare_flag_falls_back_to_its_deviation() -> None:
    scaling = fit_scaling(column(*([0.0] * 99 + [1.0])), Range(0, 100), IQR)
    assert scaling.shift_F[0] == pytest.approx(0.01)
    assert scaling.scale_F[0] == pytest.approx(np.sqrt(0.01 * 0.99))


@pytest.mark.parametrize("config", [STD, IQR])
@pytest.mark.parametrize("value", [0.0, 0.1, -123456.78, 1e-20])
def test_a_constant_column_has_scale_one(config: NormaliseConfig, value: float) -> None:
    values_NF = column(*([value] * 7), value + 5.0)
    scaling = fit_scaling(values_NF, Range(0, 7), config)
    assert scaling.scale_F[0] == 1.0
    assert normalise(values_NF, scaling)[:7] == pytest.approx(0.0, abs=1e-6)


def test_dust_on_a_constant_is_a_constant() -> None:
    values_NF = column(1.0, np.nextafter(np.float32(1.0), np.float32(2.0)), 1.0, 1.0)
    assert fit_scaling(values_NF, Range(0, 4), STD).scale_F[0] == 1.0


def test_normalised_features_are_clipped() -> None:
    values_NF = column(-1.0, 1.0, 1000.0, -1000.0)
    scaling = fit_scaling(values_NF, Range(0, 2), NormaliseConfig(method="std", clip=5.0))
    np.testing.assert_array_equal(normalise(values_NF, scaling)[:, 0], [-1.0, 1.0, 5.0, -5.0])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31), config=st.sampled_from([STD, IQR]), start=st.integers(0, 40), size=st.integers(1, 30)
)
def test_rows_outside_the_train_range_change_nothing(seed: int, config: NormaliseConfig, start: int, size: int) -> None:
    """qlib #1294 and StockFormer #21 fitted on rows of validation and test."""
    rng = np.random.default_rng(seed)
    values_NF = rng.standard_normal((80, 6)).astype(np.float32)
    other_NF = (100.0 * rng.standard_normal((80, 6))).astype(np.float32)
    train = Range(start, start + size)
    other_NF[start : start + size] = values_NF[start : start + size]
    one, other = fit_scaling(values_NF, train, config), fit_scaling(other_NF, train, config)
    assert one.shift_F.tobytes() == other.shift_F.tobytes()
    assert one.scale_F.tobytes() == other.scale_F.tobytes()
    assert (one.scale_F > 0.0).all()


def test_an_empty_or_outside_train_range_is_an_error() -> None:
    for train in (Range(3, 3), Range(0, 9), Range(-1, 2)):
        with pytest.raises(UserError, match="is not inside 4 bars"):
            fit_scaling(column(1.0, 2.0, 3.0, 4.0), train, STD)


@pytest.fixture
def make_closes() -> Callable[..., BarTable]:
    def make(closes: list[float], session_N: list[int], contract_N: list[int]) -> BarTable:
        close_N, zeros_N = np.array(closes), np.zeros(len(closes))
        return BarTable(
            time_N=np.arange(len(closes)), open_N=close_N, high_N=close_N, low_N=close_N, close_N=close_N,
            volume_N=zeros_N, spread_N=zeros_N, funding_N=zeros_N,
            session_N=np.array(session_N), contract_N=np.array(contract_N), contract=("H", "M"),
        )  # fmt: skip

    return make


def test_bar_move_leaves_nights_and_rolls_out(make_closes: Callable[..., BarTable]) -> None:
    """Changes 1, -1, night, 3, roll, 1: the standard deviation of 1, -1, 3, 1 is sqrt(2)."""
    table = make_closes([10.0, 11.0, 10.0, 50.0, 53.0, 90.0, 91.0], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1])
    assert bar_move(table, Range(0, 7)) == pytest.approx(np.sqrt(2.0))
    assert bar_move(table, Range(0, 3)) == 1.0


def test_bar_move_sees_the_train_range_alone(make_closes: Callable[..., BarTable]) -> None:
    table = make_closes([10.0, 11.0, 10.0, 12.0, 10.0, 14.0], [0] * 6, [0] * 6)
    changed = replace(table, close_N=np.array([900.0, 11.0, 10.0, 12.0, 10.0, 1.0]))
    assert bar_move(table, Range(1, 5)) == bar_move(changed, Range(1, 5))


def test_a_price_that_never_moves_has_no_unit(make_closes: Callable[..., BarTable]) -> None:
    with pytest.raises(UserError, match="every change of the close is the same"):
        bar_move(make_closes([10.0] * 4, [0] * 4, [0] * 4), Range(0, 4))
    with pytest.raises(UserError, match="no two bars of one session and contract"):
        bar_move(make_closes([10.0, 11.0], [0, 1], [0, 0]), Range(0, 2))
