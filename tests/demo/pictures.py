"""`make pictures`: the screenshots in the documentation, from the demo in a real browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import sync_playwright

from demo.running import PATIENCE_S, Demo
from servers import binaries

FOLDER = Path(__file__).parents[2] / "docs" / "assets"


def take() -> None:
    program = binaries.require("chromium")
    with Demo() as demo, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto(demo.address)
        page.locator('body[data-state="idle"]').wait_for()
        page.locator('[data-scenario="other"]').click()
        page.locator("#timeline [data-kind=mismatched]").wait_for()
        page.locator('body[data-state="idle"]').wait_for()
        page.screenshot(path=FOLDER / "demo.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    take()
