"""The planted faults, each with the check that must catch it; ``python -m tests.mutants.table`` prints the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parent.parent.parent / "docs" / "mutants.md"


@dataclass(frozen=True)
class Mutant:
    """In ``module``, ``old`` becomes ``new``; ``check`` is the test, with its arguments, that must fail."""

    name: str
    module: str
    old: str
    new: str
    check: str
    arguments: tuple[Any, ...] = ()


ACCEPT, ROUND, SAMPLING = "foredraft.core.accept", "foredraft.core.round", "foredraft.core.sampling"
DISTRIBUTION = "foredraft.core.distribution"
LAW, NOISE, SEQUENCE = "foredraft.core.law", "foredraft.core.noise", "foredraft.core.sequence"
DRAFT, PLANNER, TALLY = "foredraft.core.draft", "foredraft.engine.fixed_planner", "foredraft.engine.watches.tally"
TOYS = "tests.core.toys"

CHAIN = "test_enumeration.test_chain"
SPARSE = "test_enumeration.test_chain_of_sparse_laws"
WHOLE = "test_enumeration.test_whole_text_over_several_rounds"
ONEHOT = "test_enumeration.test_tree_of_certain_guesses"
SIBLINGS = "test_enumeration.test_tree_of_sampled_siblings"
FILTERED = "test_enumeration.test_filters_through_the_real_distribution"
SHAPED = "test_enumeration.test_shaping_counts_the_drafted_prefix"
EQUAL = "test_equality.test_greedy_text_is_plain_text"
SEEDED = "test_equality.test_seeded_text_is_plain_text"
RULED_OUT = "test_enumeration.test_a_token_that_the_target_rules_out_is_never_accepted"
STOP = "test_enumeration.test_stop_inside_a_draft"
NO_REUSE = "test_noise.test_no_number_is_used_twice"
ONE_CLOCK = "test_noise.test_a_place_has_one_clock_a_token_whoever_asks"
CHI = "test_statistics.test_sampled_text_has_the_target_law"
CHI_TREES = "test_statistics.test_trees_have_the_target_law"
WINNER = "test_race.test_the_winner_has_the_law"
ACCEPTANCE = "test_race.test_rounds_accept_as_often_as_the_rule_says"
HOOK = "test_sampling.test_a_law_is_worked_out_when_asked_for_and_then_remembered"
OVER = "test_law.test_over_what_another_law_lists"
NO_LAW = "test_law.test_numbers_that_are_no_law"
TWIN = "test_law.test_sparse_is_the_twin_of_dense"
FAILS_ALONE = "test_failure.test_it_fails_alone"
NODES = "test_round.test_each_token_follows_a_node"

# fmt: off
MUTANTS = [
    # the rule
    Mutant("accept always", ACCEPT, "if noise.test(guess) * q[x] < law[x]:", "if True:", CHAIN, (2, False, "ratio")),
    Mutant("u <= p/q", ACCEPT, "* q[x] < law[x]", "* q[x] <= law[x]", RULED_OUT),
    Mutant("ratio upside down", ACCEPT, "* q[x] < law[x]", "* law[x] < q[x]", CHAIN, (1, False, "ratio")),
    Mutant("resample from p", ACCEPT, "law = residual(law, q)", "pass", CHAIN, (1, False, "ratio")),
    Mutant("residual of q - p", ACCEPT, "law = residual(law, q)", "law = residual(q, law)",
           CHAIN, (1, False, "ratio")),
    Mutant("residual of |p - q|", ACCEPT, "left, 0 * left)", "left, -left)", CHAIN, (1, False, "ratio")),
    Mutant("residual not renormalised", ACCEPT, "(left / total)", "(left)", SIBLINGS, ("three", True, False, "ratio")),
    Mutant("refused certain guess stays", LAW, "zeros + 1, zeros", "zeros, zeros", ONEHOT, ("two", False, "ratio")),
    Mutant("sampled guess taken as certain (exact, but slow)", ACCEPT, "draft.laws[guess] if", "Point(x) if",
           CHAIN, (1, False, "ratio")),
    Mutant("law of another node", ACCEPT, "draft.laws[guess]", "draft.laws[guess - 1]", CHAIN, (2, False, "ratio")),
    Mutant("bonus from the row before", ACCEPT, "law = p(node)", "law = p(draft.parents[node])",
           CHAIN, (1, False, "ratio")),
    Mutant("bonus from the root's row", ACCEPT, "law = p(node)", "law = p(ROOT)", CHAIN, (2, False, "ratio")),
    Mutant("sibling tested against p", ACCEPT, "< law[x]", "< p(node)[x]", SIBLINGS, ("two", False, False, "ratio")),
    Mutant("siblings leak into the path", ACCEPT, "guesses = list(draft.children(node))",
           "guesses += draft.children(node)", ONEHOT, ("deep", False, "ratio")),
    Mutant("children of the refused are tried", ACCEPT, "law = residual(law, q)",
           "law = residual(law, q); guesses += draft.children(guess)", ONEHOT, ("deep", False, "ratio")),
    Mutant("one number for every test", ACCEPT, "noise.test(guess)", "noise.test(0)", CHAIN, (2, False, "ratio")),
    Mutant("the guess's number used for its test", ACCEPT, "noise.test(guess)", "noise._uniform(1, guess)",
           CHAIN, (1, False, "ratio")),
    # the coupled rule
    Mutant("coupled depth off by one", ACCEPT, "else depths[node])", "else depths[node] - 1)",
           CHAIN, (2, False, "coupled")),
    Mutant("coupled by the root's noise everywhere", ACCEPT, "0 if node == ROOT else depths[node]", "0",
           CHAIN, (2, False, "coupled")),
    Mutant("coupled by node instead of depth", ACCEPT, "else depths[node])", "else node + 1)",
           SEEDED, ("tree",)),
    Mutant("coupled asked for, ratio used", ROUND, "coupled(p, draft, noise) if noise.coupled else p", "p",
           CHAIN, (1, False, "coupled")),
    Mutant("ratio asked for, coupled used", ROUND, "coupled(p, draft, noise) if noise.coupled else p",
           "coupled(p, draft, noise)", CHAIN, (1, False, "ratio")),
    Mutant("coupled forgotten in the next round", NOISE, "replace(self, position=position)",
           "replace(self, position=position, coupled=False)", SEEDED, ("sampled",)),
    Mutant("drafter with noise of its own under coupled (exact, but slow)", NOISE,
           "self.race(law, depth) if self.coupled else ", "", ACCEPTANCE, ("far", "coupled")),
    Mutant("drafter with one clock for every node under ratio", NOISE,
           "if self.coupled else law.draw(self._uniform(_GUESS, node))", "", CHI_TREES, (True,)),
    Mutant("drafter races a place too early (exact, but slow)", NOISE, "self.race(law, depth) if",
           "self.race(law, depth - 1) if", CHAIN, (1, False, "coupled")),
    # the noise
    Mutant("guess and test share a stream", NOISE, "_TEST: Final = 2", "_TEST: Final = 1", CHI, ("temperature",)),
    Mutant("guess and last share a stream", NOISE, "_LAST: Final = 3", "_LAST: Final = 1", CHI, ("temperature",)),
    Mutant("choice ignored", NOISE, "self.position, self.choice)", "self.position, 0)", NO_REUSE),
    Mutant("half of the seed ignored", NOISE, "self.seed >> 32 & _WORD", "0", NO_REUSE),
    Mutant("Philox of nine rounds", NOISE, "range(10)", "range(9)", "test_noise.test_known_answers",
           ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))),
    Mutant("the same noise in every round", ROUND, "s.noise.at(len(s))", "s.noise.at(0)", WHOLE, (1, "ratio")),
    Mutant("the same clocks in every round", ROUND, "s.noise.at(len(s))", "s.noise.at(0)", WHOLE, (1, "coupled")),
    Mutant("noise counted from the end of the prompt", ROUND, "s.noise.at(len(s))",
           "s.noise.at(len(s) - s.prompt_length)", SEEDED, ("nothing",)),
    Mutant("the place in the batch enters the noise", ROUND, "[s.noise.at(len(s)) for s in sequences]",
           "[replace(s.noise.at(len(s)), choice=i) for i, s in enumerate(sequences)]",
           "test_equality.test_a_neighbour_changes_nothing", (True,)),
    Mutant("clocks without the position", NOISE, "_CLOCK, position,", "_CLOCK, 0,", NO_REUSE),
    Mutant("clocks without the choice", NOISE, "_CLOCK, position, self.choice", "_CLOCK, position, 0", NO_REUSE),
    Mutant("clocks share the guesses' stream", NOISE, "_CLOCK: Final = 4", "_CLOCK: Final = 1", NO_REUSE),
    Mutant("clocks share the tests' stream", NOISE, "_CLOCK: Final = 4", "_CLOCK: Final = 2", NO_REUSE),
    Mutant("one clock for all tokens", NOISE, "pairs >> np.uint64(1)", "pairs & np.uint64(0)", NO_REUSE),
    Mutant("one clock for two neighbouring tokens", NOISE, "(pairs & np.uint64(1))", "(pairs & np.uint64(0))",
           NO_REUSE),
    Mutant("clocks of the round, not of the place", NOISE, "self.position + depth", "self.position", ONE_CLOCK),
    Mutant("clocks uniform, not exponential", NOISE, "-np.log((whole + 0.5) / 4503599627370496)",
           "(whole + 0.5) / 4503599627370496", WINNER, ("dense", "seeds")),
    Mutant("a clock may ring at once", NOISE, "(whole + 0.5) /", "(whole + 1) /",
           "test_noise.test_a_clock_rings_in_positive_and_finite_time", (0xFFFFFFFF,)),
    # laws
    Mutant("probability does not divide the clock", LAW, "clocks(ids) / law[law > 0]", "clocks(ids)",
           WINNER, ("dense", "seeds")),
    Mutant("probability multiplies the clock", LAW, "clocks(ids) / law[law > 0]", "clocks(ids) * law[law > 0]",
           WINNER, ("sparse", "positions")),
    Mutant("the last clock wins", LAW, "np.argmin(clocks", "np.argmax(clocks", WINNER, ("dense", "positions")),
    Mutant("clocks by rank, not by token", LAW, "np.argmin(clocks(ids)", "np.argmin(clocks(np.arange(len(ids)))",
           "test_race.test_the_race_spelled_out_over_a_large_vocabulary"),
    Mutant("draw takes the upper edge", LAW, 'side="right"', 'side="left"',
           "test_law.test_draw", (np.array, [0.25, 0.5, 0.25], 0.25, 1)),
    Mutant("draw ends on a token ruled out", LAW, "index if self.probabilities[index] > 0", "index if True",
           "test_law.test_single_precision_rounds_the_top_to_one_and_still_draws_what_there_is", (np.array,)),
    Mutant("sparse draw gives the rank", LAW, "int(self.ids[Dense.draw(self, uniform)])", "Dense.draw(self, uniform)",
           TWIN),
    Mutant("sparse residual keeps what was refused", LAW, "Sparse(probabilities, self.ids)",
           "Sparse(self.probabilities, self.ids)", SPARSE, (1, "sparse", "dense", "ratio")),
    Mutant("an unlisted token has its neighbour's probability", LAW, "and self.ids[i] == token", "", OVER),
    Mutant("an unlisted token covers with its neighbour's", LAW, "np.where(self.ids[at] == p.ids, ", "np.where(True, ",
           SPARSE, (2, "dense", "sparse", "ratio")),
    Mutant("a listed token looked up one too far", LAW, "np.searchsorted(self.ids, p.ids)",
           'np.searchsorted(self.ids, p.ids, side="right")', SPARSE, (1, "sparse", "sparse", "ratio")),
    Mutant("the last listed token is lost", LAW, "len(self.ids) - 1)", "len(self.ids) - 2)", OVER),
    Mutant("dense over sparse by rank", LAW, "self.probabilities[p.ids]", "self.probabilities[: len(p.ids)]",
           SPARSE, (1, "sparse", "dense", "ratio")),
    Mutant("a token beyond the vocabulary fits", LAW, "int(self.ids[-1]) < vocabulary",
           "int(self.ids[-1]) <= vocabulary", "test_law.test_fits", (np.array,)),
    Mutant("numbers that do not sum to one fit", LAW, "<= 1e-3", "<= 1e3", NO_LAW, (np.array,)),
    Mutant("negative numbers fit", LAW, "xp.all(numbers >= 0)", "xp.all(numbers >= -1)", NO_LAW, (np.array,)),
    Mutant("tokens in any order fit", LAW, "np.diff(self.ids) > 0", "np.diff(self.ids) > -9", NO_LAW, (np.array,)),
    # rows, shaping and filters
    Mutant("greedy rows off by one", DISTRIBUTION, "best[start + 1 + node]", "best[start + node]", EQUAL, ("perfect",)),
    Mutant("sampled rows off by one", DISTRIBUTION, "[start + 1 + node, :]", "[start + node, :]",
           FILTERED, ("temperature", "ratio")),
    Mutant("rows of a batch packed too close", DISTRIBUTION, "start += len(draft) + 1", "start += len(draft)",
           EQUAL, ("garbage",)),
    Mutant("drafted prefix not counted by the shaping", DISTRIBUTION,
           "path = tuple(draft.tokens[i] for i in draft.path(node))", "path = ()",
           SHAPED, ("not shaped", False, "ratio")),
    Mutant("shaping of the first place only", DISTRIBUTION, "row if sequence.shaping is None else",
           "row if sequence.shaping is None or path else", SHAPED, ("shaped alike", False, "coupled")),
    Mutant("drafted prefix in the wrong order", DISTRIBUTION, "in draft.path(node))", "in reversed(draft.path(node)))",
           SHAPED, ("certain", False, "ratio")),
    Mutant("drafted prefix one short", DISTRIBUTION, "in draft.path(node))", "in draft.path(node)[:-1])",
           SHAPED, ("certain", False, "coupled")),
    Mutant("all of the tree counted as the prefix", DISTRIBUTION, "draft.tokens[i] for i in draft.path(node)",
           "draft.tokens[i] for i in range(node + 1)", SHAPED, ("not shaped", True, "coupled")),
    Mutant("greedy laws not shaped", DISTRIBUTION, "s.params.greedy and s.shaping is None", "s.params.greedy",
           EQUAL, ("nothing",)),
    Mutant("the sequence's own law ignored", DISTRIBUTION, "return sequence.law(", "return type(sequence)([0], 9).law(",
           HOOK),
    Mutant("a law worked out each time it is asked for (exact, but slow)", DISTRIBUTION,
           "        return known[node]\n\n    return law", "        return known.pop(node)\n\n    return law",
           HOOK),
    Mutant("residual with the untruncated p", DISTRIBUTION, "path, sequence.params)",
           "path, sequence.params if node == -1 else SamplingParams(sequence.params.temperature))",
           FILTERED, ("top-k", "ratio")),
    Mutant("temperature ignored", SAMPLING, "/ max(params.temperature, 1e-30)", "", FILTERED, ("temperature", "ratio")),
    Mutant("nucleus one short", SAMPLING, "near[min(inside, near.shape[0] - 1)]", "near[max(inside - 1, 0)]",
           FILTERED, ("top-p", "ratio")),
    Mutant("min-p of the total", SAMPLING, "params.min_p * xp.max(law)", "params.min_p", FILTERED, ("min-p", "ratio")),
    Mutant("not renormalised after filters", SAMPLING, "    return law / xp.sum(law)", "    return law",
           FILTERED, ("top-p", "ratio")),
    # commit and keep
    Mutant("kept one too many", ROUND, "path[: committed - 1]", "path[:committed]", EQUAL, ("overlong",)),
    Mutant("kept one too few", ROUND, "path[: committed - 1]", "path[: max(committed - 2, 0)]", EQUAL, ("perfect",)),
    Mutant("end inside a draft ignored", ROUND, "while sequence.append(tokens[committed - 1]) and committed <",
           "while (sequence.append(tokens[committed - 1]) or True) and committed <", EQUAL, ("overlong",)),
    Mutant("end of text ignored", SEQUENCE, "ended or token in self.stop_ids", "ended", STOP, ("ratio",)),
    Mutant("stop string ignored", SEQUENCE, "if ended or token in", "if token in", EQUAL, ("perfect",)),
    Mutant("stop string not told of a stop id", SEQUENCE, "ended = self.ends",
           "ended = token not in self.stop_ids and self.ends", EQUAL, ("perfect",)),
    Mutant("budget overshot", SEQUENCE, "elif self.room <= 0:", "elif self.room < 0:", EQUAL, ("perfect",)),
    Mutant("bonus dropped (exact, but slow)", ROUND, "in kept.path] + [last]", "in kept.path] or [last]",
           "test_equality.test_a_perfect_draft_saves_the_passes_it_should"),
    Mutant("refused counted as accepted", ROUND, "min(committed, len(kept.path))", "min(committed, len(draft))",
           EQUAL, ("garbage",)),
    Mutant("uncommitted counted as accepted", ROUND, "min(committed, len(kept.path))", "len(kept.path)",
           EQUAL, ("overlong",)),
    Mutant("bonus called a correction", ROUND, 'if draft.children(node) else "bonus"', 'if True else "bonus"',
           EQUAL, ("perfect",)),
    Mutant("over-long drafts not cut", ROUND, "draft = draft.first(limit)", "pass",
           "test_round.test_what_is_over_the_quote_is_cut"),
    Mutant("laws not cut with their tokens", DRAFT, "self.laws[:nodes]", "self.laws[-nodes:]",
           "test_round.test_a_chain_is_a_tree"),
    Mutant("depth counted from the wrong parent", DRAFT, "depths[parent] + 1)", "depths[-1] + 1)",
           ONEHOT, ("forked", False, "coupled")),
    # failures, watches, counts
    Mutant("the fault not kept", SEQUENCE, 'self.finish_reason, self.error = "error", error',
           'self.finish_reason = "error"', FAILS_ALONE, ("nan", 0, False, True)),
    Mutant("a failed sequence counted", TALLY, "        if not outcome.tokens:\n            return\n", "",
           FAILS_ALONE, ("nan", 3, False, True)),
    Mutant("a failed sequence ended as if it were done", ROUND, "sequence.fail(error)",
           'sequence.fail(error); sequence.finish_reason = "stop"', FAILS_ALONE, ("shaping", 3, True, False)),
    Mutant("only the first watch told", ROUND, "in watches:", "in watches[:1]:",
           "test_round.test_planner_and_watches_see_the_same_round_after_the_drafter"),
    Mutant("watches told a neighbour's laws", ROUND, "tuple(p), began", "tuple(reversed(p)), began",
           SEEDED, ("nothing",)),
    Mutant("watches told of texts not yet grown", ROUND, "Round(tuple(sequences),",
           "Round(tuple(replace(s, tokens=s.tokens[: s.prompt_length]) for s in sequences),", SEEDED, ("nothing",)),
    Mutant("watches told before the drafter", ROUND, "    drafter.observe(sequences, outcomes, scored)\n    done =",
           "    done =", "test_round.test_planner_and_watches_see_the_same_round_after_the_drafter"),
    Mutant("a token's node off by one", DRAFT, "(ROOT, *self.kept)[", "(*self.kept, ROOT)[", NODES),
    Mutant("a node for a token that was not drawn", DRAFT, "(ROOT, *self.kept)[: len(self.tokens)]",
           "(ROOT, *self.kept)", NODES),
    Mutant("no room left for the last token", PLANNER, "s.room - 1", "s.room", "test_round.test_fixed_planner"),
    Mutant("the reading of the prompt drafted for", PLANNER, "0 if len(s) == s.prompt_length else ", "",
           "test_round.test_fixed_planner"),
    Mutant("the reading of the prompt counted", TALLY, "self.answers += 1\n            return", "self.answers += 1",
           "test_round.test_tally"),
    # drafters
    Mutant("law at another temperature", TOYS, "            laws.append(q)\n        return Draft.chain",
           "            laws.append(type(q)(q.probabilities**2 / sum(q.probabilities**2)))\n        return Draft.chain",
           CHAIN, (1, False, "ratio")),
    Mutant("argmax guess with the whole law", TOYS, "noise.guess(q, len(tokens), len(tokens))",
           "int(q.probabilities.argmax())", CHAIN, (1, False, "ratio")),
    Mutant("sampled guess dropped for its low q", TOYS, "            tokens.append(token)\n            l",
           "            if q[token] * 3 < 1:\n                break\n            tokens.append(token)\n            l",
           CHAIN, (1, False, "ratio")),
    Mutant("later sibling with the first one's law", TOYS, "laws.append(q)\n                token",
           "laws.append(law(path))\n                token", SIBLINGS, ("two", False, False, "ratio")),
    Mutant("every guess by the first place's clocks (exact, but slow)", TOYS,
           "noise.guess(q, len(tokens), len(tokens))", "noise.guess(q, len(tokens), 0)", CHAIN, (2, False, "coupled")),
    Mutant("siblings by the first place's clocks (exact, but slow)", TOYS, "len(path) - len(sequence.tokens)", "0",
           "test_race.test_siblings_are_the_tokens_whose_clocks_ring_first"),
]
# fmt: on

HEAD = """# Mutants

Each row is a fault planted in the source, and the test that fails because of it. `tests/mutants` plants them one at a
time in a fresh copy of the core and runs the named test of `tests/core` there, with the arguments given; the test also
passes without the fault. Faults that leave the law intact and only cost speed are marked: an acceptance, enumerated or
measured, catches them. `python -m tests.mutants.table` prints this page, and a test holds it to the table.

| mutant | in | killed by |
|---|---|---|
"""


def page() -> str:
    """Return all of it as a page."""
    rows = []
    for mutant in MUTANTS:
        arguments = ", ".join(getattr(a, "__name__", repr(a)) for a in mutant.arguments)
        name = mutant.name.replace("|", "\\|")
        where = mutant.module.removeprefix("foredraft.").removeprefix("tests.core.")
        rows.append(f"| {name} | {where} | `{mutant.check}({arguments})` |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
