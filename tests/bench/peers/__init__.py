"""Other products for the same purpose, each with its own client, if both are installed. They are optional."""
