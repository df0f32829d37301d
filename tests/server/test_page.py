"""The page, in a real browser against a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import foredraft
from foredraft import LanguageModel
from tests.server.browser import Browser, find
from tests.server.client import Serve
from tests.server.faulty import Faulty
from tests.tiny import SPECIAL, make_chat_model

pytest.importorskip("uvicorn", reason="the server needs the serve extra")
from foredraft.server.keys import Keys
from foredraft.server.state import ServerState
from tests.server.live import Live

if find() is None:
    pytest.skip("there is no browser of the Chromium kind", allow_module_level=True)

KEY = "sk-this-is-a-key"
PROMPT = "abc abd"
FREE = "document.querySelector('#send').getAttribute('aria-disabled') === 'false'"
LOG = "document.querySelector('#log')"
TOKENS = "[...document.querySelectorAll('article:last-child .token')]"
WROTE = f"{TOKENS}.map((token) => token.textContent).join('')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(find() or "", tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


class Page:
    """The page of one server, as somebody uses it."""

    def __init__(self, browser: Browser, server: Live) -> None:
        self.browser = browser
        self.server = server

    def open(self, **screen: Any) -> Page:
        self.browser.open(f"http://127.0.0.1:{self.server.port}/", **screen)
        return self

    def ask(self, text: str, **options: str) -> None:
        """Send a prompt, by the keyboard."""
        for name, value in options.items():
            if name == "drafter":
                self.browser.run(f"document.querySelector('#drafter').value = {json.dumps(value)}")
            else:
                self.browser.write(f"#{name}", value)
        self.browser.write("#prompt", text)
        self.browser.press("Enter", ctrl=True)

    def answer(self, text: str, **options: str) -> str:
        """Send a prompt, and return what was written once it is."""
        self.ask(text, **options)
        self.browser.wait(FREE)
        assert self.browser.text("#alert") == ""
        wrote = self.browser.run(WROTE)
        assert isinstance(wrote, str)
        return wrote

    def complaint(self) -> str:
        self.browser.wait("document.querySelector('#alert').textContent")
        return self.browser.text("#alert")


@pytest.fixture(scope="module")
def live(open_server: Serve) -> Iterator[Live]:
    with Live(open_server().app.state.server) as server:
        yield server


@pytest.fixture
def page(browser: Browser, live: Live) -> Page:
    return Page(browser, live).open()


def test_an_answer_shows_who_wrote_it(page: Page, alone: LanguageModel) -> None:
    browser = page.browser
    wrote = page.answer(PROMPT, drafter="suffix", draft_tokens="4", max_tokens="60")
    assert wrote == alone.generate(PROMPT, max_tokens=60).text
    guessed = browser.run(f"{TOKENS}.filter((token) => token.matches('.guess.suffix')).map((token) => token.title)")
    assert set(guessed) == {"guessed by suffix, accepted"}
    assert browser.run(f"getComputedStyle({TOKENS}.find((t) => t.matches('.guess'))).textDecorationLine") == "underline"
    others = browser.run(f"[...new Set({TOKENS}.filter((token) => !token.matches('.guess')).map((t) => t.title))]")
    assert others
    assert all(title.startswith(("correction: ", "bonus: ", "plain: ")) for title in others)
    row = "[row.children[0].textContent, Number(row.children[2].textContent)]"
    rows = browser.run(f"[...document.querySelectorAll('#legend li')].map((row) => {row})")
    assert sum(count for _, count in rows) == 60
    assert dict(rows)["suffix"] > 0
    assert float(browser.text("#pass")) > 1.0
    assert float(browser.text("#speed")) > 0
    assert browser.text("article:last-child .foot").startswith("60 tokens, ")
    assert browser.text("#status") == "Done."
    browser.click("article:last-child .guess.suffix")
    assert browser.text("#status").endswith("– guessed by suffix, accepted.")
    assert browser.said == []


def test_without_guesses_it_is_all_plain(page: Page, alone: LanguageModel) -> None:
    assert page.answer(PROMPT, drafter="off", max_tokens="30") == alone.generate(PROMPT, max_tokens=30).text
    assert page.browser.run(f"{TOKENS}.every((token) => token.className === 'token plain')")
    assert page.browser.text("#pass") == "1.00"


def test_a_conversation_has_turns(page: Page, alone: LanguageModel) -> None:
    options = {"temperature": "1.2", "seed": "4", "max_tokens": "12", "system": "be brief"}
    turns = [{"role": "system", "content": "be brief"}]
    for words in ("abc", "xyz", "once more"):
        turns.append({"role": "user", "content": words})
        mine = alone.generate([*turns], temperature=1.2, seed=4, max_tokens=12).text
        assert page.answer(words, **options) == mine
        turns.append({"role": "assistant", "content": mine})
    assert page.browser.run("document.querySelectorAll('article').length") == 6
    page.browser.click("#clear")
    assert page.browser.run("document.querySelectorAll('article').length") == 0
    again = alone.generate([turns[0], {"role": "user", "content": "abc"}], temperature=1.2, seed=4, max_tokens=12)
    assert page.answer("abc") == again.text


def test_a_completion_goes_on_with_the_text(page: Page, alone: LanguageModel) -> None:
    page.browser.click("input[value=completion]")
    assert page.browser.run("document.querySelector('#system-row').hidden")
    wrote = page.answer(PROMPT, max_tokens="20", temperature="0.9", seed="7")
    assert wrote == alone.generate(PROMPT, raw=True, max_tokens=20, temperature=0.9, seed=7).text
    assert page.browser.text("article:last-child .given") == PROMPT
    assert page.browser.run("document.querySelector('#prompt').value") == PROMPT


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, cache: Path, open_server: Serve) -> Iterator[Live]:
    """A model whose every third word is HTML that would run."""
    folder = make_chat_model(tmp_path_factory.mktemp("hostile") / "model", vocab_size=400)
    forms = ('<img src=x onerror="pwned=1">{}', "<script>pwned=1</script>{}", "</p><svg/onload=pwned=1>{}")
    ids = {word: i for i, word in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL])}
    ids |= {forms[i % 3].format(i).replace(" ", "Ġ"): 260 + i for i in range(140)}
    backend = Tokenizer(models.BPE(ids, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    model = foredraft.load(folder, dtype="f64", cache=cache, offline=True)
    with Live(open_server(model).app.state.server) as server:
        yield server


def test_what_the_model_says_never_becomes_html(browser: Browser, hostile: Live) -> None:
    page = Page(browser, hostile).open()
    kinds = "document.querySelectorAll('#log img, #log script, #log svg, #alert *').length"
    for kind in ("chat", "completion"):
        browser.click(f"input[value={kind}]")
        wrote = page.answer("<img src=x onerror='pwned=1'>", temperature="1", seed="3", max_tokens="60")
        assert '<img src=x onerror="pwned=1">' in wrote
        assert "<script>" in wrote
        assert wrote in browser.text("article:last-child .said")
        assert browser.run(kinds) == 0
    browser.click("article:last-child .token")
    page.ask("x", draft_tokens="<img src=x onerror='pwned=1'>")
    assert page.complaint() == "Draft length must be a whole number between 0 and 64."
    assert browser.run(f"{kinds} + Number('pwned' in window)") == 0
    assert browser.said == []


def test_the_policy_holds_in_a_browser(page: Page) -> None:
    """Text cannot become HTML even where the page tries, and nothing is sent elsewhere."""
    for attempt in (
        "document.body.innerHTML = '<b>x'",
        "document.body.setAttribute('onclick', 'pwned = 1')",
        "document.body.append(Object.assign(document.createElement('script'), {text: 'pwned = 1'}))",
    ):
        tried = f"(() => {{ try {{ {attempt}; }} catch (fault) {{ return fault.name; }} }})()"
        assert page.browser.run(tried) == "TypeError"
    elsewhere = "fetch('http://localhost:9/').then(() => 'sent', (fault) => fault.name)"
    assert page.browser.run(elsewhere) == "TypeError"
    assert any("connect-src 'self'" in said for said in page.browser.said)
    assert page.browser.run("'pwned' in window") is False


Gate = tuple[Page, Faulty, threading.Event]


@pytest.fixture
def gated(browser: Browser, load: Callable[..., LanguageModel], open_server: Serve) -> Iterator[Gate]:
    """A model that stops in the middle of an answer until it is let go."""
    model, gate = load(drafter="none"), threading.Event()
    client = open_server(model)
    faulty = Faulty.in_(model)
    with Live(client.app.state.server) as server:
        yield Page(browser, server).open(), faulty, gate
        gate.set()


def hold(gate: threading.Event, after: int) -> Callable[[int], None]:
    """Return what lets so many passes through."""
    passes = iter(range(10**9))
    return lambda _: None if next(passes) < after else (gate.wait(30), None)[1]


@pytest.mark.parametrize("by", ["Escape", "a click"])
def test_an_answer_can_be_stopped(gated: Gate, by: str) -> None:
    page, faulty, gate = gated
    browser = page.browser
    faulty.before = hold(gate, 8)
    page.ask(PROMPT, max_tokens="400")
    browser.wait(f"{TOKENS}.length >= 6")
    assert browser.run("document.querySelector('article:last-child').getAttribute('aria-busy')") == "true"
    assert browser.text("#status") == "Writing…"
    page.browser.press("Enter", ctrl=True)  # one at a time
    assert browser.run("document.querySelectorAll('article').length") == 2
    if by == "Escape":
        browser.press("Escape")
    else:
        browser.click("#stop")
    browser.wait(FREE)
    gate.set()
    assert browser.text("article:last-child .foot").endswith("stopped.")
    assert browser.text("#status") == "Stopped."
    assert page.answer("xyz", max_tokens="5")  # and what was said is part of the conversation


def test_stopped_before_anything_came(gated: Gate) -> None:
    page, faulty, gate = gated
    faulty.before = hold(gate, 0)
    page.ask(PROMPT)
    page.browser.press("Escape")
    page.browser.wait(FREE)
    gate.set()
    assert page.browser.text("#status") == "Stopped before the first token."
    assert page.browser.run("document.querySelector('#prompt').value") == PROMPT
    assert page.browser.run("document.querySelectorAll('article').length") == 0


def test_a_fault_in_mid_answer_is_a_sentence(gated: Gate) -> None:
    page, faulty, _ = gated

    def fail(passes: int) -> None:
        if passes > 10:
            raise RuntimeError("<b>the target broke</b>")

    faulty.before = fail
    page.ask(PROMPT, max_tokens="100")
    assert page.complaint().endswith(".")
    assert page.browser.run("document.querySelectorAll('#alert *').length") == 0
    page.browser.wait(FREE)
    assert page.browser.text("article:last-child .foot").endswith("broken off.")
    faulty.before = lambda _: None
    assert page.answer("xyz", max_tokens="5")


def test_a_connection_that_breaks_is_a_sentence(gated: Gate) -> None:
    page, faulty, gate = gated
    faulty.before = hold(gate, 8)
    page.ask(PROMPT, max_tokens="400")
    page.browser.wait(f"{TOKENS}.length >= 6")
    connections = page.server.server.server_state.connections
    for connection in list(connections):
        connection.loop.call_soon_threadsafe(connection.transport.abort)
    assert page.complaint() == "The answer broke off: the server closed the connection."
    gate.set()
    page.browser.wait(FREE)
    assert page.browser.text("article:last-child .foot").endswith("broken off.")


def test_a_server_that_has_gone_is_a_sentence(browser: Browser, open_server: Serve) -> None:
    with Live(open_server().app.state.server) as server:
        page = Page(browser, server).open()
        browser.wait("document.querySelector('#facts').textContent.includes('·')")
    page.ask(PROMPT)
    assert page.complaint() == "The server cannot be reached: is it still running?"
    assert browser.run("document.querySelector('#prompt').value") == PROMPT
    browser.wait("document.querySelector('#facts').textContent.startsWith('The server cannot be reached')")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", "hot", "Temperature must be a number between 0 and 100."),
        ("temperature", "-1", "Temperature must be a number between 0 and 100."),
        ("seed", "1.5", "Seed must be a whole number between 0 and 9007199254740991."),
        ("max_tokens", "0", "Max tokens must be a whole number between 1 and 2147483647."),
        ("draft_tokens", "65", "Draft length must be a whole number between 0 and 64."),
    ],
)
def test_a_wrong_option_is_a_sentence_at_its_field(page: Page, field: str, value: str, words: str) -> None:
    page.ask(PROMPT, **{field: value})
    assert page.complaint() == words
    assert page.browser.run("document.activeElement.id") == field
    assert page.browser.run("document.activeElement.getAttribute('aria-invalid')") == "true"
    page.answer(PROMPT, **{"max_tokens": "4", field: "" if field != "max_tokens" else "5"})
    assert page.browser.run("document.querySelectorAll('[aria-invalid]').length") == 0


def test_what_the_server_refuses_is_a_sentence(page: Page) -> None:
    page.ask(" \n")
    assert page.complaint() == "Write a message first."
    page.ask("x" * 3000)
    assert "512" in page.complaint()
    assert page.browser.run("document.activeElement.id") == "prompt"
    page.ask(PROMPT, drafter="heads")
    page.browser.wait("document.querySelector('#alert').textContent.includes('heads')")
    assert page.browser.run("document.activeElement.id") == "drafter"


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, open_server: Serve) -> None:
    with Live(open_server(keys=Keys([KEY])).app.state.server) as server:
        page = Page(browser, server).open()
        browser.wait("document.querySelector('#facts').textContent === 'This server needs an API key.'")
        for key, words in (
            ("", "This server needs an API key."),
            ("sk-another-key", "This API key is not known here."),
            ("sk-ümlaut", "An API key has printable ASCII characters and no spaces."),
        ):
            page.ask(PROMPT, key=key)
            browser.wait(f"document.querySelector('#alert').textContent === {json.dumps(words)}")
            assert browser.run("document.activeElement.id") == "key"
            browser.wait(FREE)
        assert page.answer(PROMPT, key=KEY, max_tokens="5")
        assert browser.run("document.querySelector('#key-row').hidden")
        assert page.answer(PROMPT, max_tokens="5")  # the key is still there
        browser.wait("document.querySelector('#facts').textContent.startsWith('tiny · ')")
        kept = "[localStorage.length, sessionStorage.length, document.cookie, location.search]"
        assert browser.run(kept) == [0, 0, "", ""]
        assert browser.run("document.querySelector('#key').type") == "password"


def test_a_model_that_is_being_loaded(browser: Browser, open_server: Serve) -> None:
    ready: ServerState = open_server().app.state.server
    state = ServerState("tiny")
    with Live(state) as server:
        page = Page(browser, server).open()
        browser.wait("document.querySelector('#facts').textContent.startsWith('The model tiny is being loaded')")
        page.ask(PROMPT)
        assert page.complaint().startswith("The model tiny is being loaded")
        state.served = ready.served
        browser.wait("document.querySelector('#facts').textContent.startsWith('tiny · ')")
        assert page.answer(PROMPT, max_tokens="5")


def test_the_server_is_drawn(page: Page) -> None:
    browser = page.browser
    page.answer(PROMPT, drafter="suffix", draft_tokens="4", max_tokens="60")
    browser.wait("[...document.querySelectorAll('path.line')].every((path) => path.getAttribute('d').startsWith('M'))")
    # what was drawn a moment before the answer knows nothing of it
    browser.wait("Number(document.querySelectorAll('svg')[1].getAttribute('aria-label').split(' ').at(-1)) > 0")
    labels = browser.run("[...document.querySelectorAll('svg')].map((svg) => svg.getAttribute('aria-label'))")
    assert [label.partition(":")[0] for label in labels] == ["Load", "Draft length", "Acceptance"]
    assert "of 8 running" in labels[0]
    assert 0 < float(labels[1].rpartition(" ")[2]) <= 4
    assert labels[2].endswith(" %")


def test_every_control_is_named_and_in_reach_of_the_keyboard(page: Page) -> None:
    browser = page.browser
    controls = "[...document.querySelectorAll('input, select, textarea')]"
    assert browser.run(f"{controls}.filter((each) => !each.labels.length).map((each) => each.id)") == []
    ids = browser.run("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    assert browser.run("document.activeElement.id") == "prompt"
    browser.run("document.querySelector('#log').focus()")
    reached = []
    outlined = "getComputedStyle(document.activeElement).outlineStyle"
    for _ in range(16):
        browser.press("Tab")
        reached.append(browser.run("document.activeElement.id || document.activeElement.tagName.toLowerCase()"))
        assert browser.run(outlined) == "solid", reached
    assert reached == [
        *["button"] * 3, "input", "coloured", "prompt", "send", "stop", "clear", "summary", "drafter", "draft_tokens",
        "temperature", "seed", "max_tokens", "system",
    ]  # fmt: skip


_CONTRAST = """(() => {
  const pixel = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  const painted = (colours) => {
    for (pixel.fillStyle of ["#fff", ...colours]) pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colours) => painted(colours).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) =>
    (element ? [...ground(element.parentElement), getComputedStyle(element).backgroundColor] : []);
  const ratios = {};
  for (const element of document.querySelectorAll("h1, h2, p, b, dd, dt, label, summary, button, span")) {
    if (!element.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest("[aria-disabled=true]")) continue;
    const under = ground(element);
    const both = [light(under), light([...under, getComputedStyle(element).color])];
    const name = `${element.tagName} ${element.className} ${element.id}`;
    ratios[name] = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  }
  return ratios;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_in_dark(browser: Browser, live: Live, dark: bool) -> None:
    page = Page(browser, live).open(dark=dark)
    page.answer(PROMPT, drafter="suffix", draft_tokens="4", max_tokens="60")
    page.ask(PROMPT, seed="x")
    page.complaint()
    browser.run(
        "for (const name of ['lookup', 'heads', 'layers', 'model', 'other0', 'other1', 'other2'])"
        " document.querySelector('#log').append(Object.assign(document.createElement('span'),"
        " {className: `token guess ${name}`, textContent: name}))"
    )
    ratios = browser.run(_CONTRAST)
    assert len(ratios) > 25
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(14, 17, 21)") is dark


@pytest.mark.parametrize("height", [640, 740])
def test_it_fits_a_phone(browser: Browser, live: Live, height: int) -> None:
    page = Page(browser, live).open(width=360, height=height)
    overflow = "document.documentElement.scrollWidth"
    assert browser.run(overflow) == 360
    send = "document.querySelector('#send').getBoundingClientRect()"
    assert browser.run(f"{send}.bottom") <= height  # without scrolling
    assert browser.run("document.querySelector('#options').open") is False
    page.answer("a" * 100, max_tokens="100")
    browser.run("document.querySelector('#options').open = true")
    page.ask(PROMPT, seed="x")
    page.complaint()
    assert browser.run(overflow) == 360


@pytest.mark.parametrize("still", [False, True])
def test_nothing_moves_for_whom_it_should_not(browser: Browser, live: Live, still: bool) -> None:
    page = Page(browser, live).open(still=still)
    page.answer(PROMPT, max_tokens="4")
    browser.run("document.querySelector('article:last-child').setAttribute('aria-busy', 'true')")
    name = browser.run("getComputedStyle(document.querySelector('article:last-child .said'), '::after').animationName")
    assert name == ("none" if still else "blink")


def test_writers_can_be_hidden(page: Page) -> None:
    page.answer(PROMPT, max_tokens="10", drafter="suffix", draft_tokens="4")
    grounds = f"[...new Set({TOKENS}.map((t) => getComputedStyle(t).backgroundColor + getComputedStyle(t).boxShadow))]"
    assert len(page.browser.run(grounds)) > 1
    page.browser.click("#coloured")
    assert page.browser.run(grounds) == ["rgba(0, 0, 0, 0)none"]
