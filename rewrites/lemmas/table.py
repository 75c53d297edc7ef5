"""The table: all lemmas, by family."""

from __future__ import annotations

from verifycompile.rewrites.lemmas.exponentials import EXPONENTIALS
from verifycompile.rewrites.lemmas.indicators import INDICATORS
from verifycompile.rewrites.lemmas.lemma import Lemma
from verifycompile.rewrites.lemmas.products import PRODUCTS
from verifycompile.rewrites.lemmas.ranges import RANGES
from verifycompile.rewrites.lemmas.ring import LINEAR_ALGEBRA

TABLE: tuple[Lemma, ...] = (*LINEAR_ALGEBRA, *PRODUCTS, *INDICATORS, *EXPONENTIALS, *RANGES)
