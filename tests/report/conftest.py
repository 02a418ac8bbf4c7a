"""One browser for all tests of a process: a tab is cheap, a browser is not."""

import pytest

from tests.report.browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def pytest_itemcollected(item):
    if "browser" in item.fixturenames:
        item.add_marker(pytest.mark.needs("chromium"))
        item.add_marker(pytest.mark.slow)
