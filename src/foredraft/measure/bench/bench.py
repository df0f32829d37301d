"""Speculative against plain decoding in one process: the order of the runs, and what is kept of each.

For each prompt the arms run as a palindrome: plain, each drafter, whatever runs once (peers, the oracle), each drafter
backwards, plain. A machine that speeds up or slows down meanwhile does so for all of them alike. A drafter that breaks
is left out from there on, and has no figures: of the others none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import sleep
from typing import Final, Protocol, TypeVar

from foredraft.core.protocols import Drafter
from foredraft.errors import ForedraftError, OptionError
from foredraft.measure.bench.oracle import LENGTH, KnownAnswer
from foredraft.measure.bench.rounds import Spent

PLAIN: Final = "none"
_Found = TypeVar("_Found")
_CALM_S: Final = 0.25  # idle threads of other libraries wait busily for up to 0.2 s, and would slow down what is next


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer that ran alone: its tokens, and its rounds after the pass that read the prompt."""

    tokens: tuple[int, ...]
    rounds: tuple[Spent, ...]


class Subject(Protocol):
    """The model under test, asked the prompts by their numbers."""

    def answer(self, prompt: int, drafter: str | Drafter, draft_tokens: int | None = None) -> Answered:
        """Answer a prompt, with a fixed draft length or the default's way to find one.

        Raises whatever a drafter raises, also where generation would have gone on without it.
        """
        ...

    def replay(self, prompt: int, drafter: str, draft_tokens: int, answer: Sequence[int]) -> Sequence[Spent]:
        """Return the rounds in which a drafter held to a length comes to ``answer``; their drafting is timed."""
        ...


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What another library answered: tokens, and the seconds of all of them but the first ``tokens - decoded``."""

    tokens: tuple[int, ...]
    decoded: int
    decode_s: float


class Peer(Protocol):
    """Another library with the same weights, decoding greedily."""

    @property
    def name(self) -> str:
        """What it is called in the table."""
        ...

    def answer(self, prompt: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Answer a prompt of token ids. May raise whatever that library raises."""
        ...


@dataclass(slots=True)
class Runs:
    """What one arm came to: its answers to each prompt [P], one a run; ``error`` says why it has none."""

    name: str
    answers: list[list[Answered]] = field(default_factory=list)
    lengths: dict[int, list[Sequence[Spent]]] = field(default_factory=dict)  # fixed length -> rounds [P], replayed
    fault: str | None = None

    def fail(self, error: BaseException) -> None:
        """Have no figures from now on: those of a part of the prompts compare with nothing."""
        self.fault = _sentence(error)
        self.answers.clear()
        self.lengths.clear()


@dataclass(slots=True)
class PeerRuns:
    """What a peer came to: its answers [P] as far as it came, and why it stopped where it did."""

    name: str
    answers: list[PeerAnswer] = field(default_factory=list)
    fault: str | None = None


def check_plan(lengths: Sequence[int], max_tokens: int) -> None:
    """Raise OptionError for answers without a second token, or a fixed length of no guesses."""
    if max_tokens < 2:
        raise OptionError(f"max_tokens must be at least 2 here, not {max_tokens}")
    for length in lengths:
        if length < 1:
            raise OptionError(f"lengths must be at least 1, not {length}")


