"""All selectors that a configuration can name."""

from typing import Annotated

from pydantic import Field

from millrace_server.agent.selectors.custom import CustomSelectorConfig
from millrace_server.agent.selectors.load_balancing import LoadBalancingConfig
from millrace_server.agent.selectors.multiplexing import MultiplexingConfig
from millrace_server.agent.selectors.replicating import ReplicatingConfig

AnySelectorConfig = Annotated[
    ReplicatingConfig | MultiplexingConfig | LoadBalancingConfig | CustomSelectorConfig, Field(discriminator="type")
]
"""A selector's table, told apart by its `type`."""
