"""What a person uses: the command line and its reports."""

__version__ = "0.1.0"
