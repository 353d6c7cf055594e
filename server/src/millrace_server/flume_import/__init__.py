"""Import of Flume configurations: the counterparts, and a note for everything that has none."""
