"""Finders search, and propose a lemma with a substitution. ``lemmas.dispose`` checks what they propose."""