@dataclass(slots=True)
class Bench:
    """The runs of one benchmark. ``prompts`` are token ids, ``tasks`` [P] what each belongs to.

    ``step`` is told of the runs done and their number. Raises OptionError where there is nothing to compare.
    """

    subject: Subject
    prompts: Sequence[Sequence[int]]
    tasks: Sequence[str]
    drafters: Sequence[str]
    lengths: Sequence[int]
    max_tokens: int
    peers: Sequence[Peer] = ()
    step: Callable[[int, int], None] | None = None
    calm: Callable[[float], None] = sleep
    plain: Runs = field(init=False)
    arms: list[Runs] = field(init=False)
    oracle: Runs = field(init=False)
    others: list[PeerRuns] = field(init=False)
    _done: int = 0

    def __post_init__(self) -> None:
        check_plan(self.lengths, self.max_tokens)
        self.plain, self.oracle = Runs(PLAIN), Runs(KnownAnswer.name)
        self.arms = [Runs(name) for name in self.drafters]
        self.others = [PeerRuns(peer.name) for peer in self.peers]

    def run(self) -> None:
        """Run everything, or what there is to run until no drafter and no peer is left to compare with plain decoding.

        Raises what breaks plain decoding itself; a drafter or a peer that fails is left out from there on. What ends it
        early, Ctrl-C too, leaves the prompts before it whole.
        """
        self._warm()
        for prompt in range(len(self.prompts)):
            if None not in [runs.fault for runs in self.arms] + [runs.fault for runs in self.others]:
                return
            try:
                self._prompt(prompt)
            except BaseException:
                self._forget(prompt)
                raise
        if not self.timed:
            raise OptionError("no answer had a second token, so there was nothing to time: take other prompts")

    @property
    def timed(self) -> bool:
        """Whether plain decoding was timed, so that there is something to report."""
        return any(each.rounds for runs in self.plain.answers for each in runs)

    def _forget(self, prompt: int) -> None:
        """Forget what there is of a prompt that was begun, for its runs are no palindrome."""
        for runs in (self.plain, self.oracle, *self.arms):
            del runs.answers[prompt:]
            for found in runs.lengths.values():
                del found[prompt:]
        for others in self.others:
            del others.answers[prompt:]

    def _warm(self) -> None:
        """Ask everybody once: what happens only at the first time is no cost of decoding."""
        for runs in (self.plain, *self.arms):
            self._answer(runs, 0)
        for peer, others in zip(self.peers, self.others, strict=True):
            self._ask(peer, others, 0)
            others.answers.clear()

    def _prompt(self, prompt: int) -> None:
        for runs in (self.plain, *self.arms):
            if (first := self._answer(runs, prompt)) is not None:
                runs.answers.append([first])
        for peer, others in zip(self.peers, self.others, strict=True):
            self._ask(peer, others, prompt)
        known = self.plain.answers[prompt][0].tokens
        self.oracle.answers.append([self.subject.answer(prompt, KnownAnswer(known), LENGTH)])
        self._step()
        for runs in (*reversed(self.arms), self.plain):
            if (second := self._answer(runs, prompt)) is not None:
                runs.answers[prompt].append(second)
        for runs in self.arms:
            for length in self.lengths:
                if (found := self._replay(runs, prompt, length, known)) is not None:
                    runs.lengths.setdefault(length, []).append(found)

    def _answer(self, runs: Runs, prompt: int) -> Answered | None:
        return self._try(runs, lambda: self.subject.answer(prompt, runs.name))

    def _replay(self, runs: Runs, prompt: int, length: int, known: Sequence[int]) -> Sequence[Spent] | None:
        if runs.name == PLAIN:
            return self._try(runs, list[Spent])
        return self._try(runs, lambda: self.subject.replay(prompt, runs.name, length, known))

    def _try(self, runs: Runs, ask: Callable[[], _Found]) -> _Found | None:
        """Return what an arm came to; None once it has failed, which ends nobody else."""
        try:
            return None if runs.fault is not None else ask()
        except Exception as error:  # a drafter may break in any way: loaded, asked, or when its guesses are checked
            if runs is self.plain:
                raise
            runs.fail(error)
            return None
        finally:
            self._step()

    def _ask(self, peer: Peer, runs: PeerRuns, prompt: int) -> None:
        if runs.fault is None:
            try:
                runs.answers.append(peer.answer(self.prompts[prompt], self.max_tokens))
            except (Exception, SystemExit) as error:  # another library may break in any way, and must not end ours
                runs.fault = _sentence(error)
            self.calm(_CALM_S)
        self._step()

    def _step(self) -> None:
        self._done += 1
        each = 3 + len(self.peers) + len(self.arms) * (2 + len(self.lengths))
        if self.step is not None:
            self.step(self._done, len(self.prompts) * each + 1 + len(self.arms) + len(self.peers))


def _sentence(error: BaseException) -> str:
    """Return what went wrong on one line; ours is a sentence, that of others has its kind before it."""
    words = " ".join(str(error).split())
    if isinstance(error, ForedraftError):
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
