"""``foredraft bench``: drafters against plain decoding, on this machine, by the code that answers requests."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import find_own_classes, load_model, token_ids
from foredraft.cli.arguments.parser import Once, Parser, number, whole, wholes
from foredraft.cli.arguments.prompts import read_lines
from foredraft.cli.terminal.bench_table import tell
from foredraft.cli.terminal.console import Console
from foredraft.errors import DrafterError, OptionError

if TYPE_CHECKING:
    from foredraft.api import LanguageModel
    from foredraft.core.protocols import Drafter, Planner, Watch
    from foredraft.measure.bench.bench import Answered, Bench, Peer
    from foredraft.measure.bench.rounds import Spent
    from foredraft.options import Options

_EPILOG: Final = """\
examples:
  foredraft bench
  foredraft bench --prompts questions.jsonl --per-task 3 --drafters auto,lookup,suffix+model:PATH
  foredraft bench --model PATH --temperature 0.8 --seed 1 --json
  foredraft bench --model model.gguf --peers

Every drafter runs interleaved with plain decoding (plain, drafter, drafter, plain), and its texts are compared with
plain ones. oracle is a drafter that knows the answer; best is the fixed length that would have been fastest.
Exit status 0 if every drafter ran, 1 if one failed: its row says why, and the others have theirs.
"""
_FAILED: Final = 1
MAX_TOKENS: Final = 128
LENGTHS: Final = (1, 2, 4, 8)


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft bench [options]"
    group = parser.add_argument_group("what is compared")
    arguments.add_model_name(group)
    group.add_argument("--drafters", metavar="D,...", action=Once, help="as --drafter of generate, with commas (auto)")
    group.add_argument("--lengths", metavar="N,...", type=wholes, help="fixed draft lengths in hindsight (1,2,4,8)")
    group.add_argument("--peers", action="store_true", help="transformers and llama-cpp-python too, where installed")
    group = parser.add_argument_group("on what")
    group.add_argument("--prompts", metavar="FILE", help="JSON lines with prompt or turns (the first), and category")
    group.add_argument("--per-task", metavar="N", type=whole, help="at most N prompts of a category")
    group.add_argument("--max-tokens", metavar="N", type=whole, help=f"longest answer (default {MAX_TOKENS})")
    group.add_argument("--temperature", metavar="T", type=number, help="0 (default) is greedy")
    group.add_argument("--seed", metavar="N", type=whole, help="of drawn texts (default 0): the same with any drafter")
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Measure, and tell; every option and prompt is read before a model is loaded. Exits 1 where a drafter failed.

    What Ctrl-C ends is told as far as whole prompts came.
    """
    from foredraft.measure.bench.bench import Bench, check_plan

    drafters, options = _drafters(args.drafters), _options(args)
    lengths = tuple(sorted(set(args.lengths or LENGTHS)))
    check_plan(lengths, options["max_tokens"])
    texts, tasks = _prompts(args, console)
    model = _load(args, console)
    if model.loaded.no_speculation_reason is not None:
        raise OptionError(f"there is nothing to compare: {model.loaded.no_speculation_reason}")
    ids = token_ids(texts, model.loaded, console)
    peers, absent = _peers(args, model, max(map(len, ids)) + options["max_tokens"])
    bench = Bench(
        Subject(model, ids, options),
        ids,
        tasks,
        drafters,
        lengths,
        options["max_tokens"],
        peers,
        lambda done, total: console.progress.count(done, total, "benchmarking"),
    )
    try:
        bench.run()
    except BaseException:
        if bench.timed:
            _report(_about(model, bench, options), bench, absent, args, console)
        raise
    _report(_about(model, bench, options), bench, absent, args, console)
    return _FAILED if any(runs.fault is not None for runs in bench.arms) else 0


def _report(
    about: dict[str, Any], bench: Bench, absent: dict[str, str], args: argparse.Namespace, console: Console
) -> None:
    from foredraft.measure.bench.report import BenchReport

    console.progress.close()
    document = {**about, **BenchReport(bench).to_dict()}
    document["peers"] += [_absent(name, why) for name, why in absent.items()]
    if args.json:
        console.print(json.dumps(document))
        return
    tell(document, console)
    console.remark(
        "oracle: percent of what drafting the known answer gains; best fixed: of the best draft length, in ()"
    )


