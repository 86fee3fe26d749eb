"""Features of a real year of one-minute bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.features.compute import FeatureTable, compute_features
from trainer.market.features.config import FeatureConfig
from trainer.market.folds import Range
from trainer.market.instrument import load_instrument
from trainer.market.normalise import fit_scaling, normalise
from trainer.market.normalise_config import NormaliseConfig
from trainer.market.sources.config import FileConfig
from trainer.market.sources.files import read_bars


@pytest.fixture(scope="module")
def yes_bank(data_dir: Path) -> BarTable:
    path = data_dir / "bars" / "yesbank_nse_1m_2019.parquet"
    return read_bars(FileConfig(path=str(path)), load_instrument("nse-stock")).table


@pytest.fixture(scope="module")
def features(yes_bank: BarTable) -> FeatureTable:
    return compute_features(yes_bank, FeatureConfig())


def test_the_deepest_gap_is_in_overnight_gap_and_in_no_return(yes_bank: BarTable, features: FeatureTable) -> None:
    """30 April 2019: 237.80 at the last close, open 213.50, first close 201.65."""
    column = {name: features.values_NF[:, index] for index, name in enumerate(features.names)}
    first = int(np.argmin(column["overnight_gap"]))
    assert (yes_bank.close_N[first - 1], yes_bank.open_N[first], yes_bank.close_N[first]) == (237.8, 213.5, 201.65)
    assert column["overnight_gap"][first] == pytest.approx(np.log(213.5 / 237.8))
    assert column["return_1"][first] == pytest.approx(np.log(201.65 / 213.5))
    evening = np.log(237.8 / yes_bank.close_N[first - 4])
    assert column["return_4"][first] == pytest.approx(evening + np.log(201.65 / 213.5), rel=1e-4)


def test_few_values_are_clipped_after_normalising(features: FeatureTable) -> None:
    scaling = fit_scaling(features.values_NF, Range(375, features.values_NF.shape[0]), NormaliseConfig())
    clipped_F = (np.abs(normalise(features.values_NF, scaling)) >= scaling.clip).mean(axis=0)
    assert clipped_F.max() < 0.02, features.names[int(clipped_F.argmax())]
