"""JSON Schema to the tokens that may come next."""

from .errors import InvalidSchema, UnsupportedSchema
from .grammar import GrammarCache, JsonGrammar, JsonGrammarState, compile_schema
from .stock import stock_schema, stock_schema_names
from .vocabulary import TokenVocabulary

__all__ = [
    "GrammarCache",
    "InvalidSchema",
    "JsonGrammar",
    "JsonGrammarState",
    "TokenVocabulary",
    "UnsupportedSchema",
    "compile_schema",
    "stock_schema",
    "stock_schema_names",
]
