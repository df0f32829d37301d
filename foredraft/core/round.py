"""One round of speculative decoding: draft, verify in one pass, accept, commit, keep.

Plain decoding is this with no guesses. There is no other loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from foredraft.core.accept import accept
from foredraft.core.draft import Draft, Drafter, Kept, Outcome, Planner, Quote, Target
from foredraft.core.law import Dense
from foredraft.core.noise import Noise
from foredraft.core.sampling import distribution
from foredraft.core.sequence import Sequence as Text
from foredraft.core.tally import Tally
from foredraft.errors import DrafterError

NO_GUESS = Draft()


def run_round(
    sequences: Sequence[Text], target: Target, drafter: Drafter, planner: Planner, tally: Tally
) -> list[Outcome]:
    """Commit at least one token to every sequence; return what was committed to each.

    Effects: the sequences grow, the target's cache holds all but their last token, the drafter and the planner have
    seen the outcome, ``tally`` has counted it.
    """
    began = perf_counter()
    noises = [s.noise.at(len(s)) for s in sequences]
    quotes = planner.quote(sequences)  # the price of a row now
    drafts = propose(sequences, drafter, quotes, noises, target.vocabulary)  # 1  guess while it is worth it
    drafted = perf_counter()
    scored = target.score(sequences, drafts, drafter.taps)  # 2  one pass over every guess
    verified = perf_counter()
    p = distribution(scored.logits, drafts, [s.params for s in sequences])  # greedy is a one-hot p
    kept = [accept(d, law, n) for d, law, n in zip(drafts, p, noises, strict=True)]  # 3  the surviving path
    outcomes = [commit(s, d, k, n) for s, d, k, n in zip(sequences, drafts, kept, noises, strict=True)]  # 4  append
    target.keep(sequences, outcomes)  # 5  forget what was refused
    drafter.observe(sequences, outcomes, scored)
    planner.record(outcomes)
    tally.record(
        sequences, outcomes, draft_s=drafted - began, verify_s=verified - drafted, all_s=perf_counter() - began
    )
    return outcomes


def propose(
    sequences: Sequence[Text], drafter: Drafter, quotes: Sequence[Quote], noises: Sequence[Noise], vocabulary: int
) -> list[Draft]:
    """Return a draft a sequence: the drafter's, cut to what there is room for; none where no guess has room.

    Raises DrafterError if the drafter answers for the wrong number of sequences, guesses a token that does not exist or
    gives a law of another vocabulary.
    """
    asked = [i for i, quote in enumerate(quotes) if quote.limit > 0]
    drafts = [NO_GUESS] * len(sequences)
    if not asked:
        return drafts
    answer = drafter.propose([sequences[i] for i in asked], [quotes[i] for i in asked], [noises[i] for i in asked])
    if len(answer) != len(asked):
        raise DrafterError(f"{drafter.name}: {len(answer)} drafts for {len(asked)} sequences")
    for i, draft in zip(asked, answer, strict=True):
        drafts[i] = draft.first(quotes[i].limit)
        for token in drafts[i].tokens:
            if not 0 <= token < vocabulary:
                raise DrafterError(f"{drafter.name}: guessed token {token}, outside the vocabulary of {vocabulary}")
        for law in drafts[i].laws or ():
            if isinstance(law, Dense) and law.probabilities.shape != (vocabulary,):
                shape = tuple(law.probabilities.shape)
                raise DrafterError(f"{drafter.name}: a law of shape {shape}, for a vocabulary of {vocabulary}")
    return drafts


def commit(sequence: Text, draft: Draft, kept: Kept, noise: Noise) -> Outcome:
    """Append the surviving path and one token drawn from the law after it; stop where the sequence stops."""
    last = kept.law.draw(noise.last())
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
