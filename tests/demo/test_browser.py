"""The page in a real browser: every button, with the protection off and on. Money is read from the bank."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from demo.running import PATIENCE_S, Demo
from servers import binaries
from servers.needing import needed

PATIENCE_MS = PATIENCE_S * 1000
KINDS = "items => items.flatMap(item => Array(Number(item.dataset.count)).fill(item.dataset.kind))"


@dataclass
class Seen:
    """What a press of a button came to: on the page, and at the bank."""

    requests: list[list[str]]
    verdict: str
    timeline: list[str]
    paid: list[int]
    left: int

    @property
    def last(self) -> list[str]:
        """How each request ended."""
        return [badges[-1] for badges in self.requests]


class Shop:
    """The page, and the bank behind it."""

    def __init__(self, page: Page, demo: Demo) -> None:
        self.page = page
        self._demo = demo
        self.account = page.locator("#line").inner_text().split()[1].rstrip(",")

    def press(self, scenario: str, *, protected: bool, until: str = "charged") -> Seen:
        """Press a button, wait until all is over and the timeline has told of `until`."""
        self.page.get_by_role("switch", name="Protection").set_checked(protected)
        before = self._statement()["balance"]
        self.page.locator(f'[data-scenario="{scenario}"]').click()
        self.wait()
        self.page.locator(f'#timeline [data-kind="{until}"]').first.wait_for()
        return self.seen(before)

    def wait(self) -> None:
        self.page.locator('body[data-state="idle"]').wait_for(timeout=PATIENCE_MS)

    def seen(self, before: int) -> Seen:
        page, now = self.page, self._statement()
        key = page.locator("#key").inner_text()
        rows = page.locator("#client li").all()
        assert page.locator("#balance").inner_text() == f"{now['balance'] / 100:.2f} €"
        assert page.locator("#ledger tbody tr.current").count() == sum(e["reference"] == key for e in now["entries"])
        return Seen(
            [row.locator(".badge").all_inner_texts() for row in rows],
            page.locator("#verdict-text").inner_text(),
            page.locator("#timeline li").evaluate_all(KINDS),
            [entry["amount"] for entry in now["entries"] if entry["reference"] == key],
            before - now["balance"],
        )

    def _statement(self) -> Any:
        with urlopen(f"{self._demo.address}/bank?account={self.account}") as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with Demo() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = needed("chromium", lambda: binaries.require("chromium"))
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments, timeout=PATIENCE_MS)
        yield browser
        browser.close()


def opened(browser: Browser, demo: Demo, at: str = "/", **options: object) -> Page:
    page = browser.new_page(**options)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    page.goto(demo.address + at)
    page.locator('body[data-state="idle"]').wait_for()
    return page


@pytest.fixture(scope="module")
def shop(browser: Browser, demo: Demo) -> Iterator[Shop]:
    """One page for all tests of this module. Nothing may go wrong in it, or be blocked by its own policy."""
    wrong: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            wrong.append(message.text)

    page = opened(browser, demo, viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", heard)
    page.reload()
    page.locator('body[data-state="idle"]').wait_for()
    yield Shop(page, demo)
    assert not wrong


@pytest.mark.parametrize("protected", [False, True])
def test_one_click_pays_once(shop: Shop, protected: bool) -> None:
    seen = shop.press("pay", protected=protected)
    assert (seen.paid, seen.left, seen.last) == ([2500], 2500, ["201 created"])
    assert seen.verdict.startswith("Charged once: 25.00 €")


@pytest.mark.parametrize(
    ("scenario", "times"), [("double", 2), ("lost", 2), ("parallel", 20), ("crash", 2), ("other", 2)]
)
def test_without_protection_money_leaves_more_than_once(shop: Shop, scenario: str, times: int) -> None:
    seen = shop.press(scenario, protected=False)
    assert len(seen.paid) == times
    assert seen.left == sum(seen.paid) == (12_400 if scenario == "other" else 2500 * times)
    assert seen.verdict.startswith("Charged twice" if times == 2 else "Charged 20 times")
    assert set(seen.last) <= {"201 created", "no answer"}
    assert "claimed" not in seen.timeline


@pytest.mark.parametrize(("scenario", "requests"), [("double", 2), ("parallel", 20)])
def test_clicks_at_once_pay_once(shop: Shop, scenario: str, requests: int) -> None:
    seen = shop.press(scenario, protected=True, until="completed")
    assert (seen.paid, seen.left, len(seen.requests)) == ([2500], 2500, requests)
    assert seen.verdict.startswith("Charged once")
    assert seen.last.count("201 created") == 1
    # On a machine that stands still for seconds a repeat may find a lapsed lease; it does not run then, either.
    assert set(seen.last) - {"409 outcome unknown"} <= {"201 created", "201 replayed"}
    assert seen.timeline.count("claimed") == 1


def test_a_lost_answer_is_replayed(shop: Shop) -> None:
    seen = shop.press("lost", protected=True, until="replayed")
    assert (seen.paid, seen.left) == ([2500], 2500)
    assert seen.requests == [["no answer"], ["201 replayed"]]
    order = [kind for kind in seen.timeline if kind in ("claimed", "charged", "completed", "lost", "replayed")]
    assert order == ["claimed", "charged", "completed", "lost", "replayed"]


def test_another_amount_under_the_same_key_is_refused(shop: Shop) -> None:
    seen = shop.press("other", protected=True, until="mismatched")
    assert (seen.paid, seen.left) == ([2500], 2500)
    assert seen.last == ["201 created", "422 key reused"]
    assert "mismatched" in seen.timeline


def test_a_crash_is_unknown_and_the_operator_resolves_it(shop: Shop) -> None:
    seen = shop.press("crash", protected=True, until="unknown")
    assert (seen.paid, seen.left) == ([2500], 2500)
    assert seen.last == ["no answer", "409 outcome unknown"]
    assert [kind for kind in seen.timeline if kind in ("charged", "killed", "started", "unknown")] == [
        *("charged", "killed", "started", "unknown"),
    ]
    shop.page.get_by_role("button", name="Ask the bank and resolve").click()
    shop.page.locator("#timeline [data-kind=replayed]").first.wait_for()
    shop.wait()
    resolved = shop.seen(before=0)
    assert resolved.paid == [2500]
    assert resolved.last[-1] == "201 replayed"
    assert resolved.verdict.startswith("Charged once: 25.00 €")
    assert shop.page.locator("#resolve").is_hidden()


def test_works_by_keyboard_alone(shop: Shop) -> None:
    page = shop.page
    switch = page.get_by_role("switch", name="Protection")
    before = switch.is_checked()
    switch.focus()
    page.keyboard.press("Space")
    assert switch.is_checked() is not before
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.scenario"))
    assert reached == ["pay", "double", "lost", "parallel", "crash", "other"]
    key = page.locator("#key").inner_text()
    page.keyboard.press("Enter")
    page.locator("#client li").nth(1).wait_for()
    shop.wait()
    assert page.locator("#key").inner_text() != key
    assert page.evaluate("document.activeElement.dataset.scenario") == "other", "the focus stays where it was"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone_in_light_and_dark(browser: Browser, demo: Demo, scheme: str) -> None:
    page = opened(browser, demo, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page.locator('[data-scenario="other"]').click()
    page.locator("#ledger tbody tr").first.wait_for()
    page.locator('body[data-state="idle"]').wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    red = int(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]"))
    assert (red > 128) == (scheme == "light")
    page.close()


def test_a_click_on_an_answer_shows_request_response_and_record(shop: Shop) -> None:
    shop.press("other", protected=True, until="mismatched")
    key = shop.page.locator("#key").inner_text()
    shop.page.get_by_role("button", name="422 key reused").click()
    dialog = shop.page.get_by_role("dialog", name="On the wire")
    request, response, record = (dialog.locator(f"#exchange-{part}") for part in ("request", "response", "record"))
    assert f"Idempotency-Key: {key}" in request.inner_text()
    assert request.inner_text().endswith('{"amount":9900}')
    assert response.inner_text().startswith("HTTP/1.1 422")
    record.filter(has_text="succeeded").wait_for()
    assert json.loads(record.inner_text())["name"] == key
    dialog.get_by_role("button", name="Close").click()
    assert dialog.is_hidden()


def test_the_code_behind_it_is_the_readme_s(shop: Shop) -> None:
    shop.page.get_by_text("The code that does this").click()
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = [line for line in shop.page.locator("details pre").inner_text().splitlines() if line]
    lines = [line.partition("  # ")[0].rstrip() for line in readme.splitlines()]
    assert set(shown) <= set(lines)


def test_an_empty_account_is_told_and_a_new_one_pays(browser: Browser, demo: Demo) -> None:
    page = opened(browser, demo, at="/?account=poor")
    shop = Shop(page, demo)
    body, headers = b'{"amount": 250000}', {"Account": "poor", "Content-Type": "application/json"}
    urlopen(Request(f"{demo.address}/unprotected/payments", body, headers)).close()
    seen = shop.press("pay", protected=True, until="completed")
    assert (seen.paid, seen.left, seen.last) == ([], 0, ["402 account empty"])
    assert "the account is empty" in seen.verdict
    page.get_by_role("button", name="New account").click()
    page.locator('body[data-state="idle"]').wait_for()
    assert page.locator("#balance").inner_text() == "2500.00 €"
    page.close()