class Subject:
    """A loaded model as a benchmark asks it: by ``generate``, its rounds watched, and replays of its drafters."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], options: Options) -> None:
        self._model = model
        self._prompts = prompts
        self._options = options
        model.onlookers.append(self._look)

    def answer(self, prompt: int, drafter: str | Drafter, draft_tokens: int | None = None) -> Answered:
        """Answer a prompt. Raises what generation does, and DrafterError where a drafter was dropped on the way."""
        from foredraft.measure.bench.bench import Answered
        from foredraft.options import parse_options
        from foredraft.planning.choose import Chooser

        length = "auto" if draft_tokens is None else draft_tokens
        asked: Options = {**self._options, "drafter": drafter, "draft_tokens": length}
        drafting = self._model.runtime.drafters.of(parse_options(asked))
        before = _faults(drafting)
        result = self._model.generate(self._prompts[prompt], **asked)
        if isinstance(drafting, Chooser) and _faults(drafting) > before:  # the answer went on without it
            raise DrafterError(drafting.notice or f"drafter {drafting.name} was dropped")
        return Answered(tuple(result.token_ids), tuple(self._watch.rounds))

    def replay(self, prompt: int, drafter: str, draft_tokens: int, answer: Sequence[int]) -> Sequence[Spent]:
        """Return the rounds at a fixed length: without the target's passes where the drafter can do without them."""
        from foredraft.measure.bench.oracle import replay, replayable
        from foredraft.options import parse_options
        from foredraft.runtime.request import Requests

        settings = parse_options({**self._options, "drafter": drafter, "draft_tokens": draft_tokens})
        drafting = self._model.runtime.drafters.of(settings)
        if not replayable(drafting):
            return self.answer(prompt, drafter, draft_tokens).rounds
        loaded = self._model.loaded
        (request,) = Requests(loaded).make(self._prompts[prompt], settings)
        return replay(drafting, request.sequence, answer, draft_tokens, loaded.target.vocabulary)

    def _look(self, planner: Planner) -> Watch:  # noqa: ARG002 - a stopwatch asks nobody
        from foredraft.measure.bench.rounds import Stopwatch

        self._watch = Stopwatch()
        return self._watch


def _faults(drafter: Drafter) -> int:
    """Return how often the drafters that a planner chooses among broke so far."""
    from foredraft.planning.choose import Chooser

    return sum(source.faults for source in drafter.sources) if isinstance(drafter, Chooser) else 0


def _drafters(named: str | None) -> tuple[str, ...]:
    from foredraft.runtime.drafter_names import check_names

    if named is not None and not named.strip(" ,"):
        raise OptionError(f"--drafters names nobody: give drafters with commas between them, not {named!r:.40}")
    names = tuple(dict.fromkeys(name.strip() for name in (named or "auto").split(",")))
    for name in names:
        check_names(name)
        find_own_classes(name)
    return names


def _options(args: argparse.Namespace) -> Any:
    """Return the options of every answer. A drawn text has a seed, so that it is the same whoever drafts."""
    from foredraft.options import parse_options

    options: dict[str, Any] = {"max_tokens": MAX_TOKENS if args.max_tokens is None else args.max_tokens}
    if args.temperature:
        options |= {"temperature": args.temperature, "seed": 0 if args.seed is None else args.seed}
        if args.peers:
            raise OptionError("--peers compares greedy decoding, for no two libraries draw alike: no --temperature")
    elif args.seed is not None:
        raise OptionError("seed has nothing to seed: greedy decoding draws nothing, give --temperature too")
    parse_options(options)  # type: ignore[arg-type]
    return options


def _prompts(args: argparse.Namespace, console: Console) -> tuple[list[str], list[str]]:
    """Return the prompts and what task each belongs to."""
    from foredraft.measure.bench.questions import KINDS, QUESTIONS

    if args.per_task is not None and args.per_task < 1:
        raise OptionError(f"--per-task must be at least 1, not {args.per_task}")
    named = list(zip(QUESTIONS, KINDS, strict=True))
    if args.prompts is not None:
        lines = read_lines(args.prompts, console.stdin)
        named = [(line.turns[0], line.category or "other") for line in lines]
    taken: dict[str, int] = {}
    texts, tasks = [], []
    for text, task in named:
        taken[task] = taken.get(task, 0) + 1
        if args.per_task is None or taken[task] <= args.per_task:
            texts.append(text)
            tasks.append(task)
    return texts, tasks


def _load(args: argparse.Namespace, console: Console) -> LanguageModel:
    names = ("drafter", "draft_tokens", "draft_temperature", "speculative_config")
    return load_model(argparse.Namespace(**vars(args), **dict.fromkeys(names), cache_share=False), console)


def _peers(args: argparse.Namespace, model: LanguageModel, longest: int) -> tuple[Sequence[Peer], dict[str, str]]:
    from foredraft.measure.bench.peers import find_peers

    return find_peers(model.loaded, args.model, args.threads, longest) if args.peers else ((), {})


def _absent(name: str, why: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {"tokens_per_s": None, "over_plain": None, "over_drafters": {}}
    return {"peer": name, "answers": 0, "identical": 0, **nothing, "fault": why}


def _about(model: LanguageModel, bench: Bench, options: Options) -> dict[str, Any]:
    loaded = model.loaded
    return {
        "model": loaded.name,
        "system_fingerprint": loaded.fingerprint,
        "tier": loaded.tier,
        "dtype": loaded.dtype,
        "prompts": len(bench.plain.answers),
        "max_tokens": bench.max_tokens,
        "temperature": options.get("temperature", 0.0),
        "seed": options.get("seed"),
    }
