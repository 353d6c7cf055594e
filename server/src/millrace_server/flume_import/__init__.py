"""Import of a Flume agent: from files of properties to a TOML file."""

from millrace_server.flume_import.agent import FlumeImportError, ImportedAgent, Wishes, agents_of, import_agent
from millrace_server.flume_import.ledger import FATE_WORDS, Fate, Note
from millrace_server.flume_import.properties import PropertiesError, Property, parse_properties

__all__ = [
    "FATE_WORDS",
    "Fate",
    "FlumeImportError",
    "ImportedAgent",
    "Note",
    "PropertiesError",
    "Property",
    "Wishes",
    "agents_of",
    "import_agent",
    "parse_properties",
]
