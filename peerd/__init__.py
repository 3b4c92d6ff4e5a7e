"""The peer daemon, its client API, its command line and its gateways."""

__version__ = "0.2.0"
