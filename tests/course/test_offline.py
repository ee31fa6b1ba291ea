"""A page opened from disk works without a network: mathematics and widgets, and no request to another host."""

import pytest
from browser import CHROMIUM, Page

from kvcourse.course import vendor
from kvcourse.course.build import build_book
from kvcourse.course.manifest import read_manifest
from kvcourse.errors import InputError

WORKS = "document.body.innerText.includes('widget-alive-7') && document.querySelector('mjx-container svg') !== null"


@pytest.fixture
def assets():
    try:
        return vendor.fetch()
    except InputError as error:
        pytest.skip(f"no browser assets: {error}")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_page_from_disk_asks_nobody(executed, assets, tmp_path):
    out = build_book(read_manifest(executed), offline=True)
    with Page(tmp_path / "profile") as page:
        assert page.open(out / "notebooks/00_first.html", until=WORKS)
        assert page.errors() == []
        requests = page.requests()
    assert any(url.endswith("/vendor/anywidget.js") for url in requests)
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
