from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.errors import UserError
from trainer.market.bars_table import BarTable
from trainer.market.build import to_market
from trainer.market.calendar import MINUTE
from trainer.market.instrument import load_instrument
from trainer.market.market import MirrorView

ES = load_instrument("es")
MIRROR = MirrorView(torch.tensor([-1.0, 1.0]), torch.zeros(2), torch.arange(2))


@pytest.fixture
def table() -> BarTable:
    price_N = np.array([5000.0, 5000.25, 5000.5, 5001.0])
    return BarTable(
        time_N=np.array([1, 2, 3, 4], dtype=np.int64) * MINUTE,
        open_N=price_N,
        high_N=price_N + 1.0,
        low_N=price_N - 1.0,
        close_N=price_N,
        volume_N=np.full(4, 10.0),
        spread_N=np.full(4, 0.25),
        funding_N=np.zeros(4),
        session_N=np.array([0, 0, 1, 1]),
        contract_N=np.zeros(4, dtype=np.int64),
    )


def test_the_market_holds_the_table_in_its_types(table: BarTable) -> None:
    features_NF = np.arange(8, dtype=np.float32).reshape(4, 2)
    market = to_market(table, features_NF, MIRROR, ES, allow_overnight=False, device="cpu")
    assert market.bars == 4
    assert market.close_N.tolist() == table.close_N.tolist()
    assert market.features_NF.tolist() == features_NF.tolist()
    assert market.bars_left_N.tolist() == [1, 0, 1, 0]
    assert market.flat_N.tolist() == [False, True, False, True]
    kinds = (market.time_N, market.session_N, market.bars_left_N, market.close_N, market.features_NF, market.flat_N)
    assert [each.dtype for each in kinds] == [torch.int64] * 3 + [torch.float64, torch.float32, torch.bool]
    assert market.mirror.sign_F.tolist() == [-1.0, 1.0]


def test_overnight_leaves_only_the_end_of_data_flat(table: BarTable) -> None:
    market = to_market(table, np.zeros((4, 2), dtype=np.float32), MIRROR, ES, allow_overnight=True, device="cpu")
    assert market.flat_N.tolist() == [False, False, False, True]


def test_the_market_does_not_share_memory_with_the_table(table: BarTable) -> None:
    market = to_market(table, np.zeros((4, 2), dtype=np.float32), MIRROR, ES, allow_overnight=True, device="cpu")
    table.close_N[0] = 1.0
    assert market.close_N[0].item() == 5000.0


def test_a_feature_that_is_not_finite_is_an_error_naming_the_bar(table: BarTable) -> None:
    features_NF = np.zeros((4, 2), dtype=np.float32)
    features_NF[2, 1] = np.nan
    with pytest.raises(UserError, match="bar 2: a feature is not finite"):
        to_market(table, features_NF, MIRROR, ES, allow_overnight=False, device="cpu")
    with pytest.raises(ValueError, match="features have 3 rows, the table has 4"):
        to_market(table, features_NF[:3], MIRROR, ES, allow_overnight=False, device="cpu")
