"""``python -m verifycompile``."""

import sys

from verifycompile.cli import main

sys.exit(main())
