"""torch's log output is suppressed while a model is exported."""

from __future__ import annotations

import logging
import sys

import pytest

from fuseconv.program.quiet import quiet_torch


class _StderrHandler(logging.Handler):
    """A handler like that of torch 2.11, which is no StreamHandler."""

    __module__ = "torch._logging._internal"

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(record.getMessage())


@pytest.mark.parametrize("handler", [_StderrHandler, lambda: logging.StreamHandler(sys.stderr)], ids=["own", "stream"])
def test_only_the_handlers_of_others_record_what_torch_logs(
    handler: type[logging.Handler], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    logger, messages = logging.getLogger("torch.fuseconv_test_quiet"), []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger.handlers, logger.propagate = [handler(), Kept()], False
    with quiet_torch():
        logger.warning("suppressed")
    logger.warning("printed")
    assert messages == ["suppressed", "printed"]
    assert capsys.readouterr().err.strip() == "printed"
