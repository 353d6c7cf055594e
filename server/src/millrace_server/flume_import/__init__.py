"""Import of a Flume agent: the conversion of properties files to a TOML file."""

from millrace_server.flume_import.agent import FlumeImportError, ImportedAgent, agents_of, import_agent
from millrace_server.flume_import.ledger import OUTCOME_WORDS, Note, Outcome
from millrace_server.flume_import.options import ImportSettings
from millrace_server.flume_import.properties import PropertiesError, Property, parse_properties

__all__ = [
    "OUTCOME_WORDS",
    "FlumeImportError",
    "ImportSettings",
    "ImportedAgent",
    "Note",
    "Outcome",
    "PropertiesError",
    "Property",
    "agents_of",
    "import_agent",
    "parse_properties",
]
