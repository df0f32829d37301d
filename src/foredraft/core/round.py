"""One round of speculative decoding: draft, verify in one pass, accept, commit, keep.

Plain decoding is this with no guesses. There is no other loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from foredraft.core.accept import accept, coupled
from foredraft.core.distribution import distribution
from foredraft.core.draft import Draft, Kept, Outcome
from foredraft.core.law import Dense, Laws, Point
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Planner, Quote, Round, Target, Watch
from foredraft.core.sequence import TokenSequence
from foredraft.errors import DrafterError, GenerationError, NumericalError

NO_GUESS = Draft()


def run_round(
    sequences: Sequence[TokenSequence],
    target: Target,
    drafter: Drafter,
    planner: Planner,
    watches: Sequence[Watch] = (),
) -> list[Outcome]:
    """Commit at least one token to every sequence; return what was committed to each.

    Effects: the sequences grow, the target's cache holds all but their last token; drafter, planner and ``watches``
    have seen the round. A sequence whose law cannot be formed fails alone.
    """
    began = perf_counter()
    noises = [s.noise.at(len(s)) for s in sequences]
    quotes = planner.quote(sequences)  # the price of a row now
    drafts = propose(sequences, drafter, quotes, noises, target.vocabulary)  # 1  guess while it is worth it
    drafted = perf_counter()
    scored = target.score(sequences, drafts, drafter.taps)  # 2  one pass over every guess
    verified = perf_counter()
    p = distribution(scored.logits, sequences, drafts)  # greedy is a one-hot p
    outcomes = [decide(*each) for each in zip(sequences, drafts, p, noises, strict=True)]  # 3 and 4
    target.keep(sequences, outcomes)  # 5  forget what was rejected
    drafter.observe(sequences, outcomes, scored)
    done = Round(tuple(sequences), tuple(outcomes), scored, tuple(p), began, drafted, verified)
    planner.record(done)
    for watch in watches:
        watch.see(done)
    return outcomes


def propose(
    sequences: Sequence[TokenSequence],
    drafter: Drafter,
    quotes: Sequence[Quote],
    noises: Sequence[Noise],
    vocabulary: int,
) -> list[Draft]:
    """Return a draft a sequence: the drafter's, cut to what there is room for; none where no guess has room.

    Raises DrafterError if the drafter changed a sequence, or answered with something that is not a draft for each.
    """
    asked = [i for i, quote in enumerate(quotes) if quote.limit > 0]
    drafts = [NO_GUESS] * len(sequences)
    if not asked:
        return drafts
    lengths = [len(s) for s in sequences]
    answer = drafter.propose([sequences[i] for i in asked], [quotes[i] for i in asked], [noises[i] for i in asked])
    check_unchanged(drafter.name, sequences, lengths)
    answered = drafts_of(answer, drafter.name, [quotes[i].limit for i in asked], vocabulary)
    for i, draft in zip(asked, answered, strict=True):
        drafts[i] = draft
    return drafts


def check_unchanged(name: str, sequences: Sequence[TokenSequence], lengths: Sequence[int]) -> None:
    """Raise DrafterError if ``propose`` left a sequence with another length than it had."""
    if [len(s) for s in sequences] != lengths:
        raise DrafterError(f"{name}: propose changed a sequence, which it may only read")


def drafts_of(
    answer: object, name: str, limits: Sequence[int], vocabulary: int | None, lead: str | None = None
) -> list[Draft]:
    """Return what ``propose`` answered for as many sequences as there are ``limits``: a draft each, ``checked``.

    Without a ``vocabulary`` the drafter is trusted: its drafts are taken as they are. ``lead`` begins the sentences
    about the answer as a whole; it is the name where it is None. Raises DrafterError for anything else.
    """
    lead = f"{name}: " if lead is None else lead
    if not isinstance(answer, list | tuple) or len(answer) != len(limits):
        what = f"{len(answer)} drafts" if isinstance(answer, list | tuple) else f"a {type(answer).__name__}"
        raise DrafterError(f"{lead}propose gave {what} for {len(limits)} sequences")
    if vocabulary is not None:
        return [checked(draft, name, limit, vocabulary) for draft, limit in zip(answer, limits, strict=True)]
    for draft in answer:
        _check_kind(draft, lead)
    return list(answer)


def checked(draft: Draft, name: str, limit: int, vocabulary: int) -> Draft:
    """Return the first ``limit`` nodes of a stranger's draft, under his name where it bears none, and known to be one.

    Raises DrafterError for anything else, a guess that does not exist, or a law that it cannot have been drawn from.
    """
    _check_kind(draft, f"{name}: ")
    draft = draft.first(limit)
    for token in draft.tokens:
        if not 0 <= token < vocabulary:
            raise DrafterError(f"{name}: guessed token {token}, outside the vocabulary of {vocabulary}")
    for token, law in zip(draft.tokens, draft.laws or (), strict=False):
        if not isinstance(law, Point | Dense):
            raise DrafterError(f"{name}: a distribution is a Point, a Dense or a Sparse, not a {type(law).__name__}")
        if not law.fits(vocabulary):
            raise DrafterError(f"{name}: not a distribution over the vocabulary of {vocabulary}: numbers that sum to 1")
        if not law[token] > 0:  # NaN included
            raise DrafterError(f"{name}: guessed token {token}, which its distribution rules out")
    return replace(draft, source=name) if draft.source == NO_GUESS.source else draft


def _check_kind(draft: object, lead: str) -> None:
    if not isinstance(draft, Draft):
        raise DrafterError(f"{lead}propose gave a {type(draft).__name__} where a Draft belongs")


def decide(sequence: TokenSequence, draft: Draft, p: Laws, noise: Noise) -> Outcome:
    """Accept and commit for one sequence, or end it with the fault that keeps its next token from being drawn."""
    try:
        kept = accept(draft, coupled(p, draft, noise) if noise.coupled else p, noise)  # 3  the surviving path
        return commit(sequence, draft, kept, noise)  # 4  append
    except (NumericalError, GenerationError) as error:
        sequence.fail(error)
        return Outcome(draft, (), 0, (), (), sequence.finish_reason)


def commit(sequence: TokenSequence, draft: Draft, kept: Kept, noise: Noise) -> Outcome:
    """Append the surviving path and one token drawn from the law after it; stop where the sequence stops."""
    law = kept.law
    last = law.token if isinstance(law, Point) else law.draw(noise.last())  # a number takes time
    tokens = [draft.tokens[node] for node in kept.path] + [last]
    committed = 1
    while sequence.append(tokens[committed - 1]) and committed < len(tokens):
        committed += 1
    tokens = tokens[:committed]
    accepted = min(committed, len(kept.path))
    origins = [draft.source] * accepted + [_last_origin(draft, kept)] * (committed - accepted)
    return Outcome(draft, tuple(tokens), accepted, kept.path[: committed - 1], tuple(origins), sequence.finish_reason)


def _last_origin(draft: Draft, kept: Kept) -> str:
    if len(draft) == 0:
        return "plain"
    node = kept.path[-1] if kept.path else -1
    return "correction" if draft.children(node) else "bonus"
