"""Expressions as trees: parse, evaluate exactly, simplify, print back."""

from exprtree.evaluator import evaluate
from exprtree.nodes import Binary, Call, Literal, Name, Unary
from exprtree.parser import parse
from exprtree.printer import to_text
from exprtree.simplifier import simplify
from exprtree.syntax import EvalError, ExprError, ParseError

__all__ = ["Binary", "Call", "EvalError", "ExprError", "Literal", "Name", "ParseError", "Unary"]
__all__ += ["evaluate", "parse", "simplify", "to_text"]
