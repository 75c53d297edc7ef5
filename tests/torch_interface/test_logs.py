"""Torch's own words about calls that fail."""

from __future__ import annotations

import logging

import pytest

from verifycompile.torch_interface.logs import without_logged_failures


def test_nothing_is_logged_inside_and_everything_afterwards(caplog: pytest.LogCaptureFixture):
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(caplog.handler)
    try:
        with without_logged_failures():
            log.error("inside")
        log.error("afterwards")
    finally:
        log.removeHandler(caplog.handler)
    assert caplog.messages == ["afterwards"] * len(caplog.messages)
    assert caplog.messages
