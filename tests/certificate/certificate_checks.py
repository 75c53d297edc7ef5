"""What is read as a certificate, and what is none: its text, its fields, its format, and what was packed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.lemmas.conditions import Check
from verifycompile.certificate import certificate, packing
from verifycompile.certificate.certificate import FIELDS, FORMAT_VERSION, Certificate, seal_of

NONE = "not a verifycompile certificate"


def content(**changed: Any) -> dict[str, Any]:
    """Data of the form of a certificate, which nothing proved."""
    data = {**dict.fromkeys(sorted(FIELDS), ""), "version": FORMAT_VERSION, "relations": {}, "assumptions": ["one"]}
    return {**data, "seal": seal_of(data), **changed}


def made(data: dict[str, Any]) -> Certificate:
    return Certificate(lambda: data, data["relations"], data["assumptions"])


def raised(run: Callable[[], object]) -> str:
    """What a ValueError says; ``""`` where there is none."""
    try:
        run()
    except ValueError as error:
        return str(error)
    return ""


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for check in (_of_equal_ones, _of_texts, _of_other_data, _of_packed_texts, _of_seals):
        yield check.__name__.strip("_"), check


def _of_equal_ones() -> None:
    one, same, other = made(content()), made(content()), made(content(steps=[1]))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != content()
    assert one.assumptions == ("one",)
    assert other.steps == (1,)


def _of_texts() -> None:
    """One that is longer than a limit is packed, and is the same when it is read."""
    plain = made(content()).to_json()
    assert json.loads(plain) == content()
    for most, is_packed in ((len(plain), False), (len(plain) - 1, True), (len(plain) + 1, False)):
        with mock.patch.object(certificate, "_LONGEST", most):
            text = made(content()).to_json()
        assert (json.loads(text).keys() == {"packed"}) is is_packed
        assert Certificate.from_json(text) == made(content())


def _of_other_data() -> None:
    for data in ([], {}, 7, None, "packed", ["packed"], {"version": FORMAT_VERSION}, content(more=1)):
        assert raised(lambda data=data: Certificate.from_json(json.dumps(data))) == NONE
    for name in FIELDS:
        fewer = {field: value for field, value in content().items() if field != name}
        assert raised(lambda fewer=fewer: Certificate.from_json(json.dumps(fewer))) == NONE
    for version in (FORMAT_VERSION + 1, FORMAT_VERSION - 1, str(FORMAT_VERSION)):
        said = f"certificate format {version} is not the supported format {FORMAT_VERSION}"
        text = json.dumps(content(version=version))
        assert raised(lambda text=text: Certificate.from_json(text)) == said


def _of_packed_texts() -> None:
    packed = packing.packed("text")
    assert packing.unpacked(packed) == "text"
    early = f"{NONE}: it ends too early, or is too long"
    assert raised(lambda: packing.unpacked(packing.packed("text" * 99)[:-30])) == early
    for most, said in ((4, ""), (3, early)):
        with mock.patch.object(packing, "_LONGEST_UNPACKED", most):
            assert raised(lambda: packing.unpacked(packed)) == said
    assert raised(lambda: packing.unpacked("abcde")).startswith(f"{NONE}: ")
    both = json.dumps({"packed": packed, **content()})
    assert raised(lambda: Certificate.from_json(both)) == NONE


def _of_seals() -> None:
    """All counts but the seal."""
    seal = seal_of(content())
    assert seal == seal_of(content(seal="other"))
    assert all(seal != seal_of({**content(), name: 1}) for name in FIELDS - {"seal"})
