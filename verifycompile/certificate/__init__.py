"""Stored proofs and their checker."""

from __future__ import annotations

from verifycompile.certificate.certificate import Certificate
from verifycompile.certificate.check import CertificateCheck, check_certificate

__all__ = ["Certificate", "CertificateCheck", "check_certificate"]
