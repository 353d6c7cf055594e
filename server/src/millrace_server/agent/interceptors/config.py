"""All interceptors that a configuration can name."""

from millrace_server.agent.interceptors.static import StaticConfig

AnyInterceptorConfig = StaticConfig
"""An interceptor's table, told apart by its `type`."""
