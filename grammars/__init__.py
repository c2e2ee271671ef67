"""JSON Schema to the tokens that may come next."""

from .compile import BACKENDS, AnswerGrammar, compile_schema
from .errors import InvalidSchema, UnsupportedSchema
from .grammar import JsonGrammar, JsonGrammarState
from .grammar_cache import Compilation, GrammarCache
from .guidance_grammar import GuidanceGrammar, GuidanceState
from .stock import stock_schema, stock_schema_names
from .vocabulary import TokenVocabulary

__all__ = [
    "BACKENDS",
    "AnswerGrammar",
    "Compilation",
    "GrammarCache",
    "GuidanceGrammar",
    "GuidanceState",
    "InvalidSchema",
    "JsonGrammar",
    "JsonGrammarState",
    "TokenVocabulary",
    "UnsupportedSchema",
    "compile_schema",
    "stock_schema",
    "stock_schema_names",
]
