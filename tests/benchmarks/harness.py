"""Figures, what they yield, and how to measure two things so that their ratio means something.

@figure("N99", "a nap, against a shorter one")
def nap(effort: Effort) -> Iterator[Row]:
    blocks = {"nap": lambda: timed(sleep, 0.02), "short": lambda: timed(sleep, 0.01)}
    samples = interleave(blocks, rounds=effort.rounds(20))
    yield samples.row("a nap", "nap", "short", unit="s", goal=at_most(3))
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a figure may do: all of it, or a fifth for a quick look."""

    quick: bool = False

    def events(self, full: int) -> int:
        return full // 5 if self.quick else full

    def rounds(self, full: int) -> int:
        return max(full // 5, 1) if self.quick else full


@dataclass(frozen=True)
class Goal:
    """What a row should reach: a bound of its ratio, or of what was measured."""

    of: Literal["ratio", "measured"]
    sign: Literal["≤", "≥"]
    bound: float

    def __str__(self) -> str:
        return f"{'' if self.of == 'ratio' else 'measured '}{self.sign} {self.bound:,}"

    def holds(self, row: "Row") -> bool:
        value = getattr(row, self.of)
        return bool(value <= self.bound if self.sign == "≤" else value >= self.bound)


def at_most(bound: float, of: Literal["ratio", "measured"] = "ratio") -> Goal:
    return Goal(of, "≤", bound)


def at_least(bound: float, of: Literal["ratio", "measured"] = "ratio") -> Goal:
    return Goal(of, "≥", bound)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a figure. `ratio` is the median of the rounds' own ratios; `spread` is their middle half.

    What has nothing to be compared with leaves these out.
    """

    what: str
    unit: str
    measured: float
    against: str = ""
    reference: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    goal: Goal | None = None

    @property
    def holds(self) -> bool | None:
        return None if self.goal is None else self.goal.holds(self)


Measure = Callable[[Effort], Iterator[Row]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    id: str
    description: str
    measure: Measure


FIGURES: list[Figure] = []


def figure(id: str, description: str) -> Callable[[Measure], Measure]:
    """Register a function that measures and yields rows. Families may share an id: each measures its side."""

    def register(measure: Measure) -> Measure:
        if any(known.description == description for known in FIGURES):
            raise ValueError(f"Figure {id}, {description}, is registered twice.")
        FIGURES.append(Figure(id=id, description=description, measure=measure))
        return measure

    return register


@dataclass(frozen=True)
class Samples:
    """What each block measured, round by round."""

    values: Mapping[str, list[float]]

    def ratios(self, measured: str, reference: str) -> list[float]:
        return [a / b for a, b in zip(self.values[measured], self.values[reference], strict=True)]

    def row(self, what: str, measured: str, reference: str, *, unit: str, goal: Goal | None = None) -> Row:
        """Compare two blocks by the median of the ratios that were taken in the same round."""
        ratios = self.ratios(measured, reference)
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return Row(
            what=what,
            unit=unit,
            measured=median(self.values[measured]),
            against=reference,
            reference=median(self.values[reference]),
            ratio=median(ratios),
            spread=(low, high),
            goal=goal,
        )


def interleave(blocks: Mapping[str, Callable[[], float]], *, rounds: int) -> Samples:
    """Run every block once per round, each round beginning with another one."""
    names = list(blocks)
    values: dict[str, list[float]] = {name: [] for name in names}
    gc.freeze()  # what is there already need not be looked through each time
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            values[name].append(blocks[name]())
    return Samples(values)


def timed(function: Callable[..., Any], *arguments: Any) -> float:
    """How many seconds a call takes."""
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started
