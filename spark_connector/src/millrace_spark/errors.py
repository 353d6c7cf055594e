"""What the connector refuses."""


class MillraceSparkError(Exception):
    """Returned when reading or writing through Spark cannot go on; its message is a sentence that says what to do."""


class OptionError(MillraceSparkError):
    """Returned when an option or a schema is not one that `format("millrace")` knows."""


class DataLossError(MillraceSparkError):
    """Returned when events are gone that were to be read; `failOnDataLoss` set to false goes on without them."""
