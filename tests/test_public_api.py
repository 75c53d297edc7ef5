"""What ``import verifycompile`` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import verifycompile


def test_names() -> None:
    assert verifycompile.__all__ == [
        "CompareReport",
        "CrossCheckReport",
        "RefinementError",
        "Report",
        "UsageError",
        "Verdict",
        "check_certificate",
        "compare",
        "cross_check",
        "explain",
        "verify",
        "verify_graphs",
        "verify_step",
    ]
    for name in verifycompile.__all__:
        assert getattr(verifycompile, name).__name__ == name
        assert name in dir(verifycompile)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"^module 'verifycompile' has no attribute 'verfy'$"):
        verifycompile.verfy  # noqa: B018


@pytest.mark.parametrize("statement", ["import verifycompile", "import verifycompile; verifycompile.explain('VC101')"])
def test_torch_is_not_imported(statement: str) -> None:
    check = f"import sys; {statement}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
