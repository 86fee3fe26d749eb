"""Categorical projection: hand-worked cases, then a float64 oracle written as loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.agent.projection import bellman, dense, overflow, position, project, scattered


def _project(probability: list[float], target: list[float], atoms: list[float]) -> Tensor:
    return project(torch.tensor([[[probability]]]), torch.tensor([[target]]), torch.tensor([atoms]))[0, 0, 0]


def _oracle(probability: list[float], target: list[float], atoms: list[float]) -> list[float]:
    """Bellemare et al. 2017, equation 7, for any sorted support."""
    mass = [0.0] * len(atoms)
    for p, x in zip(probability, target, strict=True):
        x = min(max(x, atoms[0]), atoms[-1])
        for i in range(len(atoms) - 1):
            low, high = atoms[i], atoms[i + 1]
            if low <= x <= high:
                share = (x - low) / (high - low)
                mass[i] += p * (1.0 - share)
                mass[i + 1] += p * share
                break
    return mass


def test_a_target_that_is_the_support_keeps_the_distribution() -> None:
    assert (
        _project([0.2, 0.3, 0.5], [-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]).tolist() == torch.tensor([0.2, 0.3, 0.5]).tolist()
    )


def test_a_target_between_two_atoms_is_shared_by_nearness() -> None:
    torch.testing.assert_close(_project([1.0, 0, 0], [0.25, 9, 9], [-1.0, 0.0, 1.0]), torch.tensor([0.0, 0.75, 0.25]))


def test_targets_outside_are_clamped_to_the_ends() -> None:
    assert _project([0.25, 0.25, 0.5], [-3.0, -1.5, 7.0], [-1.0, 0.0, 1.0]).tolist() == [0.5, 0.0, 0.5]


def test_target_exactly_on_an_atom_keeps_its_mass_there() -> None:
    """lower = upper: mass must neither vanish nor double."""
    for i, atom in enumerate([-1.0, -0.5, 0.0, 0.5, 1.0]):
        mass = _project([1.0, 0, 0, 0, 0], [atom, 0, 0, 0, 0], [-1.0, -0.5, 0.0, 0.5, 1.0])
        assert mass.tolist() == [float(j == i) for j in range(5)]


def test_terminal_target_is_the_reward_itself_projected() -> None:
    atoms = torch.tensor([[-1.0, 0.0, 1.0]])
    target = bellman(torch.tensor([[0.5]]), torch.tensor([[0.0]]), atoms)
    assert target.tolist() == [[[0.5, 0.5, 0.5]]]
    mass = project(torch.tensor([[[[0.2, 0.3, 0.5]]]]), target, atoms)
    torch.testing.assert_close(mass[0, 0, 0], torch.tensor([0.0, 0.5, 0.5]))


def test_uneven_supports_share_by_distance_to_their_own_neighbours() -> None:
    torch.testing.assert_close(
        _project([0.5, 0.5, 0, 0], [2.5, -1.0, 0, 0], [-2.0, 0.0, 1.0, 4.0]), torch.tensor([0.25, 0.25, 0.25, 0.25])
    )


def test_position_is_exact_on_every_atom_of_the_default_support() -> None:
    atoms = torch.linspace(-1.0, 1.0, 52).unsqueeze(0)
    assert position(atoms.unsqueeze(1), atoms)[0, 0].tolist() == [float(i) for i in range(52)]


def test_overflow_counts_what_lies_beyond_each_end_and_the_moments_before_clamping() -> None:
    seen = overflow(
        torch.tensor([[[[0.1, 0.2, 0.3, 0.4]]]]),
        torch.tensor([[[-2.0, -1.0, 1.0, 1.5]]]),
        torch.tensor([[-1.0, 0, 0.5, 1]]),
    )
    torch.testing.assert_close(torch.stack((seen.below_LBG, seen.above_LBG)).flatten(), torch.tensor([0.1, 0.4]))
    torch.testing.assert_close(torch.stack((seen.mean_LBG, seen.square_LBG)).flatten(), torch.tensor([0.5, 1.8]))


_value = st.floats(-5, 5, width=32)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[float], list[float], list[float]]:
    count = draw(st.integers(2, 8))
    start = draw(st.floats(-3, 0, width=32))
    steps = draw(st.lists(st.floats(0.125, 2, width=32), min_size=count - 1, max_size=count - 1))
    atoms = [start]
    for step in steps:
        atoms.append(float(torch.tensor(atoms[-1] + step, dtype=torch.float32)))
    raw = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count).filter(any))
    target = draw(st.lists(st.one_of(_value, st.sampled_from(atoms)), min_size=count, max_size=count))
    return [r / sum(raw) for r in raw], target, atoms


@settings(max_examples=200, deadline=None)
@given(_cases())
def test_projection_equals_the_float64_oracle_and_keeps_mass_one(
    case: tuple[list[float], list[float], list[float]],
) -> None:
    probability, target, atoms = case
    mass = _project(probability, target, atoms)
    torch.testing.assert_close(
        mass.double(), torch.tensor(_oracle(probability, target, atoms)).double(), atol=2e-6, rtol=0
    )
    assert abs(float(mass.double().sum()) - 1.0) < 1e-6
    assert float(mass.min()) >= 0.0


@settings(max_examples=50, deadline=None)
@given(_cases())
def test_projection_keeps_the_mean_of_what_is_inside(case: tuple[list[float], list[float], list[float]]) -> None:
    probability, target, atoms = case
    inside = [min(max(x, atoms[0]), atoms[-1]) for x in target]
    mean = sum(p * x for p, x in zip(probability, inside, strict=True))
    mass = _project(probability, target, atoms).double()
    assert abs(float((mass * torch.tensor(atoms).double()).sum()) - mean) < 2e-5


def test_both_ways_to_project_agree() -> None:
    """The CPU scatters, the GPU multiplies by dense weights."""
    index = torch.rand(2, 64, 7, generator=torch.Generator().manual_seed(0)) * 6
    index[0, 0] = torch.tensor([0.0, 6.0, 3.0, 3.0, 5.999, 0.001, 6.0])
    probability = torch.softmax(torch.arange(2.0 * 64 * 4 * 7).sin().view(2, 64, 4, 7), dim=-1)
    torch.testing.assert_close(scattered(probability, index, 7), dense(probability, index, 7), rtol=0.0, atol=1e-6)
