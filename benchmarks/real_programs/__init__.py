"""Parallel programs of public packages, unmodified. A module a package; ``benchmarks.coverage`` runs them.

A module offers ``PACKAGE`` (a ``Package``), ``cases()`` and ``check(case)``. It imports its package inside of
``check`` alone: nothing here is needed to install, test or use verifycompile.
"""
