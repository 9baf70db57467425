"""XML of strangers: no entities, nothing fetched."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ipll.errors import DataError


class Declared(Exception):
    """A document type is declared: entities could be, too, that grow without end or name files of ours."""


def parse_xml(content: bytes, path: Path) -> Element:
    """-> the root; a DataError where it is no XML, or declares a document type."""
    builder, parser = TreeBuilder(), expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data

    def refuse(*_: object) -> None:
        raise Declared

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
        return builder.close()
    except Declared:
        raise DataError(
            f"{path} declares a document type (<!DOCTYPE>), which no export does. Remove it, or export again."
        ) from None
    except (expat.ExpatError, ValueError) as error:
        raise DataError(f"{path} is not XML, or damaged ({error}). Export it again.") from None
