"""erica-dist: pre-training of entity- and relation-aware language models at scale."""

__version__ = "0.1.0"
