"""What consumers are made of. The parts are the same for threads and for asyncio; only the engines differ."""
