"""Dead letters: what an agent has set aside in a channel, and how it gets back to where it came from."""
