"""Dead letters: events that an agent has set aside in a channel, and their return to where they came from."""
