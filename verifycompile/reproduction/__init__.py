"""Scripts that show a difference of two programs and need torch alone."""

from verifycompile.reproduction.script import reproduction_script
from verifycompile.reproduction.source import NoScriptError

__all__ = ["NoScriptError", "reproduction_script"]
