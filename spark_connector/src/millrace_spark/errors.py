"""Errors of the connector."""


class MillraceSparkError(Exception):
    """Raised when a read or write through Spark fails. The message is a sentence that says what to do."""


class OptionError(MillraceSparkError):
    """Raised for an option or a schema that `format("millrace")` does not support."""


class DataLossError(MillraceSparkError):
    """Raised when events are gone before they were read. With `failOnDataLoss` set to false, the read goes on."""
